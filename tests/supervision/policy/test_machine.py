"""What a supervisor does about its children: the rules of Erlang/OTP, one by one, and ours beyond them."""

from __future__ import annotations

import pytest
from machine_simulator import IGNORE, ROLL, Simulator, child, supervise

from loopwarden._backoff import Backoff
from loopwarden.errors import (
    ChildBusyError,
    ChildExistsError,
    ChildUnavailableError,
    LoopAbandonedError,
    StartFailed,
    SupervisorGaveUp,
)
from loopwarden.supervision.policy._effects import EmitEvent, EventKind
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
        supervisor = supervise("a", "b", "c", strategy=strategy, sequential=sequential)
        supervisor.slow_to_start = {"a", "b", "c"}

        supervisor.begin()
        only_a = supervisor.told()
        supervisor.start_is_over("a")
        then_b = supervisor.told()
        supervisor.start_is_over("b")
        then_c = supervisor.told()

        assert (only_a, then_b, then_c) == (["+a"], ["+b"], ["+c"])

    def test_the_supervisor_is_ready_once_all_are_up(self) -> None:
        supervisor = supervise("a", "b")
        supervisor.slow_to_start = {"b"}

        supervisor.begin()
        before = supervisor.times_ready
        supervisor.start_is_over("b")

        assert (before, supervisor.times_ready) == (0, 1)
        assert supervisor.machine.phase is Phase.RUNNING

    def test_a_supervisor_without_children_is_ready_at_once(self) -> None:
        assert supervise().begin().times_ready == 1

    def test_the_supervisor_is_ready_only_once(self) -> None:
        supervisor = supervise("a").running()

        supervisor.crash("a")
        supervisor.start_child("b")

        assert supervisor.times_ready == 1

    @every_strategy
    def test_the_first_failure_stops_those_that_are_up_in_reverse_order(self, strategy: str) -> None:
        supervisor = supervise("a", "b", "c", "d", strategy=strategy)
        supervisor.outcomes = {"c": [BROKEN]}

        supervisor.begin()

        assert supervisor.log == ["+a", "+b", "+c", "-b", "-a"]
        assert supervisor.times_ready == 0

    def test_the_first_failure_is_why_the_supervisor_ends(self) -> None:
        supervisor = supervise("a", "b")
        supervisor.outcomes = {"b": [BROKEN]}

        supervisor.begin()

        [cause] = supervisor.finished
        assert isinstance(cause, StartFailed)
        assert (cause.child, cause.__cause__) == ("b", BROKEN)

    def test_a_failure_at_first_is_neither_retried_nor_counted(self) -> None:
        supervisor = supervise("a", intensity=None)
        supervisor.outcomes = {"a": [BROKEN]}

        supervisor.begin()

        assert supervisor.log == ["+a"]
        assert supervisor.machine.restarts == 0
        assert supervisor.noted(EventKind.RESTARTING) == []
        assert supervisor.noted(EventKind.START_FAILED) == ["a"]

    def test_a_child_that_is_not_to_be_now_is_kept_as_a_spec(self) -> None:
        supervisor = supervise("a", "b")
        supervisor.outcomes = {"a": [IGNORE]}

        supervisor.begin()

        assert supervisor.states == {"a": "down", "b": "up"}
        assert supervisor.times_ready == 1

    def test_a_temporary_child_that_is_not_to_be_now_is_dropped(self) -> None:
        supervisor = supervise(child("a", restart="temporary"), "b")
        supervisor.outcomes = {"a": [IGNORE]}

        supervisor.begin()

        assert supervisor.states == {"b": "up"}

    def test_a_pool_starts_nothing(self) -> None:
        supervisor = supervise(template=child("worker"))

        supervisor.begin()

        assert supervisor.log == []
        assert supervisor.times_ready == 1


ENDS = {
    "normal": exit_of(None, asked=False),
    "gave_up": exit_of(SupervisorGaveUp("inner", "x", "failed too often"), asked=False),
    "error": exit_of(BROKEN, asked=False),
}


class TestWatchStart:
    def test_watch_start_is_answered_when_a_new_child_is_up(self) -> None:
        supervisor = supervise("a").running()
        supervisor.slow_to_start = {"b"}
        supervisor.start_child("b")

        waiter = supervisor.watch_start("b")
        before = list(supervisor.answers[waiter])
        supervisor.start_is_over("b")

        assert (before, supervisor.answer(waiter)) == ([], "done")

    def test_watch_start_is_answered_at_once_if_the_child_was_up_before(self) -> None:
        supervisor = supervise("a").running()

        assert supervisor.answer(supervisor.watch_start("a")) == "done"


