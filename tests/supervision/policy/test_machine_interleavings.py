"""What happens to a supervisor while it is in the middle of something: starts and stops that take their time."""

from __future__ import annotations

import pytest
from family_simulator import IGNORE, ROLL, Simulator, child, supervise
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from loopwarden._backoff import Backoff
from loopwarden.supervision.policy._machine import Phase
from loopwarden.supervision.policy._restart import exit_of

STRATEGIES = ["one_for_one", "rest_for_one", "one_for_all"]
GROUPS = ["rest_for_one", "one_for_all"]

BROKEN = RuntimeError("broken")

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
every_group = pytest.mark.parametrize("strategy", GROUPS)


def slow(*names: str, **fields: object) -> Simulator:
    """Return a supervisor that is running, and whose children from now on start and stop when they are told to."""
    boss = supervise(*names, **fields).running()
    boss.slow_to_start = boss.slow_to_stop = {*names, "new"}
    return boss


class TestTerminateWhileStarting:
    @every_strategy
    def test_a_new_child_that_is_stopped_before_it_is_up_was_not_started(self, strategy: str) -> None:
        boss = slow("a", strategy=strategy)

        starter = boss.start_child("new")
        stopper = boss.terminate_child("new")
        told = boss.told()
        boss.stop_is_over("new")

        assert told == ["+new", "-new"]
        assert (boss.answer(starter), boss.answer(stopper)) == ("StartFailed", "done")
        assert boss.states == {"a": "up", "new": "down"}

    def test_a_start_that_succeeds_too_late_is_stopped_all_the_same(self) -> None:
        boss = slow("a")

        starter = boss.start_child("new")
        stopper = boss.terminate_child("new")
        boss.start_is_over("new")
        boss.stop_is_over("new")

        assert (boss.answer(starter), boss.answer(stopper)) == ("StartFailed", "done")
        assert boss.states == {"a": "up", "new": "down"}

    @pytest.mark.parametrize(("outcome", "started"), [(BROKEN, "StartFailed"), (IGNORE, "done")], ids=["fails", "none"])
    def test_a_start_that_comes_to_nothing_needs_no_stop(self, outcome: BaseException | str, started: str) -> None:
        boss = slow("a")

        starter = boss.start_child("new")
        stopper = boss.terminate_child("new")
        boss.start_is_over("new", outcome)
        boss.stop_is_over("new")

        assert (boss.answer(starter), boss.answer(stopper)) == (started, "done")
        assert boss.states == {"a": "up", "new": "down"}

    def test_a_temporary_child_is_forgotten(self) -> None:
        boss = slow("a")

        boss.start_child(child("new", restart="temporary"))
        boss.terminate_child("new")
        boss.stop_is_over("new")

        assert boss.states == {"a": "up"}

    @every_strategy
    def test_one_of_the_first_children_makes_room_for_the_next(self, strategy: str) -> None:
        boss = supervise("a", "b", strategy=strategy)
        boss.slow_to_start = {"a"}
        boss.begin()

        waiter = boss.terminate_child("a")

        assert boss.log == ["+a", "-a", "+b"]
        assert boss.answer(waiter) == "done"
        assert (boss.times_ready, boss.finished) == (1, [])

    @every_strategy
    def test_one_whose_turn_has_not_come_is_never_started(self, strategy: str) -> None:
        boss = supervise("a", "b", strategy=strategy)
        boss.slow_to_start = {"a"}
        boss.begin()

        waiter = boss.terminate_child("b")
        boss.start_is_over("a")

        assert boss.log == ["+a"]
        assert boss.answer(waiter) == "done"
        assert boss.states == {"a": "up", "b": "down"}
        assert boss.times_ready == 1

    @every_strategy
    def test_one_of_the_first_that_is_brought_up_again_is_started_once(self, strategy: str) -> None:
        boss = supervise("a", "b", strategy=strategy)
        boss.slow_to_start = {"a"}
        boss.begin()

        boss.terminate_child("b")
        waiter = boss.restart_child("b")
        boss.start_is_over("a")

        assert boss.log == ["+a", "+b"]
        assert boss.answer(waiter) == "done"

    @every_group
    def test_whoever_asked_for_a_start_whose_turn_has_not_come_is_told(self, strategy: str) -> None:
        boss = slow("a", "b", strategy=strategy)
        boss.crash("b")

        starter = boss.start_child("new")
        stopper = boss.terminate_child("new")

        assert (boss.answer(starter), boss.answer(stopper)) == ("StartFailed", "done")
        assert boss.states["new"] == "down"

    def test_a_child_that_is_being_restarted_stays_down(self) -> None:
        boss = slow("a")

        boss.crash("a")
        waiter = boss.terminate_child("a")
        boss.stop_is_over("a")

        assert boss.told() == ["+a", "-a"]
        assert boss.answer(waiter) == "done"
        assert boss.states == {"a": "down"}

    def test_a_restart_that_fails_while_it_is_stopped_is_not_tried_again(self) -> None:
        boss = slow("a", intensity=1)

        boss.crash("a")
        waiter = boss.terminate_child("a")
        boss.start_is_over("a", BROKEN)

        assert boss.told() == ["+a", "-a"]
        assert boss.answer(waiter) == "done"
        assert boss.states == {"a": "down"}
        assert not boss.has_ended

    def test_a_child_that_was_asked_to_stop_before_it_was_up_stays_down(self) -> None:
        boss = slow("a")

        starter = boss.start_child("new")
        boss.end("new", exit_of(None, asked=True))

        assert boss.answer(starter) == "StartFailed"
        assert boss.states == {"a": "up", "new": "down"}


