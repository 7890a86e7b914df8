"""What a supervisor does about its children: the rules of Erlang/OTP, one by one, and ours beyond them."""

from __future__ import annotations

import pytest
from family_simulator import IGNORE, ROLL, Simulator, child, supervise

from loopwarden._backoff import Backoff
from loopwarden.errors import (
    ChildBusyError,
    ChildExistsError,
    ChildUnavailableError,
    StartFailed,
    SupervisorGaveUp,
)
from loopwarden.supervision.policy._effects import EventKind, Note
from loopwarden.supervision.policy._machine import Phase
from loopwarden.supervision.policy._restart import ExitReason, exit_of

STRATEGIES = ["one_for_one", "rest_for_one", "one_for_all"]
GROUPS = ["rest_for_one", "one_for_all"]

BROKEN = RuntimeError("broken")

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
every_group = pytest.mark.parametrize("strategy", GROUPS)


class TestStart:
    @every_strategy
    @pytest.mark.parametrize("sequential", [False, True], ids=["parallel", "sequential"])
    def test_the_next_child_is_started_when_the_one_before_is_up(self, strategy: str, sequential: bool) -> None:
        boss = supervise("a", "b", "c", strategy=strategy, sequential=sequential)
        boss.slow_to_start = {"a", "b", "c"}

        boss.begin()
        only_a = boss.told()
        boss.start_is_over("a")
        then_b = boss.told()
        boss.start_is_over("b")
        then_c = boss.told()

        assert (only_a, then_b, then_c) == (["+a"], ["+b"], ["+c"])

    def test_the_supervisor_is_ready_once_all_are_up(self) -> None:
        boss = supervise("a", "b")
        boss.slow_to_start = {"b"}

        boss.begin()
        before = boss.times_ready
        boss.start_is_over("b")

        assert (before, boss.times_ready) == (0, 1)
        assert boss.family.phase is Phase.RUNNING

    def test_a_supervisor_without_children_is_ready_at_once(self) -> None:
        assert supervise().begin().times_ready == 1

    def test_the_supervisor_is_ready_only_once(self) -> None:
        boss = supervise("a").running()

        boss.crash("a")
        boss.start_child("b")

        assert boss.times_ready == 1

    @every_strategy
    def test_the_first_failure_stops_those_that_are_up_in_reverse_order(self, strategy: str) -> None:
        boss = supervise("a", "b", "c", "d", strategy=strategy)
        boss.outcomes = {"c": [BROKEN]}

        boss.begin()

        assert boss.log == ["+a", "+b", "+c", "-b", "-a"]
        assert boss.times_ready == 0

    def test_the_first_failure_is_why_the_supervisor_ends(self) -> None:
        boss = supervise("a", "b")
        boss.outcomes = {"b": [BROKEN]}

        boss.begin()

        [cause] = boss.finished
        assert isinstance(cause, StartFailed)
        assert (cause.child, cause.__cause__) == ("b", BROKEN)

    def test_a_failure_at_first_is_neither_retried_nor_counted(self) -> None:
        boss = supervise("a", intensity=None)
        boss.outcomes = {"a": [BROKEN]}

        boss.begin()

        assert boss.log == ["+a"]
        assert boss.family.restarts == 0
        assert boss.noted(EventKind.RESTARTING) == []
        assert boss.noted(EventKind.START_FAILED) == ["a"]

    def test_a_child_that_is_not_to_be_now_is_kept_as_a_spec(self) -> None:
        boss = supervise("a", "b")
        boss.outcomes = {"a": [IGNORE]}

        boss.begin()

        assert boss.states == {"a": "down", "b": "up"}
        assert boss.times_ready == 1

    def test_a_temporary_child_that_is_not_to_be_now_is_dropped(self) -> None:
        boss = supervise(child("a", restart="temporary"), "b")
        boss.outcomes = {"a": [IGNORE]}

        boss.begin()

        assert boss.states == {"b": "up"}

    def test_a_pool_starts_nothing(self) -> None:
        boss = supervise(template=child("worker"))

        boss.begin()

        assert boss.log == []
        assert boss.times_ready == 1


ENDS = {
    "normal": exit_of(None, asked=False),
    "gave_up": exit_of(SupervisorGaveUp("inner", "x", "failed too often"), asked=False),
    "error": exit_of(BROKEN, asked=False),
}


class TestWatchStart:
    def test_is_answered_when_a_new_child_is_up(self) -> None:
        boss = supervise("a").running()
        boss.slow_to_start = {"b"}
        boss.start_child("b")

        waiter = boss.watch_start("b")
        before = list(boss.answers[waiter])
        boss.start_is_over("b")

        assert (before, boss.answer(waiter)) == ([], "done")

    def test_is_answered_at_once_if_the_child_was_up_before(self) -> None:
        boss = supervise("a").running()

        assert boss.answer(boss.watch_start("a")) == "done"