class TestStartTimeout:
    def test_a_first_child_that_does_not_start_in_time_ends_the_supervisor(self) -> None:
        supervisor = supervise("a", child("b", start_timeout=9.0), "c")
        supervisor.slow_to_start = {"b"}
        supervisor.begin()

        supervisor.advance(8.5)
        before = (list(supervisor.given_up), supervisor.told())
        supervisor.advance(0.5)

        assert before == ([], ["+a", "+b"])
        assert (supervisor.given_up, supervisor.told(), supervisor.has_ended) == (["b"], ["-a"], True)
        [cause] = supervisor.finished
        assert str(cause) == (
            "child 'b' could not be started: "
            """LoopAbandonedError("loop 'b' was abandoned: it did not start within 9 s")"""
        )

    @every_strategy
    def test_a_restart_that_does_not_come_up_in_time_counts_and_is_tried_again(self, strategy: str) -> None:
        supervisor = supervise("a", "b", strategy=strategy, intensity=2, period=200.0).running()
        supervisor.slow_to_start = {"a"}
        supervisor.crash("a")
        supervisor.told()

        supervisor.advance(60.0)
        again, has_ended = supervisor.told(), supervisor.has_ended
        supervisor.advance(60.0)

        assert (again[-1], has_ended) == ("+a", False)
        assert (supervisor.given_up, supervisor.has_ended) == (["a", "a"], True)
        assert isinstance(supervisor.finished[0], SupervisorGaveUp)

    @every_group
    def test_a_group_goes_on_when_the_one_that_hangs_is_up_at_last(self, strategy: str) -> None:
        supervisor = supervise("a", "b", "c", strategy=strategy).running()
        supervisor.slow_to_start = {"b"}
        supervisor.crash("a" if strategy == "one_for_all" else "b")
        before = supervisor.states
        supervisor.slow_to_start = set()

        supervisor.advance(60.0)

        assert (before["b"], before["c"]) == ("starting", "restarting")
        assert supervisor.up == ["a", "b", "c"]

    def test_a_child_that_is_added_and_does_not_start_in_time_is_not_kept(self) -> None:
        supervisor = supervise("a").running()
        supervisor.slow_to_start = {"b"}

        waiter = supervisor.start_child(child("b", start_timeout=1.0))
        supervisor.advance(1.0)

        assert (supervisor.answer(waiter), supervisor.states) == ("StartFailed", {"a": "up"})

    def test_a_child_that_is_restarted_by_hand_and_does_not_start_in_time_stays_down(self) -> None:
        supervisor = supervise("a").running()
        supervisor.terminate_child("a")
        supervisor.slow_to_start = {"a"}

        waiter = supervisor.restart_child("a")
        supervisor.advance(60.0)

        assert (supervisor.answer(waiter), supervisor.states) == ("StartFailed", {"a": "down"})

    def test_a_child_without_a_limit_may_start_for_ever(self) -> None:
        supervisor = supervise(child("a", start_timeout=None))
        supervisor.slow_to_start = {"a"}
        supervisor.begin()

        supervisor.advance(1_000_000.0)

        assert (supervisor.given_up, supervisor.states) == ([], {"a": "starting"})

    def test_a_child_that_is_up_in_time_is_not_given_up_later(self) -> None:
        supervisor = supervise("a")
        supervisor.slow_to_start = {"a"}
        supervisor.begin()
        supervisor.start_is_over("a")

        supervisor.advance(60.0)

        assert (supervisor.given_up, supervisor.states) == ([], {"a": "up"})

    def test_a_child_that_is_being_stopped_has_the_time_of_its_stop(self) -> None:
        supervisor = supervise("a")
        supervisor.slow_to_start = supervisor.slow_to_stop = {"a"}
        supervisor.begin()
        supervisor.terminate_child("a")

        supervisor.advance(60.0)

        assert (supervisor.given_up, supervisor.states) == ([], {"a": "stopping"})

    def test_a_report_about_an_earlier_start_means_nothing(self) -> None:
        supervisor = supervise("a")
        supervisor.slow_to_start = {"a"}
        supervisor.begin()
        earlier = supervisor.incarnation("a") - 1

        assert supervisor.machine.timed_out("a", earlier) == []
        assert supervisor.machine.timed_out("unknown", earlier) == []


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
    def test_end_of_a_child_is_judged_by_restart_type_and_reason(
        self, restart: str, reason: str, states: dict[str, str], told: list[str]
    ) -> None:
        supervisor = supervise(child("a", restart=restart)).running()

        supervisor.end("a", ENDS[reason])

        assert (supervisor.states, supervisor.told()) == (states, told)

    @pytest.mark.parametrize(
        ("restart", "states"),
        [("permanent", {"a": "up"}), ("transient", {"a": "up"}), ("temporary", {})],
        ids=["permanent-killed", "transient-killed", "temporary-killed"],
    )
    def test_an_abandoned_child_has_not_ended_normally(self, restart: str, states: dict[str, str]) -> None:
        supervisor = supervise(child("a", restart=restart)).running()

        supervisor.kill("a")

        assert supervisor.states == states

    def test_the_end_of_a_stranger_is_ignored(self) -> None:
        supervisor = supervise("a").running()

        effects = supervisor.machine.ended("unknown", 1, ENDS["error"], 0.0, ROLL)

        assert effects == []

    def test_an_end_is_noted_with_its_reason_and_its_error(self) -> None:
        supervisor = supervise("a").running()

        supervisor.crash("a", BROKEN)

        assert EmitEvent(EventKind.EXITED, "a", BROKEN, reason=ExitReason.ERROR.value) in supervisor.notes
        assert supervisor.machine.roster.children["a"].last_error is BROKEN

    def test_restart_is_counted_for_the_child_and_for_the_supervisor(self) -> None:
        supervisor = supervise("a", "b", strategy="one_for_all").running()

        supervisor.crash("a")
        supervisor.crash("b")

        assert supervisor.machine.roster.children["a"].restarts == 2
        assert supervisor.machine.restarts == 4


class TestIntensity:
    def test_restart_more_than_is_allowed_ends_the_supervisor(self) -> None:
        supervisor = supervise("a", intensity=2, period=5).running()

        supervisor.crash("a")
        supervisor.crash("a")
        allowed = supervisor.up
        supervisor.crash("a")

        assert allowed == ["a"]
        assert supervisor.has_ended

    def test_intensity_0_ends_the_supervisor_at_the_first_failure(self) -> None:
        supervisor = supervise("a", intensity=0).running()

        supervisor.crash("a")

        assert supervisor.has_ended

    @pytest.mark.parametrize(("gap", "ended"), [(5, True), (6, False)], ids=["period-old", "older"])
    def test_a_restart_that_is_exactly_period_old_still_counts(self, gap: float, ended: bool) -> None:
        supervisor = supervise("a", intensity=1, period=5).running()

        supervisor.crash("a")
        supervisor.advance(gap)
        supervisor.crash("a")

        assert supervisor.has_ended is ended

    def test_intensity_is_shared_by_all_children(self) -> None:
        supervisor = supervise("a", "b", intensity=1).running()

        supervisor.crash("a")
        supervisor.crash("b")

        assert supervisor.has_ended

    @every_group
    def test_a_group_costs_as_much_as_one(self, strategy: str) -> None:
        supervisor = supervise("a", "b", "c", strategy=strategy, intensity=1).running()

        supervisor.crash("a")

        assert supervisor.up == ["a", "b", "c"]

    @every_strategy
    def test_a_restart_that_fails_costs_another_each_time(self, strategy: str) -> None:
        supervisor = supervise("a", strategy=strategy, intensity=3).running()
        supervisor.outcomes = {"a": [BROKEN, BROKEN]}

        supervisor.crash("a")
        after_three = supervisor.up
        supervisor.crash("a")

        assert after_three == ["a"]
        assert supervisor.has_ended

    def test_restarts_that_go_on_failing_end_the_supervisor(self) -> None:
        supervisor = supervise("a", intensity=3).running()
        supervisor.outcomes = {"a": [BROKEN] * 9}

        supervisor.crash("a")

        assert supervisor.told() == ["+a", "+a", "+a"]
        assert supervisor.has_ended

    def test_restart_by_hand_is_not_counted(self) -> None:
        supervisor = supervise("a", intensity=1).running()

        supervisor.terminate_child("a")
        supervisor.restart_child("a")
        supervisor.terminate_child("a")
        supervisor.restart_child("a")
        supervisor.start_child("b")
        supervisor.crash("a")

        assert supervisor.up == ["a", "b"]

    def test_a_start_by_hand_that_fails_is_not_counted(self) -> None:
        supervisor = supervise("a", "b", intensity=1).running()
        supervisor.outcomes = {"a": [BROKEN, BROKEN], "c": [BROKEN]}

        supervisor.terminate_child("a")
        supervisor.restart_child("a")
        supervisor.restart_child("a")
        supervisor.start_child("c")
        supervisor.crash("b")

        assert supervisor.states == {"a": "down", "b": "up"}