class TestStopOfTheSupervisor:
    @every_strategy
    def test_while_a_first_child_is_starting(self, strategy: str) -> None:
        boss = supervise("a", "b", "c", strategy=strategy)
        boss.slow_to_start = boss.slow_to_stop = {"b"}
        boss.begin()

        boss.stop()
        boss.stop_is_over("b")

        assert boss.log == ["+a", "+b", "-b", "-a"]
        assert boss.finished == [None]
        assert boss.times_ready == 0

    @every_strategy
    def test_while_a_first_child_is_starting_that_then_fails(self, strategy: str) -> None:
        boss = supervise("a", strategy=strategy)
        boss.slow_to_start = boss.slow_to_stop = {"a"}
        boss.begin()

        boss.stop()
        boss.start_is_over("a", BROKEN)

        assert boss.log == ["+a", "-a"]
        assert boss.finished == [None]

    @every_strategy
    def test_while_a_child_is_being_started_by_hand(self, strategy: str) -> None:
        boss = slow("a", strategy=strategy)
        starter = boss.start_child("new")

        boss.stop()
        boss.stop_is_over("new")
        boss.stop_is_over("a")

        assert boss.told() == ["+new", "-new", "-a"]
        assert boss.answer(starter) == "StartFailed"
        assert boss.finished == [None]

    @every_group
    def test_while_somebody_waits_for_a_start_whose_turn_has_not_come(self, strategy: str) -> None:
        boss = slow("a", "b", strategy=strategy)
        boss.crash("b")
        starter = boss.start_child("new")

        boss.stop()

        assert boss.answer(starter) == "ChildUnavailableError"
        assert "+new" not in boss.told()

    @every_strategy
    def test_while_a_child_is_restarting(self, strategy: str) -> None:
        boss = slow("a", "b", strategy=strategy)
        boss.crash("b")
        boss.slow_to_start = boss.slow_to_stop = set()

        boss.stop()
        boss.stop_is_over("a")
        boss.stop_is_over("b")

        assert set(boss.states.values()) == {"down"}
        assert boss.finished == [None]

    @every_strategy
    def test_while_a_child_is_being_terminated(self, strategy: str) -> None:
        boss = slow("a", "b", strategy=strategy)
        stopper = boss.terminate_child("b")

        boss.stop()
        boss.stop_is_over("b")
        boss.stop_is_over("a")

        assert boss.told() == ["-b", "-a"]
        assert boss.answer(stopper) == "done"
        assert boss.finished == [None]

    def test_while_a_temporary_child_waits_to_be_terminated(self) -> None:
        boss = supervise("a", child("b", restart="temporary"), "c", strategy="one_for_all").running()
        boss.slow_to_stop = {"a", "b", "c"}
        boss.terminate_child("c")
        stopper = boss.terminate_child("b")

        boss.stop()
        boss.stop_is_over("c")
        boss.stop_is_over("b")
        boss.stop_is_over("a")

        assert boss.told() == ["-c", "-b", "-a"]
        assert boss.answer(stopper) == "done"
        assert boss.states == {"a": "down", "c": "down"}

    @every_group
    def test_while_a_group_is_being_stopped(self, strategy: str) -> None:
        boss = slow("a", "b", "c", strategy=strategy)
        boss.crash("a")

        boss.stop()
        boss.stop_is_over("c")
        boss.stop_is_over("b")

        assert boss.told() == ["-c", "-b"]
        assert boss.finished == [None]

    @every_group
    def test_while_a_group_is_being_started(self, strategy: str) -> None:
        boss = slow("a", "b", strategy=strategy)
        boss.crash("a")
        boss.stop_is_over("b")

        boss.stop()
        boss.stop_is_over("a")

        assert boss.told() == ["-b", "+a", "-a"]
        assert boss.finished == [None]

    def test_a_terminator_who_comes_during_the_stop_is_answered(self) -> None:
        boss = slow("a", "b", strategy="one_for_all")
        boss.stop()

        stoppers = [boss.terminate_child("a"), boss.terminate_child("b")]
        boss.stop_is_over("b")
        boss.stop_is_over("a")

        assert [boss.answer(stopper) for stopper in stoppers] == ["done", "done"]
        assert boss.told() == ["-b", "-a"]