class TestStartTimeout:
    def test_a_first_child_that_does_not_start_in_time_ends_the_supervisor(self) -> None:
        boss = supervise("a", child("b", start_timeout=9.0), "c")
        boss.slow_to_start = {"b"}
        boss.begin()

        boss.advance(8.5)
        before = (list(boss.given_up), boss.told())
        boss.advance(0.5)

        assert before == ([], ["+a", "+b"])
        assert (boss.given_up, boss.told(), boss.has_ended) == (["b"], ["-a"], True)
        [cause] = boss.finished
        assert str(cause) == (
            "child 'b' could not be started: "
            """LoopAbandonedError("loop 'b' was abandoned: it did not start within 9 s")"""
        )

    @every_strategy
    def test_a_restart_that_does_not_come_up_in_time_counts_and_is_tried_again(self, strategy: str) -> None:
        boss = supervise("a", "b", strategy=strategy, intensity=2, period=200.0).running()
        boss.slow_to_start = {"a"}
        boss.crash("a")
        boss.told()

        boss.advance(60.0)
        again, has_ended = boss.told(), boss.has_ended
        boss.advance(60.0)

        assert (again[-1], has_ended) == ("+a", False)
        assert (boss.given_up, boss.has_ended) == (["a", "a"], True)
        assert isinstance(boss.finished[0], SupervisorGaveUp)

    @every_group
    def test_a_group_goes_on_when_the_one_that_hangs_is_up_at_last(self, strategy: str) -> None:
        boss = supervise("a", "b", "c", strategy=strategy).running()
        boss.slow_to_start = {"b"}
        boss.crash("a" if strategy == "one_for_all" else "b")
        before = boss.states
        boss.slow_to_start = set()

        boss.advance(60.0)

        assert (before["b"], before["c"]) == ("starting", "restarting")
        assert boss.up == ["a", "b", "c"]

    def test_a_child_that_is_added_and_does_not_start_in_time_is_not_kept(self) -> None:
        boss = supervise("a").running()
        boss.slow_to_start = {"b"}

        waiter = boss.start_child(child("b", start_timeout=1.0))
        boss.advance(1.0)

        assert (boss.answer(waiter), boss.states) == ("StartFailed", {"a": "up"})

    def test_a_child_that_is_restarted_by_hand_and_does_not_start_in_time_stays_down(self) -> None:
        boss = supervise("a").running()
        boss.terminate_child("a")
        boss.slow_to_start = {"a"}

        waiter = boss.restart_child("a")
        boss.advance(60.0)

        assert (boss.answer(waiter), boss.states) == ("StartFailed", {"a": "down"})

    def test_a_child_without_a_limit_may_start_for_ever(self) -> None:
        boss = supervise(child("a", start_timeout=None))
        boss.slow_to_start = {"a"}
        boss.begin()

        boss.advance(1_000_000.0)

        assert (boss.given_up, boss.states) == ([], {"a": "starting"})

    def test_a_child_that_is_up_in_time_is_not_given_up_later(self) -> None:
        boss = supervise("a")
        boss.slow_to_start = {"a"}
        boss.begin()
        boss.start_is_over("a")

        boss.advance(60.0)

        assert (boss.given_up, boss.states) == ([], {"a": "up"})

    def test_a_child_that_is_being_stopped_has_the_time_of_its_stop(self) -> None:
        boss = supervise("a")
        boss.slow_to_start = boss.slow_to_stop = {"a"}
        boss.begin()
        boss.terminate_child("a")

        boss.advance(60.0)

        assert (boss.given_up, boss.states) == ([], {"a": "stopping"})

    def test_a_report_about_an_earlier_start_means_nothing(self) -> None:
        boss = supervise("a")
        boss.slow_to_start = {"a"}
        boss.begin()
        earlier = boss.incarnation("a") - 1

        assert boss.family.start_timed_out("a", earlier) == []
        assert boss.family.start_timed_out("nobody", earlier) == []


class TestEnd:
    @pytest.mark.parametrize(
        ("restart", "reason", "states", "told"),
        [
            pytest.param("permanent", "normal", {"a": "up"}, ["+a"], id="permanent-normal"),
            pytest.param("permanent", "gave_up", {"a": "up"}, ["+a"], id="permanent-shutdown"),
            pytest.param("permanent", "error", {"a": "up"}, ["+a"], id="permanent-error"),
            pytest.param("transient", "normal", {"a": "down"}, [], id="transient-normal"),
            pytest.param("transient", "gave_up", {"a": "down"}, [], id="transient-shutdown"),
            pytest.param("transient", "error", {"a": "up"}, ["+a"], id="transient-error"),
            pytest.param("temporary", "normal", {}, [], id="temporary-normal"),
            pytest.param("temporary", "gave_up", {}, [], id="temporary-shutdown"),
            pytest.param("temporary", "error", {}, [], id="temporary-error"),
        ],
    )
    def test_what_follows_depends_on_restart_type_and_reason(
        self, restart: str, reason: str, states: dict[str, str], told: list[str]
    ) -> None:
        boss = supervise(child("a", restart=restart)).running()

        boss.end("a", ENDS[reason])

        assert (boss.states, boss.told()) == (states, told)

    @pytest.mark.parametrize(
        ("restart", "states"),
        [("permanent", {"a": "up"}), ("transient", {"a": "up"}), ("temporary", {})],
        ids=["permanent-killed", "transient-killed", "temporary-killed"],
    )
    def test_an_abandoned_child_has_not_ended_normally(self, restart: str, states: dict[str, str]) -> None:
        boss = supervise(child("a", restart=restart)).running()

        boss.kill("a")

        assert boss.states == states

    def test_the_end_of_a_stranger_is_ignored(self) -> None:
        boss = supervise("a").running()

        effects = boss.family.ended("nobody", 1, ENDS["error"], 0.0, ROLL)

        assert effects == []

    def test_an_end_is_noted_with_its_reason_and_its_error(self) -> None:
        boss = supervise("a").running()

        boss.crash("a", BROKEN)

        assert Note(EventKind.EXITED, "a", BROKEN, reason=ExitReason.ERROR.value) in boss.notes
        assert boss.family.roster.children["a"].last_error is BROKEN

    def test_each_restart_is_counted_for_the_child_and_for_the_supervisor(self) -> None:
        boss = supervise("a", "b", strategy="one_for_all").running()

        boss.crash("a")
        boss.crash("b")

        assert boss.family.roster.children["a"].restarts == 2
        assert boss.family.restarts == 4


class TestIntensity:
    def test_one_restart_more_than_allowed_ends_the_supervisor(self) -> None:
        boss = supervise("a", intensity=2, period=5).running()

        boss.crash("a")
        boss.crash("a")
        allowed = boss.up
        boss.crash("a")

        assert allowed == ["a"]
        assert boss.has_ended

    def test_intensity_0_ends_it_at_the_first(self) -> None:
        boss = supervise("a", intensity=0).running()

        boss.crash("a")

        assert boss.has_ended

    @pytest.mark.parametrize(("gap", "ended"), [(5, True), (6, False)], ids=["period-old", "older"])
    def test_a_restart_that_is_exactly_period_old_still_counts(self, gap: float, ended: bool) -> None:
        boss = supervise("a", intensity=1, period=5).running()

        boss.crash("a")
        boss.advance(gap)
        boss.crash("a")

        assert boss.has_ended is ended

    def test_all_children_share_it(self) -> None:
        boss = supervise("a", "b", intensity=1).running()

        boss.crash("a")
        boss.crash("b")

        assert boss.has_ended

    @every_group
    def test_a_group_costs_as_much_as_one(self, strategy: str) -> None:
        boss = supervise("a", "b", "c", strategy=strategy, intensity=1).running()

        boss.crash("a")

        assert boss.up == ["a", "b", "c"]

    @every_strategy
    def test_a_restart_that_fails_costs_another_each_time(self, strategy: str) -> None:
        boss = supervise("a", strategy=strategy, intensity=3).running()
        boss.outcomes = {"a": [BROKEN, BROKEN]}

        boss.crash("a")
        after_three = boss.up
        boss.crash("a")

        assert after_three == ["a"]
        assert boss.has_ended

    def test_restarts_that_go_on_failing_end_the_supervisor(self) -> None:
        boss = supervise("a", intensity=3).running()
        boss.outcomes = {"a": [BROKEN] * 9}

        boss.crash("a")

        assert boss.told() == ["+a", "+a", "+a"]
        assert boss.has_ended

    def test_what_is_done_by_hand_is_not_counted(self) -> None:
        boss = supervise("a", intensity=1).running()

        boss.terminate_child("a")
        boss.restart_child("a")
        boss.terminate_child("a")
        boss.restart_child("a")
        boss.start_child("b")
        boss.crash("a")

        assert boss.up == ["a", "b"]

    def test_a_start_by_hand_that_fails_is_not_counted(self) -> None:
        boss = supervise("a", "b", intensity=1).running()
        boss.outcomes = {"a": [BROKEN, BROKEN], "c": [BROKEN]}

        boss.terminate_child("a")
        boss.restart_child("a")
        boss.restart_child("a")
        boss.start_child("c")
        boss.crash("b")

        assert boss.states == {"a": "down", "b": "up"}