class TestGiveUp:
    @every_strategy
    def test_children_are_all_stopped_in_reverse_order(self, strategy: str) -> None:
        supervisor = supervise("a", "b", "c", strategy=strategy, intensity=0).running()

        supervisor.crash("b")

        assert supervisor.told() == ["-c", "-a"]
        assert supervisor.states == {"a": "down", "b": "down", "c": "down"}

    def test_the_cause_names_supervisor_child_and_last_failure(self) -> None:
        supervisor = supervise("a", intensity=0).running()

        supervisor.crash("a", BROKEN)

        [cause] = supervisor.finished
        assert isinstance(cause, SupervisorGaveUp)
        assert (cause.supervisor, cause.child, cause.__cause__) == ("boss", "a", BROKEN)
        assert supervisor.noted(EventKind.GAVE_UP) == ["a"]

    def test_supervisor_that_gives_up_finishes_only_when_all_children_are_down(self) -> None:
        supervisor = supervise("a", "b", intensity=0).running()
        supervisor.slow_to_stop = {"a"}

        supervisor.crash("b")
        before = supervisor.has_ended
        supervisor.stop_is_over("a")

        assert (before, supervisor.has_ended) == (False, True)

    @pytest.mark.parametrize(("restart", "state"), [("permanent", "up"), ("transient", "down")])
    def test_a_supervisor_that_gave_up_has_ended_normally_for_its_parent(self, restart: str, state: str) -> None:
        inner = supervise("x", intensity=0).running()
        outer = supervise(child("inner", restart=restart), intensity=1).running()

        inner.crash("x")
        outer.end("inner", exit_of(inner.finished[0], asked=False))

        assert outer.states == {"inner": state}

    def test_a_child_that_is_a_supervisor_is_known_as_one(self) -> None:
        supervisor = supervise("inner")
        supervisor.slow_to_start = {"inner"}
        supervisor.begin()

        supervisor.carry_out(
            supervisor.machine.started("inner", supervisor.incarnation("inner"), 0.0, is_supervisor=True)
        )

        assert supervisor.machine.roster.children["inner"].is_supervisor


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
        supervisor = supervise("a", "b", "c", "d", strategy=strategy).running()

        supervisor.crash("b")

        assert supervisor.told() == told
        assert supervisor.up == ["a", "b", "c", "d"]

    def test_rest_for_one_retries_from_the_one_that_failed(self) -> None:
        supervisor = supervise("a", "b", "c", "d", strategy="rest_for_one").running()
        supervisor.outcomes = {"c": [BROKEN]}

        supervisor.crash("b")

        assert supervisor.told() == ["-d", "-c", "+b", "+c", "+c", "+d"]
        assert supervisor.up == ["a", "b", "c", "d"]

    def test_one_for_all_stops_those_that_are_up_before_it_retries_from_the_left(self) -> None:
        supervisor = supervise("a", "b", "c", strategy="one_for_all").running()
        supervisor.outcomes = {"c": [BROKEN]}

        supervisor.crash("b")

        assert supervisor.told() == ["-c", "-a", "+a", "+b", "+c", "-b", "-a", "+a", "+b", "+c"]
        assert supervisor.up == ["a", "b", "c"]

    @every_group
    def test_temporary_siblings_are_stopped_and_dropped(self, strategy: str) -> None:
        supervisor = supervise("a", child("b", restart="temporary"), "c", strategy=strategy).running()

        supervisor.crash("a")

        assert supervisor.told() == ["-c", "-b", "+a", "+c"]
        assert supervisor.states == {"a": "up", "c": "up"}

    @every_group
    def test_a_transient_sibling_that_had_ended_normally_comes_up_with_the_group(self, strategy: str) -> None:
        supervisor = supervise("a", child("b", restart="transient"), strategy=strategy).running()

        supervisor.finish("b")
        supervisor.crash("a")

        assert supervisor.told() == ["+a", "+b"]

    @every_group
    def test_a_sibling_that_was_not_to_be_is_asked_again_with_the_group(self, strategy: str) -> None:
        supervisor = supervise("a", "b", strategy=strategy)
        supervisor.outcomes = {"b": [IGNORE]}
        supervisor.running()

        supervisor.crash("a")

        assert supervisor.told() == ["+a", "+b"]
        assert supervisor.up == ["a", "b"]

    def test_the_start_order_is_kept_for_ever_and_new_children_go_to_its_end(self) -> None:
        supervisor = supervise("a", "b", strategy="rest_for_one").running()

        supervisor.start_child("c")
        supervisor.crash("a")
        supervisor.crash("b")

        assert supervisor.told() == ["+c", "-c", "-b", "+a", "+b", "+c", "-c", "+b", "+c"]

    def test_a_child_that_is_not_to_be_when_it_is_restarted_stays_down(self) -> None:
        supervisor = supervise("a").running()
        supervisor.outcomes = {"a": [IGNORE]}

        supervisor.crash("a")

        assert supervisor.states == {"a": "down"}


class TestStop:
    @every_strategy
    def test_children_are_stopped_in_reverse_order(self, strategy: str) -> None:
        supervisor = supervise("a", "b", "c", strategy=strategy).running()

        supervisor.stop()

        assert supervisor.told() == ["-c", "-b", "-a"]
        assert supervisor.finished == [None]
        assert supervisor.noted(EventKind.TERMINATED) == ["c", "b", "a"]

    @pytest.mark.parametrize(
        ("strategy", "sequential"),
        [("one_for_one", True), ("rest_for_one", False), ("one_for_all", False)],
        ids=["one_for_one-sequential", "rest_for_one", "one_for_all"],
    )
    def test_a_group_is_stopped_strictly_one_after_another(self, strategy: str, sequential: bool) -> None:
        supervisor = supervise("a", "b", strategy=strategy, sequential=sequential).running()
        supervisor.slow_to_stop = {"a", "b"}

        supervisor.stop()
        first = supervisor.told()
        supervisor.stop_is_over("b")
        second = supervisor.told()

        assert (first, second) == (["-b"], ["-a"])

    def test_one_for_one_stops_all_at_once(self) -> None:
        supervisor = supervise("a", "b").running()
        supervisor.slow_to_stop = {"a", "b"}

        supervisor.stop()

        assert supervisor.told() == ["-b", "-a"]
        assert not supervisor.has_ended

    def test_supervisor_that_is_stopped_ends_with_the_cause_of_the_stop(self) -> None:
        supervisor = supervise("a").running()

        supervisor.stop(BROKEN)

        assert supervisor.finished == [BROKEN]

    def test_a_second_stop_changes_nothing(self) -> None:
        supervisor = supervise("a").running()
        supervisor.slow_to_stop = {"a"}

        supervisor.stop()
        supervisor.stop(BROKEN)
        supervisor.stop_is_over("a")
        supervisor.stop(BROKEN)

        assert supervisor.told() == ["-a"]
        assert supervisor.finished == [None]

    def test_children_that_are_down_are_not_stopped(self) -> None:
        supervisor = supervise("a", "b").running()
        supervisor.terminate_child("a")
        supervisor.told()

        supervisor.stop()

        assert supervisor.told() == ["-b"]

    def test_a_supervisor_without_children_ends_at_once(self) -> None:
        supervisor = supervise().running()

        supervisor.stop()

        assert supervisor.finished == [None]
        assert supervisor.machine.phase is Phase.ENDED

    def test_child_that_crashes_while_it_is_stopped_is_not_restarted(self) -> None:
        supervisor = supervise("a").running()
        supervisor.slow_to_stop = {"a"}

        supervisor.stop()
        supervisor.crash("a")

        assert supervisor.told() == ["-a"]
        assert supervisor.finished == [None]

    def test_child_that_crashes_before_its_turn_is_not_restarted_either(self) -> None:
        supervisor = supervise("a", "b", strategy="one_for_all", intensity=0).running()
        supervisor.slow_to_stop = {"b"}

        supervisor.stop()
        supervisor.crash("a")
        supervisor.stop_is_over("b")

        assert supervisor.told() == ["-b"]
        assert supervisor.finished == [None]


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
        supervisor = supervise(child("a", restart=restart, significant=True), "b", auto_shutdown=mode).running()

        supervisor.end("a", ENDS[reason])

        assert supervisor.has_ended is ended

    def test_any_significant_ends_the_supervisor_at_the_first(self) -> None:
        supervisor = supervise(
            child("a", restart="transient", significant=True),
            child("b", restart="transient", significant=True),
            "c",
            auto_shutdown="any_significant",
        ).running()

        supervisor.finish("a")

        assert supervisor.told() == ["-c", "-b"]
        assert supervisor.finished == [None]
        assert supervisor.noted(EventKind.AUTO_SHUTDOWN) == ["a"]

    def test_all_significant_ends_the_supervisor_at_the_last(self) -> None:
        supervisor = supervise(
            child("a", restart="transient", significant=True),
            child("b", restart="temporary", significant=True),
            "c",
            auto_shutdown="all_significant",
        ).running()

        supervisor.finish("b")
        after_the_first = supervisor.has_ended
        supervisor.finish("a")

        assert (after_the_first, supervisor.has_ended) == (False, True)

    def test_child_that_is_being_restarted_is_running_for_all_significant(self) -> None:
        supervisor = supervise(
            child("a", restart="transient", significant=True),
            child("b", restart="transient", significant=True),
            auto_shutdown="all_significant",
            backoff=Backoff(),
        ).running()

        supervisor.crash("a")
        supervisor.finish("b")

        assert not supervisor.has_ended

    @pytest.mark.parametrize("mode", ["any_significant", "all_significant"])
    def test_a_child_that_is_not_significant_ends_nothing(self, mode: str) -> None:
        supervisor = supervise(child("a", restart="transient"), auto_shutdown=mode).running()

        supervisor.finish("a")

        assert not supervisor.has_ended

    def test_terminating_a_significant_child_does_not_end_the_supervisor(self) -> None:
        supervisor = supervise(
            child("a", restart="transient", significant=True), "b", auto_shutdown="any_significant"
        ).running()

        supervisor.terminate_child("a")

        assert not supervisor.has_ended

    def test_a_significant_child_that_is_asked_to_stop_does_not_end_the_supervisor(self) -> None:
        supervisor = supervise(
            child("a", restart="transient", significant=True), "b", auto_shutdown="any_significant"
        ).running()

        supervisor.end("a", exit_of(None, asked=True))

        assert not supervisor.has_ended

    def test_a_significant_child_that_a_sibling_takes_down_does_not_end_the_supervisor(self) -> None:
        supervisor = supervise(
            "a",
            child("b", restart="temporary", significant=True),
            strategy="one_for_all",
            auto_shutdown="any_significant",
        ).running()

        supervisor.crash("a")

        assert supervisor.states == {"a": "up"}
        assert not supervisor.has_ended