class TestCrashInTheMiddle:
    def test_of_one_that_is_going_down_with_the_group_costs_nothing(self) -> None:
        boss = slow("a", "b", "c", strategy="one_for_all", intensity=1)

        boss.crash("a")
        boss.crash("b")
        boss.crash("c")
        told = boss.told()

        assert told == ["-c", "+a"]
        assert not boss.has_ended

    def test_of_one_on_the_left_while_the_rest_is_being_stopped_takes_them_along(self) -> None:
        boss = slow("a", "b", "c", strategy="rest_for_one")

        boss.crash("b")
        boss.crash("a")
        boss.stop_is_over("c")

        assert boss.told() == ["-c", "+a"]
        assert boss.states == {"a": "starting", "b": "restarting", "c": "restarting"}

    def test_of_one_that_is_up_again_while_the_group_is_being_started_begins_anew(self) -> None:
        boss = slow("a", "b", "c", strategy="one_for_all")
        boss.crash("a")
        boss.stop_is_over("c")
        boss.stop_is_over("b")
        boss.start_is_over("a")
        boss.told()

        boss.crash("a")
        boss.stop_is_over("b")

        assert boss.told() == ["-b", "+a"]
        assert boss.states == {"a": "starting", "b": "restarting", "c": "restarting"}

    def test_that_is_once_too_often_while_the_group_is_being_started_ends_the_supervisor(self) -> None:
        boss = slow("a", "b", strategy="one_for_all", intensity=1)
        boss.crash("a")
        boss.stop_is_over("b")
        boss.start_is_over("a")
        boss.told()

        boss.crash("a")
        boss.stop_is_over("b")

        assert boss.told() == ["-b"]
        assert boss.has_ended

    def test_nobody_is_started_before_everybody_who_goes_down_is_down(self) -> None:
        boss = slow("a", "b", "c", strategy="one_for_all")

        boss.crash("b")
        first = boss.told()
        boss.stop_is_over("c")
        second = boss.told()
        boss.stop_is_over("a")

        assert (first, second, boss.told()) == (["-c"], ["-a"], ["+a"])

    @every_group
    def test_one_that_is_terminated_while_it_goes_down_with_the_group_stays_down(self, strategy: str) -> None:
        boss = slow("a", "b", strategy=strategy)
        boss.slow_to_start = set()

        boss.crash("a")
        waiter = boss.terminate_child("b")
        boss.stop_is_over("b")

        assert boss.told() == ["-b", "+a"]
        assert boss.answer(waiter) == "done"
        assert boss.states == {"a": "up", "b": "down"}

    @every_group
    def test_one_that_is_terminated_while_it_waits_for_the_group_stays_down(self, strategy: str) -> None:
        boss = slow("a", "b", strategy=strategy)
        boss.crash("a")
        boss.stop_is_over("b")

        waiter = boss.terminate_child("b")
        boss.start_is_over("a")

        assert boss.told() == ["-b", "+a"]
        assert boss.answer(waiter) == "done"
        assert boss.states == {"a": "up", "b": "down"}

    @every_group
    def test_a_start_by_hand_that_fails_while_a_sibling_takes_it_down_is_made_good_by_the_group(
        self, strategy: str
    ) -> None:
        boss = slow("a", "b", "c", strategy=strategy)
        boss.slow_to_start = {"b"}
        boss.terminate_child("b")
        boss.stop_is_over("b")
        starter = boss.restart_child("b")
        boss.told()

        boss.crash("a")
        boss.start_is_over("b", BROKEN)
        boss.stop_is_over("c")
        boss.start_is_over("b")

        assert boss.answer(starter) == "StartFailed"
        assert boss.told() == ["-c", "+a", "+b", "+c"]
        assert boss.up == ["a", "b", "c"]

    @every_group
    def test_one_that_is_not_to_be_while_a_sibling_takes_it_down_is_asked_again_with_the_group(
        self, strategy: str
    ) -> None:
        boss = slow("a", "b", "c", strategy=strategy)
        boss.slow_to_start = {"b"}
        boss.terminate_child("b")
        boss.stop_is_over("b")
        starter = boss.restart_child("b")
        boss.told()

        boss.crash("a")
        boss.start_is_over("b", IGNORE)
        boss.stop_is_over("c")

        assert boss.answer(starter) == "done"
        assert boss.told() == ["-c", "+a", "+b"]

    @every_group
    def test_a_new_child_whose_start_failed_is_discarded_though_a_sibling_takes_it_down(self, strategy: str) -> None:
        boss = slow("a", strategy=strategy)
        starter = boss.start_child("new")

        boss.crash("a")
        boss.start_is_over("new", BROKEN)
        boss.start_is_over("a")

        assert boss.answer(starter) == "StartFailed"
        assert boss.states == {"a": "up"}

    @every_group
    def test_a_new_child_that_comes_up_with_the_group_was_not_reported_as_failed(self, strategy: str) -> None:
        boss = slow("a", strategy=strategy)
        starter = boss.start_child("new")

        boss.crash("a")
        boss.stop_is_over("new")
        boss.slow_to_start = set()
        boss.start_is_over("a")

        assert (boss.answer(starter), "new" in boss.states) in {("done", True), ("StartFailed", False)}

    @every_group
    def test_the_supervisor_is_not_ready_before_each_of_the_first_has_been_up(self, strategy: str) -> None:
        boss = supervise("a", "b", strategy=strategy, backoff=Backoff(minimum=1, jitter=0))
        boss.slow_to_start = {"b"}
        boss.begin()

        boss.crash("a")
        while_both_are_down = boss.times_ready
        boss.advance(1)
        boss.start_is_over("b")

        assert (while_both_are_down, boss.times_ready) == (0, 1)


