"""What happens to a supervisor while it is in the middle of something: starts and stops that take their time."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from machine_simulator import IGNORE, ROLL, Simulator, child, supervise

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
    supervisor = supervise(*names, **fields).running()
    supervisor.slow_to_start = supervisor.slow_to_stop = {*names, "new"}
    return supervisor


class TestTerminateWhileStarting:
    @every_strategy
    def test_a_new_child_that_is_stopped_before_it_is_up_was_not_started(self, strategy: str) -> None:
        supervisor = slow("a", strategy=strategy)

        starter = supervisor.start_child("new")
        stopper = supervisor.terminate_child("new")
        told = supervisor.told()
        supervisor.stop_is_over("new")

        assert told == ["+new", "-new"]
        assert (supervisor.answer(starter), supervisor.answer(stopper)) == ("StartFailed", "done")
        assert supervisor.states == {"a": "up", "new": "down"}

    def test_a_start_that_succeeds_too_late_is_stopped_all_the_same(self) -> None:
        supervisor = slow("a")

        starter = supervisor.start_child("new")
        stopper = supervisor.terminate_child("new")
        supervisor.start_is_over("new")
        supervisor.stop_is_over("new")

        assert (supervisor.answer(starter), supervisor.answer(stopper)) == ("StartFailed", "done")
        assert supervisor.states == {"a": "up", "new": "down"}

    @pytest.mark.parametrize(("outcome", "started"), [(BROKEN, "StartFailed"), (IGNORE, "done")], ids=["fails", "none"])
    def test_a_start_that_comes_to_nothing_needs_no_stop(self, outcome: BaseException | str, started: str) -> None:
        supervisor = slow("a")

        starter = supervisor.start_child("new")
        stopper = supervisor.terminate_child("new")
        supervisor.start_is_over("new", outcome)
        supervisor.stop_is_over("new")

        assert (supervisor.answer(starter), supervisor.answer(stopper)) == (started, "done")
        assert supervisor.states == {"a": "up", "new": "down"}

    def test_a_temporary_child_is_forgotten(self) -> None:
        supervisor = slow("a")

        supervisor.start_child(child("new", restart="temporary"))
        supervisor.terminate_child("new")
        supervisor.stop_is_over("new")

        assert supervisor.states == {"a": "up"}

    @every_strategy
    def test_first_child_that_is_terminated_makes_room_for_the_next(self, strategy: str) -> None:
        supervisor = supervise("a", "b", strategy=strategy)
        supervisor.slow_to_start = {"a"}
        supervisor.begin()

        waiter = supervisor.terminate_child("a")

        assert supervisor.log == ["+a", "-a", "+b"]
        assert supervisor.answer(waiter) == "done"
        assert (supervisor.times_ready, supervisor.finished) == (1, [])

    @every_strategy
    def test_child_whose_turn_has_not_come_is_never_started(self, strategy: str) -> None:
        supervisor = supervise("a", "b", strategy=strategy)
        supervisor.slow_to_start = {"a"}
        supervisor.begin()

        waiter = supervisor.terminate_child("b")
        supervisor.start_is_over("a")

        assert supervisor.log == ["+a"]
        assert supervisor.answer(waiter) == "done"
        assert supervisor.states == {"a": "up", "b": "down"}
        assert supervisor.times_ready == 1

    @every_strategy
    def test_first_child_that_is_brought_up_again_is_started_once(self, strategy: str) -> None:
        supervisor = supervise("a", "b", strategy=strategy)
        supervisor.slow_to_start = {"a"}
        supervisor.begin()

        supervisor.terminate_child("b")
        waiter = supervisor.restart_child("b")
        supervisor.start_is_over("a")

        assert supervisor.log == ["+a", "+b"]
        assert supervisor.answer(waiter) == "done"

    @every_group
    def test_waiter_for_a_start_whose_turn_has_not_come_is_told(self, strategy: str) -> None:
        supervisor = slow("a", "b", strategy=strategy)
        supervisor.crash("b")

        starter = supervisor.start_child("new")
        stopper = supervisor.terminate_child("new")

        assert (supervisor.answer(starter), supervisor.answer(stopper)) == ("StartFailed", "done")
        assert supervisor.states["new"] == "down"

    def test_a_child_that_is_being_restarted_stays_down(self) -> None:
        supervisor = slow("a")

        supervisor.crash("a")
        waiter = supervisor.terminate_child("a")
        supervisor.stop_is_over("a")

        assert supervisor.told() == ["+a", "-a"]
        assert supervisor.answer(waiter) == "done"
        assert supervisor.states == {"a": "down"}

    def test_a_restart_that_fails_while_it_is_stopped_is_not_tried_again(self) -> None:
        supervisor = slow("a", intensity=1)

        supervisor.crash("a")
        waiter = supervisor.terminate_child("a")
        supervisor.start_is_over("a", BROKEN)

        assert supervisor.told() == ["+a", "-a"]
        assert supervisor.answer(waiter) == "done"
        assert supervisor.states == {"a": "down"}
        assert not supervisor.has_ended

    def test_a_child_that_was_asked_to_stop_before_it_was_up_stays_down(self) -> None:
        supervisor = slow("a")

        starter = supervisor.start_child("new")
        supervisor.end("new", exit_of(None, asked=True))

        assert supervisor.answer(starter) == "StartFailed"
        assert supervisor.states == {"a": "up", "new": "down"}


class TestStopOfTheSupervisor:
    @every_strategy
    def test_stop_of_the_supervisor_while_a_first_child_is_starting(self, strategy: str) -> None:
        supervisor = supervise("a", "b", "c", strategy=strategy)
        supervisor.slow_to_start = supervisor.slow_to_stop = {"b"}
        supervisor.begin()

        supervisor.stop()
        supervisor.stop_is_over("b")

        assert supervisor.log == ["+a", "+b", "-b", "-a"]
        assert supervisor.finished == [None]
        assert supervisor.times_ready == 0

    @every_strategy
    def test_stop_of_the_supervisor_while_a_first_child_is_starting_that_then_fails(self, strategy: str) -> None:
        supervisor = supervise("a", strategy=strategy)
        supervisor.slow_to_start = supervisor.slow_to_stop = {"a"}
        supervisor.begin()

        supervisor.stop()
        supervisor.start_is_over("a", BROKEN)

        assert supervisor.log == ["+a", "-a"]
        assert supervisor.finished == [None]

    @every_strategy
    def test_stop_of_the_supervisor_while_a_child_is_being_started_by_hand(self, strategy: str) -> None:
        supervisor = slow("a", strategy=strategy)
        starter = supervisor.start_child("new")

        supervisor.stop()
        supervisor.stop_is_over("new")
        supervisor.stop_is_over("a")

        assert supervisor.told() == ["+new", "-new", "-a"]
        assert supervisor.answer(starter) == "StartFailed"
        assert supervisor.finished == [None]

    @every_group
    def test_stop_of_the_supervisor_answers_a_waiter_for_a_start_whose_turn_has_not_come(self, strategy: str) -> None:
        supervisor = slow("a", "b", strategy=strategy)
        supervisor.crash("b")
        starter = supervisor.start_child("new")

        supervisor.stop()

        assert supervisor.answer(starter) == "ChildUnavailableError"
        assert "+new" not in supervisor.told()

    @every_strategy
    def test_stop_of_the_supervisor_while_a_child_is_restarting(self, strategy: str) -> None:
        supervisor = slow("a", "b", strategy=strategy)
        supervisor.crash("b")
        supervisor.slow_to_start = supervisor.slow_to_stop = set()

        supervisor.stop()
        supervisor.stop_is_over("a")
        supervisor.stop_is_over("b")

        assert set(supervisor.states.values()) == {"down"}
        assert supervisor.finished == [None]

    @every_strategy
    def test_stop_of_the_supervisor_while_a_child_is_being_terminated(self, strategy: str) -> None:
        supervisor = slow("a", "b", strategy=strategy)
        stopper = supervisor.terminate_child("b")

        supervisor.stop()
        supervisor.stop_is_over("b")
        supervisor.stop_is_over("a")

        assert supervisor.told() == ["-b", "-a"]
        assert supervisor.answer(stopper) == "done"
        assert supervisor.finished == [None]

    def test_stop_of_the_supervisor_while_a_temporary_child_waits_to_be_terminated(self) -> None:
        supervisor = supervise("a", child("b", restart="temporary"), "c", strategy="one_for_all").running()
        supervisor.slow_to_stop = {"a", "b", "c"}
        supervisor.terminate_child("c")
        stopper = supervisor.terminate_child("b")

        supervisor.stop()
        supervisor.stop_is_over("c")
        supervisor.stop_is_over("b")
        supervisor.stop_is_over("a")

        assert supervisor.told() == ["-c", "-b", "-a"]
        assert supervisor.answer(stopper) == "done"
        assert supervisor.states == {"a": "down", "c": "down"}

    @every_group
    def test_stop_of_the_supervisor_while_a_group_is_being_stopped(self, strategy: str) -> None:
        supervisor = slow("a", "b", "c", strategy=strategy)
        supervisor.crash("a")

        supervisor.stop()
        supervisor.stop_is_over("c")
        supervisor.stop_is_over("b")

        assert supervisor.told() == ["-c", "-b"]
        assert supervisor.finished == [None]

    @every_group
    def test_stop_of_the_supervisor_while_a_group_is_being_started(self, strategy: str) -> None:
        supervisor = slow("a", "b", strategy=strategy)
        supervisor.crash("a")
        supervisor.stop_is_over("b")

        supervisor.stop()
        supervisor.stop_is_over("a")

        assert supervisor.told() == ["-b", "+a", "-a"]
        assert supervisor.finished == [None]

    def test_terminate_child_during_the_stop_is_answered(self) -> None:
        supervisor = slow("a", "b", strategy="one_for_all")
        supervisor.stop()

        stoppers = [supervisor.terminate_child("a"), supervisor.terminate_child("b")]
        supervisor.stop_is_over("b")
        supervisor.stop_is_over("a")

        assert [supervisor.answer(stopper) for stopper in stoppers] == ["done", "done"]
        assert supervisor.told() == ["-b", "-a"]


class TestCrashInTheMiddle:
    def test_crash_of_a_child_that_is_going_down_with_the_group_costs_nothing(self) -> None:
        supervisor = slow("a", "b", "c", strategy="one_for_all", intensity=1)

        supervisor.crash("a")
        supervisor.crash("b")
        supervisor.crash("c")
        told = supervisor.told()

        assert told == ["-c", "+a"]
        assert not supervisor.has_ended

    def test_crash_of_a_child_on_the_left_while_the_rest_is_being_stopped_takes_them_along(self) -> None:
        supervisor = slow("a", "b", "c", strategy="rest_for_one")

        supervisor.crash("b")
        supervisor.crash("a")
        supervisor.stop_is_over("c")

        assert supervisor.told() == ["-c", "+a"]
        assert supervisor.states == {"a": "starting", "b": "restarting", "c": "restarting"}

    def test_crash_of_a_child_that_is_up_again_while_the_group_is_being_started_begins_anew(self) -> None:
        supervisor = slow("a", "b", "c", strategy="one_for_all")
        supervisor.crash("a")
        supervisor.stop_is_over("c")
        supervisor.stop_is_over("b")
        supervisor.start_is_over("a")
        supervisor.told()

        supervisor.crash("a")
        supervisor.stop_is_over("b")

        assert supervisor.told() == ["-b", "+a"]
        assert supervisor.states == {"a": "starting", "b": "restarting", "c": "restarting"}

    def test_crash_that_is_once_too_often_while_the_group_is_being_started_ends_the_supervisor(self) -> None:
        supervisor = slow("a", "b", strategy="one_for_all", intensity=1)
        supervisor.crash("a")
        supervisor.stop_is_over("b")
        supervisor.start_is_over("a")
        supervisor.told()

        supervisor.crash("a")
        supervisor.stop_is_over("b")

        assert supervisor.told() == ["-b"]
        assert supervisor.has_ended

    def test_group_is_not_started_before_all_that_go_down_are_down(self) -> None:
        supervisor = slow("a", "b", "c", strategy="one_for_all")

        supervisor.crash("b")
        first = supervisor.told()
        supervisor.stop_is_over("c")
        second = supervisor.told()
        supervisor.stop_is_over("a")

        assert (first, second, supervisor.told()) == (["-c"], ["-a"], ["+a"])

    @every_group
    def test_child_that_is_terminated_while_it_goes_down_with_the_group_stays_down(self, strategy: str) -> None:
        supervisor = slow("a", "b", strategy=strategy)
        supervisor.slow_to_start = set()

        supervisor.crash("a")
        waiter = supervisor.terminate_child("b")
        supervisor.stop_is_over("b")

        assert supervisor.told() == ["-b", "+a"]
        assert supervisor.answer(waiter) == "done"
        assert supervisor.states == {"a": "up", "b": "down"}

    @every_group
    def test_child_that_is_terminated_while_it_waits_for_the_group_stays_down(self, strategy: str) -> None:
        supervisor = slow("a", "b", strategy=strategy)
        supervisor.crash("a")
        supervisor.stop_is_over("b")

        waiter = supervisor.terminate_child("b")
        supervisor.start_is_over("a")

        assert supervisor.told() == ["-b", "+a"]
        assert supervisor.answer(waiter) == "done"
        assert supervisor.states == {"a": "up", "b": "down"}

    @every_group
    def test_a_start_by_hand_that_fails_while_a_sibling_takes_it_down_is_made_good_by_the_group(
        self, strategy: str
    ) -> None:
        supervisor = slow("a", "b", "c", strategy=strategy)
        supervisor.slow_to_start = {"b"}
        supervisor.terminate_child("b")
        supervisor.stop_is_over("b")
        starter = supervisor.restart_child("b")
        supervisor.told()

        supervisor.crash("a")
        supervisor.start_is_over("b", BROKEN)
        supervisor.stop_is_over("c")
        supervisor.start_is_over("b")

        assert supervisor.answer(starter) == "StartFailed"
        assert supervisor.told() == ["-c", "+a", "+b", "+c"]
        assert supervisor.up == ["a", "b", "c"]

    @every_group
    def test_child_that_is_not_to_be_while_a_sibling_takes_it_down_is_asked_again_with_the_group(
        self, strategy: str
    ) -> None:
        supervisor = slow("a", "b", "c", strategy=strategy)
        supervisor.slow_to_start = {"b"}
        supervisor.terminate_child("b")
        supervisor.stop_is_over("b")
        starter = supervisor.restart_child("b")
        supervisor.told()

        supervisor.crash("a")
        supervisor.start_is_over("b", IGNORE)
        supervisor.stop_is_over("c")

        assert supervisor.answer(starter) == "done"
        assert supervisor.told() == ["-c", "+a", "+b"]

    @every_group
    def test_a_new_child_whose_start_failed_is_discarded_though_a_sibling_takes_it_down(self, strategy: str) -> None:
        supervisor = slow("a", strategy=strategy)
        starter = supervisor.start_child("new")

        supervisor.crash("a")
        supervisor.start_is_over("new", BROKEN)
        supervisor.start_is_over("a")

        assert supervisor.answer(starter) == "StartFailed"
        assert supervisor.states == {"a": "up"}

    @every_group
    def test_a_new_child_that_comes_up_with_the_group_was_not_reported_as_failed(self, strategy: str) -> None:
        supervisor = slow("a", strategy=strategy)
        starter = supervisor.start_child("new")

        supervisor.crash("a")
        supervisor.stop_is_over("new")
        supervisor.slow_to_start = set()
        supervisor.start_is_over("a")

        assert (supervisor.answer(starter), "new" in supervisor.states) in {("done", True), ("StartFailed", False)}

    @every_group
    def test_the_supervisor_is_not_ready_before_each_of_the_first_has_been_up(self, strategy: str) -> None:
        supervisor = supervise("a", "b", strategy=strategy, backoff=Backoff(minimum=1, jitter=0))
        supervisor.slow_to_start = {"b"}
        supervisor.begin()

        supervisor.crash("a")
        while_both_are_down = supervisor.times_ready
        supervisor.advance(1)
        supervisor.start_is_over("b")

        assert (while_both_are_down, supervisor.times_ready) == (0, 1)


class TestLateReports:
    """A report about another life of a child is out of date."""

    def reborn(self) -> Simulator:
        supervisor = supervise("a").running()
        supervisor.crash("a")
        assert supervisor.incarnation("a") == 2
        supervisor.told()
        return supervisor

    def test_an_end_of_an_earlier_life_is_ignored(self) -> None:
        supervisor = self.reborn()

        effects = supervisor.machine.ended("a", 1, exit_of(BROKEN, asked=False), 0.0, ROLL)

        assert effects == []
        assert supervisor.up == ["a"]

    def test_a_second_end_of_the_same_life_is_ignored(self) -> None:
        supervisor = supervise("a", intensity=1, backoff=Backoff()).running()

        supervisor.crash("a")
        supervisor.crash("a")

        assert supervisor.states == {"a": "restarting"}

    def test_a_start_of_an_earlier_life_is_ignored(self) -> None:
        supervisor = slow("a")
        supervisor.crash("a")

        effects = supervisor.machine.started("a", 1, 0.0)

        assert effects == []
        assert supervisor.states == {"a": "starting"}

    def test_a_second_report_of_a_start_is_ignored(self) -> None:
        supervisor = self.reborn()

        assert supervisor.machine.started("a", 2, 0.0) == []
        assert supervisor.up == ["a"]

    @pytest.mark.parametrize("outcome", [BROKEN, IGNORE], ids=["fails", "none"])
    def test_a_start_of_an_earlier_life_that_came_to_nothing_is_ignored(self, outcome: BaseException | str) -> None:
        supervisor = slow("a")
        supervisor.crash("a")
        late = supervisor.incarnation("a") - 1

        effects = (
            supervisor.machine.ignored("a", late)
            if outcome is IGNORE
            else supervisor.machine.start_failed("a", late, BROKEN, 0.0, ROLL)
        )

        assert effects == []
        assert supervisor.states == {"a": "starting"}

    @pytest.mark.parametrize("outcome", [BROKEN, IGNORE], ids=["fails", "none"])
    def test_a_start_that_came_to_nothing_after_the_child_was_down_is_ignored(
        self, outcome: BaseException | str
    ) -> None:
        supervisor = slow("a")
        supervisor.terminate_child("a")
        supervisor.stop_is_over("a")

        supervisor.start_is_over("a", outcome)

        assert supervisor.states == {"a": "down"}
        assert supervisor.told() == ["-a"]

    def test_the_alarm_of_a_child_that_was_terminated_and_started_by_hand_is_ignored(self) -> None:
        supervisor = supervise("a", backoff=Backoff(minimum=1, jitter=0)).running()
        supervisor.crash("a")
        supervisor.terminate_child("a")
        supervisor.restart_child("a")
        supervisor.told()

        supervisor.advance(1)

        assert supervisor.told() == []
        assert supervisor.up == ["a"]

    def test_the_alarm_of_a_child_that_is_gone_is_ignored(self) -> None:
        supervisor = supervise("a", backoff=Backoff(minimum=1, jitter=0)).running()
        supervisor.crash("a")
        supervisor.terminate_child("a")
        supervisor.delete_child("a")

        supervisor.advance(1)

        assert supervisor.states == {}

    def test_a_report_about_an_id_that_was_used_again_is_ignored(self) -> None:
        supervisor = supervise("a").running()
        supervisor.terminate_child("a")
        supervisor.delete_child("a")
        supervisor.start_child("a")

        effects = supervisor.machine.ended("a", 1, exit_of(BROKEN, asked=False), 0.0, ROLL)

        assert effects == []
        assert supervisor.up == ["a"]


NAMES = ("a", "b", "c", "new")
STEPS = st.tuples(st.integers(0, 16), st.sampled_from(NAMES))
TERMINATE, RESTART, DELETE, START, WAIT, STOP, TIME_OUT, DRAIN, FINISH_WORK, SLOW_STOP, KILL = range(6, 17)


def take(supervisor: Simulator, step: int, name: str) -> None:
    """Let one thing happen, if it can."""
    if step >= TERMINATE:
        ask(supervisor, step, name)
        return
    match supervisor.states.get(name), step:
        case "starting", 2:
            supervisor.start_is_over(name, BROKEN)
        case "starting", 3:
            supervisor.start_is_over(name, IGNORE)
        case "starting", _:
            supervisor.start_is_over(name)
        case "stopping", 0 | 1 | 2:
            supervisor.stop_is_over(name)
        case "up" | "stopping", 3 | 4:
            supervisor.crash(name)
        case "up", 5:
            supervisor.finish(name)
        case _:
            pass


def ask(supervisor: Simulator, step: int, name: str) -> None:
    if step == TERMINATE:
        supervisor.terminate_child(name)
    elif step == RESTART:
        supervisor.restart_child(name)
    elif step == DELETE:
        supervisor.delete_child(name)
    elif step == START:
        supervisor.start_child(child(name, restart="transient"))
    elif step == WAIT:
        supervisor.advance(1)
    elif step == TIME_OUT:
        supervisor.advance(60)  # a start that is under way now has taken too long
    elif step == FINISH_WORK:
        supervisor.idle.add(name)
    elif step == SLOW_STOP and supervisor.states.get(name) == "stopping":
        supervisor.stop_takes_too_long(name)
    elif name == "new":
        end(supervisor, step)


def end(supervisor: Simulator, step: int) -> None:
    if step == STOP:
        supervisor.stop()
    elif step == DRAIN:
        supervisor.drain("c")
    elif step == KILL:
        supervisor.kill_all()


def come_to_rest(supervisor: Simulator) -> None:
    """Let everything that is under way come to its end."""
    for _ in range(1_000):  # more than all back-offs together
        under_way = [name for name, state in supervisor.states.items() if state in {"starting", "stopping"}]
        if not under_way and "restarting" not in supervisor.states.values():
            return
        if not under_way:
            supervisor.advance(1)
        elif supervisor.states[under_way[0]] == "starting":
            supervisor.start_is_over(under_way[0])
        else:
            supervisor.stop_is_over(under_way[0])


def slow_family(strategy: str, *, sequential: bool, backoff: bool) -> Simulator:
    """Return a family with one child of each type, of which nothing happens by itself."""
    supervisor = supervise(
        "a",
        child("b", restart="temporary"),
        child("c", restart="transient", intensity=2),
        strategy=strategy,
        sequential=sequential,
        intensity=4,
        backoff=Backoff(minimum=1, jitter=0) if backoff else None,
    )
    supervisor.slow_to_start = supervisor.slow_to_stop = set(NAMES)
    return supervisor.begin()


@pytest.mark.parametrize("sequential", [False, True], ids=["parallel", "sequential"])
@every_strategy
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(backoff=st.booleans(), steps=st.lists(STEPS, max_size=40))
def test_waiters_are_answered_once_and_all_comes_to_rest_however_things_interleave(
    strategy: str, sequential: bool, backoff: bool, steps: list[tuple[int, str]]
) -> None:
    supervisor = slow_family(strategy, sequential=sequential, backoff=backoff)
    at_once = 1 if sequential or strategy != "one_for_one" else len(NAMES)

    for step, name in steps:
        take(supervisor, step, name)
        note(f"{step} {name}: {supervisor.states}")
        states = list(supervisor.states.values())
        at_once = len(NAMES) if step == KILL and name == "new" else at_once  # from then on without an order
        assert max(states.count("starting"), states.count("stopping")) <= at_once
    come_to_rest(supervisor)
    at_rest = set(supervisor.states.values())
    supervisor.stop()
    come_to_rest(supervisor)

    assert at_rest <= {"up", "down"}
    assert {waiter: len(answers) for waiter, answers in supervisor.answers.items()} == dict.fromkeys(
        supervisor.answers, 1
    )
    assert set(supervisor.states.values()) <= {"down"}
    assert len(supervisor.finished) == 1
    assert supervisor.machine.phase is Phase.ENDED


@every_group
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(backoff=st.booleans(), steps=st.lists(STEPS, max_size=40))
def test_child_that_a_request_took_down_only_a_request_brings_up_however_things_interleave(
    strategy: str, backoff: bool, steps: list[tuple[int, str]]
) -> None:
    supervisor = slow_family(strategy, sequential=False, backoff=backoff)
    taken_down: set[str] = set()

    for step, name in steps:
        before = supervisor.states
        take(supervisor, step, name)
        note(f"{step} {name}: {supervisor.states}")
        if step == TERMINATE and name in before:
            taken_down.add(name)
        elif (step == RESTART and before.get(name) == "down") or (step == START and name not in before):
            taken_down.discard(name)
    come_to_rest(supervisor)

    assert not taken_down & set(supervisor.up)