class TestStartChild:
    def test_start_child_is_answered_once_the_child_is_up(self) -> None:
        supervisor = supervise("a").running()
        supervisor.slow_to_start = {"b"}

        waiter = supervisor.start_child("b")
        before = list(supervisor.answers[waiter])
        supervisor.start_is_over("b")

        assert before == []
        assert supervisor.answer(waiter) == "done"
        assert supervisor.up == ["a", "b"]

    @pytest.mark.parametrize("state", ["up", "down", "restarting", "starting", "stopping"])
    def test_an_id_that_is_taken_is_refused_with_the_state_of_its_owner(self, state: str) -> None:
        supervisor = in_state(state)

        waiter = supervisor.start_child("a")

        [error] = supervisor.answers[waiter]
        assert isinstance(error, ChildExistsError)
        assert error.state == state

    def test_child_that_cannot_be_started_is_discarded(self) -> None:
        supervisor = supervise("a").running()
        supervisor.outcomes = {"b": [BROKEN]}

        waiter = supervisor.start_child("b")

        [error] = supervisor.answers[waiter]
        assert isinstance(error, StartFailed)
        assert (error.child, error.__cause__) == ("b", BROKEN)
        assert supervisor.states == {"a": "up"}

    def test_child_that_is_not_to_be_now_is_kept(self) -> None:
        supervisor = supervise("a").running()
        supervisor.outcomes = {"b": [IGNORE]}

        waiter = supervisor.start_child("b")

        assert supervisor.answer(waiter) == "done"
        assert supervisor.states == {"a": "up", "b": "down"}

    def test_temporary_child_that_is_not_to_be_now_is_dropped(self) -> None:
        supervisor = supervise("a").running()
        supervisor.outcomes = {"b": [IGNORE]}

        waiter = supervisor.start_child(child("b", restart="temporary"))

        assert supervisor.answer(waiter) == "done"
        assert supervisor.states == {"a": "up"}

    def test_a_discarded_id_can_be_used_again(self) -> None:
        supervisor = supervise().running()
        supervisor.outcomes = {"a": [BROKEN]}

        supervisor.start_child("a")
        waiter = supervisor.start_child("a")

        assert supervisor.answer(waiter) == "done"
        assert supervisor.up == ["a"]

    def test_child_that_fails_after_it_was_up_is_restarted_like_any_other(self) -> None:
        supervisor = supervise().running()
        supervisor.start_child("a")
        supervisor.outcomes = {"a": [BROKEN]}

        supervisor.crash("a")

        assert supervisor.up == ["a"]


class TestTerminateChild:
    @pytest.mark.parametrize(
        ("restart", "states"),
        [("permanent", {"a": "down"}), ("transient", {"a": "down"}), ("temporary", {})],
    )
    def test_the_spec_is_kept_unless_it_is_temporary(self, restart: str, states: dict[str, str]) -> None:
        supervisor = supervise(child("a", restart=restart)).running()

        waiter = supervisor.terminate_child("a")

        assert supervisor.told() == ["-a"]
        assert supervisor.answer(waiter) == "done"
        assert supervisor.states == states
        assert supervisor.noted(EventKind.TERMINATED) == ["a"]

    def test_terminate_child_is_answered_once_the_child_is_down(self) -> None:
        supervisor = supervise("a").running()
        supervisor.slow_to_stop = {"a"}

        waiter = supervisor.terminate_child("a")
        before = list(supervisor.answers[waiter])
        supervisor.stop_is_over("a")

        assert before == []
        assert supervisor.answer(waiter) == "done"

    def test_child_that_is_down_already_is_terminated_at_once(self) -> None:
        supervisor = supervise("a").running()

        supervisor.terminate_child("a")
        waiter = supervisor.terminate_child("a")

        assert supervisor.answer(waiter) == "done"
        assert supervisor.told() == ["-a"]

    def test_terminate_child_answers_all_who_ask(self) -> None:
        supervisor = supervise("a").running()
        supervisor.slow_to_stop = {"a"}

        waiters = [supervisor.terminate_child("a"), supervisor.terminate_child("a")]
        supervisor.stop_is_over("a")

        assert [supervisor.answer(waiter) for waiter in waiters] == ["done", "done"]
        assert supervisor.told() == ["-a"]

    def test_a_stranger_is_not_found(self) -> None:
        supervisor = supervise().running()

        waiter = supervisor.terminate_child("unknown")

        assert supervisor.answer(waiter) == "ChildNotFoundError"

    def test_child_that_crashes_on_the_way_is_terminated_all_the_same(self) -> None:
        supervisor = supervise("a").running()
        supervisor.slow_to_stop = {"a"}

        waiter = supervisor.terminate_child("a")
        supervisor.crash("a")

        assert supervisor.answer(waiter) == "done"
        assert supervisor.states == {"a": "down"}

    @every_strategy
    def test_siblings_are_left_alone(self, strategy: str) -> None:
        supervisor = supervise("a", "b", "c", strategy=strategy).running()

        supervisor.terminate_child("b")

        assert supervisor.told() == ["-b"]
        assert supervisor.up == ["a", "c"]


