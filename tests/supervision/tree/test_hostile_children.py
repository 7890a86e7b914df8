"""Children, and clients, that mean no good: what they do stays with them."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import pykka
import pytest
from children import Boom, ChildFactory, outcome, supervising

from loopwarden import (
    HealthCheckRequest,
    LoopActor,
    MailboxLoop,
    ShutdownConfirmRequest,
    ShutdownRequest,
    Supervisor,
    Ticket,
)
from loopwarden._ticket import write
from loopwarden.actors import ZOMBIES, AbandonRequest, ControlActor, ProcessRequest
from loopwarden.errors import ActorDeadError, LoopAbandonedError
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.supervision import ChildSpec, DaemonScope, EventKind, ExitReason, ReaperActor
from loopwarden.supervision.tree._incarnation import ABANDON_GRACE
from loopwarden.testing import FakeClock, Hold, ProbeLoop, wait_no_threads

#: Time stands still unless a test moves it, so no child is abandoned because the machine is slow.
pytestmark = pytest.mark.usefixtures("clock")


class HungActor(LoopActor):
    """Hangs in its own thread when it is told to."""

    def on_receive(self, message: object) -> object:
        return message() if callable(message) else super().on_receive(message)


class HungSupervisor(Supervisor):
    """Hangs in its own thread when it is told to."""

    def on_receive(self, message: object) -> object:
        return message() if callable(message) else super().on_receive(message)


def test_a_child_whose_own_actor_hangs_does_not_keep_its_supervisor_from_ending(clock: FakeClock) -> None:
    with Hold() as hold:
        children = (
            ChildSpec(id="hung", start=lambda: HungActor(ProbeLoop(clock=clock), "hung", clock=clock), shutdown=2.0),
        )
        with supervising(clock=clock, children=children) as supervisor:
            supervisor.child("hung").tell(hold)
            hold.wait_reached()
            stopped = supervisor.stop(block=False)
            clock.advance(2.0)

            clock.advance(ABANDON_GRACE)

            assert stopped.wait(timeout=60)
            assert "hung-control" in ZOMBIES.names
    assert wait_no_threads() == []


@pytest.mark.parametrize("is_nested", [False, True], ids=["child", "grandchild"])
def test_a_child_that_is_left_behind_loses_no_fate_of_its_messages(clock: FakeClock, is_nested: bool) -> None:
    jobs: InMemoryMailbox[str, Any] = InMemoryMailbox("jobs", clock=clock)
    message_id = jobs.send("in hand")
    with Hold() as actor_hangs, Hold() as handler_hangs:
        hung = ChildSpec(
            id="hung",
            start=lambda: HungActor(MailboxLoop(jobs, handler_hangs, clock=clock), "hung", clock=clock),
            shutdown=2.0,
        )
        below = ChildSpec(id="below", start=lambda: HungSupervisor("below", children=[hung], clock=clock), shutdown=2.0)
        with supervising(clock=clock, children=[below if is_nested else hung]) as supervisor:
            handler_hangs.wait_reached()
            supervisor.child("below" if is_nested else "hung").tell(actor_hangs)
            actor_hangs.wait_reached()
            stopped = supervisor.send(ShutdownRequest(timeout=60.0))
            supervisor.children()
            clock.advance(2.0)
            supervisor.children()

            clock.advance(5 * ABANDON_GRACE)

            [child] = stopped.wait(60).children
            assert (child.abandoned, child.clean_shutdown) == (True, False)
            assert [(fate.message_id, fate.fate) for fate in child.fates] == [(message_id, "extended")]
    assert wait_no_threads() == []


class Strict(pykka.ThreadingActor):
    def __setattr__(self, name: str, value: object) -> None:
        if name == "_handle_receive":
            raise AttributeError("do not touch me")
        super().__setattr__(name, value)


def test_an_actor_that_cannot_be_watched_is_a_failure_to_start_and_no_more() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        with pytest.raises(Exception, match="do not touch me"):
            supervisor.spawn(ChildSpec(id="strict", actor=Strict), timeout=60)

        assert [child.id for child in supervisor.children()] == ["a"]


class Launching(ControlActor):
    def _launching(self) -> None:
        raise Boom("not me")


def test_an_actor_that_raises_as_it_is_launched_is_a_failure_to_start_and_no_more() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        with pytest.raises(Exception, match="not me"):
            supervisor.spawn(ChildSpec(id="b", start=Launching), timeout=60)

        assert [child.id for child in supervisor.children()] == ["a"]


class OddError(Exception):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @__class__.setter
    def __class__(self, _: Any) -> None: ...


class Unhashable(type):
    __hash__ = None  # type: ignore[assignment]  # Python's way to say that there is none


class MetaError(Exception, metaclass=Unhashable):
    pass


@pytest.mark.parametrize("error", [OddError, MetaError])
def test_an_odd_exception_ends_its_own_child_alone(error: Any) -> None:
    factory = ChildFactory()
    children = (factory.spec("odd", decide={ValueError: "stop"}), factory.spec("a"))
    with supervising(children=children) as supervisor:
        events = supervisor.subscribe()

        def fail() -> None:
            raise error

        supervisor.child("odd").post(fail)

        events.wait_for(EventKind.STARTED, "odd")
        assert [child.state.value for child in supervisor.children()] == ["up", "up"]


class SlowError(Exception):
    """Its text takes its time."""

    told: ClassVar[list[int]] = []

    def __repr__(self) -> str:
        self.told.append(threading.get_ident())
        return "SlowError()"

    __str__ = __repr__


def test_the_text_of_an_exception_is_made_on_the_thread_that_raised_it() -> None:
    factory = ChildFactory()
    SlowError.told.clear()
    threads: list[int] = []

    def fail() -> None:
        threads.append(threading.get_ident())
        raise SlowError

    with supervising(children=(factory.spec("slow", restart="temporary"),)) as supervisor:
        events = supervisor.subscribe()
        supervisor.child("slow").post(fail)

        event = events.wait_for(EventKind.EXITED)

        assert event.cause == "SlowError()"
        assert SlowError.told[0] == threads[0]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_handler_that_stops_its_own_loop_does_not_wait_for_itself(concurrency: int) -> None:
    jobs: InMemoryMailbox[str, None] = InMemoryMailbox("jobs")
    answer: Ticket[object] = Ticket()
    refs: list[Any] = []
    loop: MailboxLoop[str] = MailboxLoop(jobs, lambda _: write(answer, refs[0].stop()), concurrency=concurrency)
    refs.append(LoopActor.start(loop, "own"))

    jobs.send("stop yourself")

    assert answer.wait(timeout=60) is False
    refs[0].ended.wait(timeout=60)


class Own(ControlActor):
    def on_receive(self, message: Any) -> Any:
        return message() if callable(message) else message


class Plain(pykka.ThreadingActor):
    def on_receive(self, message: Any) -> Any:
        return message() if callable(message) else message


@pytest.mark.parametrize("spec", [ChildSpec(id="c", start=Own), ChildSpec(id="c", actor=Plain)], ids=["own", "plain"])
def test_asks_of_an_actor_that_is_abandoned_are_answered(spec: ChildSpec) -> None:
    spec = spec.model_copy(update={"shutdown": "brutal_kill"})
    with Hold() as hold, supervising(children=(spec,)) as supervisor:
        ref = supervisor.child("c")
        in_hand = ref.ask(hold, block=False)
        hold.wait_reached()
        behind = [ref.ask("behind", block=False) for _ in range(3)]

        supervisor.stop(timeout=60)

        assert {type(outcome(ticket)) for ticket in (in_hand, *behind)} == {ActorDeadError}
        assert not hold.is_released
    assert wait_no_threads() == []


def test_a_plain_actor_that_is_killed_while_many_ask_leaves_no_thread() -> None:
    for _ in range(20):
        with supervising(children=(ChildSpec(id="c", actor=Plain, shutdown="brutal_kill"),)) as supervisor:
            ref = supervisor.child("c")
            tickets = [ref.ask("hello", block=False) for _ in range(20)]
            supervisor.stop(block=False)
            tickets += [ref.ask("hello", block=False) for _ in range(20)]
            for ticket in tickets:
                assert ticket.wait_ready(timeout=60)
    assert wait_no_threads() == []
    assert len(ZOMBIES) == 0


def test_process_request_in_an_abandoned_worker_is_answered() -> None:
    jobs: InMemoryMailbox[str, None] = InMemoryMailbox("jobs")
    with Hold() as hold:
        ref = LoopActor.start(MailboxLoop(jobs, hold, concurrency=2), "two")
        asked = ref.send(ProcessRequest(body="stuck"))
        hold.wait_reached()
        statuses = ref.send(HealthCheckRequest()).wait(timeout=60).workers

        for status in statuses:
            ref.send(AbandonRequest(worker=status.worker)).wait(timeout=60)

        assert isinstance(outcome(asked), LoopAbandonedError)
        ref.stop(timeout=60)


def test_messages_that_a_fenced_worker_had_not_begun_go_back(clock: FakeClock) -> None:
    jobs: InMemoryMailbox[int, None] = InMemoryMailbox("jobs")
    jobs.send_many(range(3))
    with Hold() as hold:
        ref = LoopActor.start(MailboxLoop(jobs, hold, prefetch=3, concurrency=1), "one")
        hold.wait_reached()

        ref.send(AbandonRequest(reason="it hangs")).wait(timeout=60)

        clock.advance(0)
        assert ref.ended.is_ready()
        assert sorted(message.body for _ in range(3) for message in jobs.receive()) == [0, 1, 2]


def test_a_supervisor_is_not_ended_by_what_it_cannot_do() -> None:
    class Odd:
        @property
        def __class__(self) -> Any:
            raise RuntimeError("no class")

        @__class__.setter
        def __class__(self, _: Any) -> None: ...

    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        supervisor.tell(Odd())
        supervisor.proxy().on_start.defer("too", "many")

        assert supervisor.send(HealthCheckRequest()).wait(timeout=60).running


def test_an_abandoned_supervisor_was_killed_and_did_not_end_normally() -> None:
    factory = ChildFactory()
    inner = ChildSpec(id="inner", start=lambda: Supervisor("inner", children=factory.specs("a")), restart="transient")
    with supervising(children=(inner,)) as supervisor:
        events = supervisor.subscribe()

        supervisor.child("inner").send(AbandonRequest(reason="no patience"))

        assert events.wait_for(EventKind.EXITED, "inner").reason == ExitReason.KILLED
        events.wait_for(EventKind.STARTED, "inner")


def test_the_end_of_a_child_whose_factory_is_at_work_is_not_confirmed_before() -> None:
    factory, hold = ChildFactory(), Hold()
    with supervising(children=factory.specs("b")) as supervisor, hold:
        factory.holds["b"] = hold
        supervisor.child("b").post(_crash)
        hold.wait_reached()
        ref = supervisor.child("b")
        confirmed = ref.send(ShutdownConfirmRequest())
        supervisor.send(HealthCheckRequest()).wait(timeout=60)

        assert not confirmed.is_ready()
        ref.stop(block=False)
        hold.release()
        assert confirmed.wait(timeout=60)


def _crash() -> None:
    raise Boom("crashed")


def test_ended_and_ready_of_a_child_cannot_be_cancelled() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        ref = supervisor.child("a")

        assert not ref.ended.cancel()
        assert not ref.ready.cancel()


@pytest.mark.parametrize("timeout", [float("inf"), float("nan"), -1.0, None, "5"])
def test_a_scope_with_an_odd_time_out_is_refused(timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout"):
        DaemonScope(timeout)


def test_a_daemon_that_starts_another_while_it_is_stopped_leaves_none_behind() -> None:
    scope = DaemonScope()
    started: Ticket[None] = Ticket()

    def late(token: Any) -> None:
        token.wait()
        scope.spawn(lambda inner: inner.wait(), name="later")
        started.complete(None)

    scope.spawn(late)

    scope.shutdown_all(timeout=60)

    started.wait(timeout=60)
    scope.shutdown_all(timeout=60)
    assert wait_no_threads() == []


def test_a_reaper_goes_on_without_a_mailbox_that_raises() -> None:
    class Odd:
        name = "odd"

        def watch_due(self, watcher: Any) -> Any:
            raise Boom("not me")

        def reap(self) -> Any:
            raise Boom("not me either")

    ref = ReaperActor([Odd()]).launch()

    ref.stop(timeout=60)
    assert ref.ended.wait(timeout=60).cause is None