class TestGiveUp:
    @every_strategy
    def test_all_children_are_stopped_in_reverse_order(self, strategy: str) -> None:
        boss = supervise("a", "b", "c", strategy=strategy, intensity=0).running()

        boss.crash("b")

        assert boss.told() == ["-c", "-a"]
        assert boss.states == {"a": "down", "b": "down", "c": "down"}

    def test_the_cause_names_supervisor_child_and_last_failure(self) -> None:
        boss = supervise("a", intensity=0).running()

        boss.crash("a", BROKEN)

        [cause] = boss.finished
        assert isinstance(cause, SupervisorGaveUp)
        assert (cause.supervisor, cause.child, cause.__cause__) == ("boss", "a", BROKEN)
        assert boss.noted(EventKind.GAVE_UP) == ["a"]

    def test_it_finishes_only_when_everybody_is_down(self) -> None:
        boss = supervise("a", "b", intensity=0).running()
        boss.slow_to_stop = {"a"}

        boss.crash("b")
        before = boss.has_ended
        boss.stop_is_over("a")

        assert (before, boss.has_ended) == (False, True)

    @pytest.mark.parametrize(("restart", "state"), [("permanent", "up"), ("transient", "down")])
    def test_a_supervisor_that_gave_up_has_ended_normally_for_its_parent(self, restart: str, state: str) -> None:
        inner = supervise("x", intensity=0).running()
        outer = supervise(child("inner", restart=restart), intensity=1).running()

        inner.crash("x")
        outer.end("inner", exit_of(inner.finished[0], asked=False))

        assert outer.states == {"inner": state}

    def test_a_child_that_is_a_supervisor_is_known_as_one(self) -> None:
        boss = supervise("inner")
        boss.slow_to_start = {"inner"}
        boss.begin()

        boss.carry_out(boss.family.started("inner", boss.incarnation("inner"), 0.0, is_supervisor=True))

        assert boss.family.roster.children["inner"].is_supervisor


class TestStrategy:
    @pytest.mark.parametrize(
        ("strategy", "told"),
        [
            ("one_for_one", ["+b"]),
            ("rest_for_one", ["-d", "-c", "+b", "+c", "+d"]),
            ("one_for_all", ["-d", "-c", "-a", "+a", "+b", "+c", "+d"]),
        ],
    )
    def test_siblings_go_down_from_the_right_and_come_up_from_the_left(self, strategy: str, told: list[str]) -> None:
        boss = supervise("a", "b", "c", "d", strategy=strategy).running()

        boss.crash("b")

        assert boss.told() == told
        assert boss.up == ["a", "b", "c", "d"]

    def test_rest_for_one_retries_from_the_one_that_failed(self) -> None:
        boss = supervise("a", "b", "c", "d", strategy="rest_for_one").running()
        boss.outcomes = {"c": [BROKEN]}

        boss.crash("b")

        assert boss.told() == ["-d", "-c", "+b", "+c", "+c", "+d"]
        assert boss.up == ["a", "b", "c", "d"]

    def test_one_for_all_stops_those_that_are_up_before_it_retries_from_the_left(self) -> None:
        boss = supervise("a", "b", "c", strategy="one_for_all").running()
        boss.outcomes = {"c": [BROKEN]}

        boss.crash("b")

        assert boss.told() == ["-c", "-a", "+a", "+b", "+c", "-b", "-a", "+a", "+b", "+c"]
        assert boss.up == ["a", "b", "c"]

    @every_group
    def test_temporary_siblings_are_stopped_and_dropped(self, strategy: str) -> None:
        boss = supervise("a", child("b", restart="temporary"), "c", strategy=strategy).running()

        boss.crash("a")

        assert boss.told() == ["-c", "-b", "+a", "+c"]
        assert boss.states == {"a": "up", "c": "up"}

    @every_group
    def test_a_transient_sibling_that_had_ended_normally_comes_up_with_the_group(self, strategy: str) -> None:
        boss = supervise("a", child("b", restart="transient"), strategy=strategy).running()

        boss.finish("b")
        boss.crash("a")

        assert boss.told() == ["+a", "+b"]

    @every_group
    def test_a_sibling_that_was_not_to_be_is_asked_again_with_the_group(self, strategy: str) -> None:
        boss = supervise("a", "b", strategy=strategy)
        boss.outcomes = {"b": [IGNORE]}
        boss.running()

        boss.crash("a")

        assert boss.told() == ["+a", "+b"]
        assert boss.up == ["a", "b"]

    def test_the_start_order_is_kept_for_ever_and_new_children_go_to_its_end(self) -> None:
        boss = supervise("a", "b", strategy="rest_for_one").running()

        boss.start_child("c")
        boss.crash("a")
        boss.crash("b")

        assert boss.told() == ["+c", "-c", "-b", "+a", "+b", "+c", "-c", "+b", "+c"]

    def test_a_child_that_is_not_to_be_when_it_is_restarted_stays_down(self) -> None:
        boss = supervise("a").running()
        boss.outcomes = {"a": [IGNORE]}

        boss.crash("a")

        assert boss.states == {"a": "down"}