class TestLateReports:
    """A report about another life of a child is out of date."""

    def reborn(self) -> Simulator:
        boss = supervise("a").running()
        boss.crash("a")
        assert boss.incarnation("a") == 2
        boss.told()
        return boss

    def test_an_end_of_an_earlier_life_is_ignored(self) -> None:
        boss = self.reborn()

        effects = boss.family.ended("a", 1, exit_of(BROKEN, asked=False), 0.0, ROLL)

        assert effects == []
        assert boss.up == ["a"]

    def test_a_second_end_of_the_same_life_is_ignored(self) -> None:
        boss = supervise("a", intensity=1, backoff=Backoff()).running()

        boss.crash("a")
        boss.crash("a")

        assert boss.states == {"a": "restarting"}

    def test_a_start_of_an_earlier_life_is_ignored(self) -> None:
        boss = slow("a")
        boss.crash("a")

        effects = boss.family.started("a", 1, 0.0)

        assert effects == []
        assert boss.states == {"a": "starting"}

    def test_a_second_report_of_a_start_is_ignored(self) -> None:
        boss = self.reborn()

        assert boss.family.started("a", 2, 0.0) == []
        assert boss.up == ["a"]

    @pytest.mark.parametrize("outcome", [BROKEN, IGNORE], ids=["fails", "none"])
    def test_a_start_of_an_earlier_life_that_came_to_nothing_is_ignored(self, outcome: BaseException | str) -> None:
        boss = slow("a")
        boss.crash("a")
        late = boss.incarnation("a") - 1

        effects = (
            boss.family.ignored("a", late)
            if outcome is IGNORE
            else boss.family.start_failed("a", late, BROKEN, 0.0, ROLL)
        )

        assert effects == []
        assert boss.states == {"a": "starting"}

    @pytest.mark.parametrize("outcome", [BROKEN, IGNORE], ids=["fails", "none"])
    def test_a_start_that_came_to_nothing_after_the_child_was_down_is_ignored(
        self, outcome: BaseException | str
    ) -> None:
        boss = slow("a")
        boss.terminate_child("a")
        boss.stop_is_over("a")

        boss.start_is_over("a", outcome)

        assert boss.states == {"a": "down"}
        assert boss.told() == ["-a"]

    def test_the_alarm_of_a_child_that_was_terminated_and_started_by_hand_is_ignored(self) -> None:
        boss = supervise("a", backoff=Backoff(minimum=1, jitter=0)).running()
        boss.crash("a")
        boss.terminate_child("a")
        boss.restart_child("a")
        boss.told()

        boss.advance(1)

        assert boss.told() == []
        assert boss.up == ["a"]

    def test_the_alarm_of_a_child_that_is_gone_is_ignored(self) -> None:
        boss = supervise("a", backoff=Backoff(minimum=1, jitter=0)).running()
        boss.crash("a")
        boss.terminate_child("a")
        boss.delete_child("a")

        boss.advance(1)

        assert boss.states == {}

    def test_a_report_about_an_id_that_was_used_again_is_ignored(self) -> None:
        boss = supervise("a").running()
        boss.terminate_child("a")
        boss.delete_child("a")
        boss.start_child("a")

        effects = boss.family.ended("a", 1, exit_of(BROKEN, asked=False), 0.0, ROLL)

        assert effects == []
        assert boss.up == ["a"]