class TestRestartChild:
    def test_child_that_is_down_is_started_in_its_place(self) -> None:
        supervisor = supervise("a", "b").running()
        supervisor.terminate_child("a")

        waiter = supervisor.restart_child("a")

        assert supervisor.answer(waiter) == "done"
        assert supervisor.up == ["a", "b"]

    @every_strategy
    def test_siblings_are_left_alone(self, strategy: str) -> None:
        supervisor = supervise("a", "b", "c", strategy=strategy).running()
        supervisor.terminate_child("b")
        supervisor.told()

        supervisor.restart_child("b")

        assert supervisor.told() == ["+b"]

    @pytest.mark.parametrize("state", ["up", "restarting", "starting", "stopping"])
    def test_child_that_is_not_down_is_busy(self, state: str) -> None:
        supervisor = in_state(state)

        waiter = supervisor.restart_child("a")

        [error] = supervisor.answers[waiter]
        assert isinstance(error, ChildBusyError)
        assert error.state == state

    def test_a_stranger_is_not_found(self) -> None:
        supervisor = supervise().running()

        waiter = supervisor.restart_child("unknown")

        assert supervisor.answer(waiter) == "ChildNotFoundError"

    def test_child_that_cannot_be_started_stays_down(self) -> None:
        supervisor = supervise("a").running()
        supervisor.terminate_child("a")
        supervisor.outcomes = {"a": [BROKEN]}

        waiter = supervisor.restart_child("a")

        assert supervisor.answer(waiter) == "StartFailed"
        assert supervisor.states == {"a": "down"}

    def test_child_that_is_not_to_be_now_stays_down(self) -> None:
        supervisor = supervise("a").running()
        supervisor.terminate_child("a")
        supervisor.outcomes = {"a": [IGNORE]}

        waiter = supervisor.restart_child("a")

        assert supervisor.answer(waiter) == "done"
        assert supervisor.states == {"a": "down"}


class TestDeleteChild:
    def test_child_that_is_down_is_forgotten(self) -> None:
        supervisor = supervise("a", "b").running()
        supervisor.terminate_child("a")

        waiter = supervisor.delete_child("a")

        assert supervisor.answer(waiter) == "done"
        assert supervisor.states == {"b": "up"}

    @pytest.mark.parametrize("state", ["up", "restarting", "starting", "stopping"])
    def test_child_that_is_not_down_is_busy(self, state: str) -> None:
        supervisor = in_state(state)

        waiter = supervisor.delete_child("a")

        [error] = supervisor.answers[waiter]
        assert isinstance(error, ChildBusyError)
        assert error.state == state

    def test_a_stranger_is_not_found(self) -> None:
        supervisor = supervise().running()

        waiter = supervisor.delete_child("unknown")

        assert supervisor.answer(waiter) == "ChildNotFoundError"

    def test_id_of_a_deleted_child_can_be_used_again_at_the_end_of_the_order(self) -> None:
        supervisor = supervise("a", "b", strategy="rest_for_one").running()

        supervisor.terminate_child("a")
        supervisor.delete_child("a")
        supervisor.start_child("a")
        supervisor.told()
        supervisor.crash("b")

        assert supervisor.told() == ["-a", "+b", "+a"]

    def test_deleted_child_comes_up_with_no_group(self) -> None:
        supervisor = supervise("a", "b", strategy="one_for_all").running()

        supervisor.terminate_child("b")
        supervisor.delete_child("b")
        supervisor.crash("a")

        assert supervisor.states == {"a": "up"}


class TestHeldDown:
    """Restart types judge only ends that were not asked for; what a request took down only a request brings up."""

    @pytest.mark.parametrize(
        ("restart", "states"),
        [("permanent", {"a": "down"}), ("transient", {"a": "down"}), ("temporary", {})],
    )
    def test_an_end_that_was_asked_for_is_a_termination(self, restart: str, states: dict[str, str]) -> None:
        supervisor = supervise(child("a", restart=restart), intensity=0).running()

        supervisor.end("a", exit_of(None, asked=True))

        assert supervisor.states == states
        assert supervisor.noted(EventKind.TERMINATED) == ["a"]

    def test_a_child_that_was_asked_to_stop_and_crashed_is_not_restarted_either(self) -> None:
        supervisor = supervise("a").running()

        supervisor.end("a", exit_of(BROKEN, asked=True))

        assert supervisor.states == {"a": "down"}

    @every_group
    def test_child_that_was_terminated_stays_down_when_the_group_is_restarted(self, strategy: str) -> None:
        supervisor = supervise("a", "b", "c", strategy=strategy).running()
        supervisor.terminate_child("b")
        supervisor.told()

        supervisor.crash("a")

        assert supervisor.told() == ["-c", "+a", "+c"]
        assert supervisor.states == {"a": "up", "b": "down", "c": "up"}

    @every_group
    def test_child_that_was_asked_to_stop_stays_down_when_the_group_is_restarted(self, strategy: str) -> None:
        supervisor = supervise("a", "b", strategy=strategy).running()
        supervisor.end("b", exit_of(None, asked=True))

        supervisor.crash("a")

        assert supervisor.states == {"a": "up", "b": "down"}

    @every_group
    def test_child_that_had_ended_by_itself_and_was_then_terminated_stays_down(self, strategy: str) -> None:
        supervisor = supervise("a", child("b", restart="transient"), strategy=strategy).running()
        supervisor.finish("b")
        supervisor.terminate_child("b")

        supervisor.crash("a")

        assert supervisor.states == {"a": "up", "b": "down"}

    @every_group
    def test_child_that_is_being_terminated_stays_down_when_the_group_is_restarted(self, strategy: str) -> None:
        supervisor = supervise("a", "b", strategy=strategy).running()
        supervisor.slow_to_stop = {"b"}
        supervisor.terminate_child("b")

        supervisor.crash("a")
        supervisor.stop_is_over("b")

        assert supervisor.states == {"a": "up", "b": "down"}

    @every_group
    def test_child_that_was_brought_up_again_goes_with_the_group_again(self, strategy: str) -> None:
        supervisor = supervise("a", "b", strategy=strategy).running()
        supervisor.terminate_child("b")
        supervisor.restart_child("b")
        supervisor.told()

        supervisor.crash("a")

        assert supervisor.told() == ["-b", "+a", "+b"]

    @every_group
    def test_child_that_could_not_be_started_by_hand_is_tried_again_with_its_group(self, strategy: str) -> None:
        supervisor = supervise("a", "b", strategy=strategy).running()
        supervisor.outcomes = {"b": [BROKEN]}
        supervisor.terminate_child("b")
        supervisor.restart_child("b")

        supervisor.crash("a")

        assert supervisor.states == {"a": "up", "b": "up"}

    def test_child_that_waits_for_its_restart_can_be_terminated(self) -> None:
        supervisor = supervise("a", backoff=Backoff()).running()
        supervisor.crash("a")

        waiter = supervisor.terminate_child("a")
        supervisor.advance(100)

        assert supervisor.answer(waiter) == "done"
        assert supervisor.states == {"a": "down"}
        assert supervisor.told() == []
        assert supervisor.noted(EventKind.TERMINATED) == ["a"]


