from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from background import in_background
from children import ChildFactory, crash, supervising
from typing_extensions import override

from loopwarden import LoopActor, MailboxLoop, ShutdownRequest, Ticket
from loopwarden.actors import Activity, ControlActor, ControlRef, HealthStatus, LoopState, Request
from loopwarden.errors import ActorDeadError
from loopwarden.supervision import (
    Backoff,
    Census,
    ChildInfo,
    ChildSpec,
    EventKind,
    Probe,
    Prober,
    RestartChildRequest,
    StartChildRequest,
    Supervisor,
    take_census,
)
from loopwarden.testing import FakeClock, FlakySource, Hold, ProbeLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loopwarden.mailbox import InMemoryMailbox

#: Real seconds that only matter when a test fails.
PATIENCE = 60.0

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="loopwarden")


@pytest.fixture
def factory() -> ChildFactory:
    return ChildFactory()


class Plain(pykka.ThreadingActor):
    """A plain Pykka actor."""


class Busy(ControlActor):
    """An actor that is stopped by whatever it gets."""

    def __init__(self, hold: Hold) -> None:
        super().__init__()
        self._hold = hold

    @override
    def on_receive(self, message: object) -> object:
        return self._hold()


class Scripted(ControlRef):
    """A ref whose answers the test gives."""

    def __init__(self, name: str, *, is_supervisor: bool = False) -> None:
        self.name = name
        self.is_supervisor = is_supervisor
        self.asked: Ticket[Ticket[Any]] = Ticket()

    @property
    @override
    def has_children(self) -> bool:
        return self.is_supervisor

    @override
    def send(self, message: Request[Any]) -> Ticket[Any]:
        answer: Ticket[Any] = Ticket()
        self.asked.complete(answer)
        return answer


def info(ref: ControlRef) -> ChildInfo:
    fields: dict[str, Any] = {"id": "child", "ref": ref}
    return ChildInfo.model_construct(**fields)


def health(name: str) -> HealthStatus:
    return HealthStatus(loop_name=name, state=LoopState.STOPPED, running=False, last_heartbeat=None, heartbeat_age=None)


def inner(name: str, children: Callable[[], Iterable[ChildSpec]]) -> ChildSpec:
    return ChildSpec(
        id=name, start=lambda: Supervisor(name, children=tuple(children()), backoff=None), restart="transient"
    )


def count(*refs: ControlRef) -> Census:
    return take_census(refs, PATIENCE)


def names(census: Census) -> list[str]:
    return [status.loop_name for status in census.loops]


def states(*refs: ControlRef) -> dict[str, str]:
    return {status.loop_name: status.state.value for status in count(*refs).loops}


def polled(loop: ProbeLoop) -> None:
    """Return when a loop has handled something, so it has looked for it."""
    done: Ticket[None] = Ticket()
    assert loop.post(lambda: done.complete(None))
    done.wait(PATIENCE)


def test_the_loops_of_a_nested_tree_are_told_in_start_order(factory: ChildFactory) -> None:
    deep = inner("deep", lambda: factory.specs("c", "d"))
    middle = inner("middle", lambda: [factory.spec("b"), deep])

    with supervising(children=[factory.spec("a"), middle, factory.spec("e")]) as supervisor:
        census = count(supervisor)

        assert names(census) == ["a", "b", "c", "d", "e"]
        assert all(status.state is LoopState.RUNNING for status in census.loops)
        assert census.missing == ()


def test_loops_without_a_supervisor_are_asked_themselves() -> None:
    refs = [LoopActor.start(ProbeLoop(), name=name) for name in ("first", "second")]

    census = count(*refs)
    for ref in refs:
        ref.stop()

    assert names(census) == ["first", "second"]
    assert states(*refs) == {"first": "stopped", "second": "stopped"}


def test_a_plain_actor_is_answered_for_by_its_supervisor(factory: ChildFactory) -> None:
    with supervising(children=[ChildSpec(id="plain", actor=Plain), factory.spec("loop")]) as supervisor:
        (plain, _) = count(supervisor).loops

        assert plain.state is LoopState.RUNNING
        assert plain.polled
        assert Prober([supervisor]).answer(Probe.STARTUP).ok