class TestStop:
    @every_strategy
    def test_children_are_stopped_in_reverse_order(self, strategy: str) -> None:
        boss = supervise("a", "b", "c", strategy=strategy).running()

        boss.stop()

        assert boss.told() == ["-c", "-b", "-a"]
        assert boss.finished == [None]
        assert boss.noted(EventKind.TERMINATED) == ["c", "b", "a"]

    @pytest.mark.parametrize(
        ("strategy", "sequential"),
        [("one_for_one", True), ("rest_for_one", False), ("one_for_all", False)],
        ids=["one_for_one-sequential", "rest_for_one", "one_for_all"],
    )
    def test_a_group_is_stopped_strictly_one_after_another(self, strategy: str, sequential: bool) -> None:
        boss = supervise("a", "b", strategy=strategy, sequential=sequential).running()
        boss.slow_to_stop = {"a", "b"}

        boss.stop()
        first = boss.told()
        boss.stop_is_over("b")
        second = boss.told()

        assert (first, second) == (["-b"], ["-a"])

    def test_one_for_one_stops_all_at_once(self) -> None:
        boss = supervise("a", "b").running()
        boss.slow_to_stop = {"a", "b"}

        boss.stop()

        assert boss.told() == ["-b", "-a"]
        assert not boss.has_ended

    def test_it_ends_with_its_cause(self) -> None:
        boss = supervise("a").running()

        boss.stop(BROKEN)

        assert boss.finished == [BROKEN]

    def test_a_second_stop_changes_nothing(self) -> None:
        boss = supervise("a").running()
        boss.slow_to_stop = {"a"}

        boss.stop()
        boss.stop(BROKEN)
        boss.stop_is_over("a")
        boss.stop(BROKEN)

        assert boss.told() == ["-a"]
        assert boss.finished == [None]

    def test_children_that_are_down_are_not_stopped(self) -> None:
        boss = supervise("a", "b").running()
        boss.terminate_child("a")
        boss.told()

        boss.stop()

        assert boss.told() == ["-b"]

    def test_a_supervisor_without_children_ends_at_once(self) -> None:
        boss = supervise().running()

        boss.stop()

        assert boss.finished == [None]
        assert boss.family.phase is Phase.ENDED

    def test_one_that_crashes_while_it_is_stopped_is_not_restarted(self) -> None:
        boss = supervise("a").running()
        boss.slow_to_stop = {"a"}

        boss.stop()
        boss.crash("a")

        assert boss.told() == ["-a"]
        assert boss.finished == [None]

    def test_one_that_crashes_before_its_turn_is_not_restarted_either(self) -> None:
        boss = supervise("a", "b", strategy="one_for_all", intensity=0).running()
        boss.slow_to_stop = {"b"}

        boss.stop()
        boss.crash("a")
        boss.stop_is_over("b")

        assert boss.told() == ["-b"]
        assert boss.finished == [None]


class TestAutoShutdown:
    @pytest.mark.parametrize(
        ("restart", "reason", "ended"),
        [
            pytest.param("transient", "normal", True, id="transient-normal"),
            pytest.param("transient", "error", False, id="transient-error"),
            pytest.param("temporary", "normal", True, id="temporary-normal"),
            pytest.param("temporary", "error", True, id="temporary-error"),
        ],
    )
    @pytest.mark.parametrize("mode", ["any_significant", "all_significant"])
    def test_a_significant_child_that_ends_for_good_ends_the_supervisor(
        self, mode: str, restart: str, reason: str, ended: bool
    ) -> None:
        boss = supervise(child("a", restart=restart, significant=True), "b", auto_shutdown=mode).running()

        boss.end("a", ENDS[reason])

        assert boss.has_ended is ended

    def test_any_significant_ends_it_at_the_first(self) -> None:
        boss = supervise(
            child("a", restart="transient", significant=True),
            child("b", restart="transient", significant=True),
            "c",
            auto_shutdown="any_significant",
        ).running()

        boss.finish("a")

        assert boss.told() == ["-c", "-b"]
        assert boss.finished == [None]
        assert boss.noted(EventKind.AUTO_SHUTDOWN) == ["a"]

    def test_all_significant_ends_it_at_the_last(self) -> None:
        boss = supervise(
            child("a", restart="transient", significant=True),
            child("b", restart="temporary", significant=True),
            "c",
            auto_shutdown="all_significant",
        ).running()

        boss.finish("b")
        after_the_first = boss.has_ended
        boss.finish("a")

        assert (after_the_first, boss.has_ended) == (False, True)

    def test_one_that_is_being_restarted_is_running_for_all_significant(self) -> None:
        boss = supervise(
            child("a", restart="transient", significant=True),
            child("b", restart="transient", significant=True),
            auto_shutdown="all_significant",
            backoff=Backoff(),
        ).running()

        boss.crash("a")
        boss.finish("b")

        assert not boss.has_ended

    @pytest.mark.parametrize("mode", ["any_significant", "all_significant"])
    def test_a_child_that_is_not_significant_ends_nothing(self, mode: str) -> None:
        boss = supervise(child("a", restart="transient"), auto_shutdown=mode).running()

        boss.finish("a")

        assert not boss.has_ended

    def test_terminating_a_significant_child_does_not_end_the_supervisor(self) -> None:
        boss = supervise(
            child("a", restart="transient", significant=True), "b", auto_shutdown="any_significant"
        ).running()

        boss.terminate_child("a")

        assert not boss.has_ended

    def test_a_significant_child_that_is_asked_to_stop_does_not_end_the_supervisor(self) -> None:
        boss = supervise(
            child("a", restart="transient", significant=True), "b", auto_shutdown="any_significant"
        ).running()

        boss.end("a", exit_of(None, asked=True))

        assert not boss.has_ended

    def test_a_significant_child_that_a_sibling_takes_down_does_not_end_the_supervisor(self) -> None:
        boss = supervise(
            "a",
            child("b", restart="temporary", significant=True),
            strategy="one_for_all",
            auto_shutdown="any_significant",
        ).running()

        boss.crash("a")

        assert boss.states == {"a": "up"}
        assert not boss.has_ended