class TestBackoff:
    def test_a_child_is_started_again_when_its_delay_is_over(self) -> None:
        supervisor = supervise("a", backoff=Backoff(minimum=2, jitter=0)).running()

        supervisor.crash("a")
        supervisor.advance(1.9)
        too_early = supervisor.told()
        state = supervisor.states
        supervisor.advance(0.1)

        assert (too_early, state) == ([], {"a": "restarting"})
        assert supervisor.told() == ["+a"]

    def test_the_delay_doubles_with_each_failure_in_a_row(self) -> None:
        supervisor = supervise("a", backoff=Backoff(minimum=1, maximum=5, jitter=0)).running()
        supervisor.outcomes = {"a": [BROKEN, BROKEN, BROKEN]}

        supervisor.crash("a")
        supervisor.advance(100)

        assert supervisor.delays == [1, 2, 4, 5]
        assert supervisor.up == ["a"]

    def test_a_restart_that_works_does_not_end_the_row(self) -> None:
        supervisor = supervise("a", backoff=Backoff(minimum=1, jitter=0), reset_after=60).running()

        supervisor.crash("a")
        supervisor.advance(1 + 59)
        supervisor.crash("a")

        assert supervisor.delays == [1, 2]

    def test_a_stable_time_ends_the_row(self) -> None:
        supervisor = supervise("a", backoff=Backoff(minimum=1, jitter=0), reset_after=60).running()

        supervisor.crash("a")
        supervisor.advance(1 + 60)
        supervisor.crash("a")

        assert supervisor.delays == [1, 1]

    def test_a_start_by_hand_ends_the_row(self) -> None:
        supervisor = supervise("a", backoff=Backoff(minimum=1, jitter=0)).running()

        supervisor.crash("a")
        supervisor.terminate_child("a")
        supervisor.restart_child("a")
        supervisor.crash("a")

        assert supervisor.delays == [1, 1]

    def test_a_delay_of_nothing_is_no_delay(self) -> None:
        supervisor = supervise("a", "b", strategy="one_for_all", backoff=Backoff(minimum=0)).running()

        supervisor.crash("a")

        assert supervisor.delays == []
        assert supervisor.told() == ["-b", "+a", "+b"]

    def test_a_child_may_have_its_own(self) -> None:
        supervisor = supervise(child("a", backoff=Backoff(minimum=7, jitter=0)), "b", backoff=None).running()

        supervisor.crash("a")
        supervisor.crash("b")

        assert supervisor.delays == [7]
        assert supervisor.states == {"a": "restarting", "b": "up"}

    def test_the_die_decides_on_the_jitter(self) -> None:
        supervisor = supervise("a", backoff=Backoff(minimum=10, jitter=0.2)).running()

        supervisor.carry_out(supervisor.machine.ended("a", supervisor.incarnation("a"), ENDS["error"], 0.0, roll=0.0))

        assert supervisor.delays == [pytest.approx(8)]

    def test_a_failure_counts_when_it_happens_and_not_when_its_delay_is_over(self) -> None:
        supervisor = supervise("a", backoff=Backoff(minimum=4, jitter=0), intensity=1, period=5).running()

        supervisor.crash("a")
        supervisor.advance(5.5)
        supervisor.crash("a")

        assert not supervisor.has_ended

    def test_siblings_of_another_child_need_not_wait(self) -> None:
        supervisor = supervise("a", "b", backoff=Backoff(minimum=4, jitter=0)).running()

        supervisor.crash("a")
        supervisor.advance(2)
        supervisor.crash("b")
        supervisor.advance(2)

        assert supervisor.states == {"a": "up", "b": "restarting"}

    @every_group
    def test_a_group_waits_with_the_one_that_failed(self, strategy: str) -> None:
        supervisor = supervise("a", "b", strategy=strategy, backoff=Backoff(minimum=1, jitter=0)).running()

        supervisor.crash("a")
        waiting = (supervisor.told(), supervisor.states)
        supervisor.advance(1)

        assert waiting == (["-b"], {"a": "restarting", "b": "restarting"})
        assert supervisor.told() == ["+a", "+b"]

    def test_one_for_all_waits_for_a_child_on_the_right_too(self) -> None:
        supervisor = supervise("a", "b", strategy="one_for_all", backoff=Backoff(minimum=1, jitter=0)).running()

        supervisor.crash("b")
        waiting = (supervisor.told(), supervisor.states)
        supervisor.advance(1)

        assert waiting == (["-a"], {"a": "restarting", "b": "restarting"})
        assert supervisor.told() == ["+a", "+b"]

    def test_rest_for_one_goes_on_from_the_left_while_a_child_on_the_right_waits(self) -> None:
        supervisor = supervise(
            child("a", backoff=Backoff(minimum=1, jitter=0)),
            "b",
            child("c", backoff=Backoff(minimum=9, jitter=0)),
            "d",
            strategy="rest_for_one",
        ).running()

        supervisor.crash("c")
        supervisor.crash("a")
        supervisor.told()
        supervisor.advance(1)
        at_first = supervisor.told()
        supervisor.advance(8)

        assert at_first == ["+a", "+b"]
        assert supervisor.told() == ["+c", "+d"]

    def test_a_sequential_supervisor_goes_on_while_a_child_waits(self) -> None:
        supervisor = supervise("a", "b", sequential=True, backoff=Backoff(minimum=4, jitter=0)).running()

        supervisor.crash("a")
        supervisor.advance(2)
        supervisor.crash("b")
        supervisor.advance(2)

        assert supervisor.states == {"a": "up", "b": "restarting"}

    @every_group
    def test_a_start_by_hand_does_not_wait_for_a_group(self, strategy: str) -> None:
        supervisor = supervise("a", "b", "c", strategy=strategy, backoff=Backoff(minimum=1, jitter=0)).running()
        supervisor.terminate_child("b")
        supervisor.crash("a")
        supervisor.told()

        waiters = [supervisor.restart_child("b"), supervisor.start_child("d")]

        assert supervisor.told() == ["+b", "+d"]
        assert [supervisor.answer(waiter) for waiter in waiters] == ["done", "done"]

    @every_strategy
    def test_a_supervisor_that_is_stopped_waits_for_no_delay(self, strategy: str) -> None:
        supervisor = supervise("a", "b", strategy=strategy, backoff=Backoff()).running()

        supervisor.crash("a")
        supervisor.stop()
        supervisor.advance(100)

        assert supervisor.told() == ["-b"]
        assert supervisor.finished == [None]

    def test_a_delay_is_noted(self) -> None:
        supervisor = supervise("a", backoff=Backoff(minimum=3, jitter=0)).running()

        supervisor.crash("a", BROKEN)

        assert EmitEvent(EventKind.RESTARTING, "a", BROKEN, attempt=1, delay=3.0) in supervisor.notes


class TestForEver:
    def test_supervisor_without_an_intensity_never_gives_up(self) -> None:
        supervisor = supervise("a", intensity=None).running()
        supervisor.outcomes = {"a": [BROKEN] * 500}

        supervisor.crash("a")

        assert supervisor.up == ["a"]
        assert supervisor.machine.restarts == 501