NAMES = ("a", "b", "c", "new")
STEPS = st.tuples(st.integers(0, 12), st.sampled_from(NAMES))
TERMINATE, RESTART, DELETE, START, WAIT, STOP, TIME_OUT = range(6, 13)


def take(boss: Simulator, step: int, name: str) -> None:
    """Let one thing happen, if it can."""
    if step >= TERMINATE:
        ask(boss, step, name)
        return
    match boss.states.get(name), step:
        case "starting", 2:
            boss.start_is_over(name, BROKEN)
        case "starting", 3:
            boss.start_is_over(name, IGNORE)
        case "starting", _:
            boss.start_is_over(name)
        case "stopping", 0 | 1 | 2:
            boss.stop_is_over(name)
        case "up" | "stopping", 3 | 4:
            boss.crash(name)
        case "up", 5:
            boss.finish(name)
        case _:
            pass


def ask(boss: Simulator, step: int, name: str) -> None:
    if step == TERMINATE:
        boss.terminate_child(name)
    elif step == RESTART:
        boss.restart_child(name)
    elif step == DELETE:
        boss.delete_child(name)
    elif step == START:
        boss.start_child(child(name, restart="transient"))
    elif step == WAIT:
        boss.advance(1)
    elif step == TIME_OUT:
        boss.advance(60)  # whoever is starting now has taken too long
    elif step == STOP and name == "new":
        boss.stop()