class TestStartChild:
    def test_it_is_answered_once_the_child_is_up(self) -> None:
        boss = supervise("a").running()
        boss.slow_to_start = {"b"}

        waiter = boss.start_child("b")
        before = list(boss.answers[waiter])
        boss.start_is_over("b")

        assert before == []
        assert boss.answer(waiter) == "done"
        assert boss.up == ["a", "b"]

    @pytest.mark.parametrize("state", ["up", "down", "restarting", "starting", "stopping"])
    def test_an_id_that_is_taken_is_refused_with_the_state_of_its_owner(self, state: str) -> None:
        boss = in_state(state)

        waiter = boss.start_child("a")

        [error] = boss.answers[waiter]
        assert isinstance(error, ChildExistsError)
        assert error.state == state

    def test_one_that_cannot_be_started_is_discarded(self) -> None:
        boss = supervise("a").running()
        boss.outcomes = {"b": [BROKEN]}

        waiter = boss.start_child("b")

        [error] = boss.answers[waiter]
        assert isinstance(error, StartFailed)
        assert (error.child, error.__cause__) == ("b", BROKEN)
        assert boss.states == {"a": "up"}

    def test_one_that_is_not_to_be_now_is_kept(self) -> None:
        boss = supervise("a").running()
        boss.outcomes = {"b": [IGNORE]}

        waiter = boss.start_child("b")

        assert boss.answer(waiter) == "done"
        assert boss.states == {"a": "up", "b": "down"}

    def test_a_temporary_one_that_is_not_to_be_now_is_dropped(self) -> None:
        boss = supervise("a").running()
        boss.outcomes = {"b": [IGNORE]}

        waiter = boss.start_child(child("b", restart="temporary"))

        assert boss.answer(waiter) == "done"
        assert boss.states == {"a": "up"}

    def test_a_discarded_id_can_be_used_again(self) -> None:
        boss = supervise().running()
        boss.outcomes = {"a": [BROKEN]}

        boss.start_child("a")
        waiter = boss.start_child("a")

        assert boss.answer(waiter) == "done"
        assert boss.up == ["a"]

    def test_one_that_fails_after_it_was_up_is_restarted_like_any_other(self) -> None:
        boss = supervise().running()
        boss.start_child("a")
        boss.outcomes = {"a": [BROKEN]}

        boss.crash("a")

        assert boss.up == ["a"]


class TestTerminateChild:
    @pytest.mark.parametrize(
        ("restart", "states"),
        [("permanent", {"a": "down"}), ("transient", {"a": "down"}), ("temporary", {})],
    )
    def test_the_spec_is_kept_unless_it_is_temporary(self, restart: str, states: dict[str, str]) -> None:
        boss = supervise(child("a", restart=restart)).running()

        waiter = boss.terminate_child("a")

        assert boss.told() == ["-a"]
        assert boss.answer(waiter) == "done"
        assert boss.states == states
        assert boss.noted(EventKind.TERMINATED) == ["a"]

    def test_it_is_answered_once_the_child_is_down(self) -> None:
        boss = supervise("a").running()
        boss.slow_to_stop = {"a"}

        waiter = boss.terminate_child("a")
        before = list(boss.answers[waiter])
        boss.stop_is_over("a")

        assert before == []
        assert boss.answer(waiter) == "done"

    def test_one_that_is_down_already_is_down(self) -> None:
        boss = supervise("a").running()

        boss.terminate_child("a")
        waiter = boss.terminate_child("a")

        assert boss.answer(waiter) == "done"
        assert boss.told() == ["-a"]

    def test_everybody_who_asks_is_answered(self) -> None:
        boss = supervise("a").running()
        boss.slow_to_stop = {"a"}

        waiters = [boss.terminate_child("a"), boss.terminate_child("a")]
        boss.stop_is_over("a")

        assert [boss.answer(waiter) for waiter in waiters] == ["done", "done"]
        assert boss.told() == ["-a"]

    def test_a_stranger_is_not_found(self) -> None:
        boss = supervise().running()

        waiter = boss.terminate_child("nobody")

        assert boss.answer(waiter) == "ChildNotFoundError"

    def test_one_that_crashes_on_the_way_is_terminated_all_the_same(self) -> None:
        boss = supervise("a").running()
        boss.slow_to_stop = {"a"}

        waiter = boss.terminate_child("a")
        boss.crash("a")

        assert boss.answer(waiter) == "done"
        assert boss.states == {"a": "down"}

    @every_strategy
    def test_siblings_are_left_alone(self, strategy: str) -> None:
        boss = supervise("a", "b", "c", strategy=strategy).running()

        boss.terminate_child("b")

        assert boss.told() == ["-b"]
        assert boss.up == ["a", "c"]


class TestRestartChild:
    def test_one_that_is_down_is_started_in_its_place(self) -> None:
        boss = supervise("a", "b").running()
        boss.terminate_child("a")

        waiter = boss.restart_child("a")

        assert boss.answer(waiter) == "done"
        assert boss.up == ["a", "b"]

    @every_strategy
    def test_siblings_are_left_alone(self, strategy: str) -> None:
        boss = supervise("a", "b", "c", strategy=strategy).running()
        boss.terminate_child("b")
        boss.told()

        boss.restart_child("b")

        assert boss.told() == ["+b"]

    @pytest.mark.parametrize("state", ["up", "restarting", "starting", "stopping"])
    def test_one_that_is_not_down_is_busy(self, state: str) -> None:
        boss = in_state(state)

        waiter = boss.restart_child("a")

        [error] = boss.answers[waiter]
        assert isinstance(error, ChildBusyError)
        assert error.state == state

    def test_a_stranger_is_not_found(self) -> None:
        boss = supervise().running()

        waiter = boss.restart_child("nobody")

        assert boss.answer(waiter) == "ChildNotFoundError"

    def test_one_that_cannot_be_started_stays_down(self) -> None:
        boss = supervise("a").running()
        boss.terminate_child("a")
        boss.outcomes = {"a": [BROKEN]}

        waiter = boss.restart_child("a")

        assert boss.answer(waiter) == "StartFailed"
        assert boss.states == {"a": "down"}

    def test_one_that_is_not_to_be_now_stays_down(self) -> None:
        boss = supervise("a").running()
        boss.terminate_child("a")
        boss.outcomes = {"a": [IGNORE]}

        waiter = boss.restart_child("a")

        assert boss.answer(waiter) == "done"
        assert boss.states == {"a": "down"}