class TestOwnIntensity:
    @every_strategy
    def test_a_child_that_fails_too_often_for_itself_stays_down_and_its_siblings_go_on(self, strategy: str) -> None:
        supervisor = supervise("x", child("a", intensity=1, period=5), "b", strategy=strategy).running()

        supervisor.crash("a")
        supervisor.told()
        supervisor.crash("a", BROKEN)

        assert supervisor.told() == []
        assert supervisor.states == {"x": "up", "a": "down", "b": "up"}
        assert supervisor.noted(EventKind.CHILD_GAVE_UP) == ["a"]

    def test_window_of_a_child_slides_like_the_supervisors(self) -> None:
        supervisor = supervise(child("a", intensity=1, period=5)).running()

        supervisor.crash("a")
        supervisor.advance(5.5)
        supervisor.crash("a")

        assert supervisor.up == ["a"]

    def test_restart_that_fails_counts_for_the_child(self) -> None:
        supervisor = supervise(child("a", intensity=1), "b").running()
        supervisor.outcomes = {"a": [BROKEN]}

        supervisor.crash("a")

        assert supervisor.states == {"a": "down", "b": "up"}

    def test_failure_that_is_too_many_for_the_child_costs_the_supervisor_nothing(self) -> None:
        supervisor = supervise(child("a", intensity=0), "b", intensity=1).running()

        supervisor.crash("a")
        supervisor.crash("b")

        assert supervisor.states == {"a": "down", "b": "up"}

    def test_intensity_of_the_supervisor_counts_beside_that_of_the_child(self) -> None:
        supervisor = supervise(child("a", intensity=9), intensity=1).running()

        supervisor.crash("a")
        supervisor.crash("a")

        assert supervisor.has_ended

    @every_group
    def test_a_child_that_gave_up_stays_down_when_the_group_is_restarted(self, strategy: str) -> None:
        supervisor = supervise("a", child("b", intensity=0), strategy=strategy).running()

        supervisor.crash("b")
        supervisor.crash("a")

        assert supervisor.states == {"a": "up", "b": "down"}

    def test_a_child_that_gave_up_can_be_started_by_hand(self) -> None:
        supervisor = supervise(child("a", intensity=0)).running()
        supervisor.crash("a")

        supervisor.restart_child("a")

        assert supervisor.up == ["a"]

    def test_a_significant_child_that_gave_up_has_ended_for_good(self) -> None:
        supervisor = supervise(
            child("a", restart="transient", significant=True, intensity=0), auto_shutdown="any_significant"
        ).running()

        supervisor.crash("a")

        assert supervisor.finished == [None]


class TestDecide:
    def test_stop_keeps_a_permanent_child_down(self) -> None:
        supervisor = supervise(child("a", decide={KeyError: "stop"}), "b").running()

        supervisor.crash("a", KeyError("k"))

        assert supervisor.states == {"a": "down", "b": "up"}
        assert supervisor.told() == []

    def test_stop_drops_a_temporary_child(self) -> None:
        supervisor = supervise(child("a", restart="temporary", decide={KeyError: "stop"})).running()

        supervisor.crash("a", KeyError("k"))

        assert supervisor.states == {}

    @pytest.mark.parametrize("restart", ["permanent", "transient", "temporary"])
    def test_escalate_ends_the_supervisor_at_once(self, restart: str) -> None:
        supervisor = supervise("x", child("a", restart=restart, decide={MemoryError: "escalate"}), "b").running()
        error = MemoryError()

        supervisor.crash("a", error)

        [cause] = supervisor.finished
        assert isinstance(cause, SupervisorGaveUp)
        assert cause.__cause__ is error
        assert supervisor.told() == ["-b", "-x"]
        assert supervisor.noted(EventKind.ESCALATED) == ["a"]

    def test_other_errors_are_handled_as_the_restart_type_says(self) -> None:
        supervisor = supervise(child("a", decide={KeyError: "stop"})).running()

        supervisor.crash("a", ValueError("v"))

        assert supervisor.up == ["a"]

    def test_a_significant_child_that_is_stopped_has_ended_for_good(self) -> None:
        supervisor = supervise(
            child("a", restart="transient", significant=True, decide={KeyError: "stop"}),
            auto_shutdown="all_significant",
        ).running()

        supervisor.crash("a", KeyError("k"))

        assert supervisor.finished == [None]


class TestPool:
    def pool(self, **fields: object) -> Simulator:
        supervisor = supervise(template=child("worker", **fields)).running()
        supervisor.start_child(child("worker-1", **fields))
        supervisor.start_child(child("worker-2", **fields))
        supervisor.told()
        return supervisor

    def test_a_child_that_is_terminated_is_forgotten(self) -> None:
        supervisor = self.pool()

        supervisor.terminate_child("worker-1")

        assert supervisor.states == {"worker-2": "up"}

    def test_a_child_that_was_asked_to_stop_is_forgotten(self) -> None:
        supervisor = self.pool()

        supervisor.end("worker-1", exit_of(None, asked=True))

        assert supervisor.states == {"worker-2": "up"}

    def test_a_child_that_crashes_is_restarted(self) -> None:
        supervisor = self.pool()

        supervisor.crash("worker-1")

        assert supervisor.told() == ["+worker-1"]

    def test_a_transient_child_that_ends_normally_is_forgotten(self) -> None:
        supervisor = self.pool(restart="transient")

        supervisor.finish("worker-1")

        assert supervisor.states == {"worker-2": "up"}

    def test_a_child_that_is_not_to_be_when_it_is_restarted_is_dropped(self) -> None:
        supervisor = self.pool()
        supervisor.outcomes = {"worker-1": [IGNORE]}

        supervisor.crash("worker-1")

        assert supervisor.states == {"worker-2": "up"}

    def test_a_child_that_waits_for_its_restart_and_is_terminated_is_forgotten(self) -> None:
        supervisor = self.pool(backoff=Backoff())
        supervisor.crash("worker-1")

        supervisor.terminate_child("worker-1")

        assert supervisor.states == {"worker-2": "up"}

    def test_children_of_a_pool_are_all_stopped_at_once(self) -> None:
        supervisor = self.pool()
        supervisor.slow_to_stop = {"worker-1", "worker-2"}

        supervisor.stop()

        assert supervisor.told() == ["-worker-2", "-worker-1"]


