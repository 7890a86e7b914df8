"""A supervisor of real loops on real threads: what it starts, restarts, stops, gives up and answers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from children import Boom, ChildFactory, crash, crash_and_wait, finish, outcome, supervising

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
#: Time stands still unless a test moves it, so no child is abandoned because the machine is slow.
pytestmark = pytest.mark.usefixtures("clock")


def states(supervisor: SupervisorRef) -> dict[str, str]:
    return {info.id: info.state.value for info in supervisor.children()}


def ask(ref: SupervisorRef | ChildRef, request: Any) -> Any:
    return ref.send(request).wait(timeout=60)


# Starting


def test_the_example_of_the_readme_holds() -> None:
    with Supervisor.open("media") as media:
        resize = media.spawn(ChildSpec(id="resize", start=ProbeLoop))
        status = resize.send(HealthCheckRequest()).wait(timeout=60)

    assert (status.loop_name, status.state, status.running) == ("resize", LoopState.RUNNING, True)
    assert wait_no_threads() == []


def test_open_leaves_nothing_behind_at_the_end_of_the_block_even_after_an_exception() -> None:
    factory = ChildFactory()

    with pytest.raises(Boom), Supervisor.open("root", children=factory.specs("a", "b")) as supervisor:
        raise Boom

    assert supervisor.ended.is_ready()
    assert wait_no_threads() == []


def test_spawn_returns_when_the_child_is_running() -> None:
    factory = ChildFactory()
    with supervising() as supervisor:
        supervisor.spawn(factory.spec("a"), timeout=60)

        assert factory.loops["a"][0].running
        assert states(supervisor) == {"a": "up"}


def test_spawn_raises_what_the_factory_raised_and_the_child_is_not_kept() -> None:
    factory = ChildFactory()
    factory.failures["a"] = 1
    with supervising() as supervisor:
        with pytest.raises(StartFailed, match="child 'a' could not be started: Boom") as caught:
            supervisor.spawn(factory.spec("a"), timeout=60)

        assert isinstance(caught.value.__cause__, Boom)
        assert caught.value.child == "a"
        assert states(supervisor) == {}
        supervisor.spawn(factory.spec("a"), timeout=60)


def test_spawn_that_does_not_wait_long_enough_says_so_and_the_child_comes_up_all_the_same() -> None:
    factory = ChildFactory()
    hold = Hold()
    with supervising() as supervisor, hold:
        factory.holds["a"] = hold
        events = supervisor.subscribe()
        with pytest.raises(TicketTimeoutError):
            supervisor.spawn(factory.spec("a"), timeout=0.01)

        hold.release()

        assert events.wait_for(EventKind.STARTED).child == "a"


@pytest.mark.parametrize("state", ["up", "down"])
def test_an_id_is_taken_whether_its_child_is_running_or_not(state: str) -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        if state == "down":
            ask(supervisor, TerminateChildRequest(id="a"))

        with pytest.raises(ChildExistsError) as caught:
            supervisor.spawn(factory.spec("a"), timeout=60)

        assert (caught.value.child, caught.value.state) == ("a", state)
        assert states(supervisor) == {"a": state}


def test_the_first_children_start_from_left_to_right_each_when_the_one_before_is_up() -> None:
    factory = ChildFactory()
    with Hold() as hold:
        factory.holds["b"] = hold
        supervisor = Supervisor("root", children=factory.specs("a", "b", "c")).launch()
        hold.wait_reached()

        assert states(supervisor) == {"a": "up", "b": "starting", "c": "pending"}
        assert not supervisor.ready.is_ready()

    supervisor.ready.wait(timeout=60)
    assert factory.log == ["+a", "+b", "+c"]
    supervisor.stop(timeout=60)


@pytest.mark.parametrize(
    "options",
    [{"strategy": "rest_for_one"}, {"strategy": "one_for_all"}, {"sequential": True}],
    ids=["rest_for_one", "one_for_all", "sequential"],
)
def test_first_child_that_cannot_be_started_stops_those_before_it_in_reverse(options: Any) -> None:
    factory = ChildFactory()
    factory.failures["c"] = 1

    with pytest.raises(StartFailed, match="child 'c'") as caught:
        Supervisor.start("root", children=factory.specs("a", "b", "c", "d"), **options)

    assert isinstance(caught.value.__cause__, Boom)
    assert factory.log == ["+a", "+b", "+c", "-b", "-a"]


def test_first_child_of_one_for_one_that_cannot_be_started_stops_those_before_it_side_by_side() -> None:
    factory = ChildFactory()
    factory.failures["c"] = 1

    with pytest.raises(StartFailed, match="child 'c'"):
        Supervisor.start("root", children=factory.specs("a", "b", "c", "d"))

    assert factory.log[:3] == ["+a", "+b", "+c"]
    assert sorted(factory.log[3:]) == ["-a", "-b"]
    assert wait_no_threads() == []


def test_the_first_start_is_tried_once_and_counts_for_no_intensity() -> None:
    factory = ChildFactory()
    factory.failures["a"] = 1

    supervisor = Supervisor("root", intensity=None, children=factory.specs("a")).launch()

    assert isinstance(supervisor.ended.wait(timeout=60).cause, StartFailed)
    with pytest.raises(ActorDeadError):
        supervisor.ready.wait(timeout=60)
    assert factory.log == ["+a"]
    assert ask(supervisor, HealthCheckRequest()).state is LoopState.FAILED


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
    with supervising() as supervisor:
        with pytest.raises(StartFailed, match=f"child 'odd' could not be started: .*{culprit}"):
            supervisor.spawn(ChildSpec(id="odd", start=factory), timeout=60)

        assert states(supervisor) == {}
    for left in pykka.ActorRegistry.get_all():  # what was refused is its maker's
        left.stop()


def test_a_started_actor_that_is_refused_is_stopped() -> None:
    made: list[pykka.ActorRef[Any]] = []

    def make() -> object:
        made.append(Idle.start())
        return made[0]

    with supervising() as supervisor:
        with pytest.raises(StartFailed):
            supervisor.spawn(ChildSpec(id="odd", start=make), timeout=60)

        made[0].actor_stopped.wait(60)
        assert not made[0].is_alive()


def test_an_actor_that_was_launched_by_its_factory_is_refused_and_stopped_as_a_ref_is() -> None:
    made: list[ControlActor] = []

    def make() -> object:
        made.append(launched())
        return made[0]

    with supervising() as supervisor, pytest.raises(StartFailed):
        supervisor.spawn(ChildSpec(id="odd", start=make), timeout=60)

    has_ended = made[0].ended.wait_ready(timeout=60)
    made[0].actor_ref.stop(timeout=60)
    assert has_ended


def test_an_actors_constructor_that_raises_is_a_failed_start() -> None:
    class Picky(pykka.ThreadingActor):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.size = 1 // size

    with supervising() as supervisor:
        with pytest.raises(StartFailed, match="child 'picky' could not be started: ZeroDivisionError"):
            supervisor.spawn(ChildSpec(id="picky", actor=Picky, args=(0,)), timeout=60)

        supervisor.spawn(ChildSpec(id="picky", actor=Picky, kwargs={"size": 1}), timeout=60)


@pytest.mark.parametrize(("restart", "left"), [("permanent", {"a": "down"}), ("temporary", {})])
def test_a_factory_that_returns_none_says_not_now(restart: Any, left: dict[str, str]) -> None:
    with supervising() as supervisor:
        ref = outcome(supervisor.send(StartChildRequest(child=ChildSpec(id="a", start=lambda: None, restart=restart))))

        assert not isinstance(ref, BaseException)
        assert states(supervisor) == left


def test_first_child_that_says_not_now_does_not_delay_the_others() -> None:
    factory = ChildFactory()
    children = (ChildSpec(id="shy", start=lambda: None), factory.spec("a"))

    with supervising(children=children) as supervisor:
        assert states(supervisor) == {"shy": "down", "a": "up"}


def test_a_loop_that_raises_at_once_was_started_and_is_restarted_by_its_type() -> None:
    class Brief:
        def run(self) -> None:
            raise Boom

        def shutdown(self, *, timeout: float) -> None: ...

    with supervising(intensity=2) as supervisor:
        ref = supervisor.send(StartChildRequest(child=ChildSpec(id="brief", start=Brief)))

        text = r"child 'brief' of supervisor 'root' failed too often \(more than .*, or raise intensity\): Boom"
        with pytest.raises(SupervisorGaveUp, match=text):
            supervisor.wait(timeout=60)
        assert ref.is_ready()
        assert [event.attempt for event in supervisor.events() if event.kind is EventKind.STARTED] == [0, 1, 2]


# The run-time API


def test_terminate_stops_a_child_and_keeps_its_spec() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a", "b")) as supervisor:
        result = ask(supervisor, TerminateChildRequest(id="a"))

        assert (result.loop_name, result.clean_shutdown) == ("a", True)
        assert states(supervisor) == {"a": "down", "b": "up"}
        assert factory.log == ["+a", "+b", "-a"]


def test_terminate_again_is_answered_too() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        for _ in range(3):
            assert ask(supervisor, TerminateChildRequest(id="a")).clean_shutdown


def test_terminate_forgets_a_temporary_child() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a", restart="temporary")) as supervisor:
        ref = supervisor.child("a")

        assert ask(supervisor, TerminateChildRequest(id="a")).clean_shutdown
        assert states(supervisor) == {}
        assert ref.ended.wait(timeout=60).cause is None


def test_restart_starts_what_is_down_and_returns_the_same_ref() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        before = supervisor.child("a")
        ask(supervisor, TerminateChildRequest(id="a"))

        ref = ask(supervisor, RestartChildRequest(id="a"))

        assert ref is before
        assert ask(ref, ProcessRequest(body=1)) == 1
        assert states(supervisor) == {"a": "up"}


def test_restart_by_hand_counts_for_no_intensity() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a"), intensity=0) as supervisor:
        for _ in range(5):
            ask(supervisor, TerminateChildRequest(id="a"))
            ask(supervisor, RestartChildRequest(id="a"))

        assert supervisor.children()[0].restarts == 0
        assert states(supervisor) == {"a": "up"}


def test_restart_that_fails_raises_and_leaves_the_child_down() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        ask(supervisor, TerminateChildRequest(id="a"))
        factory.failures["a"] = 1

        with pytest.raises(StartFailed):
            ask(supervisor, RestartChildRequest(id="a"))

        assert states(supervisor) == {"a": "down"}
        assert supervisor.children()[0].last_error is not None
        ask(supervisor, RestartChildRequest(id="a"))


def test_delete_forgets_a_child_that_is_down() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        ask(supervisor, TerminateChildRequest(id="a"))

        assert ask(supervisor, DeleteChildRequest(id="a")) is None
        assert states(supervisor) == {}
        supervisor.spawn(factory.spec("a"), timeout=60)


@pytest.mark.parametrize("request_type", [RestartChildRequest, DeleteChildRequest])
def test_requests_for_a_child_that_is_down_are_refused_if_it_is_up(request_type: Any) -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        with pytest.raises(ChildBusyError) as caught:
            ask(supervisor, request_type(id="a"))

        assert (caught.value.child, caught.value.state) == ("a", "up")


@pytest.mark.parametrize("request_type", [RestartChildRequest, DeleteChildRequest])
def test_requests_for_a_child_that_is_down_are_refused_if_it_is_backing_off(
    clock: FakeClock, request_type: Any
) -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a"), clock=clock, backoff=Backoff()) as supervisor:
        events = supervisor.subscribe()
        crash(supervisor.child("a"))
        events.wait_for(EventKind.RESTARTING)

        with pytest.raises(ChildBusyError) as caught:
            ask(supervisor, request_type(id="a"))

        assert caught.value.state == "restarting"


@pytest.mark.parametrize(
    "request_type",
    [TerminateChildRequest, RestartChildRequest, DeleteChildRequest, WhichChildRequest, ChildSpecRequest],
)
def test_a_child_that_is_not_there_is_not_found(request_type: Any) -> None:
    with supervising() as supervisor:
        with pytest.raises(ChildNotFoundError, match="child 'unknown' does not exist"):
            ask(supervisor, request_type(id="unknown"))

        assert ask(supervisor, HealthCheckRequest()).running


@pytest.mark.parametrize(
    "request_type",
    [TerminateChildRequest, RestartChildRequest, DeleteChildRequest, WhichChildRequest, ChildSpecRequest],
)
def test_request_about_an_unknown_child_that_is_told_does_not_end_the_supervisor(request_type: Any) -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        supervisor.tell(request_type(id="unknown"))

        assert states(supervisor) == {"a": "up"}


def test_start_child_request_that_is_refused_and_told_does_not_end_the_supervisor() -> None:
    factory = ChildFactory()
    bad = factory.spec("b", restart="transient", significant=True)
    with supervising(children=factory.specs("a")) as supervisor:
        supervisor.tell(StartChildRequest(child=bad))

        assert states(supervisor) == {"a": "up"}


def test_a_child_that_this_supervisor_cannot_have_is_refused_before_anything_starts() -> None:
    factory = ChildFactory()
    with supervising() as supervisor:
        with pytest.raises(InvalidChildError, match=r"child 'a' .*significant.*auto_shutdown"):
            supervisor.spawn(factory.spec("a", restart="transient", significant=True), timeout=60)

        assert factory.log == []


def test_which_children_request_returns_children_in_start_order_with_their_refs() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("c", "a", "b")) as supervisor:
        infos = ask(supervisor, WhichChildrenRequest())

        assert [info.id for info in infos] == ["c", "a", "b"]
        assert all(ask(info.ref, ProcessRequest(body=info.id)) == info.id for info in infos)
        assert ask(supervisor, WhichChildRequest(id="a")) == infos[1]
        assert "ref" not in infos[0].model_dump()


def test_which_child_request_returns_state_restarts_and_last_error() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        events = supervisor.subscribe()
        crash_and_wait(supervisor.child("a"), events)

        info: ChildInfo = ask(supervisor, WhichChildRequest(id="a"))

        assert (info.state, info.restarts, info.retry_at, info.is_supervisor) == (ChildState.UP, 1, None, False)
        assert info.last_error is not None
        assert "Boom" in info.last_error


def test_children_are_counted() -> None:
    factory = ChildFactory()
    children = (*factory.specs("a", "b"), ChildSpec(id="inner", start=lambda: Supervisor("inner")))
    with supervising(children=children) as supervisor:
        ask(supervisor, TerminateChildRequest(id="a"))

        assert ask(supervisor, CountChildrenRequest()) == ChildCounts(specs=3, active=2, supervisors=1, workers=2)


def test_the_spec_of_a_child_is_told() -> None:
    factory = ChildFactory()
    spec = factory.spec("a", restart="transient", shutdown=3.0)
    with supervising(children=(spec,)) as supervisor:
        assert ask(supervisor, ChildSpecRequest(id="a")) == spec


def test_supervisor_refuses_a_request_that_it_does_not_know_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with supervising() as supervisor:
        with pytest.raises(UnsupportedRequestError, match="Supervisor 'root' does not support ProcessRequest"):
            ask(supervisor, ProcessRequest(body=1))
        supervisor.tell("what?")

        assert ask(supervisor, HealthCheckRequest()).running
    assert "does not support str" in caplog.text


def test_health_counts_restarts_and_tells_the_state() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a", "b")) as supervisor:
        events = supervisor.subscribe()
        crash_and_wait(supervisor.child("a"), events)
        crash_and_wait(supervisor.child("b"), events)

        status = ask(supervisor, HealthCheckRequest())

        assert (status.loop_name, status.state, status.restarts) == ("root", LoopState.RUNNING, 2)


def test_supervisor_that_has_ended_still_answers_what_can_be_answered() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        pass

    assert ask(supervisor, HealthCheckRequest()).state is LoopState.STOPPED
    assert ask(supervisor, ShutdownRequest()).clean_shutdown
    assert ask(supervisor, ShutdownConfirmRequest()).clean_shutdown
    assert [event.kind for event in supervisor.events()] == ["started", "exited", "terminated"]
    with pytest.raises(ActorDeadError):
        supervisor.children()


def test_a_shutdown_request_ends_a_supervisor_and_its_children() -> None:
    factory = ChildFactory()
    supervisor = Supervisor.start("root", children=factory.specs("a", "b"))

    result = ask(supervisor, ShutdownRequest(timeout=5.0))

    assert (result.loop_name, result.clean_shutdown) == ("root", True)
    assert supervisor.ended.wait(timeout=60).cause is None
    assert sorted(factory.log) == ["+a", "+b", "-a", "-b"]


def test_a_shutdown_request_that_times_out_says_so_and_the_real_end_comes_later(clock: FakeClock) -> None:
    factory = ChildFactory()
    with Hold() as hold:
        supervisor = Supervisor.start("root", clock=clock, children=(factory.spec("a", hold, shutdown=100.0),))
        factory.loops["a"][0].feed("held")
        hold.wait_reached()
        request = supervisor.send(ShutdownRequest(timeout=2.0))
        confirmed = supervisor.send(ShutdownConfirmRequest())

        clock.advance(2.0)

        assert not request.wait(timeout=60).clean_shutdown
        assert not confirmed.is_ready()
    assert confirmed.wait(timeout=60).clean_shutdown


# Intensity and back-off


def test_supervisor_stops_all_children_and_gives_up_after_one_failure_too_many() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a", "b"), intensity=2) as supervisor:
        events = supervisor.subscribe()
        ref = supervisor.child("a")
        crash_and_wait(ref, events)
        crash_and_wait(ref, events)
        crash(ref, Boom("the last one"))

        with pytest.raises(SupervisorGaveUp, match="child 'a' of supervisor 'root' failed too often") as caught:
            supervisor.wait(timeout=60)

        assert (caught.value.supervisor, caught.value.child) == ("root", "a")
        assert str(caught.value.__cause__) == "the last one"
        assert supervisor.ended.wait(timeout=60).cause is caught.value
        assert factory.log == ["+a", "+b", "+a", "+a", "-b"]
        assert ask(supervisor, HealthCheckRequest()).state is LoopState.FAILED


def test_failures_that_lie_further_apart_than_the_period_are_not_too_many(clock: FakeClock) -> None:
    factory = ChildFactory()
    with supervising(clock=clock, children=factory.specs("a"), intensity=1, period=5.0) as supervisor:
        events = supervisor.subscribe()
        for _ in range(3):
            crash_and_wait(supervisor.child("a"), events)
            clock.advance(5.5)

        assert states(supervisor) == {"a": "up"}


def test_a_failed_restart_counts_as_another() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a"), intensity=3) as supervisor:
        factory.failures["a"] = 5
        crash(supervisor.child("a"))

        with pytest.raises(SupervisorGaveUp):
            supervisor.wait(timeout=60)

        assert factory.log == ["+a"] * 4


def test_supervisor_without_an_intensity_restarts_for_ever() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a"), intensity=None) as supervisor:
        events = supervisor.subscribe()
        factory.failures["a"] = 50

        crash_and_wait(supervisor.child("a"), events)

        assert supervisor.children()[0].restarts == 51


def back_off(ref: ChildRef, events: EventStream, clock: FakeClock) -> float:
    """Crash a child; return how long it stays away, and wait until it is back."""
    crash(ref)
    delay = events.wait_for(EventKind.RESTARTING).delay
    clock.advance(delay)
    events.wait_for(EventKind.STARTED)
    return delay


def test_a_child_stays_away_until_its_back_off_is_over() -> None:
    factory, clock = ChildFactory(), FakeClock(start=100.0)
    backoff = Backoff(minimum=2.0, maximum=8.0, jitter=0.0)
    with supervising(clock=clock, children=factory.specs("a"), backoff=backoff) as supervisor:
        events = supervisor.subscribe()
        crash(supervisor.child("a"))
        event = events.wait_for(EventKind.RESTARTING)

        clock.advance(1.9)

        info = supervisor.children()[0]
        assert (event.delay, info.state, info.retry_at) == (2.0, "restarting", 102.0)
        clock.advance(0.1)
        assert events.wait_for(EventKind.STARTED).attempt == 1


def test_the_delay_doubles_up_to_its_maximum_and_begins_anew_after_a_stable_time(clock: FakeClock) -> None:
    factory = ChildFactory()
    backoff = Backoff(minimum=2.0, maximum=8.0, jitter=0.0)
    with supervising(
        clock=clock, children=factory.specs("a"), backoff=backoff, intensity=None, reset_after=60.0
    ) as supervisor:
        events = supervisor.subscribe()
        ref = supervisor.child("a")

        delays = [back_off(ref, events, clock) for _ in range(4)]
        clock.advance(59.9)
        delays.append(back_off(ref, events, clock))
        clock.advance(60.0)
        delays.append(back_off(ref, events, clock))

        assert delays == [2.0, 4.0, 8.0, 8.0, 8.0, 2.0]


def test_delay_of_a_restart_varies_by_chance_within_its_bounds(clock: FakeClock) -> None:
    factory = ChildFactory()
    backoff = Backoff(minimum=2.0, maximum=2.0, jitter=0.25)
    with supervising(clock=clock, children=factory.specs("a"), backoff=backoff, intensity=None) as supervisor:
        events = supervisor.subscribe()
        ref = supervisor.child("a")

        delays = [back_off(ref, events, clock) for _ in range(20)]

        assert all(1.5 <= delay <= 2.5 for delay in delays)
        assert len(set(delays)) > 1


def test_a_child_may_have_a_back_off_of_its_own(clock: FakeClock) -> None:
    factory = ChildFactory()
    own = Backoff(minimum=7.0, jitter=0.0)
    with supervising(clock=clock, children=(factory.spec("a", backoff=own),)) as supervisor:
        assert back_off(supervisor.child("a"), supervisor.subscribe(), clock) == 7.0


def test_a_child_that_fails_more_often_than_it_may_for_itself_stays_down_and_its_siblings_go_on() -> None:
    factory = ChildFactory()
    with supervising(children=(factory.spec("a", intensity=1), factory.spec("b")), intensity=None) as supervisor:
        events = supervisor.subscribe()
        crash_and_wait(supervisor.child("a"), events)

        crash(supervisor.child("a"))

        assert events.wait_for(EventKind.CHILD_GAVE_UP).child == "a"
        assert states(supervisor) == {"a": "down", "b": "up"}
        ask(supervisor, RestartChildRequest(id="a"))
        assert states(supervisor) == {"a": "up", "b": "up"}


@pytest.mark.parametrize(
    ("error", "expected"), [(KeyError(), "down"), (IndexError(), "up"), (ValueError(), "up")], ids=repr
)
def test_the_nearest_class_of_an_exception_decides(error: Exception, expected: str) -> None:
    factory = ChildFactory()
    decide = {LookupError: "stop", IndexError: "restart"}
    with supervising(children=(factory.spec("a", decide=decide), factory.spec("b"))) as supervisor:
        events = supervisor.subscribe()
        crash(supervisor.child("a"), error)
        events.wait_for(EventKind.EXITED)

        if expected == "up":
            events.wait_for(EventKind.STARTED, "a")

        assert states(supervisor) == {"a": expected, "b": "up"}


def test_an_exception_that_is_to_be_escalated_ends_the_supervisor_at_once() -> None:
    factory = ChildFactory()
    with supervising(children=(factory.spec("a", decide={OSError: "escalate"}),), intensity=None) as supervisor:
        crash(supervisor.child("a"), FileNotFoundError("gone"))

        with pytest.raises(SupervisorGaveUp, match=r"child 'a' .*escalated") as caught:
            supervisor.wait(timeout=60)

        assert isinstance(caught.value.__cause__, FileNotFoundError)
        assert EventKind.ESCALATED in [event.kind for event in supervisor.events()]


# Strategies and restart types


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("one_for_one", ["+b"]),
        ("rest_for_one", ["-d", "-c", "+b", "+c", "+d"]),
        ("one_for_all", ["-d", "-c", "-a", "+a", "+b", "+c", "+d"]),
    ],
)
def test_strategy_decides_which_siblings_go_down_and_in_which_order(strategy: Any, expected: list[str]) -> None:
    factory = ChildFactory()
    with supervising(strategy=strategy, children=factory.specs("a", "b", "c", "d")) as supervisor:
        events = supervisor.subscribe()
        factory.told()

        crash(supervisor.child("b"))

        events.wait_for(EventKind.STARTED, expected[-1][1:])
        assert factory.told() == expected
        assert set(states(supervisor).values()) == {"up"}


def test_one_for_all_starts_everything_anew_when_one_of_the_group_cannot_be_started() -> None:
    factory = ChildFactory()
    with supervising(strategy="one_for_all", children=factory.specs("a", "b", "c")) as supervisor:
        events = supervisor.subscribe()
        factory.told()
        factory.failures["b"] = 1

        crash(supervisor.child("c"))

        events.wait_for(EventKind.STARTED, "c")
        assert factory.told() == ["-b", "-a", "+a", "+b", "-a", "+a", "+b", "+c"]


def test_rest_for_one_goes_on_from_the_one_that_could_not_be_started() -> None:
    factory = ChildFactory()
    with supervising(strategy="rest_for_one", children=factory.specs("a", "b", "c")) as supervisor:
        events = supervisor.subscribe()
        factory.told()
        factory.failures["b"] = 1

        crash(supervisor.child("a"))

        events.wait_for(EventKind.STARTED, "c")
        assert factory.told() == ["-c", "-b", "+a", "+b", "+b", "+c"]


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
def test_child_that_ends_without_a_request_is_judged_by_the_restart_type(
    restart: Any, end: Exception | None, expected: dict[str, str]
) -> None:
    factory = ChildFactory()
    with supervising(children=(factory.spec("a", restart=restart), factory.spec("b"))) as supervisor:
        events = supervisor.subscribe()
        if end is None:
            finish(factory.loops["a"][0])
        else:
            crash(supervisor.child("a"), end)
        exited = events.wait_for(EventKind.EXITED)

        if expected == {"a": "up"}:
            events.wait_for(EventKind.STARTED, "a")

        assert exited.reason == (ExitReason.NORMAL if end is None else ExitReason.ERROR)
        assert states(supervisor) == {**expected, "b": "up"}


def test_a_temporary_sibling_goes_down_with_the_group_and_is_forgotten() -> None:
    factory = ChildFactory()
    children = (factory.spec("a"), factory.spec("b", restart="temporary"), factory.spec("c"))
    with supervising(strategy="one_for_all", children=children) as supervisor:
        events = supervisor.subscribe()

        crash(supervisor.child("a"))

        events.wait_for(EventKind.STARTED, "c")
        assert states(supervisor) == {"a": "up", "c": "up"}


def test_auto_shutdown_any_significant_ends_the_supervisor_with_the_first_child_that_ends_by_itself() -> None:
    factory = ChildFactory()
    children = (factory.spec("a", restart="transient", significant=True), factory.spec("b"))
    with supervising(auto_shutdown="any_significant", children=children) as supervisor:
        finish(factory.loops["a"][0])

        assert supervisor.ended.wait(timeout=60).cause is None
        assert supervisor.events()[2].kind is EventKind.EXITED
        assert EventKind.AUTO_SHUTDOWN in [event.kind for event in supervisor.events()]
        assert factory.log[-1] == "-b"


def test_auto_shutdown_all_significant_ends_the_supervisor_with_the_last_significant_child() -> None:
    factory = ChildFactory()
    children = (*factory.specs("a", "b", restart="temporary", significant=True), factory.spec("c"))
    with supervising(auto_shutdown="all_significant", children=children) as supervisor:
        events = supervisor.subscribe()
        finish(factory.loops["a"][0])
        events.wait_for(EventKind.EXITED)
        assert states(supervisor) == {"b": "up", "c": "up"}

        crash(supervisor.child("b"))

        assert supervisor.ended.wait(timeout=60).cause is None


def test_a_significant_child_that_is_terminated_ends_nothing() -> None:
    factory = ChildFactory()
    children = factory.specs("a", restart="transient", significant=True)
    with supervising(auto_shutdown="any_significant", children=children) as supervisor:
        ask(supervisor, TerminateChildRequest(id="a"))

        assert states(supervisor) == {"a": "down"}


# Supervisors of supervisors


def inner(factory: ChildFactory, *names: str, restart: Any = "permanent", **options: Any) -> ChildSpec:
    plain: dict[str, Any] = {"backoff": None, "children": factory.specs(*names)}
    return ChildSpec(id="inner", restart=restart, start=lambda: Supervisor("inner", **plain | options))


def below(supervisor: SupervisorRef, name: str, inner: str = "inner") -> ChildRef:
    infos: tuple[ChildInfo, ...] = ask(supervisor.child(inner), WhichChildrenRequest())
    return {info.id: info.ref for info in infos}[name]


def test_a_permanent_supervisor_that_gives_up_is_restarted_with_its_children() -> None:
    factory = ChildFactory()
    with supervising(children=(factory.spec("a"), inner(factory, "b", "c", intensity=0))) as supervisor:
        events = supervisor.subscribe()
        factory.told()

        crash(below(supervisor, "b"))

        exited = events.wait_for(EventKind.EXITED, "inner")
        assert exited.reason == ExitReason.SHUTDOWN
        assert exited.cause is not None
        assert "SupervisorGaveUp" in exited.cause
        assert events.wait_for(EventKind.STARTED, "inner").attempt == 1
        assert factory.told() == ["-c", "+b", "+c"]
        assert ask(below(supervisor, "b"), ProcessRequest(body=1)) == 1


def test_a_transient_supervisor_that_gives_up_stays_down() -> None:
    factory = ChildFactory()
    with supervising(children=(factory.spec("a"), inner(factory, "b", restart="transient", intensity=0))) as supervisor:
        events = supervisor.subscribe()

        crash(below(supervisor, "b"))

        events.wait_for(EventKind.EXITED, "inner")
        assert states(supervisor) == {"a": "up", "inner": "down"}


def test_failures_escalate_to_the_top_after_the_product_of_the_intensities() -> None:
    factory = ChildFactory()
    with supervising(children=(inner(factory, "b", intensity=1),), intensity=1) as supervisor:
        events = supervisor.subscribe()
        for _ in range(3):
            crash(below(supervisor, "b"))
            events.wait_for(EventKind.STARTED, "b")
            ask(supervisor, CountChildrenRequest())
            events_of_inner_are_over(supervisor)
        crash(below(supervisor, "b"))

        with pytest.raises(SupervisorGaveUp, match="child 'inner' of supervisor 'root'") as caught:
            supervisor.wait(timeout=60)

        assert isinstance(caught.value.__cause__, SupervisorGaveUp)
        assert factory.log.count("+b") == 4


def events_of_inner_are_over(supervisor: SupervisorRef) -> None:
    """Wait until the supervisor below is up again, if it is being restarted."""
    stream = supervisor.subscribe()
    if states(supervisor)["inner"] != "up":
        stream.wait_for(EventKind.STARTED, "inner")


def test_a_supervisor_whose_first_child_cannot_be_started_could_not_be_started_itself() -> None:
    factory = ChildFactory()
    factory.failures["b"] = 1
    with supervising() as supervisor:
        with pytest.raises(StartFailed, match=r"child 'inner' could not be started: .*child 'b'") as caught:
            supervisor.spawn(inner(factory, "a", "b"), timeout=60)

        assert isinstance(caught.value.__cause__, StartFailed)
        assert factory.log == ["+a", "+b", "-a"]
        assert states(supervisor) == {}


def test_a_supervisor_is_up_when_its_children_are() -> None:
    factory = ChildFactory()
    hold = Hold()
    with supervising() as supervisor, hold:
        factory.holds["b"] = hold
        spawned = supervisor.send(StartChildRequest(child=inner(factory, "a", "b")))
        hold.wait_reached()

        assert states(supervisor) == {"inner": "starting"}
        assert not spawned.is_ready()
        hold.release()
        spawned.wait(timeout=60)
        assert supervisor.children()[0].is_supervisor


def test_events_of_supervisors_below_reach_the_root() -> None:
    factory = ChildFactory()
    middle = ChildSpec(
        id="middle", start=lambda: Supervisor("middle", backoff=None, children=(inner(factory, "leaf"),))
    )
    with supervising(children=(middle,)) as supervisor:
        events = supervisor.subscribe()
        ref: ChildRef = below(supervisor, "inner", "middle")
        leaf: ChildRef = ask(ref, WhichChildrenRequest())[0].ref

        crash(leaf)

        exited = events.wait_for(EventKind.EXITED, "leaf")
        assert (exited.supervisor, exited.reason) == ("inner", "error")
        assert events.wait_for(EventKind.STARTED, "leaf").supervisor == "inner"
        assert [event.child for event in supervisor.events()][:3] == ["leaf", "inner", "middle"]


def test_the_end_of_the_root_ends_the_whole_tree_from_right_to_left() -> None:
    factory = ChildFactory()
    children = (factory.spec("a"), inner(factory, "b", "c", strategy="rest_for_one"), factory.spec("d"))
    with supervising(children=children, sequential=True):
        factory.told()

    assert factory.told() == ["-d", "-c", "-b", "-a"]


def test_a_supervisor_below_has_all_the_time_that_its_children_need(clock: FakeClock) -> None:
    factory = ChildFactory()
    with Hold() as hold:
        child = ChildSpec(
            id="inner",
            start=lambda: Supervisor("inner", clock=clock, children=(factory.spec("b", hold, shutdown=100.0),)),
        )
        supervisor = Supervisor.start("root", clock=clock, children=(child,))
        factory.loops["b"][0].feed("held")
        hold.wait_reached()
        stopped = supervisor.stop(block=False)
        clock.advance(99.0)

        assert states(supervisor) == {"inner": "stopping"}
    assert stopped.wait(timeout=60)
    assert len(ZOMBIES) == 0


def test_a_supervisor_below_with_a_limit_is_given_up_with_all_its_children(clock: FakeClock) -> None:
    factory = ChildFactory()
    with Hold() as hold:
        child = ChildSpec(
            id="inner",
            shutdown=3.0,
            start=lambda: Supervisor("inner", clock=clock, children=(factory.spec("b", hold, shutdown=100.0),)),
        )
        supervisor = Supervisor.start("root", clock=clock, children=(child,))
        factory.loops["b"][0].feed("held")
        hold.wait_reached()
        stopped = supervisor.stop(block=False)

        clock.advance(3.0)

        assert stopped.wait(timeout=60)
        assert ZOMBIES.names == ("b-worker",)
    wait_no_threads()
    assert len(ZOMBIES) == 0


# Pools


def pool(factory: ChildFactory, **options: Any) -> Any:
    return supervising("pool", template=factory.spec("w"), **options)


def test_a_pool_grows_and_shrinks_by_its_youngest() -> None:
    factory = ChildFactory()
    with pool(factory) as workers:
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
    factory = ChildFactory()
    with pool(factory) as workers:
        events = workers.subscribe()
        ref = workers.resize(2, timeout=60)[0]

        crash_and_wait(ref, events)

        assert states(workers) == {"w-1": "up", "w-2": "up"}


def test_a_pool_that_cannot_grow_says_so_and_can_be_resized_again() -> None:
    factory = ChildFactory()
    with pool(factory) as workers:
        factory.failures["w"] = 1

        with pytest.raises(StartFailed):
            workers.resize(1, timeout=60)

        assert states(workers) == {}
        assert len(workers.resize(1, timeout=60)) == 1


def test_a_pool_whose_factory_says_not_now_lives_on() -> None:
    with supervising("pool", template=ChildSpec(id="shy", start=lambda: None)) as workers:
        outcome(workers.send(ResizeRequest(size=2)))

        assert states(workers) == {}


def test_a_child_of_a_pool_that_is_told_to_stop_is_forgotten() -> None:
    factory = ChildFactory()
    with pool(factory) as workers:
        ref = workers.resize(2, timeout=60)[0]

        ask(ref, ShutdownRequest())

        assert states(workers) == {"w-2": "up"}


@pytest.mark.parametrize(
    "request_",
    [RestartChildRequest(id="w-1"), DeleteChildRequest(id="w-1")],
    ids=["restart", "delete"],
)
def test_pool_refuses_requests_that_make_no_sense_in_it(request_: Any) -> None:
    factory = ChildFactory()
    with pool(factory) as workers:
        workers.resize(1, timeout=60)

        with pytest.raises(UnsupportedRequestError, match="ResizeRequest"):
            ask(workers, request_)
        with pytest.raises(InvalidChildError, match="pool 'pool'"):
            workers.spawn(factory.spec("x"), timeout=60)


def test_resize_refuses_a_supervisor_without_template() -> None:
    with supervising() as supervisor, pytest.raises(UnsupportedRequestError, match="template"):
        supervisor.resize(2, timeout=60)


def test_a_pool_that_is_stopping_refuses_to_grow() -> None:
    factory = ChildFactory()
    hold = Hold()
    with supervising("pool", template=factory.spec("w", hold)) as workers, hold:
        workers.resize(1, timeout=60)
        factory.loops["w"][0].feed("held")
        hold.wait_reached()
        workers.stop(block=False)

        with pytest.raises(ChildUnavailableError, match="stopping"):
            ask(workers, ResizeRequest(size=2))
        hold.release()


# Stopping


def hold_both(factory: ChildFactory, hold: Hold) -> tuple[ChildSpec, ...]:
    return factory.specs("a", "b", handler=hold)


def feed_both(factory: ChildFactory) -> None:
    for name in ("a", "b"):
        factory.loops[name][0].feed("held")


def test_one_for_one_tells_all_before_it_waits_for_any() -> None:
    factory = ChildFactory()
    hold = Hold()
    with supervising(children=hold_both(factory, hold)) as supervisor, hold:
        feed_both(factory)
        hold.wait_reached()

        stopped = supervisor.stop(block=False)

        for name in ("a", "b"):
            factory.loops[name][0].stop_asked.wait(timeout=60)
        assert not stopped.is_ready()
        assert sorted(factory.log[2:]) == ["-a", "-b"]
        hold.release()
        assert stopped.wait(timeout=60)


@pytest.mark.parametrize(
    "options",
    [{"strategy": "rest_for_one"}, {"strategy": "one_for_all"}, {"sequential": True}],
    ids=["rest_for_one", "one_for_all", "sequential"],
)
def test_sequential_stop_tells_a_child_when_the_one_after_it_has_ended(options: Any) -> None:
    factory = ChildFactory()
    hold = Hold()
    with supervising(children=hold_both(factory, hold), **options) as supervisor, hold:
        feed_both(factory)
        hold.wait_reached()

        stopped = supervisor.stop(block=False)

        factory.loops["b"][0].stop_asked.wait(timeout=60)
        assert states(supervisor) == {"a": "up", "b": "stopping"}
        assert factory.log[2:] == ["-b"]
        hold.release()
        assert stopped.wait(timeout=60)
        assert factory.log[2:] == ["-b", "-a"]


def test_stop_of_a_supervisor_again_changes_nothing() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a", "b")) as supervisor:
        tickets = [supervisor.stop(block=False) for _ in range(5)]

        assert all(ticket.is_ready() or ticket.wait(timeout=60) is not None for ticket in tickets)
        assert sorted(factory.log) == ["+a", "+b", "-a", "-b"]


def test_a_supervisor_that_is_stopping_starts_nothing_more() -> None:
    factory = ChildFactory()
    hold = Hold()
    with supervising(children=(factory.spec("a", hold), factory.spec("b"))) as supervisor, hold:
        ask(supervisor, TerminateChildRequest(id="b"))
        factory.loops["a"][0].feed("held")
        hold.wait_reached()
        supervisor.stop(block=False)

        with pytest.raises(ChildUnavailableError, match="stopping"):
            supervisor.spawn(factory.spec("c"), timeout=60)
        with pytest.raises(ChildUnavailableError, match="stopping"):
            ask(supervisor, RestartChildRequest(id="b"))
        hold.release()


def test_a_child_that_crashes_while_all_are_stopped_is_not_restarted() -> None:
    factory = ChildFactory()

    def hold_then_crash(_: object) -> None:
        hold()
        raise SystemExit

    hold = Hold()
    with supervising(children=(factory.spec("a", hold_then_crash),)) as supervisor, hold:
        factory.loops["a"][0].feed("held")
        hold.wait_reached()
        stopped = supervisor.stop(block=False)
        factory.loops["a"][0].stop_asked.wait(timeout=60)
        hold.release()

        assert stopped.wait(timeout=60)
        assert supervisor.ended.wait(timeout=60).cause is None
        assert factory.log == ["+a", "-a"]


def test_a_child_that_does_not_stop_in_time_is_abandoned_and_the_supervisor_ends_all_the_same(clock: FakeClock) -> None:
    factory = ChildFactory()
    with Hold() as hold:
        supervisor = Supervisor.start("root", clock=clock, children=(factory.spec("a", hold, shutdown=3.0),))
        factory.loops["a"][0].feed("held")
        hold.wait_reached()
        stopped = supervisor.stop(block=False)
        clock.advance(2.9)
        assert states(supervisor) == {"a": "stopping"}

        clock.advance(0.1)

        assert stopped.wait(timeout=60)
        assert supervisor.ended.wait(timeout=60).cause is None
        assert ZOMBIES.names == ("a-worker",)
        assert [event.kind for event in supervisor.events()] == ["started", "abandoned", "exited", "terminated"]
        assert supervisor.events()[2].reason == ExitReason.KILLED
    wait_no_threads()
    assert len(ZOMBIES) == 0


def test_child_has_five_seconds_to_stop_if_its_spec_does_not_say(clock: FakeClock) -> None:
    factory = ChildFactory()
    with Hold() as hold:
        supervisor = Supervisor.start("root", clock=clock, children=(factory.spec("a", hold),))
        factory.loops["a"][0].feed("held")
        hold.wait_reached()
        stopped = supervisor.stop(block=False)

        clock.advance(5.0)

        assert stopped.wait(timeout=60)
    wait_no_threads()


def test_a_request_to_stop_that_came_twice_leaves_no_patience_for_the_next_life(clock: FakeClock) -> None:
    factory = ChildFactory()
    with Hold() as first, Hold() as second:
        holds = [first, second]
        supervisor = Supervisor.start(
            "root", clock=clock, children=(factory.spec("a", lambda body: holds[int(str(body))](), shutdown=3.0),)
        )
        factory.loops["a"][0].feed(0)
        first.wait_reached()
        ref = supervisor.child("a")
        requests = [ref.send(ShutdownRequest(timeout=100.0)) for _ in range(2)]
        assert states(supervisor) == {"a": "stopping"}
        first.release()
        for request in requests:
            request.wait(timeout=60)
        ask(supervisor, RestartChildRequest(id="a"))
        factory.loops["a"][1].feed(1)
        second.wait_reached()

        stopped = supervisor.stop(block=False)
        clock.advance(3.0)

        has_stopped = stopped.is_ready()
        second.release()
        stopped.wait(timeout=60)
        assert has_stopped
    wait_no_threads()


def test_a_brutal_kill_does_not_wait() -> None:
    factory = ChildFactory()
    with Hold() as hold:
        with supervising(children=(factory.spec("a", hold, shutdown="brutal_kill"),)) as supervisor:
            factory.loops["a"][0].feed("held")
            hold.wait_reached()

        assert ZOMBIES.names == ("a-worker",)
        assert EventKind.ABANDONED in [event.kind for event in supervisor.events()]
    wait_no_threads()
    assert len(ZOMBIES) == 0


def test_a_brutal_kill_of_a_loop_that_hangs_nowhere_leaves_no_thread() -> None:
    factory = ChildFactory()
    with supervising(children=(factory.spec("a", shutdown="brutal_kill"),)):
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

    with supervising(children=(ChildSpec(id="own", start=Own),)) as supervisor:
        events = supervisor.subscribe()
        ref = supervisor.child("own")
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


def test_the_stable_ref_of_an_actor_of_a_users_own_answers_health_even_while_it_is_busy() -> None:
    hold = Hold()
    with supervising(children=(ChildSpec(id="own", start=Own),)) as supervisor, hold:
        ref = supervisor.child("own")
        ref.tell(hold)
        hold.wait_reached()
        asked = ref.send(HealthCheckRequest())

        was_answered = asked.wait_ready(timeout=60)

        hold.release()
        assert was_answered
        assert asked.wait(timeout=60).state is LoopState.RUNNING


def test_a_child_that_is_abandoned_by_request_is_killed_and_restarted() -> None:
    factory = ChildFactory()
    with Hold() as hold, supervising(children=(factory.spec("a", hold),)) as supervisor:
        events = supervisor.subscribe()
        ref = supervisor.child("a")
        factory.loops["a"][0].feed("held")
        hold.wait_reached()

        result = ask(ref, AbandonRequest(reason="it hangs"))

        exited = events.wait_for(EventKind.EXITED)
        assert result.abandoned
        assert exited.reason == ExitReason.KILLED
        assert exited.cause is not None
        assert LoopAbandonedError.__name__ in exited.cause
        events.wait_for(EventKind.STARTED)
        assert states(supervisor) == {"a": "up"}
    wait_no_threads()
    assert len(ZOMBIES) == 0


# Factories that hang


def test_a_supervisor_whose_factory_hangs_ends_when_the_factory_has_had_its_time(clock: FakeClock) -> None:
    factory = ChildFactory()
    with Hold() as hold:
        factory.holds["b"] = hold
        supervisor = Supervisor("root", clock=clock, children=factory.specs("a", "b", shutdown=3.0)).launch()
        hold.wait_reached()
        events = supervisor.subscribe()
        stopped = supervisor.stop(block=False)
        events.wait_for(EventKind.TERMINATED, "a")

        clock.advance(3.0)

        assert stopped.wait(timeout=60)
        assert supervisor.ended.wait(timeout=60).cause is None
        assert ZOMBIES.names == ("b-start",)
    wait_no_threads()
    assert len(ZOMBIES) == 0
    assert not factory.loops["b"][0].running


def test_a_factory_that_returns_while_its_child_is_being_stopped_has_made_something_that_never_runs() -> None:
    factory = ChildFactory()
    hold = Hold()
    with supervising() as supervisor, hold:
        factory.holds["a"] = hold
        spawned = supervisor.send(StartChildRequest(child=factory.spec("a")))
        hold.wait_reached()
        terminated = supervisor.send(TerminateChildRequest(id="a"))
        assert states(supervisor) == {"a": "stopping"}

        hold.release()

        assert terminated.wait(timeout=60).clean_shutdown
        assert isinstance(outcome(spawned), StartFailed)
        assert not factory.loops["a"][0].entered.is_ready()


def test_factory_that_hangs_keeps_no_other_child_from_starting() -> None:
    factory = ChildFactory()
    hold = Hold()
    with supervising() as supervisor, hold:
        factory.holds["a"] = hold
        spawned = supervisor.send(StartChildRequest(child=factory.spec("a")))
        hold.wait_reached()

        supervisor.spawn(factory.spec("b"), timeout=60)

        assert states(supervisor) == {"a": "starting", "b": "up"}
        hold.release()
        spawned.wait(timeout=60)


def test_a_child_whose_factory_hung_can_be_restarted(clock: FakeClock) -> None:
    factory = ChildFactory()
    hold = Hold()
    with supervising(clock=clock, children=factory.specs("a")) as supervisor, hold:
        ask(supervisor, TerminateChildRequest(id="a"))
        factory.holds["a"] = hold
        restarted = supervisor.send(RestartChildRequest(id="a"))
        hold.wait_reached()
        terminated = supervisor.send(TerminateChildRequest(id="a"))
        clock.advance(5.0)
        assert not terminated.wait(timeout=60).clean_shutdown
        assert isinstance(outcome(restarted), StartFailed)
        del factory.holds["a"]

        ask(supervisor, RestartChildRequest(id="a"))

        assert states(supervisor) == {"a": "up"}
        hold.release()


def test_a_factory_that_is_given_up_before_its_time_leaves_no_timer(clock: FakeClock) -> None:
    factory, hold = ChildFactory(), Hold()
    with supervising(clock=clock) as supervisor, hold:
        factory.holds["a"] = hold
        supervisor.send(StartChildRequest(child=factory.spec("a", shutdown=100.0)))
        hold.wait_reached()
        ref = supervisor.child("a")
        terminated = supervisor.send(TerminateChildRequest(id="a"))
        clock.advance(0)
        assert "1 timers" in repr(clock)

        ask(ref, AbandonRequest(reason="no patience"))

        assert not terminated.wait(timeout=60).clean_shutdown
        assert "0 timers" in repr(clock)


def test_the_end_of_a_start_that_was_called_off_is_not_told_as_the_end_before_it() -> None:
    factory = ChildFactory()
    hold = Hold()
    with supervising(children=factory.specs("a")) as supervisor, hold:
        factory.holds["a"] = hold
        crash(supervisor.child("a"))
        hold.wait_reached()
        terminated = supervisor.send(TerminateChildRequest(id="a"))
        assert states(supervisor) == {"a": "stopping"}

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
    factory = ChildFactory()
    supervisor = Lost("root", children=factory.specs("a", "b")).launch()
    supervisor.ready.wait(timeout=60)
    ref = supervisor.child("a")

    supervisor.tell("get lost")

    assert isinstance(supervisor.ended.wait(timeout=60).cause, SystemExit)
    assert wait_no_threads() == []
    assert ref.ended.is_ready()


def test_a_supervisor_that_is_lost_while_it_stops_a_child_leaves_no_timer(clock: FakeClock) -> None:
    factory = ChildFactory()
    with Hold() as hold:
        supervisor = Lost("root", clock=clock, children=(factory.spec("a", hold, shutdown=100.0),)).launch()
        supervisor.ready.wait(timeout=60)
        factory.loops["a"][0].feed("held")
        hold.wait_reached()
        supervisor.send(TerminateChildRequest(id="a"))
        clock.advance(0)
        assert "0 timers" not in repr(clock)

        supervisor.tell("get lost")

        supervisor.ended.wait(timeout=60)
    assert wait_no_threads() == []
    assert "0 timers" in repr(clock)


def test_a_supervisor_below_that_is_lost_is_restarted() -> None:
    factory = ChildFactory()
    child = ChildSpec(id="inner", start=lambda: Lost("inner", children=factory.specs("a")))
    with supervising(children=(child,)) as supervisor:
        events = supervisor.subscribe()

        supervisor.child("inner").tell("get lost")

        assert events.wait_for(EventKind.EXITED, "inner").reason == ExitReason.ERROR
        events.wait_for(EventKind.STARTED, "inner")
        factory.loops["a"][0].stop_asked.wait(timeout=60)
        # One that is lost cannot wait for its children: they are told to stop, and the next one is started meanwhile.
        assert (factory.log[0], sorted(factory.log[1:])) == ("+a", ["+a", "-a"])