class TestDeleteChild:
    def test_one_that_is_down_is_forgotten(self) -> None:
        boss = supervise("a", "b").running()
        boss.terminate_child("a")

        waiter = boss.delete_child("a")

        assert boss.answer(waiter) == "done"
        assert boss.states == {"b": "up"}

    @pytest.mark.parametrize("state", ["up", "restarting", "starting", "stopping"])
    def test_one_that_is_not_down_is_busy(self, state: str) -> None:
        boss = in_state(state)

        waiter = boss.delete_child("a")

        [error] = boss.answers[waiter]
        assert isinstance(error, ChildBusyError)
        assert error.state == state

    def test_a_stranger_is_not_found(self) -> None:
        boss = supervise().running()

        waiter = boss.delete_child("nobody")

        assert boss.answer(waiter) == "ChildNotFoundError"

    def test_its_id_can_be_used_again_at_the_end_of_the_order(self) -> None:
        boss = supervise("a", "b", strategy="rest_for_one").running()

        boss.terminate_child("a")
        boss.delete_child("a")
        boss.start_child("a")
        boss.told()
        boss.crash("b")

        assert boss.told() == ["-a", "+b", "+a"]

    def test_it_comes_up_with_no_group(self) -> None:
        boss = supervise("a", "b", strategy="one_for_all").running()

        boss.terminate_child("b")
        boss.delete_child("b")
        boss.crash("a")

        assert boss.states == {"a": "up"}


class TestHeldDown:
    """Restart types judge only ends that nobody asked for, and what somebody took down only somebody brings up."""

    @pytest.mark.parametrize(
        ("restart", "states"),
        [("permanent", {"a": "down"}), ("transient", {"a": "down"}), ("temporary", {})],
    )
    def test_an_end_that_was_asked_for_is_a_termination(self, restart: str, states: dict[str, str]) -> None:
        boss = supervise(child("a", restart=restart), intensity=0).running()

        boss.end("a", exit_of(None, asked=True))

        assert boss.states == states
        assert boss.noted(EventKind.TERMINATED) == ["a"]

    def test_a_child_that_was_asked_to_stop_and_crashed_is_not_restarted_either(self) -> None:
        boss = supervise("a").running()

        boss.end("a", exit_of(BROKEN, asked=True))

        assert boss.states == {"a": "down"}

    @every_group
    def test_one_that_was_terminated_stays_down_when_the_group_is_restarted(self, strategy: str) -> None:
        boss = supervise("a", "b", "c", strategy=strategy).running()
        boss.terminate_child("b")
        boss.told()

        boss.crash("a")

        assert boss.told() == ["-c", "+a", "+c"]
        assert boss.states == {"a": "up", "b": "down", "c": "up"}

    @every_group
    def test_one_that_was_asked_to_stop_stays_down_when_the_group_is_restarted(self, strategy: str) -> None:
        boss = supervise("a", "b", strategy=strategy).running()
        boss.end("b", exit_of(None, asked=True))

        boss.crash("a")

        assert boss.states == {"a": "up", "b": "down"}

    @every_group
    def test_one_that_had_ended_by_itself_and_was_then_terminated_stays_down(self, strategy: str) -> None:
        boss = supervise("a", child("b", restart="transient"), strategy=strategy).running()
        boss.finish("b")
        boss.terminate_child("b")

        boss.crash("a")

        assert boss.states == {"a": "up", "b": "down"}

    @every_group
    def test_one_that_is_being_terminated_stays_down_when_the_group_is_restarted(self, strategy: str) -> None:
        boss = supervise("a", "b", strategy=strategy).running()
        boss.slow_to_stop = {"b"}
        boss.terminate_child("b")

        boss.crash("a")
        boss.stop_is_over("b")

        assert boss.states == {"a": "up", "b": "down"}

    @every_group
    def test_one_that_was_brought_up_again_goes_with_the_group_again(self, strategy: str) -> None:
        boss = supervise("a", "b", strategy=strategy).running()
        boss.terminate_child("b")
        boss.restart_child("b")
        boss.told()

        boss.crash("a")

        assert boss.told() == ["-b", "+a", "+b"]

    @every_group
    def test_one_that_could_not_be_started_by_hand_is_tried_again_with_its_group(self, strategy: str) -> None:
        boss = supervise("a", "b", strategy=strategy).running()
        boss.outcomes = {"b": [BROKEN]}
        boss.terminate_child("b")
        boss.restart_child("b")

        boss.crash("a")

        assert boss.states == {"a": "up", "b": "up"}

    def test_one_that_waits_for_its_restart_can_be_terminated(self) -> None:
        boss = supervise("a", backoff=Backoff()).running()
        boss.crash("a")

        waiter = boss.terminate_child("a")
        boss.advance(100)

        assert boss.answer(waiter) == "done"
        assert boss.states == {"a": "down"}
        assert boss.told() == []
        assert boss.noted(EventKind.TERMINATED) == ["a"]