def test_a_tree_is_counted_while_a_factory_is_at_work(factory: ChildFactory) -> None:
    with Hold() as hold, supervising(children=factory.specs("a")) as supervisor:
        factory.holds["b"] = hold
        deep = inner("deep", lambda: factory.specs("b", "c"))
        added = supervisor.send(StartChildRequest(child=deep))
        hold.wait_reached()

        assert states(supervisor) == {"a": "running", "b": "starting", "c": "idle"}

        hold.release()
        added.wait(PATIENCE)
        assert names(count(supervisor)) == ["a", "b", "c"]


def test_census_tells_of_a_child_that_backs_off(factory: ChildFactory, clock: FakeClock) -> None:
    with supervising(clock=clock, children=factory.specs("a", "b"), backoff=Backoff(minimum=60.0)) as supervisor:
        events = supervisor.subscribe()
        crash(supervisor.child("a"))
        events.wait_for(EventKind.EXITED, "a")

        (a, b) = count(supervisor).loops

        assert a.activity is Activity.BACKING_OFF
        assert a.retry_at is not None
        assert a.retry_at > clock.monotonic()
        assert b.state is LoopState.RUNNING


def test_a_tree_is_counted_while_a_child_stops(factory: ChildFactory) -> None:
    with Hold() as hold, supervising(children=[factory.spec("a", hold), factory.spec("b")]) as supervisor:
        factory.loops["a"][0].feed("a body")
        hold.wait_reached()
        stopped = supervisor.child("a").stop(block=False)

        assert states(supervisor) == {"a": "stopping", "b": "running"}

        hold.release()
        stopped.wait(PATIENCE)
        assert states(supervisor) == {"a": "stopped", "b": "running"}


def test_a_supervisor_below_that_is_down_is_told_like_a_loop(factory: ChildFactory) -> None:
    with supervising(children=[inner("deep", lambda: factory.specs("a"))]) as supervisor:
        supervisor.child("deep").stop()
        assert states(supervisor) == {"deep": "stopped"}
        assert Prober([supervisor]).answer(Probe.READY).ok

        supervisor.send(RestartChildRequest(id="deep")).wait(PATIENCE)
        assert states(supervisor) == {"a": "running"}


def test_a_supervisor_that_has_ended_is_missing(factory: ChildFactory) -> None:
    with supervising("old", children=factory.specs("a")) as old, supervising("new", children=factory.specs("b")) as new:
        old.stop()

        census = count(old, new)

        assert names(census) == ["b"]
        assert census.missing == ("old",)
        assert not Prober([old, new]).answer(Probe.READY).ok
        assert Prober([old, new], is_closing=lambda: True).answer(Probe.STARTUP).ok


def test_census_gives_one_that_does_not_answer_no_time_of_the_others(clock: FakeClock) -> None:
    mute, supervisor, child = Scripted("mute"), Scripted("root", is_supervisor=True), Scripted("child")
    census = in_background(lambda: take_census([mute, supervisor], 2.0, clock))

    supervisor.asked.wait(PATIENCE).complete((info(child),))
    child.asked.wait(PATIENCE).complete(health("child"))
    mute.asked.wait(PATIENCE)
    clock.advance(1.0)
    assert not census.is_ready()
    clock.advance(1.0)

    assert census.wait(0) == Census((health("child"),), ("mute",))


def test_a_supervisor_that_ends_while_it_is_asked_is_asked_again_as_what_it_is_then() -> None:
    ref = Scripted("root", is_supervisor=True)
    census = in_background(lambda: take_census([ref], PATIENCE))
    asked = ref.asked.wait(PATIENCE)

    ref.is_supervisor, ref.asked = False, Ticket()
    asked.fail(ActorDeadError("root"))
    ref.asked.wait(PATIENCE).complete(health("root"))

    assert census.wait(PATIENCE) == Census((health("root"),), ())