class TestDrain:
    @staticmethod
    def draining(strategy: str = "one_for_one", *cannot: str) -> Simulator:
        supervisor = supervise("a", "b", "c", strategy=strategy).running()
        supervisor.drain(*cannot)
        return supervisor

    def test_children_are_kept_from_their_stop_until_the_supervisor_is_told_to_stop(self) -> None:
        supervisor = self.draining()
        told = supervisor.told()

        supervisor.stop()

        assert told == ["=c", "=b", "=a"]
        assert supervisor.told() == ["-a", "-b", "-c"]
        assert (supervisor.given_up, supervisor.finished) == ([], [None])

    @every_group
    def test_children_of_a_group_are_stopped_from_right_to_left_behind_the_one_that_is_kept(
        self, strategy: str
    ) -> None:
        supervisor = self.draining(strategy)
        told = supervisor.told()

        supervisor.stop()

        assert (told, supervisor.told()) == (["=c"], ["-c", "-b", "-a"])
        assert supervisor.finished == [None]

    def test_child_that_cannot_drain_is_stopped_at_once(self) -> None:
        supervisor = self.draining("one_for_one", "b")

        assert supervisor.told() == ["=c", "-b", "=a"]
        assert supervisor.states == {"a": "stopping", "b": "down", "c": "stopping"}

    @every_group
    def test_child_of_a_group_that_cannot_drain_is_stopped_when_its_turn_comes(self, strategy: str) -> None:
        supervisor = self.draining(strategy, "b")
        before = supervisor.told()

        supervisor.stop()

        assert (before, supervisor.told()) == (["=c"], ["-c", "-b", "-a"])

    def test_child_that_is_to_be_killed_is_not_kept(self) -> None:
        supervisor = supervise("a", child("b", shutdown="brutal_kill")).running()

        supervisor.drain()

        assert supervisor.told() == ["-b", "=a"]

    def test_child_whose_share_is_over_is_stopped_if_it_has_nothing_in_hand_and_given_up_otherwise(self) -> None:
        supervisor = self.draining()
        supervisor.told()
        supervisor.idle = {"a", "c"}

        supervisor.advance(supervisor.share)

        assert (supervisor.told(), supervisor.given_up) == (["-a", "-c"], ["b"])
        assert supervisor.finished == [None]

    def test_child_that_is_stopped_after_its_share_and_does_not_end_is_given_up(self) -> None:
        supervisor = self.draining()
        supervisor.slow_to_stop = supervisor.idle = {"a"}
        supervisor.advance(supervisor.share)
        before = list(supervisor.given_up)

        supervisor.stop_takes_too_long("a")

        assert ("a" in before, "a" in supervisor.given_up) == (False, True)

    def test_child_that_is_stopped_when_the_drain_is_over_keeps_no_share(self) -> None:
        supervisor = self.draining()
        supervisor.slow_to_stop = {"a"}
        supervisor.stop()
        supervisor.told()

        supervisor.advance(supervisor.share)

        assert (supervisor.told(), supervisor.given_up) == ([], [])

    @every_strategy
    def test_child_that_crashes_is_not_restarted(self, strategy: str) -> None:
        supervisor = self.draining(strategy)
        supervisor.told()

        supervisor.crash("b")

        assert supervisor.states["b"] == "down"
        assert not [each for each in supervisor.told() if each.startswith("+")]

    def test_child_that_waits_for_its_restart_stays_down(self) -> None:
        supervisor = supervise("a", "b", backoff=Backoff(minimum=1, jitter=0)).running()
        supervisor.crash("a")
        supervisor.told()

        supervisor.drain()
        supervisor.advance(2)

        assert supervisor.told() == ["=b"]
        assert supervisor.states == {"a": "down", "b": "stopping"}

    @every_strategy
    def test_child_whose_start_is_under_way_is_not_kept(self, strategy: str) -> None:
        supervisor = supervise("a", "b", strategy=strategy).running()
        supervisor.slow_to_start = {"b"}
        supervisor.crash("b")
        supervisor.told()

        supervisor.drain()

        assert supervisor.told() == ["-b", "=a"]

    def test_supervisor_whose_children_are_down_ends(self) -> None:
        supervisor = supervise("a").running()
        supervisor.terminate_child("a")

        supervisor.drain()

        assert supervisor.finished == [None]

    def test_supervisor_ends_when_the_last_child_has_ended_by_itself(self) -> None:
        supervisor = self.draining()

        for name in ("a", "b", "c"):
            supervisor.finish(name)

        assert supervisor.finished == [None]
        assert supervisor.machine.phase is Phase.ENDED

    @every_group
    def test_supervisor_that_is_stopping_lets_those_drain_whose_turn_has_not_come(self, strategy: str) -> None:
        supervisor = supervise("a", "b", "c", strategy=strategy).running()
        supervisor.slow_to_stop = {"c"}
        supervisor.stop(BROKEN)
        supervisor.drain()
        supervisor.stop_is_over("c")
        told = supervisor.told()

        supervisor.stop()

        assert (told, supervisor.told()) == (["-c", "=b"], ["-b", "-a"])
        assert supervisor.finished == [BROKEN]

    def test_supervisor_that_has_ended_has_nothing_to_drain(self) -> None:
        supervisor = supervise("a").running()
        supervisor.stop()

        supervisor.drain()

        assert supervisor.finished == [None]

    @every_strategy
    def test_child_that_is_terminated_by_hand_is_answered_when_it_is_down(self, strategy: str) -> None:
        supervisor = self.draining(strategy)

        waiter = supervisor.terminate_child("c")
        before = supervisor.answers[waiter][:]
        supervisor.stop()

        assert (before, supervisor.answer(waiter)) == ([], "done")


class TestKill:
    @every_strategy
    def test_children_are_all_given_up_at_once(self, strategy: str) -> None:
        supervisor = supervise("a", "b", strategy=strategy).running()

        supervisor.kill_all()

        assert (supervisor.told(), supervisor.given_up) == ([], ["a", "b"])
        assert isinstance(supervisor.finished[0], LoopAbandonedError)

    def test_child_that_is_starting_is_given_up_too(self) -> None:
        supervisor = supervise("a", "b")
        supervisor.slow_to_start = {"b"}
        supervisor.begin()

        supervisor.kill_all()

        assert (supervisor.given_up, supervisor.states) == (["a", "b"], {"a": "down", "b": "down"})

    @every_strategy
    def test_child_with_nothing_in_hand_has_a_moment_to_stop_once_the_drain_is_over(self, strategy: str) -> None:
        supervisor = supervise("a", "b", strategy=strategy).running()
        supervisor.slow_to_stop = {"a", "b"}
        supervisor.drain()
        supervisor.stop()
        supervisor.told()
        supervisor.idle = {"a"}

        supervisor.kill_all()
        told = supervisor.told()
        supervisor.stop_takes_too_long("a")

        assert (told, supervisor.given_up) == (["-a"], ["b", "a"])
        assert supervisor.finished == [None]

    def test_child_that_is_still_kept_is_given_up(self) -> None:
        supervisor = supervise("a").running()
        supervisor.drain()
        supervisor.idle = {"a"}

        supervisor.kill_all()

        assert supervisor.given_up == ["a"]


class TestAfterTheEnd:
    @pytest.mark.parametrize("phase", ["draining", "stopping", "ended"])
    def test_supervisor_that_is_ending_or_has_ended_starts_nothing(self, phase: str) -> None:
        supervisor = supervise("a", "b").running()
        supervisor.terminate_child("b")
        supervisor.told()
        supervisor.slow_to_stop = set() if phase == "ended" else {"a"}
        if phase == "draining":
            supervisor.drain()
        else:
            supervisor.stop()

        waiters = [supervisor.start_child("c"), supervisor.restart_child("b")]

        assert [supervisor.answer(waiter) for waiter in waiters] == ["ChildUnavailableError", "ChildUnavailableError"]
        [error] = supervisor.answers[waiters[0]]
        assert isinstance(error, ChildUnavailableError)
        assert error.state == ("ended" if phase == "ended" else "stopping")
        assert supervisor.told() == ["=a" if phase == "draining" else "-a"]

    def test_a_child_is_down_and_can_be_forgotten(self) -> None:
        supervisor = supervise("a").running()
        supervisor.stop()

        waiters = [supervisor.terminate_child("a"), supervisor.delete_child("a"), supervisor.terminate_child("a")]

        assert [supervisor.answer(waiter) for waiter in waiters] == ["done", "done", "ChildNotFoundError"]
        assert supervisor.finished == [None]


def in_state(state: str) -> Simulator:
    """Return a supervisor whose child ``a`` is in that state, and stays there."""
    supervisor = supervise("a", backoff=Backoff()).running()
    supervisor.slow_to_start = {"a"}
    supervisor.slow_to_stop = {"a"} if state == "stopping" else set()
    if state in {"down", "starting", "stopping"}:
        supervisor.terminate_child("a")
    if state == "starting":
        supervisor.restart_child("a")
    if state == "restarting":
        supervisor.crash("a")
    assert supervisor.states == {"a": state}
    return supervisor


def test_a_roster_prints_how_many_children_are_in_which_state() -> None:
    assert repr(supervise("a", "b").running().machine.roster) == "<Roster, 2 up>"
    assert repr(supervise().machine.roster) == "<Roster, empty>"