class TestBackoff:
    def test_a_child_is_started_again_when_its_delay_is_over(self) -> None:
        boss = supervise("a", backoff=Backoff(minimum=2, jitter=0)).running()

        boss.crash("a")
        boss.advance(1.9)
        too_early = boss.told()
        state = boss.states
        boss.advance(0.1)

        assert (too_early, state) == ([], {"a": "restarting"})
        assert boss.told() == ["+a"]

    def test_the_delay_doubles_with_each_failure_in_a_row(self) -> None:
        boss = supervise("a", backoff=Backoff(minimum=1, maximum=5, jitter=0)).running()
        boss.outcomes = {"a": [BROKEN, BROKEN, BROKEN]}

        boss.crash("a")
        boss.advance(100)

        assert boss.delays == [1, 2, 4, 5]
        assert boss.up == ["a"]

    def test_a_restart_that_works_does_not_end_the_row(self) -> None:
        boss = supervise("a", backoff=Backoff(minimum=1, jitter=0), reset_after=60).running()

        boss.crash("a")
        boss.advance(1 + 59)
        boss.crash("a")

        assert boss.delays == [1, 2]

    def test_a_stable_time_ends_the_row(self) -> None:
        boss = supervise("a", backoff=Backoff(minimum=1, jitter=0), reset_after=60).running()

        boss.crash("a")
        boss.advance(1 + 60)
        boss.crash("a")

        assert boss.delays == [1, 1]

    def test_a_start_by_hand_ends_the_row(self) -> None:
        boss = supervise("a", backoff=Backoff(minimum=1, jitter=0)).running()

        boss.crash("a")
        boss.terminate_child("a")
        boss.restart_child("a")
        boss.crash("a")

        assert boss.delays == [1, 1]

    def test_a_delay_of_nothing_is_no_delay(self) -> None:
        boss = supervise("a", "b", strategy="one_for_all", backoff=Backoff(minimum=0)).running()

        boss.crash("a")

        assert boss.delays == []
        assert boss.told() == ["-b", "+a", "+b"]

    def test_a_child_may_have_its_own(self) -> None:
        boss = supervise(child("a", backoff=Backoff(minimum=7, jitter=0)), "b", backoff=None).running()

        boss.crash("a")
        boss.crash("b")

        assert boss.delays == [7]
        assert boss.states == {"a": "restarting", "b": "up"}

    def test_the_die_decides_on_the_jitter(self) -> None:
        boss = supervise("a", backoff=Backoff(minimum=10, jitter=0.2)).running()

        boss.carry_out(boss.family.ended("a", boss.incarnation("a"), ENDS["error"], 0.0, roll=0.0))

        assert boss.delays == [pytest.approx(8)]

    def test_a_failure_counts_when_it_happens_and_not_when_its_delay_is_over(self) -> None:
        boss = supervise("a", backoff=Backoff(minimum=4, jitter=0), intensity=1, period=5).running()

        boss.crash("a")
        boss.advance(5.5)
        boss.crash("a")

        assert not boss.has_ended

    def test_siblings_of_another_child_need_not_wait(self) -> None:
        boss = supervise("a", "b", backoff=Backoff(minimum=4, jitter=0)).running()

        boss.crash("a")
        boss.advance(2)
        boss.crash("b")
        boss.advance(2)

        assert boss.states == {"a": "up", "b": "restarting"}

    @every_group
    def test_a_group_waits_with_the_one_that_failed(self, strategy: str) -> None:
        boss = supervise("a", "b", strategy=strategy, backoff=Backoff(minimum=1, jitter=0)).running()

        boss.crash("a")
        waiting = (boss.told(), boss.states)
        boss.advance(1)

        assert waiting == (["-b"], {"a": "restarting", "b": "restarting"})
        assert boss.told() == ["+a", "+b"]

    def test_one_for_all_waits_for_a_child_on_the_right_too(self) -> None:
        boss = supervise("a", "b", strategy="one_for_all", backoff=Backoff(minimum=1, jitter=0)).running()

        boss.crash("b")
        waiting = (boss.told(), boss.states)
        boss.advance(1)

        assert waiting == (["-a"], {"a": "restarting", "b": "restarting"})
        assert boss.told() == ["+a", "+b"]

    def test_rest_for_one_goes_on_from_the_left_while_a_child_on_the_right_waits(self) -> None:
        boss = supervise(
            child("a", backoff=Backoff(minimum=1, jitter=0)),
            "b",
            child("c", backoff=Backoff(minimum=9, jitter=0)),
            "d",
            strategy="rest_for_one",
        ).running()

        boss.crash("c")
        boss.crash("a")
        boss.told()
        boss.advance(1)
        at_first = boss.told()
        boss.advance(8)

        assert at_first == ["+a", "+b"]
        assert boss.told() == ["+c", "+d"]

    def test_a_sequential_supervisor_goes_on_while_a_child_waits(self) -> None:
        boss = supervise("a", "b", sequential=True, backoff=Backoff(minimum=4, jitter=0)).running()

        boss.crash("a")
        boss.advance(2)
        boss.crash("b")
        boss.advance(2)

        assert boss.states == {"a": "up", "b": "restarting"}

    @every_group
    def test_a_start_by_hand_does_not_wait_for_a_group(self, strategy: str) -> None:
        boss = supervise("a", "b", "c", strategy=strategy, backoff=Backoff(minimum=1, jitter=0)).running()
        boss.terminate_child("b")
        boss.crash("a")
        boss.told()

        waiters = [boss.restart_child("b"), boss.start_child("d")]

        assert boss.told() == ["+b", "+d"]
        assert [boss.answer(waiter) for waiter in waiters] == ["done", "done"]

    @every_strategy
    def test_a_supervisor_that_is_stopped_waits_for_no_delay(self, strategy: str) -> None:
        boss = supervise("a", "b", strategy=strategy, backoff=Backoff()).running()

        boss.crash("a")
        boss.stop()
        boss.advance(100)

        assert boss.told() == ["-b"]
        assert boss.finished == [None]

    def test_a_delay_is_noted(self) -> None:
        boss = supervise("a", backoff=Backoff(minimum=3, jitter=0)).running()

        boss.crash("a", BROKEN)

        assert Note(EventKind.RESTARTING, "a", BROKEN, attempt=1, delay=3.0) in boss.notes


class TestForEver:
    def test_without_an_intensity_it_never_gives_up(self) -> None:
        boss = supervise("a", intensity=None).running()
        boss.outcomes = {"a": [BROKEN] * 500}

        boss.crash("a")

        assert boss.up == ["a"]
        assert boss.family.restarts == 501


class TestOwnIntensity:
    @every_strategy
    def test_a_child_that_fails_too_often_for_itself_stays_down_and_its_siblings_go_on(self, strategy: str) -> None:
        boss = supervise("x", child("a", intensity=1, period=5), "b", strategy=strategy).running()

        boss.crash("a")
        boss.told()
        boss.crash("a", BROKEN)

        assert boss.told() == []
        assert boss.states == {"x": "up", "a": "down", "b": "up"}
        assert boss.noted(EventKind.CHILD_GAVE_UP) == ["a"]

    def test_its_window_slides_like_the_supervisors(self) -> None:
        boss = supervise(child("a", intensity=1, period=5)).running()

        boss.crash("a")
        boss.advance(5.5)
        boss.crash("a")

        assert boss.up == ["a"]

    def test_a_restart_that_fails_counts_for_it(self) -> None:
        boss = supervise(child("a", intensity=1), "b").running()
        boss.outcomes = {"a": [BROKEN]}

        boss.crash("a")

        assert boss.states == {"a": "down", "b": "up"}

    def test_one_failure_too_many_for_itself_costs_the_supervisor_nothing(self) -> None:
        boss = supervise(child("a", intensity=0), "b", intensity=1).running()

        boss.crash("a")
        boss.crash("b")

        assert boss.states == {"a": "down", "b": "up"}

    def test_the_supervisors_intensity_counts_beside_it(self) -> None:
        boss = supervise(child("a", intensity=9), intensity=1).running()

        boss.crash("a")
        boss.crash("a")

        assert boss.has_ended

    @every_group
    def test_a_child_that_gave_up_stays_down_when_the_group_is_restarted(self, strategy: str) -> None:
        boss = supervise("a", child("b", intensity=0), strategy=strategy).running()

        boss.crash("b")
        boss.crash("a")

        assert boss.states == {"a": "up", "b": "down"}

    def test_a_child_that_gave_up_can_be_started_by_hand(self) -> None:
        boss = supervise(child("a", intensity=0)).running()
        boss.crash("a")

        boss.restart_child("a")

        assert boss.up == ["a"]

    def test_a_significant_child_that_gave_up_has_ended_for_good(self) -> None:
        boss = supervise(
            child("a", restart="transient", significant=True, intensity=0), auto_shutdown="any_significant"
        ).running()

        boss.crash("a")

        assert boss.finished == [None]


