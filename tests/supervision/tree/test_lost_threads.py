"""A machine that has no thread to give: every ticket resolves, and nothing hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, final

import pykka
import pytest
from children import Boom, ChildFactory, crash, crash_and_wait, outcome, supervising, wake

from loopwarden import HealthCheckRequest, ProcessRequest, ShutdownRequest
from loopwarden.clock import SystemClock
from loopwarden.errors import ActorDeadError, StartFailed, SupervisorGaveUp
from loopwarden.supervision import Backoff, ChildSpec, EventKind, RestartChildRequest, StartChildRequest, Supervisor
from loopwarden.testing import FakeClock, FaultyBlocking, Hold, wait_no_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loopwarden.supervision import SupervisorRef


@final
class Machine:
    """Gives threads, except for those whose name ends with one of ``lost``; ``gives`` says how many it still gives."""

    def __init__(self) -> None:
        self.lost: tuple[str, ...] = ()
        self.left: int | None = None
        self.blocking = FaultyBlocking(before_start=self._before_start)
        self.clock = FakeClock(blocking=self.blocking)

    def _before_start(self, name: str) -> None:
        if self.left is not None:
            self.left -= 1
        if name.endswith(self.lost) or (self.left is not None and self.left < 0):
            raise RuntimeError("can't start new thread")


class Plain(pykka.ThreadingActor):
    made: ClassVar[list[Plain]] = []

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)

    def on_receive(self, message: Any) -> Any:
        return message() if callable(message) else message


@pytest.fixture(autouse=True)
def no_actor_stays_behind() -> Iterator[None]:
    yield
    while Plain.made:
        wake(Plain.made.pop())


def states(supervisor: SupervisorRef) -> dict[str, str]:
    return {info.id: info.state.value for info in supervisor.children()}


def loop(factory: ChildFactory) -> ChildSpec:
    return factory.spec("a")


def plain(_: ChildFactory) -> ChildSpec:
    return ChildSpec(id="a", actor=Plain)


def inner(_: ChildFactory, machine: Machine) -> ChildSpec:
    return ChildSpec(id="a", start=lambda: Supervisor("a", clock=machine.clock))


THREADS = pytest.mark.parametrize(
    ("make", "thread"),
    [(loop, "-crew"), (loop, "a-control"), (loop, "a-worker"), (plain, "-crew"), (plain, "a-actor")],
    ids=["loop-crew", "loop-control", "loop-worker", "plain-crew", "plain-actor"],
)


@THREADS
def test_a_child_for_which_there_is_no_thread_could_not_be_started(
    make: Callable[[ChildFactory], ChildSpec], thread: str
) -> None:
    factory, machine = ChildFactory(), Machine()
    with supervising(clock=machine.clock) as supervisor:
        machine.lost = (thread,)

        with pytest.raises(StartFailed, match="child 'a' could not be started: RuntimeError") as caught:
            supervisor.spawn(make(factory), timeout=60)

        assert isinstance(caught.value.__cause__, RuntimeError)
        assert states(supervisor) == {}
        machine.lost = ()
        supervisor.spawn(make(factory), timeout=60)


@THREADS
def test_a_supervisor_whose_first_child_has_no_thread_ends_with_that_cause(
    make: Callable[[ChildFactory], ChildSpec], thread: str
) -> None:
    factory, machine = ChildFactory(), Machine()
    machine.lost = (thread,)

    with pytest.raises(StartFailed, match="child 'a'"):
        Supervisor.start("root", clock=machine.clock, children=(make(factory),))

    assert wait_no_threads() == []


@THREADS
def test_a_restart_for_which_there_is_no_thread_is_tried_again(
    make: Callable[[ChildFactory], ChildSpec], thread: str
) -> None:
    def fail() -> None:
        raise Boom

    factory, machine, hold = ChildFactory(), Machine(), Hold()
    backoff = Backoff(minimum=2.0, jitter=0.0)
    with supervising(clock=machine.clock, children=(make(factory),), backoff=backoff) as supervisor, hold:
        events = supervisor.subscribe()
        ref = supervisor.child("a")
        if make is plain:
            ref.tell(fail)
        else:
            crash(ref)
        events.wait_for(EventKind.RESTARTING)
        machine.clock.advance(0)  # the thread of the cache is idle
        machine.lost = (thread,)
        # The one idle thread of the cache is held, so that the next job needs a new one.
        guest = supervisor.send(StartChildRequest(child=ChildSpec(id="guest", start=hold)))
        hold.wait_reached()
        machine.clock.advance(2.0)
        failed = events.wait_for(EventKind.START_FAILED)
        events.wait_for(EventKind.RESTARTING)
        machine.lost = ()

        machine.clock.advance(4.0)

        assert failed.cause == """RuntimeError("can't start new thread")"""
        events.wait_for(EventKind.STARTED, "a")
        assert ref.send(HealthCheckRequest()).wait(timeout=60).running
        hold.release()
        assert isinstance(outcome(guest), StartFailed)


@pytest.mark.parametrize("thread", ["a-control", "a-worker", "a-actor"])
def test_supervisor_gives_up_and_ends_if_there_are_never_threads_again(thread: str) -> None:
    def fail() -> None:
        raise Boom

    factory, machine = ChildFactory(), Machine()
    child = plain(factory) if thread == "a-actor" else loop(factory)
    with supervising(clock=machine.clock, children=(child, factory.spec("b")), intensity=5) as supervisor:
        machine.lost = (thread,)
        if thread == "a-actor":
            supervisor.child("a").tell(fail)
        else:
            crash(supervisor.child("a"))

        with pytest.raises(SupervisorGaveUp) as caught:
            supervisor.wait(timeout=60)

        assert isinstance(caught.value.__cause__, RuntimeError)
    assert wait_no_threads() == []


def test_a_restart_by_hand_without_a_thread_is_answered() -> None:
    factory, machine = ChildFactory(), Machine()
    with supervising(clock=machine.clock, children=factory.specs("a")) as supervisor:
        supervisor.child("a").stop(timeout=60)
        machine.lost = ("a-control",)

        assert isinstance(outcome(supervisor.send(RestartChildRequest(id="a"))), StartFailed)
        assert states(supervisor) == {"a": "down"}


def test_a_supervisor_that_has_no_thread_itself_says_so_and_answers() -> None:
    factory, machine = ChildFactory(), Machine()
    machine.lost = ("-supervisor",)

    with pytest.raises(RuntimeError, match="can't start new thread"):
        Supervisor.start("root", clock=machine.clock, children=factory.specs("a"))

    actor = Supervisor("root", clock=machine.clock, children=factory.specs("a"))
    with pytest.raises(RuntimeError):
        actor.launch()
    supervisor = actor.actor_ref
    assert isinstance(supervisor.ended.wait(timeout=60).cause, RuntimeError)
    assert isinstance(outcome(supervisor.ready), ActorDeadError)
    assert isinstance(outcome(supervisor.send(StartChildRequest(child=factory.spec("b")))), ActorDeadError)
    assert not supervisor.send(ShutdownRequest()).wait(timeout=60).clean_shutdown
    assert factory.log == []


def test_a_supervisor_below_that_has_no_thread_could_not_be_started() -> None:
    factory, machine = ChildFactory(), Machine()
    with supervising(clock=machine.clock, children=factory.specs("b")) as supervisor:
        machine.lost = ("a-supervisor",)

        with pytest.raises(StartFailed, match="child 'a' could not be started: RuntimeError"):
            supervisor.spawn(inner(factory, machine), timeout=60)

        assert states(supervisor) == {"b": "up"}


def test_children_are_stopped_even_without_a_thread_for_the_helpers() -> None:
    class Foreign:
        """A foreign loop, whose shutdown is called by a helper."""

        def __init__(self) -> None:
            self.gate = machine.blocking.gate()

        def run(self) -> None:
            self.gate.wait(60)

        def shutdown(self, *, timeout: float) -> None:
            self.gate.open()

    machine = Machine()
    machine.lost = ("-helper", "-stopper", "-returns")
    with supervising(clock=machine.clock, children=(ChildSpec(id="a", start=Foreign),)) as supervisor:
        pass

    assert supervisor.ended.wait(timeout=60).cause is None
    assert wait_no_threads() == []


def test_a_brutal_kill_needs_no_thread() -> None:
    factory, machine = ChildFactory(), Machine()
    with supervising(clock=machine.clock, children=factory.specs("a", shutdown="brutal_kill")) as supervisor:
        machine.left = 0

    assert supervisor.ended.wait(timeout=60).cause is None
    assert wait_no_threads() == []


# Timers


def timeless() -> SystemClock:
    def no_timers(name: str) -> None:
        if name == "loopwarden-timers":
            raise RuntimeError("can't start new thread")

    return SystemClock(FaultyBlocking(before_start=no_timers))


def test_restart_comes_at_once_without_timers() -> None:
    factory = ChildFactory()
    with supervising(clock=timeless(), children=factory.specs("a"), backoff=Backoff(minimum=50.0)) as supervisor:
        events = supervisor.subscribe()

        crash_and_wait(supervisor.child("a"), events)

        assert supervisor.child("a").send(ProcessRequest(body=1)).wait(timeout=60) == 1


def test_children_that_can_be_stopped_are_without_timers() -> None:
    factory = ChildFactory()
    children = (
        loop(factory),
        ChildSpec(id="plain", actor=Plain),
        ChildSpec(id="inner", start=lambda: Supervisor("inner", clock=clock, children=factory.specs("b"))),
        ChildSpec(id="limited", shutdown=5.0, start=lambda: Supervisor("limited", clock=clock)),
    )
    clock = timeless()

    with supervising(clock=clock, children=children) as supervisor:
        assert supervisor.send(ShutdownRequest()).wait(timeout=60).clean_shutdown

    assert supervisor.ended.wait(timeout=60).cause is None
    assert wait_no_threads() == []


@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all"])
def test_supervisor_that_gives_up_without_timers_ends_with_all_its_plain_actors(strategy: Any) -> None:
    factory = ChildFactory()
    children = (factory.spec("a"), ChildSpec(id="b", actor=Plain), ChildSpec(id="c", actor=Plain))
    with supervising(clock=timeless(), children=children, intensity=0, strategy=strategy) as supervisor:
        crash(supervisor.child("a"))

        with pytest.raises(SupervisorGaveUp):
            supervisor.wait(timeout=60)

    assert wait_no_threads() == []


def test_child_is_stopped_by_its_ref_without_timers() -> None:
    factory = ChildFactory()
    children = (loop(factory), ChildSpec(id="plain", actor=Plain))
    with supervising(clock=timeless(), children=children) as supervisor:
        for name in ("a", "plain"):
            supervisor.child(name).send(ShutdownRequest()).wait(timeout=60)

        assert states(supervisor) == {"a": "down", "plain": "down"}


def test_factory_that_hangs_has_no_time_without_timers() -> None:
    factory = ChildFactory()
    with Hold() as hold:
        factory.holds["a"] = hold
        supervisor = Supervisor("root", clock=timeless(), children=factory.specs("a")).launch()
        hold.wait_reached()

        assert supervisor.stop(timeout=60) is True

    assert wait_no_threads() == []


# At any point


@pytest.mark.parametrize("left", range(9))
def test_tickets_resolve_and_nothing_hangs_wherever_threads_run_out(left: int) -> None:
    factory, machine = ChildFactory(), Machine()
    children = (loop(factory), ChildSpec(id="plain", actor=Plain), inner_with_a_leaf(factory, machine))
    supervisor = Supervisor("root", clock=machine.clock, backoff=None)
    supervisor.launch()
    machine.left = left

    tickets: list[Any] = [supervisor.actor_ref.send(StartChildRequest(child=child)) for child in children]
    answers = [outcome(ticket) for ticket in tickets]

    assert all(not isinstance(answer, BaseException) or isinstance(answer, StartFailed) for answer in answers)
    assert supervisor.actor_ref.send(HealthCheckRequest()).wait(timeout=60).running
    assert supervisor.actor_ref.stop(timeout=60) is True
    assert wait_no_threads() == []


def inner_with_a_leaf(factory: ChildFactory, machine: Machine) -> ChildSpec:
    return ChildSpec(id="inner", start=lambda: Supervisor("inner", clock=machine.clock, children=factory.specs("leaf")))