def come_to_rest(boss: Simulator) -> None:
    """Let everything that is under way come to its end."""
    for _ in range(1_000):  # more than all back-offs together
        under_way = [name for name, state in boss.states.items() if state in {"starting", "stopping"}]
        if not under_way and "restarting" not in boss.states.values():
            return
        if not under_way:
            boss.advance(1)
        elif boss.states[under_way[0]] == "starting":
            boss.start_is_over(under_way[0])
        else:
            boss.stop_is_over(under_way[0])


def slow_family(strategy: str, *, sequential: bool, backoff: bool) -> Simulator:
    """Return a family with one child of each type, of which nothing happens by itself."""
    boss = supervise(
        "a",
        child("b", restart="temporary"),
        child("c", restart="transient", intensity=2),
        strategy=strategy,
        sequential=sequential,
        intensity=4,
        backoff=Backoff(minimum=1, jitter=0) if backoff else None,
    )
    boss.slow_to_start = boss.slow_to_stop = set(NAMES)
    return boss.begin()


@pytest.mark.parametrize("sequential", [False, True], ids=["parallel", "sequential"])
@every_strategy
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(backoff=st.booleans(), steps=st.lists(STEPS, max_size=40))
def test_however_things_interleave_every_waiter_is_answered_once_and_all_comes_to_rest(
    strategy: str, sequential: bool, backoff: bool, steps: list[tuple[int, str]]
) -> None:
    boss = slow_family(strategy, sequential=sequential, backoff=backoff)
    at_once = 1 if sequential or strategy != "one_for_one" else len(NAMES)

    for step, name in steps:
        take(boss, step, name)
        note(f"{step} {name}: {boss.states}")
        states = list(boss.states.values())
        assert max(states.count("starting"), states.count("stopping")) <= at_once
    come_to_rest(boss)
    at_rest = set(boss.states.values())
    boss.stop()
    come_to_rest(boss)

    assert at_rest <= {"up", "down"}
    assert {waiter: len(answers) for waiter, answers in boss.answers.items()} == dict.fromkeys(boss.answers, 1)
    assert set(boss.states.values()) <= {"down"}
    assert len(boss.finished) == 1
    assert boss.family.phase is Phase.ENDED


@every_group
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(backoff=st.booleans(), steps=st.lists(STEPS, max_size=40))
def test_however_things_interleave_what_somebody_took_down_only_somebody_brings_up(
    strategy: str, backoff: bool, steps: list[tuple[int, str]]
) -> None:
    boss = slow_family(strategy, sequential=False, backoff=backoff)
    taken_down: set[str] = set()

    for step, name in steps:
        before = boss.states
        take(boss, step, name)
        note(f"{step} {name}: {boss.states}")
        if step == TERMINATE and name in before:
            taken_down.add(name)
        elif (step == RESTART and before.get(name) == "down") or (step == START and name not in before):
            taken_down.discard(name)
    come_to_rest(boss)

    assert not taken_down & set(boss.up)