class TestDecide:
    def test_stop_keeps_a_permanent_child_down(self) -> None:
        boss = supervise(child("a", decide={KeyError: "stop"}), "b").running()

        boss.crash("a", KeyError("k"))

        assert boss.states == {"a": "down", "b": "up"}
        assert boss.told() == []

    def test_stop_drops_a_temporary_child(self) -> None:
        boss = supervise(child("a", restart="temporary", decide={KeyError: "stop"})).running()

        boss.crash("a", KeyError("k"))

        assert boss.states == {}

    @pytest.mark.parametrize("restart", ["permanent", "transient", "temporary"])
    def test_escalate_ends_the_supervisor_at_once(self, restart: str) -> None:
        boss = supervise("x", child("a", restart=restart, decide={MemoryError: "escalate"}), "b").running()
        error = MemoryError()

        boss.crash("a", error)

        [cause] = boss.finished
        assert isinstance(cause, SupervisorGaveUp)
        assert cause.__cause__ is error
        assert boss.told() == ["-b", "-x"]
        assert boss.noted(EventKind.ESCALATED) == ["a"]

    def test_other_errors_are_handled_as_the_restart_type_says(self) -> None:
        boss = supervise(child("a", decide={KeyError: "stop"})).running()

        boss.crash("a", ValueError("v"))

        assert boss.up == ["a"]

    def test_a_significant_child_that_is_stopped_has_ended_for_good(self) -> None:
        boss = supervise(
            child("a", restart="transient", significant=True, decide={KeyError: "stop"}),
            auto_shutdown="all_significant",
        ).running()

        boss.crash("a", KeyError("k"))

        assert boss.finished == [None]


class TestPool:
    def pool(self, **fields: object) -> Simulator:
        boss = supervise(template=child("worker", **fields)).running()
        boss.start_child(child("worker-1", **fields))
        boss.start_child(child("worker-2", **fields))
        boss.told()
        return boss

    def test_a_child_that_is_terminated_is_forgotten(self) -> None:
        boss = self.pool()

        boss.terminate_child("worker-1")

        assert boss.states == {"worker-2": "up"}

    def test_a_child_that_was_asked_to_stop_is_forgotten(self) -> None:
        boss = self.pool()

        boss.end("worker-1", exit_of(None, asked=True))

        assert boss.states == {"worker-2": "up"}

    def test_a_child_that_crashes_is_restarted(self) -> None:
        boss = self.pool()

        boss.crash("worker-1")

        assert boss.told() == ["+worker-1"]

    def test_a_transient_child_that_ends_normally_is_forgotten(self) -> None:
        boss = self.pool(restart="transient")

        boss.finish("worker-1")

        assert boss.states == {"worker-2": "up"}

    def test_a_child_that_is_not_to_be_when_it_is_restarted_is_dropped(self) -> None:
        boss = self.pool()
        boss.outcomes = {"worker-1": [IGNORE]}

        boss.crash("worker-1")

        assert boss.states == {"worker-2": "up"}

    def test_a_child_that_waits_for_its_restart_and_is_terminated_is_forgotten(self) -> None:
        boss = self.pool(backoff=Backoff())
        boss.crash("worker-1")

        boss.terminate_child("worker-1")

        assert boss.states == {"worker-2": "up"}

    def test_all_are_stopped_at_once(self) -> None:
        boss = self.pool()
        boss.slow_to_stop = {"worker-1", "worker-2"}

        boss.stop()

        assert boss.told() == ["-worker-2", "-worker-1"]


class TestAfterTheEnd:
    @pytest.mark.parametrize("phase", ["stopping", "ended"])
    def test_nothing_is_started(self, phase: str) -> None:
        boss = supervise("a", "b").running()
        boss.terminate_child("b")
        boss.told()
        boss.slow_to_stop = {"a"} if phase == "stopping" else set()
        boss.stop()

        waiters = [boss.start_child("c"), boss.restart_child("b")]

        assert [boss.answer(waiter) for waiter in waiters] == ["ChildUnavailableError", "ChildUnavailableError"]
        [error] = boss.answers[waiters[0]]
        assert isinstance(error, ChildUnavailableError)
        assert error.state == phase
        assert boss.told() == ["-a"]

    def test_a_child_is_down_and_can_be_forgotten(self) -> None:
        boss = supervise("a").running()
        boss.stop()

        waiters = [boss.terminate_child("a"), boss.delete_child("a"), boss.terminate_child("a")]

        assert [boss.answer(waiter) for waiter in waiters] == ["done", "done", "ChildNotFoundError"]
        assert boss.finished == [None]


def in_state(state: str) -> Simulator:
    """Return a supervisor whose child ``a`` is in that state, and stays there."""
    boss = supervise("a", backoff=Backoff()).running()
    boss.slow_to_start = {"a"}
    boss.slow_to_stop = {"a"} if state == "stopping" else set()
    if state in {"down", "starting", "stopping"}:
        boss.terminate_child("a")
    if state == "starting":
        boss.restart_child("a")
    if state == "restarting":
        boss.crash("a")
    assert boss.states == {"a": state}
    return boss


def test_a_roster_prints_how_many_children_are_in_which_state() -> None:
    assert repr(supervise("a", "b").running().family.roster) == "<Roster, 2 up>"
    assert repr(supervise().family.roster) == "<Roster, empty>"