def test_census_names_a_ref_as_missing_whose_answer_is_not_a_health_status() -> None:
    hold = Hold()
    hold.release()
    busy = Busy.start(hold)

    census = count(busy)
    busy.stop()

    assert census == Census((), (str(busy),))


def test_census_of_no_refs_is_empty() -> None:
    assert count() == Census((), ())


def test_take_census_refuses_a_single_ref() -> None:
    with supervising() as supervisor, pytest.raises(TypeError, match="list of refs"):
        take_census(supervisor)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  what is tested


def test_census_of_many_loops_is_taken_within_one_deadline(factory: ChildFactory) -> None:
    children = [f"loop-{number}" for number in range(100)]
    with supervising(children=factory.specs(*children)) as supervisor:
        assert names(count(supervisor)) == children


def test_census_can_be_taken_by_many_threads_at_once(factory: ChildFactory) -> None:
    with supervising(children=factory.specs("a", "b", "c")) as supervisor:
        counts = [in_background(lambda: count(supervisor)) for _ in range(20)]

        assert [names(census.wait(PATIENCE)) for census in counts] == [["a", "b", "c"]] * 20


def test_prober_says_started_for_ever_once_it_has(factory: ChildFactory, clock: FakeClock) -> None:
    with supervising(clock=clock, children=factory.specs("a"), backoff=Backoff(minimum=60.0)) as supervisor:
        events = supervisor.subscribe()
        prober = Prober([supervisor])
        polled(factory.loops["a"][0])
        assert prober.answer(Probe.STARTUP).ok

        crash(supervisor.child("a"))
        events.wait_for(EventKind.EXITED, "a")

        assert not Prober([supervisor]).answer(Probe.STARTUP).ok
        assert prober.answer(Probe.STARTUP).ok
        assert prober.answer(Probe.STARTUP).reasons == ()
        assert not prober.answer(Probe.READY).ok


def test_prober_without_a_stall_threshold_takes_no_silence_for_too_long(
    jobs: InMemoryMailbox[Any, Any], clock: FakeClock
) -> None:
    jobs.send("long")
    with Hold() as hold:
        loop = ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, hold, clock=clock))
        with supervising(clock=clock, children=[loop]) as supervisor, hold:
            hold.wait_reached()
            clock.advance(100_000)

            assert not Prober([supervisor], clock=clock).answer(Probe.LIVE).ok
            assert Prober([supervisor], stall_threshold=None, clock=clock).answer(Probe.LIVE).ok


def test_prober_takes_a_broker_that_is_away_for_no_reason_to_restart_but_one_to_send_nothing(
    jobs: InMemoryMailbox[Any, Any], clock: FakeClock
) -> None:
    source = FlakySource(jobs)
    source.break_down()
    loop = ChildSpec(id="loop", start=lambda: MailboxLoop[Any](source, print, clock=clock))
    with supervising(clock=clock, children=[loop]) as supervisor:
        clock.advance(0)  # it has been refused, and is about to look again, later
        prober = Prober([supervisor], clock=clock)

        assert prober.answer(Probe.LIVE).ok
        assert prober.answer(Probe.READY).reasons == ("loop 'loop': its mailbox has been unavailable for 0.0 s",)


def test_prober_passes_over_one_that_was_stopped_while_it_backed_off(factory: ChildFactory, clock: FakeClock) -> None:
    with supervising(clock=clock, children=factory.specs("a"), backoff=Backoff(minimum=60.0)) as supervisor:
        events = supervisor.subscribe()
        crash(supervisor.child("a"))
        events.wait_for(EventKind.RESTARTING, "a")
        unwilling = not Prober([supervisor], clock=clock).answer(Probe.READY).ok
        supervisor.child("a").send(ShutdownRequest()).wait(60)

        assert unwilling
        assert Prober([supervisor], clock=clock).answer(Probe.READY).ok
        assert Prober([supervisor], clock=clock).answer(Probe.STARTUP).ok


def test_a_prober_says_how_it_stands() -> None:
    prober = Prober([])

    assert repr(prober) == "<Prober, 0 refs, not started>"
    assert prober.answer(Probe.STARTUP).ok
    assert repr(prober) == "<Prober, 0 refs, started>"
