"""A machine that has no thread to give: every ticket resolves, and nothing hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, final

import pykka
import pytest
from nursery import Boom, Nursery, crash, crash_and_wait, outcome, supervising, wake

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


def states(boss: SupervisorRef) -> dict[str, str]:
    return {info.id: info.state.value for info in boss.children()}


def loop(nursery: Nursery) -> ChildSpec:
    return nursery.spec("a")


def plain(_: Nursery) -> ChildSpec:
    return ChildSpec(id="a", actor=Plain)


def inner(_: Nursery, machine: Machine) -> ChildSpec:
    return ChildSpec(id="a", start=lambda: Supervisor("a", clock=machine.clock))


THREADS = pytest.mark.parametrize(
    ("make", "thread"),
    [(loop, "-crew"), (loop, "a-control"), (loop, "a-worker"), (plain, "-crew"), (plain, "a-actor")],
    ids=["loop-crew", "loop-control", "loop-worker", "plain-crew", "plain-actor"],
)


@THREADS
def test_a_child_for_which_there_is_no_thread_could_not_be_started(
    make: Callable[[Nursery], ChildSpec], thread: str
) -> None:
    nursery, machine = Nursery(), Machine()
    with supervising(clock=machine.clock) as boss:
        machine.lost = (thread,)

        with pytest.raises(StartFailed, match="child 'a' could not be started: RuntimeError") as caught:
            boss.spawn(make(nursery), timeout=60)

        assert isinstance(caught.value.__cause__, RuntimeError)
        assert states(boss) == {}
        machine.lost = ()
        boss.spawn(make(nursery), timeout=60)


@THREADS
def test_a_supervisor_whose_first_child_has_no_thread_ends_with_that_cause(
    make: Callable[[Nursery], ChildSpec], thread: str
) -> None:
    nursery, machine = Nursery(), Machine()
    machine.lost = (thread,)

    with pytest.raises(StartFailed, match="child 'a'"):
        Supervisor.start("boss", clock=machine.clock, children=(make(nursery),))

    assert wait_no_threads() == []


@THREADS
def test_a_restart_for_which_there_is_no_thread_is_tried_again(
    make: Callable[[Nursery], ChildSpec], thread: str
) -> None:
    def fail() -> None:
        raise Boom

    nursery, machine, hold = Nursery(), Machine(), Hold()
    backoff = Backoff(minimum=2.0, jitter=0.0)
    with supervising(clock=machine.clock, children=(make(nursery),), backoff=backoff) as boss, hold:
        events = boss.subscribe()
        ref = boss.child("a")
        if make is plain:
            ref.tell(fail)
        else:
            crash(ref)
        events.wait_for(EventKind.RESTARTING)
        machine.clock.advance(0)  # the thread of the crew is idle
        machine.lost = (thread,)
        # The one idle thread of the crew is held, so that the next job needs a new one.
        guest = boss.send(StartChildRequest(child=ChildSpec(id="guest", start=hold)))
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
def test_without_threads_for_ever_the_supervisor_gives_up_and_ends(thread: str) -> None:
    def fail() -> None:
        raise Boom

    nursery, machine = Nursery(), Machine()
    child = plain(nursery) if thread == "a-actor" else loop(nursery)
    with supervising(clock=machine.clock, children=(child, nursery.spec("b")), intensity=5) as boss:
        machine.lost = (thread,)
        if thread == "a-actor":
            boss.child("a").tell(fail)
        else:
            crash(boss.child("a"))

        with pytest.raises(SupervisorGaveUp) as caught:
            boss.wait(timeout=60)

        assert isinstance(caught.value.__cause__, RuntimeError)
    assert wait_no_threads() == []


def test_a_restart_by_hand_without_a_thread_is_answered() -> None:
    nursery, machine = Nursery(), Machine()
    with supervising(clock=machine.clock, children=nursery.specs("a")) as boss:
        boss.child("a").stop(timeout=60)
        machine.lost = ("a-control",)

        assert isinstance(outcome(boss.send(RestartChildRequest(id="a"))), StartFailed)
        assert states(boss) == {"a": "down"}


def test_a_supervisor_that_has_no_thread_itself_says_so_and_answers() -> None:
    nursery, machine = Nursery(), Machine()
    machine.lost = ("-supervisor",)

    with pytest.raises(RuntimeError, match="can't start new thread"):
        Supervisor.start("boss", clock=machine.clock, children=nursery.specs("a"))

    actor = Supervisor("boss", clock=machine.clock, children=nursery.specs("a"))
    with pytest.raises(RuntimeError):
        actor.launch()
    boss = actor.actor_ref
    assert isinstance(boss.ended.wait(timeout=60).cause, RuntimeError)
    assert isinstance(outcome(boss.ready), ActorDeadError)
    assert isinstance(outcome(boss.send(StartChildRequest(child=nursery.spec("b")))), ActorDeadError)
    assert not boss.send(ShutdownRequest()).wait(timeout=60).clean_shutdown
    assert nursery.log == []


def test_a_supervisor_below_that_has_no_thread_could_not_be_started() -> None:
    nursery, machine = Nursery(), Machine()
    with supervising(clock=machine.clock, children=nursery.specs("b")) as boss:
        machine.lost = ("a-supervisor",)

        with pytest.raises(StartFailed, match="child 'a' could not be started: RuntimeError"):
            boss.spawn(inner(nursery, machine), timeout=60)

        assert states(boss) == {"b": "up"}


def test_without_a_thread_for_the_helpers_children_are_stopped_all_the_same() -> None:
    class Foreign:
        """Somebody else's loop, whose shutdown is called by a helper."""

        def __init__(self) -> None:
            self.gate = machine.blocking.gate()

        def run(self) -> None:
            self.gate.wait(60)

        def shutdown(self, *, timeout: float) -> None:
            self.gate.open()

    machine = Machine()
    machine.lost = ("-helper", "-stopper", "-returns")
    with supervising(clock=machine.clock, children=(ChildSpec(id="a", start=Foreign),)) as boss:
        pass

    assert boss.ended.wait(timeout=60).cause is None
    assert wait_no_threads() == []


