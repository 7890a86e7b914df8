"""A supervisor of real loops on real threads: what it starts, restarts, stops, gives up and answers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from nursery import Boom, Nursery, crash, crash_and_wait, finish, outcome, supervising

from loopwarden import HealthCheckRequest, LoopActor, LoopState, ProcessRequest, ShutdownConfirmRequest, ShutdownRequest
from loopwarden.actors import ZOMBIES, AbandonRequest, ControlActor
from loopwarden.errors import (
    ActorDeadError,
    ChildBusyError,
    ChildExistsError,
    ChildNotFoundError,
    ChildUnavailableError,
    InvalidChildError,
    LoopAbandonedError,
    StartFailed,
    SupervisorGaveUp,
    TicketTimeoutError,
    UnsupportedRequestError,
)
from loopwarden.supervision import (
    Backoff,
    ChildCounts,
    ChildInfo,
    ChildSpec,
    ChildSpecRequest,
    ChildState,
    CountChildrenRequest,
    DeleteChildRequest,
    EventKind,
    ExitReason,
    ResizeRequest,
    RestartChildRequest,
    StartChildRequest,
    Supervisor,
    SupervisorRef,
    TerminateChildRequest,
    WhichChildrenRequest,
    WhichChildRequest,
)
from loopwarden.testing import FakeClock, Hold, ProbeLoop, wait_no_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.supervision import ChildRef, EventStream
#: Time stands still unless a test moves it, so nobody is given up because the machine is slow.
pytestmark = pytest.mark.usefixtures("clock")


def states(boss: SupervisorRef) -> dict[str, str]:
    return {info.id: info.state.value for info in boss.children()}


def ask(ref: SupervisorRef | ChildRef, request: Any) -> Any:
    return ref.send(request).wait(timeout=60)


# Starting


def test_the_example_of_the_readme_holds() -> None:
    with Supervisor.open("media") as media:
        resize = media.spawn(ChildSpec(id="resize", start=ProbeLoop))
        status = resize.send(HealthCheckRequest()).wait(timeout=60)

    assert (status.loop_name, status.state, status.running) == ("resize", LoopState.RUNNING, True)
    assert wait_no_threads() == []


def test_at_the_end_of_the_block_everything_is_gone_also_after_an_exception() -> None:
    nursery = Nursery()

    with pytest.raises(Boom), Supervisor.open("boss", children=nursery.specs("a", "b")) as boss:
        raise Boom

    assert boss.ended.is_ready()
    assert wait_no_threads() == []


def test_spawn_returns_when_the_child_is_running() -> None:
    nursery = Nursery()
    with supervising() as boss:
        boss.spawn(nursery.spec("a"), timeout=60)

        assert nursery.loops["a"][0].running
        assert states(boss) == {"a": "up"}


def test_spawn_raises_what_the_factory_raised_and_the_child_is_not_kept() -> None:
    nursery = Nursery()
    nursery.failures["a"] = 1
    with supervising() as boss:
        with pytest.raises(StartFailed, match="child 'a' could not be started: Boom") as caught:
            boss.spawn(nursery.spec("a"), timeout=60)

        assert isinstance(caught.value.__cause__, Boom)
        assert caught.value.child == "a"
        assert states(boss) == {}
        boss.spawn(nursery.spec("a"), timeout=60)


def test_spawn_that_does_not_wait_long_enough_says_so_and_the_child_comes_up_all_the_same() -> None:
    nursery = Nursery()
    hold = Hold()
    with supervising() as boss, hold:
        nursery.holds["a"] = hold
        events = boss.subscribe()
        with pytest.raises(TicketTimeoutError):
            boss.spawn(nursery.spec("a"), timeout=0.01)

        hold.release()

        assert events.wait_for(EventKind.STARTED).child == "a"


@pytest.mark.parametrize("state", ["up", "down"])
def test_an_id_is_taken_whether_its_child_is_running_or_not(state: str) -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a")) as boss:
        if state == "down":
            ask(boss, TerminateChildRequest(id="a"))

        with pytest.raises(ChildExistsError) as caught:
            boss.spawn(nursery.spec("a"), timeout=60)

        assert (caught.value.child, caught.value.state) == ("a", state)
        assert states(boss) == {"a": state}


def test_the_first_children_start_from_left_to_right_each_when_the_one_before_is_up() -> None:
    nursery = Nursery()
    with Hold() as hold:
        nursery.holds["b"] = hold
        boss = Supervisor("boss", children=nursery.specs("a", "b", "c")).launch()
        hold.wait_reached()

        assert states(boss) == {"a": "up", "b": "starting", "c": "pending"}
        assert not boss.ready.is_ready()

    boss.ready.wait(timeout=60)
    assert nursery.log == ["+a", "+b", "+c"]
    boss.stop(timeout=60)


@pytest.mark.parametrize(
    "options",
    [{"strategy": "rest_for_one"}, {"strategy": "one_for_all"}, {"sequential": True}],
    ids=["rest_for_one", "one_for_all", "sequential"],
)
def test_if_a_first_child_cannot_be_started_those_before_it_are_stopped_in_reverse(options: Any) -> None:
    nursery = Nursery()
    nursery.failures["c"] = 1

    with pytest.raises(StartFailed, match="child 'c'") as caught:
        Supervisor.start("boss", children=nursery.specs("a", "b", "c", "d"), **options)

    assert isinstance(caught.value.__cause__, Boom)
    assert nursery.log == ["+a", "+b", "+c", "-b", "-a"]


def test_if_a_first_child_of_one_for_one_cannot_be_started_those_before_it_are_stopped_side_by_side() -> None:
    nursery = Nursery()
    nursery.failures["c"] = 1

    with pytest.raises(StartFailed, match="child 'c'"):
        Supervisor.start("boss", children=nursery.specs("a", "b", "c", "d"))

    assert nursery.log[:3] == ["+a", "+b", "+c"]
    assert sorted(nursery.log[3:]) == ["-a", "-b"]
    assert wait_no_threads() == []


def test_the_first_start_is_tried_once_and_counts_for_no_intensity() -> None:
    nursery = Nursery()
    nursery.failures["a"] = 1

    boss = Supervisor("boss", intensity=None, children=nursery.specs("a")).launch()

    assert isinstance(boss.ended.wait(timeout=60).cause, StartFailed)
    with pytest.raises(ActorDeadError):
        boss.ready.wait(timeout=60)
    assert nursery.log == ["+a"]
    assert ask(boss, HealthCheckRequest()).state is LoopState.FAILED


class Idle(pykka.ThreadingActor):
    """A plain actor."""


def launched() -> ControlActor:
    actor = LoopActor(ProbeLoop(), "launched")
    actor.launch()
    return actor


@pytest.mark.parametrize(
    ("factory", "culprit"),
    [
        (lambda: 1 // 0, "ZeroDivisionError"),
        (lambda: sys.exit(3), "SystemExit"),
        (lambda: "text", "start must return a loop or an actor: .*str has no run"),
        (lambda: ProbeLoop, "start must return a loop or an actor: .*did you mean ProbeLoop"),
        (lambda: Idle.start(), "start must return a loop, or an actor that is not started, but it started Idle"),  # noqa: PLW0108  the class has no start yet
        (lambda: LoopActor.start(ProbeLoop()), "start must return .* not started, but it started LoopActor"),
        (launched, "start must return an actor that is not started, but LoopActor 'launched' is"),
    ],
    ids=["raises", "exits", "text", "class", "ref", "loop ref", "launched"],
)
def test_a_factory_that_makes_nothing_to_supervise_is_told_by_child_and_field(
    factory: Callable[[], object], culprit: str
) -> None:
    with supervising() as boss:
        with pytest.raises(StartFailed, match=f"child 'odd' could not be started: .*{culprit}"):
            boss.spawn(ChildSpec(id="odd", start=factory), timeout=60)

        assert states(boss) == {}
    for left in pykka.ActorRegistry.get_all():  # what was refused is its maker's
        left.stop()


def test_a_started_actor_that_is_refused_is_stopped() -> None:
    made: list[pykka.ActorRef[Any]] = []

    def make() -> object:
        made.append(Idle.start())
        return made[0]

    with supervising() as boss:
        with pytest.raises(StartFailed):
            boss.spawn(ChildSpec(id="odd", start=make), timeout=60)

        made[0].actor_stopped.wait(60)
        assert not made[0].is_alive()


def test_an_actor_that_was_launched_by_its_factory_is_refused_and_stopped_as_a_ref_is() -> None:
    made: list[ControlActor] = []

    def make() -> object:
        made.append(launched())
        return made[0]

    with supervising() as boss, pytest.raises(StartFailed):
        boss.spawn(ChildSpec(id="odd", start=make), timeout=60)

    has_ended = made[0].ended.wait_ready(timeout=60)
    made[0].actor_ref.stop(timeout=60)
    assert has_ended


def test_an_actors_constructor_that_raises_is_a_failed_start() -> None:
    class Picky(pykka.ThreadingActor):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.size = 1 // size

    with supervising() as boss:
        with pytest.raises(StartFailed, match="child 'picky' could not be started: ZeroDivisionError"):
            boss.spawn(ChildSpec(id="picky", actor=Picky, args=(0,)), timeout=60)

        boss.spawn(ChildSpec(id="picky", actor=Picky, kwargs={"size": 1}), timeout=60)


@pytest.mark.parametrize(("restart", "left"), [("permanent", {"a": "down"}), ("temporary", {})])
def test_a_factory_that_returns_none_says_not_now(restart: Any, left: dict[str, str]) -> None:
    with supervising() as boss:
        ref = outcome(boss.send(StartChildRequest(child=ChildSpec(id="a", start=lambda: None, restart=restart))))

        assert not isinstance(ref, BaseException)
        assert states(boss) == left


def test_a_first_child_that_says_not_now_keeps_nobody_waiting() -> None:
    nursery = Nursery()
    children = (ChildSpec(id="shy", start=lambda: None), nursery.spec("a"))

    with supervising(children=children) as boss:
        assert states(boss) == {"shy": "down", "a": "up"}


def test_a_loop_that_raises_at_once_was_started_and_is_restarted_by_its_type() -> None:
    class Brief:
        def run(self) -> None:
            raise Boom

        def shutdown(self, *, timeout: float) -> None: ...

    with supervising(intensity=2) as boss:
        ref = boss.send(StartChildRequest(child=ChildSpec(id="brief", start=Brief)))

        with pytest.raises(SupervisorGaveUp, match="child 'brief' of supervisor 'boss' failed too often: Boom"):
            boss.wait(timeout=60)
        assert ref.is_ready()
        assert [event.attempt for event in boss.events() if event.kind is EventKind.STARTED] == [0, 1, 2]


# The run-time API


def test_terminate_stops_a_child_and_keeps_its_spec() -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a", "b")) as boss:
        result = ask(boss, TerminateChildRequest(id="a"))

        assert (result.loop_name, result.clean_shutdown) == ("a", True)
        assert states(boss) == {"a": "down", "b": "up"}
        assert nursery.log == ["+a", "+b", "-a"]


def test_terminate_again_is_answered_too() -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a")) as boss:
        for _ in range(3):
            assert ask(boss, TerminateChildRequest(id="a")).clean_shutdown


def test_terminate_forgets_a_temporary_child() -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a", restart="temporary")) as boss:
        ref = boss.child("a")

        assert ask(boss, TerminateChildRequest(id="a")).clean_shutdown
        assert states(boss) == {}
        assert ref.ended.wait(timeout=60).cause is None


def test_restart_starts_what_is_down_and_returns_the_same_ref() -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a")) as boss:
        before = boss.child("a")
        ask(boss, TerminateChildRequest(id="a"))

        ref = ask(boss, RestartChildRequest(id="a"))

        assert ref is before
        assert ask(ref, ProcessRequest(body=1)) == 1
        assert states(boss) == {"a": "up"}


def test_restart_by_hand_counts_for_no_intensity() -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a"), intensity=0) as boss:
        for _ in range(5):
            ask(boss, TerminateChildRequest(id="a"))
            ask(boss, RestartChildRequest(id="a"))

        assert boss.children()[0].restarts == 0
        assert states(boss) == {"a": "up"}


def test_restart_that_fails_raises_and_leaves_the_child_down() -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a")) as boss:
        ask(boss, TerminateChildRequest(id="a"))
        nursery.failures["a"] = 1

        with pytest.raises(StartFailed):
            ask(boss, RestartChildRequest(id="a"))

        assert states(boss) == {"a": "down"}
        assert boss.children()[0].last_error is not None
        ask(boss, RestartChildRequest(id="a"))


def test_delete_forgets_a_child_that_is_down() -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a")) as boss:
        ask(boss, TerminateChildRequest(id="a"))

        assert ask(boss, DeleteChildRequest(id="a")) is None
        assert states(boss) == {}
        boss.spawn(nursery.spec("a"), timeout=60)


@pytest.mark.parametrize("request_type", [RestartChildRequest, DeleteChildRequest])
def test_what_needs_a_child_that_is_down_is_refused_by_one_that_is_up(request_type: Any) -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a")) as boss:
        with pytest.raises(ChildBusyError) as caught:
            ask(boss, request_type(id="a"))

        assert (caught.value.child, caught.value.state) == ("a", "up")


@pytest.mark.parametrize("request_type", [RestartChildRequest, DeleteChildRequest])
def test_what_needs_a_child_that_is_down_is_refused_by_one_that_is_backing_off(
    clock: FakeClock, request_type: Any
) -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a"), clock=clock, backoff=Backoff()) as boss:
        events = boss.subscribe()
        crash(boss.child("a"))
        events.wait_for(EventKind.RESTARTING)

        with pytest.raises(ChildBusyError) as caught:
            ask(boss, request_type(id="a"))

        assert caught.value.state == "restarting"


@pytest.mark.parametrize(
    "request_type",
    [TerminateChildRequest, RestartChildRequest, DeleteChildRequest, WhichChildRequest, ChildSpecRequest],
)
def test_a_child_that_is_not_there_is_not_found(request_type: Any) -> None:
    with supervising() as boss:
        with pytest.raises(ChildNotFoundError, match="child 'nobody' is not known here"):
            ask(boss, request_type(id="nobody"))

        assert ask(boss, HealthCheckRequest()).running


@pytest.mark.parametrize(
    "request_type",
    [TerminateChildRequest, RestartChildRequest, DeleteChildRequest, WhichChildRequest, ChildSpecRequest],
)
def test_a_request_about_nobody_that_nobody_waits_for_does_not_end_the_supervisor(request_type: Any) -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a")) as boss:
        boss.tell(request_type(id="nobody"))

        assert states(boss) == {"a": "up"}


def test_a_child_that_cannot_be_had_and_that_nobody_waits_for_does_not_end_the_supervisor() -> None:
    nursery = Nursery()
    bad = nursery.spec("b", restart="transient", significant=True)
    with supervising(children=nursery.specs("a")) as boss:
        boss.tell(StartChildRequest(child=bad))

        assert states(boss) == {"a": "up"}


def test_a_child_that_this_supervisor_cannot_have_is_refused_before_anything_starts() -> None:
    nursery = Nursery()
    with supervising() as boss:
        with pytest.raises(InvalidChildError, match=r"child 'a' .*significant.*auto_shutdown"):
            boss.spawn(nursery.spec("a", restart="transient", significant=True), timeout=60)

        assert nursery.log == []


def test_which_children_are_told_in_start_order_with_their_refs() -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("c", "a", "b")) as boss:
        infos = ask(boss, WhichChildrenRequest())

        assert [info.id for info in infos] == ["c", "a", "b"]
        assert all(ask(info.ref, ProcessRequest(body=info.id)) == info.id for info in infos)
        assert ask(boss, WhichChildRequest(id="a")) == infos[1]
        assert "ref" not in infos[0].model_dump()


def test_which_child_tells_how_it_is() -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a")) as boss:
        events = boss.subscribe()
        crash_and_wait(boss.child("a"), events)

        info: ChildInfo = ask(boss, WhichChildRequest(id="a"))

        assert (info.state, info.restarts, info.retry_at, info.is_supervisor) == (ChildState.UP, 1, None, False)
        assert info.last_error is not None
        assert "Boom" in info.last_error


def test_children_are_counted() -> None:
    nursery = Nursery()
    children = (*nursery.specs("a", "b"), ChildSpec(id="inner", start=lambda: Supervisor("inner")))
    with supervising(children=children) as boss:
        ask(boss, TerminateChildRequest(id="a"))

        assert ask(boss, CountChildrenRequest()) == ChildCounts(specs=3, active=2, supervisors=1, workers=2)


def test_the_spec_of_a_child_is_told() -> None:
    nursery = Nursery()
    spec = nursery.spec("a", restart="transient", shutdown=3.0)
    with supervising(children=(spec,)) as boss:
        assert ask(boss, ChildSpecRequest(id="a")) == spec


def test_what_is_no_request_of_a_supervisor_is_refused_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with supervising() as boss:
        with pytest.raises(UnsupportedRequestError, match="Supervisor 'boss' cannot do ProcessRequest"):
            ask(boss, ProcessRequest(body=1))
        boss.tell("what?")

        assert ask(boss, HealthCheckRequest()).running
    assert "cannot do str" in caplog.text


def test_health_counts_restarts_and_tells_the_state() -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a", "b")) as boss:
        events = boss.subscribe()
        crash_and_wait(boss.child("a"), events)
        crash_and_wait(boss.child("b"), events)

        status = ask(boss, HealthCheckRequest())

        assert (status.loop_name, status.state, status.restarts) == ("boss", LoopState.RUNNING, 2)


def test_after_its_end_a_supervisor_still_answers_what_can_be_answered() -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a")) as boss:
        pass

    assert ask(boss, HealthCheckRequest()).state is LoopState.STOPPED
    assert ask(boss, ShutdownRequest()).clean_shutdown
    assert ask(boss, ShutdownConfirmRequest()).clean_shutdown
    assert [event.kind for event in boss.events()] == ["started", "exited", "terminated"]
    with pytest.raises(ActorDeadError):
        boss.children()


def test_a_shutdown_request_ends_a_supervisor_and_its_children() -> None:
    nursery = Nursery()
    boss = Supervisor.start("boss", children=nursery.specs("a", "b"))

    result = ask(boss, ShutdownRequest(timeout=5.0))

    assert (result.loop_name, result.clean_shutdown) == ("boss", True)
    assert boss.ended.wait(timeout=60).cause is None
    assert sorted(nursery.log) == ["+a", "+b", "-a", "-b"]


def test_a_shutdown_request_that_times_out_says_so_and_the_real_end_comes_later(clock: FakeClock) -> None:
    nursery = Nursery()
    with Hold() as hold:
        boss = Supervisor.start("boss", clock=clock, children=(nursery.spec("a", hold, shutdown=100.0),))
        nursery.loops["a"][0].feed("held")
        hold.wait_reached()
        request = boss.send(ShutdownRequest(timeout=2.0))
        confirmed = boss.send(ShutdownConfirmRequest())

        clock.advance(2.0)

        assert not request.wait(timeout=60).clean_shutdown
        assert not confirmed.is_ready()
    assert confirmed.wait(timeout=60).clean_shutdown


# Intensity and back-off


def test_one_failure_too_many_and_the_supervisor_stops_all_and_gives_up() -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a", "b"), intensity=2) as boss:
        events = boss.subscribe()
        ref = boss.child("a")
        crash_and_wait(ref, events)
        crash_and_wait(ref, events)
        crash(ref, Boom("the last one"))

        with pytest.raises(SupervisorGaveUp, match="child 'a' of supervisor 'boss' failed too often") as caught:
            boss.wait(timeout=60)

        assert (caught.value.supervisor, caught.value.child) == ("boss", "a")
        assert str(caught.value.__cause__) == "the last one"
        assert boss.ended.wait(timeout=60).cause is caught.value
        assert nursery.log == ["+a", "+b", "+a", "+a", "-b"]
        assert ask(boss, HealthCheckRequest()).state is LoopState.FAILED


def test_failures_that_lie_further_apart_than_the_period_are_not_too_many(clock: FakeClock) -> None:
    nursery = Nursery()
    with supervising(clock=clock, children=nursery.specs("a"), intensity=1, period=5.0) as boss:
        events = boss.subscribe()
        for _ in range(3):
            crash_and_wait(boss.child("a"), events)
            clock.advance(5.5)

        assert states(boss) == {"a": "up"}


def test_a_failed_restart_counts_as_another() -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a"), intensity=3) as boss:
        nursery.failures["a"] = 5
        crash(boss.child("a"))

        with pytest.raises(SupervisorGaveUp):
            boss.wait(timeout=60)

        assert nursery.log == ["+a"] * 4


def test_without_an_intensity_it_goes_on_for_ever() -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a"), intensity=None) as boss:
        events = boss.subscribe()
        nursery.failures["a"] = 50

        crash_and_wait(boss.child("a"), events)

        assert boss.children()[0].restarts == 51


def back_off(ref: ChildRef, events: EventStream, clock: FakeClock) -> float:
    """Crash a child; return how long it stays away, and wait until it is back."""
    crash(ref)
    delay = events.wait_for(EventKind.RESTARTING).delay
    clock.advance(delay)
    events.wait_for(EventKind.STARTED)
    return delay


def test_a_child_stays_away_until_its_back_off_is_over() -> None:
    nursery, clock = Nursery(), FakeClock(start=100.0)
    backoff = Backoff(minimum=2.0, maximum=8.0, jitter=0.0)
    with supervising(clock=clock, children=nursery.specs("a"), backoff=backoff) as boss:
        events = boss.subscribe()
        crash(boss.child("a"))
        event = events.wait_for(EventKind.RESTARTING)

        clock.advance(1.9)

        info = boss.children()[0]
        assert (event.delay, info.state, info.retry_at) == (2.0, "restarting", 102.0)
        clock.advance(0.1)
        assert events.wait_for(EventKind.STARTED).attempt == 1


def test_the_delay_doubles_up_to_its_maximum_and_begins_anew_after_a_stable_time(clock: FakeClock) -> None:
    nursery = Nursery()
    backoff = Backoff(minimum=2.0, maximum=8.0, jitter=0.0)
    with supervising(
        clock=clock, children=nursery.specs("a"), backoff=backoff, intensity=None, reset_after=60.0
    ) as boss:
        events = boss.subscribe()
        ref = boss.child("a")

        delays = [back_off(ref, events, clock) for _ in range(4)]
        clock.advance(59.9)
        delays.append(back_off(ref, events, clock))
        clock.advance(60.0)
        delays.append(back_off(ref, events, clock))

        assert delays == [2.0, 4.0, 8.0, 8.0, 8.0, 2.0]


def test_chance_moves_the_delay_within_its_bounds(clock: FakeClock) -> None:
    nursery = Nursery()
    backoff = Backoff(minimum=2.0, maximum=2.0, jitter=0.25)
    with supervising(clock=clock, children=nursery.specs("a"), backoff=backoff, intensity=None) as boss:
        events = boss.subscribe()
        ref = boss.child("a")

        delays = [back_off(ref, events, clock) for _ in range(20)]

        assert all(1.5 <= delay <= 2.5 for delay in delays)
        assert len(set(delays)) > 1


def test_a_child_may_have_a_back_off_of_its_own(clock: FakeClock) -> None:
    nursery = Nursery()
    own = Backoff(minimum=7.0, jitter=0.0)
    with supervising(clock=clock, children=(nursery.spec("a", backoff=own),)) as boss:
        assert back_off(boss.child("a"), boss.subscribe(), clock) == 7.0


def test_a_child_that_fails_more_often_than_it_may_for_itself_stays_down_and_its_siblings_go_on() -> None:
    nursery = Nursery()
    with supervising(children=(nursery.spec("a", intensity=1), nursery.spec("b")), intensity=None) as boss:
        events = boss.subscribe()
        crash_and_wait(boss.child("a"), events)

        crash(boss.child("a"))

        assert events.wait_for(EventKind.CHILD_GAVE_UP).child == "a"
        assert states(boss) == {"a": "down", "b": "up"}
        ask(boss, RestartChildRequest(id="a"))
        assert states(boss) == {"a": "up", "b": "up"}


@pytest.mark.parametrize(
    ("error", "expected"), [(KeyError(), "down"), (IndexError(), "up"), (ValueError(), "up")], ids=repr
)
def test_the_nearest_class_of_an_exception_decides(error: Exception, expected: str) -> None:
    nursery = Nursery()
    decide = {LookupError: "stop", IndexError: "restart"}
    with supervising(children=(nursery.spec("a", decide=decide), nursery.spec("b"))) as boss:
        events = boss.subscribe()
        crash(boss.child("a"), error)
        events.wait_for(EventKind.EXITED)

        if expected == "up":
            events.wait_for(EventKind.STARTED, "a")

        assert states(boss) == {"a": expected, "b": "up"}


def test_an_exception_that_is_to_be_escalated_ends_the_supervisor_at_once() -> None:
    nursery = Nursery()
    with supervising(children=(nursery.spec("a", decide={OSError: "escalate"}),), intensity=None) as boss:
        crash(boss.child("a"), FileNotFoundError("gone"))

        with pytest.raises(SupervisorGaveUp, match=r"child 'a' .*escalated") as caught:
            boss.wait(timeout=60)

        assert isinstance(caught.value.__cause__, FileNotFoundError)
        assert EventKind.ESCALATED in [event.kind for event in boss.events()]


# Strategies and restart types


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("one_for_one", ["+b"]),
        ("rest_for_one", ["-d", "-c", "+b", "+c", "+d"]),
        ("one_for_all", ["-d", "-c", "-a", "+a", "+b", "+c", "+d"]),
    ],
)
def test_who_goes_down_with_whom_and_in_which_order(strategy: Any, expected: list[str]) -> None:
    nursery = Nursery()
    with supervising(strategy=strategy, children=nursery.specs("a", "b", "c", "d")) as boss:
        events = boss.subscribe()
        nursery.told()

        crash(boss.child("b"))

        events.wait_for(EventKind.STARTED, expected[-1][1:])
        assert nursery.told() == expected
        assert set(states(boss).values()) == {"up"}


def test_one_for_all_starts_everything_anew_when_one_of_the_group_cannot_be_started() -> None:
    nursery = Nursery()
    with supervising(strategy="one_for_all", children=nursery.specs("a", "b", "c")) as boss:
        events = boss.subscribe()
        nursery.told()
        nursery.failures["b"] = 1

        crash(boss.child("c"))

        events.wait_for(EventKind.STARTED, "c")
        assert nursery.told() == ["-b", "-a", "+a", "+b", "-a", "+a", "+b", "+c"]


def test_rest_for_one_goes_on_from_the_one_that_could_not_be_started() -> None:
    nursery = Nursery()
    with supervising(strategy="rest_for_one", children=nursery.specs("a", "b", "c")) as boss:
        events = boss.subscribe()
        nursery.told()
        nursery.failures["b"] = 1

        crash(boss.child("a"))

        events.wait_for(EventKind.STARTED, "c")
        assert nursery.told() == ["-c", "-b", "+a", "+b", "+b", "+c"]


@pytest.mark.parametrize(
    ("restart", "end", "expected"),
    [
        ("permanent", None, {"a": "up"}),
        ("permanent", Boom(), {"a": "up"}),
        ("transient", None, {"a": "down"}),
        ("transient", Boom(), {"a": "up"}),
        ("temporary", None, {}),
        ("temporary", Boom(), {}),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else None,
)
def test_an_end_that_nobody_asked_for_is_judged_by_the_restart_type(
    restart: Any, end: Exception | None, expected: dict[str, str]
) -> None:
    nursery = Nursery()
    with supervising(children=(nursery.spec("a", restart=restart), nursery.spec("b"))) as boss:
        events = boss.subscribe()
        if end is None:
            finish(nursery.loops["a"][0])
        else:
            crash(boss.child("a"), end)
        exited = events.wait_for(EventKind.EXITED)

        if expected == {"a": "up"}:
            events.wait_for(EventKind.STARTED, "a")

        assert exited.reason == (ExitReason.NORMAL if end is None else ExitReason.ERROR)
        assert states(boss) == {**expected, "b": "up"}


def test_a_temporary_sibling_goes_down_with_the_group_and_is_forgotten() -> None:
    nursery = Nursery()
    children = (nursery.spec("a"), nursery.spec("b", restart="temporary"), nursery.spec("c"))
    with supervising(strategy="one_for_all", children=children) as boss:
        events = boss.subscribe()

        crash(boss.child("a"))

        events.wait_for(EventKind.STARTED, "c")
        assert states(boss) == {"a": "up", "c": "up"}


def test_any_significant_child_that_ends_by_itself_ends_the_supervisor() -> None:
    nursery = Nursery()
    children = (nursery.spec("a", restart="transient", significant=True), nursery.spec("b"))
    with supervising(auto_shutdown="any_significant", children=children) as boss:
        finish(nursery.loops["a"][0])

        assert boss.ended.wait(timeout=60).cause is None
        assert boss.events()[2].kind is EventKind.EXITED
        assert EventKind.AUTO_SHUTDOWN in [event.kind for event in boss.events()]
        assert nursery.log[-1] == "-b"


def test_all_significant_children_must_end_before_the_supervisor_does() -> None:
    nursery = Nursery()
    children = (*nursery.specs("a", "b", restart="temporary", significant=True), nursery.spec("c"))
    with supervising(auto_shutdown="all_significant", children=children) as boss:
        events = boss.subscribe()
        finish(nursery.loops["a"][0])
        events.wait_for(EventKind.EXITED)
        assert states(boss) == {"b": "up", "c": "up"}

        crash(boss.child("b"))

        assert boss.ended.wait(timeout=60).cause is None


def test_a_significant_child_that_is_terminated_ends_nothing() -> None:
    nursery = Nursery()
    children = nursery.specs("a", restart="transient", significant=True)
    with supervising(auto_shutdown="any_significant", children=children) as boss:
        ask(boss, TerminateChildRequest(id="a"))

        assert states(boss) == {"a": "down"}


# Supervisors of supervisors


def inner(nursery: Nursery, *names: str, restart: Any = "permanent", **options: Any) -> ChildSpec:
    plain: dict[str, Any] = {"backoff": None, "children": nursery.specs(*names)}
    return ChildSpec(id="inner", restart=restart, start=lambda: Supervisor("inner", **plain | options))


def below(boss: SupervisorRef, name: str, supervisor: str = "inner") -> ChildRef:
    infos: tuple[ChildInfo, ...] = ask(boss.child(supervisor), WhichChildrenRequest())
    return {info.id: info.ref for info in infos}[name]


def test_a_permanent_supervisor_that_gives_up_is_restarted_with_its_children() -> None:
    nursery = Nursery()
    with supervising(children=(nursery.spec("a"), inner(nursery, "b", "c", intensity=0))) as boss:
        events = boss.subscribe()
        nursery.told()

        crash(below(boss, "b"))

        exited = events.wait_for(EventKind.EXITED, "inner")
        assert exited.reason == ExitReason.SHUTDOWN
        assert exited.cause is not None
        assert "SupervisorGaveUp" in exited.cause
        assert events.wait_for(EventKind.STARTED, "inner").attempt == 1
        assert nursery.told() == ["-c", "+b", "+c"]
        assert ask(below(boss, "b"), ProcessRequest(body=1)) == 1


def test_a_transient_supervisor_that_gives_up_stays_down() -> None:
    nursery = Nursery()
    with supervising(children=(nursery.spec("a"), inner(nursery, "b", restart="transient", intensity=0))) as boss:
        events = boss.subscribe()

        crash(below(boss, "b"))

        events.wait_for(EventKind.EXITED, "inner")
        assert states(boss) == {"a": "up", "inner": "down"}


def test_failures_escalate_to_the_top_after_the_product_of_the_intensities() -> None:
    nursery = Nursery()
    with supervising(children=(inner(nursery, "b", intensity=1),), intensity=1) as boss:
        events = boss.subscribe()
        for _ in range(3):
            crash(below(boss, "b"))
            events.wait_for(EventKind.STARTED, "b")
            ask(boss, CountChildrenRequest())
            events_of_inner_are_over(boss)
        crash(below(boss, "b"))

        with pytest.raises(SupervisorGaveUp, match="child 'inner' of supervisor 'boss'") as caught:
            boss.wait(timeout=60)

        assert isinstance(caught.value.__cause__, SupervisorGaveUp)
        assert nursery.log.count("+b") == 4


def events_of_inner_are_over(boss: SupervisorRef) -> None:
    """Wait until the supervisor below is up again, if it is being restarted."""
    stream = boss.subscribe()
    if states(boss)["inner"] != "up":
        stream.wait_for(EventKind.STARTED, "inner")


def test_a_supervisor_whose_first_child_cannot_be_started_could_not_be_started_itself() -> None:
    nursery = Nursery()
    nursery.failures["b"] = 1
    with supervising() as boss:
        with pytest.raises(StartFailed, match=r"child 'inner' could not be started: .*child 'b'") as caught:
            boss.spawn(inner(nursery, "a", "b"), timeout=60)

        assert isinstance(caught.value.__cause__, StartFailed)
        assert nursery.log == ["+a", "+b", "-a"]
        assert states(boss) == {}


def test_a_supervisor_is_up_when_its_children_are() -> None:
    nursery = Nursery()
    hold = Hold()
    with supervising() as boss, hold:
        nursery.holds["b"] = hold
        spawned = boss.send(StartChildRequest(child=inner(nursery, "a", "b")))
        hold.wait_reached()

        assert states(boss) == {"inner": "starting"}
        assert not spawned.is_ready()
        hold.release()
        spawned.wait(timeout=60)
        assert boss.children()[0].is_supervisor


def test_events_of_supervisors_below_reach_the_root() -> None:
    nursery = Nursery()
    middle = ChildSpec(
        id="middle", start=lambda: Supervisor("middle", backoff=None, children=(inner(nursery, "leaf"),))
    )
    with supervising(children=(middle,)) as boss:
        events = boss.subscribe()
        ref: ChildRef = below(boss, "inner", "middle")
        leaf: ChildRef = ask(ref, WhichChildrenRequest())[0].ref

        crash(leaf)

        exited = events.wait_for(EventKind.EXITED, "leaf")
        assert (exited.supervisor, exited.reason) == ("inner", "error")
        assert events.wait_for(EventKind.STARTED, "leaf").supervisor == "inner"
        assert [event.child for event in boss.events()][:3] == ["leaf", "inner", "middle"]


def test_the_end_of_the_root_ends_the_whole_tree_from_right_to_left() -> None:
    nursery = Nursery()
    children = (nursery.spec("a"), inner(nursery, "b", "c", strategy="rest_for_one"), nursery.spec("d"))
    with supervising(children=children, sequential=True):
        nursery.told()

    assert nursery.told() == ["-d", "-c", "-b", "-a"]


def test_a_supervisor_below_has_all_the_time_that_its_children_need(clock: FakeClock) -> None:
    nursery = Nursery()
    with Hold() as hold:
        child = ChildSpec(
            id="inner",
            start=lambda: Supervisor("inner", clock=clock, children=(nursery.spec("b", hold, shutdown=100.0),)),
        )
        boss = Supervisor.start("boss", clock=clock, children=(child,))
        nursery.loops["b"][0].feed("held")
        hold.wait_reached()
        stopped = boss.stop(block=False)
        clock.advance(99.0)

        assert states(boss) == {"inner": "stopping"}
    assert stopped.wait(timeout=60)
    assert len(ZOMBIES) == 0


def test_a_supervisor_below_with_a_limit_is_given_up_with_all_its_children(clock: FakeClock) -> None:
    nursery = Nursery()
    with Hold() as hold:
        child = ChildSpec(
            id="inner",
            shutdown=3.0,
            start=lambda: Supervisor("inner", clock=clock, children=(nursery.spec("b", hold, shutdown=100.0),)),
        )
        boss = Supervisor.start("boss", clock=clock, children=(child,))
        nursery.loops["b"][0].feed("held")
        hold.wait_reached()
        stopped = boss.stop(block=False)

        clock.advance(3.0)

        assert stopped.wait(timeout=60)
        assert ZOMBIES.names == ("b-worker",)
    wait_no_threads()
    assert len(ZOMBIES) == 0


# Pools


def pool(nursery: Nursery, **options: Any) -> Any:
    return supervising("pool", template=nursery.spec("w"), **options)


def test_a_pool_grows_and_shrinks_by_its_youngest() -> None:
    nursery = Nursery()
    with pool(nursery) as workers:
        assert workers.resize(0, timeout=60) == ()

        three = workers.resize(3, timeout=60)
        one = workers.resize(1, timeout=60)
        two = workers.resize(2, timeout=60)

        assert [ref.name for ref in three] == ["w-1", "w-2", "w-3"]
        assert [ref.name for ref in one] == ["w-1"]
        assert [ref.name for ref in two] == ["w-1", "w-4"]
        assert states(workers) == {"w-1": "up", "w-4": "up"}
        assert three[2].ended.wait(timeout=60).cause is None


def test_a_child_of_a_pool_that_fails_is_restarted() -> None:
    nursery = Nursery()
    with pool(nursery) as workers:
        events = workers.subscribe()
        ref = workers.resize(2, timeout=60)[0]

        crash_and_wait(ref, events)

        assert states(workers) == {"w-1": "up", "w-2": "up"}


def test_a_pool_that_cannot_grow_says_so_and_can_be_resized_again() -> None:
    nursery = Nursery()
    with pool(nursery) as workers:
        nursery.failures["w"] = 1

        with pytest.raises(StartFailed):
            workers.resize(1, timeout=60)

        assert states(workers) == {}
        assert len(workers.resize(1, timeout=60)) == 1


def test_a_pool_whose_factory_says_not_now_lives_on() -> None:
    with supervising("pool", template=ChildSpec(id="shy", start=lambda: None)) as workers:
        outcome(workers.send(ResizeRequest(size=2)))

        assert states(workers) == {}


def test_a_child_of_a_pool_that_is_told_to_stop_is_forgotten() -> None:
    nursery = Nursery()
    with pool(nursery) as workers:
        ref = workers.resize(2, timeout=60)[0]

        ask(ref, ShutdownRequest())

        assert states(workers) == {"w-2": "up"}


@pytest.mark.parametrize(
    "request_",
    [RestartChildRequest(id="w-1"), DeleteChildRequest(id="w-1")],
    ids=["restart", "delete"],
)
def test_what_makes_no_sense_in_a_pool_is_refused(request_: Any) -> None:
    nursery = Nursery()
    with pool(nursery) as workers:
        workers.resize(1, timeout=60)

        with pytest.raises(UnsupportedRequestError, match="ResizeRequest"):
            ask(workers, request_)
        with pytest.raises(InvalidChildError, match="pool 'pool'"):
            workers.spawn(nursery.spec("x"), timeout=60)


def test_what_is_no_pool_cannot_be_resized() -> None:
    with supervising() as boss, pytest.raises(UnsupportedRequestError, match="template"):
        boss.resize(2, timeout=60)


def test_a_pool_that_is_stopping_refuses_to_grow() -> None:
    nursery = Nursery()
    hold = Hold()
    with supervising("pool", template=nursery.spec("w", hold)) as workers, hold:
        workers.resize(1, timeout=60)
        nursery.loops["w"][0].feed("held")
        hold.wait_reached()
        workers.stop(block=False)

        with pytest.raises(ChildUnavailableError, match="stopping"):
            ask(workers, ResizeRequest(size=2))
        hold.release()


# Stopping


def hold_both(nursery: Nursery, hold: Hold) -> tuple[ChildSpec, ...]:
    return nursery.specs("a", "b", handler=hold)


def feed_both(nursery: Nursery) -> None:
    for name in ("a", "b"):
        nursery.loops[name][0].feed("held")


def test_one_for_one_tells_all_before_it_waits_for_any() -> None:
    nursery = Nursery()
    hold = Hold()
    with supervising(children=hold_both(nursery, hold)) as boss, hold:
        feed_both(nursery)
        hold.wait_reached()

        stopped = boss.stop(block=False)

        for name in ("a", "b"):
            nursery.loops[name][0].stop_asked.wait(timeout=60)
        assert not stopped.is_ready()
        assert sorted(nursery.log[2:]) == ["-a", "-b"]
        hold.release()
        assert stopped.wait(timeout=60)


@pytest.mark.parametrize(
    "options",
    [{"strategy": "rest_for_one"}, {"strategy": "one_for_all"}, {"sequential": True}],
    ids=["rest_for_one", "one_for_all", "sequential"],
)
def test_in_order_the_next_is_told_when_the_one_after_it_has_ended(options: Any) -> None:
    nursery = Nursery()
    hold = Hold()
    with supervising(children=hold_both(nursery, hold), **options) as boss, hold:
        feed_both(nursery)
        hold.wait_reached()

        stopped = boss.stop(block=False)

        nursery.loops["b"][0].stop_asked.wait(timeout=60)
        assert states(boss) == {"a": "up", "b": "stopping"}
        assert nursery.log[2:] == ["-b"]
        hold.release()
        assert stopped.wait(timeout=60)
        assert nursery.log[2:] == ["-b", "-a"]


def test_stopping_again_changes_nothing() -> None:
    nursery = Nursery()
    with supervising(children=nursery.specs("a", "b")) as boss:
        tickets = [boss.stop(block=False) for _ in range(5)]

        assert all(ticket.is_ready() or ticket.wait(timeout=60) is not None for ticket in tickets)
        assert sorted(nursery.log) == ["+a", "+b", "-a", "-b"]


def test_a_supervisor_that_is_stopping_starts_nothing_more() -> None:
    nursery = Nursery()
    hold = Hold()
    with supervising(children=(nursery.spec("a", hold), nursery.spec("b"))) as boss, hold:
        ask(boss, TerminateChildRequest(id="b"))
        nursery.loops["a"][0].feed("held")
        hold.wait_reached()
        boss.stop(block=False)

        with pytest.raises(ChildUnavailableError, match="stopping"):
            boss.spawn(nursery.spec("c"), timeout=60)
        with pytest.raises(ChildUnavailableError, match="stopping"):
            ask(boss, RestartChildRequest(id="b"))
        hold.release()


def test_a_child_that_crashes_while_all_are_stopped_is_not_restarted() -> None:
    nursery = Nursery()

    def hold_then_crash(_: object) -> None:
        hold()
        raise SystemExit

    hold = Hold()
    with supervising(children=(nursery.spec("a", hold_then_crash),)) as boss, hold:
        nursery.loops["a"][0].feed("held")
        hold.wait_reached()
        stopped = boss.stop(block=False)
        nursery.loops["a"][0].stop_asked.wait(timeout=60)
        hold.release()

        assert stopped.wait(timeout=60)
        assert boss.ended.wait(timeout=60).cause is None
        assert nursery.log == ["+a", "-a"]


def test_a_child_that_does_not_stop_in_time_is_abandoned_and_the_supervisor_ends_all_the_same(clock: FakeClock) -> None:
    nursery = Nursery()
    with Hold() as hold:
        boss = Supervisor.start("boss", clock=clock, children=(nursery.spec("a", hold, shutdown=3.0),))
        nursery.loops["a"][0].feed("held")
        hold.wait_reached()
        stopped = boss.stop(block=False)
        clock.advance(2.9)
        assert states(boss) == {"a": "stopping"}

        clock.advance(0.1)

        assert stopped.wait(timeout=60)
        assert boss.ended.wait(timeout=60).cause is None
        assert ZOMBIES.names == ("a-worker",)
        assert [event.kind for event in boss.events()] == ["started", "abandoned", "exited", "terminated"]
        assert boss.events()[2].reason == ExitReason.KILLED
    wait_no_threads()
    assert len(ZOMBIES) == 0


def test_five_seconds_are_what_a_child_has_if_its_spec_does_not_say(clock: FakeClock) -> None:
    nursery = Nursery()
    with Hold() as hold:
        boss = Supervisor.start("boss", clock=clock, children=(nursery.spec("a", hold),))
        nursery.loops["a"][0].feed("held")
        hold.wait_reached()
        stopped = boss.stop(block=False)

        clock.advance(5.0)

        assert stopped.wait(timeout=60)
    wait_no_threads()


def test_a_request_to_stop_that_came_twice_leaves_no_patience_for_the_next_life(clock: FakeClock) -> None:
    nursery = Nursery()
    with Hold() as first, Hold() as second:
        holds = [first, second]
        boss = Supervisor.start(
            "boss", clock=clock, children=(nursery.spec("a", lambda body: holds[int(str(body))](), shutdown=3.0),)
        )
        nursery.loops["a"][0].feed(0)
        first.wait_reached()
        ref = boss.child("a")
        requests = [ref.send(ShutdownRequest(timeout=100.0)) for _ in range(2)]
        assert states(boss) == {"a": "stopping"}
        first.release()
        for request in requests:
            request.wait(timeout=60)
        ask(boss, RestartChildRequest(id="a"))
        nursery.loops["a"][1].feed(1)
        second.wait_reached()

        stopped = boss.stop(block=False)
        clock.advance(3.0)

        has_stopped = stopped.is_ready()
        second.release()
        stopped.wait(timeout=60)
        assert has_stopped
    wait_no_threads()


def test_a_brutal_kill_does_not_wait() -> None:
    nursery = Nursery()
    with Hold() as hold:
        with supervising(children=(nursery.spec("a", hold, shutdown="brutal_kill"),)) as boss:
            nursery.loops["a"][0].feed("held")
            hold.wait_reached()

        assert ZOMBIES.names == ("a-worker",)
        assert EventKind.ABANDONED in [event.kind for event in boss.events()]
    wait_no_threads()
    assert len(ZOMBIES) == 0


def test_a_brutal_kill_of_a_loop_that_hangs_nowhere_leaves_no_thread() -> None:
    nursery = Nursery()
    with supervising(children=(nursery.spec("a", shutdown="brutal_kill"),)):
        pass

    assert wait_no_threads() == []
    assert len(ZOMBIES) == 0


class Own(ControlActor):
    """An actor of a user, who builds on ours."""

    def on_receive(self, message: object) -> object:
        return message() if callable(message) else message


def test_an_actor_of_a_users_own_is_started_restarted_and_stopped() -> None:
    def fail() -> None:
        raise Boom

    with supervising(children=(ChildSpec(id="own", start=Own),)) as boss:
        events = boss.subscribe()
        ref = boss.child("own")
        assert ref.ask("echo", timeout=60) == "echo"

        ref.tell(fail)

        assert events.wait_for(EventKind.EXITED).reason == ExitReason.ERROR
        events.wait_for(EventKind.STARTED)
        assert ref.ask("echo", timeout=60) == "echo"


def test_a_brutal_kill_of_an_actor_that_hangs_nowhere_leaves_no_thread() -> None:
    actors: list[Own] = []

    def make() -> Own:
        actors.append(Own())
        return actors[0]

    with supervising(children=(ChildSpec(id="own", start=make, shutdown="brutal_kill"),)):
        pass

    has_ended = actors[0].ended.wait_ready(timeout=60)
    actors[0].actor_ref.stop(timeout=60)
    assert has_ended


def test_the_stable_ref_of_an_actor_of_a_users_own_answers_health_also_while_it_is_busy() -> None:
    hold = Hold()
    with supervising(children=(ChildSpec(id="own", start=Own),)) as boss, hold:
        ref = boss.child("own")
        ref.tell(hold)
        hold.wait_reached()
        asked = ref.send(HealthCheckRequest())

        was_answered = asked.wait_ready(timeout=60)

        hold.release()
        assert was_answered
        assert asked.wait(timeout=60).state is LoopState.RUNNING


def test_a_child_that_is_abandoned_by_request_is_killed_and_restarted() -> None:
    nursery = Nursery()
    with Hold() as hold, supervising(children=(nursery.spec("a", hold),)) as boss:
        events = boss.subscribe()
        ref = boss.child("a")
        nursery.loops["a"][0].feed("held")
        hold.wait_reached()

        result = ask(ref, AbandonRequest(reason="it hangs"))

        exited = events.wait_for(EventKind.EXITED)
        assert result.abandoned
        assert exited.reason == ExitReason.KILLED
        assert exited.cause is not None
        assert LoopAbandonedError.__name__ in exited.cause
        events.wait_for(EventKind.STARTED)
        assert states(boss) == {"a": "up"}
    wait_no_threads()
    assert len(ZOMBIES) == 0


# Factories that hang


def test_a_supervisor_whose_factory_hangs_ends_when_the_factory_has_had_its_time(clock: FakeClock) -> None:
    nursery = Nursery()
    with Hold() as hold:
        nursery.holds["b"] = hold
        boss = Supervisor("boss", clock=clock, children=nursery.specs("a", "b", shutdown=3.0)).launch()
        hold.wait_reached()
        events = boss.subscribe()
        stopped = boss.stop(block=False)
        events.wait_for(EventKind.TERMINATED, "a")

        clock.advance(3.0)

        assert stopped.wait(timeout=60)
        assert boss.ended.wait(timeout=60).cause is None
        assert ZOMBIES.names == ("b-start",)
    wait_no_threads()
    assert len(ZOMBIES) == 0
    assert not nursery.loops["b"][0].running


def test_a_factory_that_returns_while_its_child_is_being_stopped_has_made_something_that_never_runs() -> None:
    nursery = Nursery()
    hold = Hold()
    with supervising() as boss, hold:
        nursery.holds["a"] = hold
        spawned = boss.send(StartChildRequest(child=nursery.spec("a")))
        hold.wait_reached()
        terminated = boss.send(TerminateChildRequest(id="a"))
        assert states(boss) == {"a": "stopping"}

        hold.release()

        assert terminated.wait(timeout=60).clean_shutdown
        assert isinstance(outcome(spawned), StartFailed)
        assert not nursery.loops["a"][0].entered.is_ready()


def test_one_factory_that_hangs_keeps_no_other_child_from_starting() -> None:
    nursery = Nursery()
    hold = Hold()
    with supervising() as boss, hold:
        nursery.holds["a"] = hold
        spawned = boss.send(StartChildRequest(child=nursery.spec("a")))
        hold.wait_reached()

        boss.spawn(nursery.spec("b"), timeout=60)

        assert states(boss) == {"a": "starting", "b": "up"}
        hold.release()
        spawned.wait(timeout=60)


def test_a_child_whose_factory_hung_can_be_restarted(clock: FakeClock) -> None:
    nursery = Nursery()
    hold = Hold()
    with supervising(clock=clock, children=nursery.specs("a")) as boss, hold:
        ask(boss, TerminateChildRequest(id="a"))
        nursery.holds["a"] = hold
        restarted = boss.send(RestartChildRequest(id="a"))
        hold.wait_reached()
        terminated = boss.send(TerminateChildRequest(id="a"))
        clock.advance(5.0)
        assert not terminated.wait(timeout=60).clean_shutdown
        assert isinstance(outcome(restarted), StartFailed)
        del nursery.holds["a"]

        ask(boss, RestartChildRequest(id="a"))

        assert states(boss) == {"a": "up"}
        hold.release()


def test_a_factory_that_is_given_up_before_its_time_leaves_no_timer(clock: FakeClock) -> None:
    nursery, hold = Nursery(), Hold()
    with supervising(clock=clock) as boss, hold:
        nursery.holds["a"] = hold
        boss.send(StartChildRequest(child=nursery.spec("a", shutdown=100.0)))
        hold.wait_reached()
        ref = boss.child("a")
        terminated = boss.send(TerminateChildRequest(id="a"))
        clock.advance(0)
        assert "1 timers" in repr(clock)

        ask(ref, AbandonRequest(reason="no patience"))

        assert not terminated.wait(timeout=60).clean_shutdown
        assert "0 timers" in repr(clock)


def test_the_end_of_a_start_that_was_called_off_is_not_told_as_the_end_before_it() -> None:
    nursery = Nursery()
    hold = Hold()
    with supervising(children=nursery.specs("a")) as boss, hold:
        nursery.holds["a"] = hold
        crash(boss.child("a"))
        hold.wait_reached()
        terminated = boss.send(TerminateChildRequest(id="a"))
        assert states(boss) == {"a": "stopping"}

        hold.release()

        result = terminated.wait(timeout=60)
        assert (result.clean_shutdown, result.error) == (True, None)


# The supervisor itself is lost


class Lost(Supervisor):
    def on_receive(self, message: object) -> object:
        if message == "get lost":
            raise SystemExit
        return super().on_receive(message)


def test_a_supervisor_that_is_lost_has_its_children_stopped() -> None:
    nursery = Nursery()
    boss = Lost("boss", children=nursery.specs("a", "b")).launch()
    boss.ready.wait(timeout=60)
    ref = boss.child("a")

    boss.tell("get lost")

    assert isinstance(boss.ended.wait(timeout=60).cause, SystemExit)
    assert wait_no_threads() == []
    assert ref.ended.is_ready()


def test_a_supervisor_that_is_lost_while_it_stops_a_child_leaves_no_timer(clock: FakeClock) -> None:
    nursery = Nursery()
    with Hold() as hold:
        boss = Lost("boss", clock=clock, children=(nursery.spec("a", hold, shutdown=100.0),)).launch()
        boss.ready.wait(timeout=60)
        nursery.loops["a"][0].feed("held")
        hold.wait_reached()
        boss.send(TerminateChildRequest(id="a"))
        clock.advance(0)
        assert "0 timers" not in repr(clock)

        boss.tell("get lost")

        boss.ended.wait(timeout=60)
    assert wait_no_threads() == []
    assert "0 timers" in repr(clock)


def test_a_supervisor_below_that_is_lost_is_restarted() -> None:
    nursery = Nursery()
    child = ChildSpec(id="inner", start=lambda: Lost("inner", children=nursery.specs("a")))
    with supervising(children=(child,)) as boss:
        events = boss.subscribe()

        boss.child("inner").tell("get lost")

        assert events.wait_for(EventKind.EXITED, "inner").reason == ExitReason.ERROR
        events.wait_for(EventKind.STARTED, "inner")
        nursery.loops["a"][0].stop_asked.wait(timeout=60)
        # One that is lost cannot wait for its children: they are told to stop, and the next one is started meanwhile.
        assert (nursery.log[0], sorted(nursery.log[1:])) == ("+a", ["+a", "-a"])