def test_a_brutal_kill_needs_no_thread() -> None:
    nursery, machine = Nursery(), Machine()
    with supervising(clock=machine.clock, children=nursery.specs("a", shutdown="brutal_kill")) as boss:
        machine.left = 0

    assert boss.ended.wait(timeout=60).cause is None
    assert wait_no_threads() == []


# Timers


def timeless() -> SystemClock:
    def no_timers(name: str) -> None:
        if name == "loopwarden-timers":
            raise RuntimeError("can't start new thread")

    return SystemClock(FaultyBlocking(before_start=no_timers))


def test_without_timers_a_restart_comes_at_once() -> None:
    nursery = Nursery()
    with supervising(clock=timeless(), children=nursery.specs("a"), backoff=Backoff(minimum=50.0)) as boss:
        events = boss.subscribe()

        crash_and_wait(boss.child("a"), events)

        assert boss.child("a").send(ProcessRequest(body=1)).wait(timeout=60) == 1


def test_without_timers_everything_that_can_be_stopped_is() -> None:
    nursery = Nursery()
    children = (
        loop(nursery),
        ChildSpec(id="plain", actor=Plain),
        ChildSpec(id="inner", start=lambda: Supervisor("inner", clock=clock, children=nursery.specs("b"))),
        ChildSpec(id="limited", shutdown=5.0, start=lambda: Supervisor("limited", clock=clock)),
    )
    clock = timeless()

    with supervising(clock=clock, children=children) as boss:
        assert boss.send(ShutdownRequest()).wait(timeout=60).clean_shutdown

    assert boss.ended.wait(timeout=60).cause is None
    assert wait_no_threads() == []


@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all"])
def test_without_timers_a_supervisor_that_gives_up_ends_with_all_its_plain_actors(strategy: Any) -> None:
    nursery = Nursery()
    children = (nursery.spec("a"), ChildSpec(id="b", actor=Plain), ChildSpec(id="c", actor=Plain))
    with supervising(clock=timeless(), children=children, intensity=0, strategy=strategy) as boss:
        crash(boss.child("a"))

        with pytest.raises(SupervisorGaveUp):
            boss.wait(timeout=60)

    assert wait_no_threads() == []


def test_without_timers_a_single_child_is_stopped_by_its_ref() -> None:
    nursery = Nursery()
    children = (loop(nursery), ChildSpec(id="plain", actor=Plain))
    with supervising(clock=timeless(), children=children) as boss:
        for name in ("a", "plain"):
            boss.child(name).send(ShutdownRequest()).wait(timeout=60)

        assert states(boss) == {"a": "down", "plain": "down"}


def test_without_timers_a_factory_that_hangs_has_no_time() -> None:
    nursery = Nursery()
    with Hold() as hold:
        nursery.holds["a"] = hold
        boss = Supervisor("boss", clock=timeless(), children=nursery.specs("a")).launch()
        hold.wait_reached()

        assert boss.stop(timeout=60) is True

    assert wait_no_threads() == []


# At any point


@pytest.mark.parametrize("left", range(9))
def test_wherever_threads_run_out_every_ticket_resolves_and_nothing_hangs(left: int) -> None:
    nursery, machine = Nursery(), Machine()
    children = (loop(nursery), ChildSpec(id="plain", actor=Plain), inner_with_a_leaf(nursery, machine))
    boss = Supervisor("boss", clock=machine.clock, backoff=None)
    boss.launch()
    machine.left = left

    tickets: list[Any] = [boss.actor_ref.send(StartChildRequest(child=child)) for child in children]
    answers = [outcome(ticket) for ticket in tickets]

    assert all(not isinstance(answer, BaseException) or isinstance(answer, StartFailed) for answer in answers)
    assert boss.actor_ref.send(HealthCheckRequest()).wait(timeout=60).running
    assert boss.actor_ref.stop(timeout=60) is True
    assert wait_no_threads() == []


def inner_with_a_leaf(nursery: Nursery, machine: Machine) -> ChildSpec:
    return ChildSpec(id="inner", start=lambda: Supervisor("inner", clock=machine.clock, children=nursery.specs("leaf")))
