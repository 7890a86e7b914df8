"""The events of a supervisor: which child, why, which attempt, after which delay, with what in hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pykka
import pytest
from children import Boom, ChildFactory, crash, crash_and_wait, finish, outcome, supervising

from loopwarden import MailboxLoop, ShutdownRequest
from loopwarden._ticket import Ticket
from loopwarden.actors import AbandonRequest, ControlActor, StallReport
from loopwarden.errors import SupervisorGaveUp
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.supervision import (
    Backoff,
    ChildSpec,
    EventKind,
    EventStream,
    ExitReason,
    RestartChildRequest,
    StartChildRequest,
    SubscribeRequest,
    SupervisionEvent,
    TerminateChildRequest,
    UnsubscribeRequest,
)
from loopwarden.supervision.tree._events import KEPT
from loopwarden.testing import FakeClock, Hold, ProbeLoop, wait_no_threads

if TYPE_CHECKING:
    from loopwarden.mailbox import Message
    from loopwarden.supervision import SupervisorRef
#: Time stands still unless a test moves it, so no child is abandoned because the machine is slow.
pytestmark = pytest.mark.usefixtures("clock")


def raise_from_deep_down(_: object = None) -> None:
    raise Boom("deep down")


def kinds(supervisor: SupervisorRef) -> list[str]:
    return [event.kind.value for event in supervisor.events()]


# One kind after another


def test_a_start_is_told_with_its_attempt_and_its_time() -> None:
    factory, clock = ChildFactory(), FakeClock(start=50.0)
    with supervising(clock=clock, children=factory.specs("a")) as supervisor:
        [event] = supervisor.events()

        assert event == SupervisionEvent(kind=EventKind.STARTED, supervisor="root", child="a", at=clock.wall())


def test_a_crash_is_told_with_its_cause_its_reason_and_its_stack() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        events = supervisor.subscribe()

        supervisor.child("a").post(raise_from_deep_down)

        event = events.wait_for(EventKind.EXITED)
        assert (event.child, event.reason, event.cause) == ("a", ExitReason.ERROR, "Boom('deep down')")
        assert event.stack is not None
        assert "in raise_from_deep_down" in event.stack
        assert event.attempt == 0


def test_the_crash_of_a_plain_actor_is_told_with_its_stack() -> None:
    class Plain(pykka.ThreadingActor):
        def on_receive(self, message: Any) -> None:
            raise_from_deep_down()

    with supervising(children=(ChildSpec(id="plain", actor=Plain),)) as supervisor:
        events = supervisor.subscribe()

        supervisor.child("plain").tell("anything")

        event = events.wait_for(EventKind.EXITED)
        assert event.stack is not None
        assert "in raise_from_deep_down" in event.stack


def test_an_end_without_an_error_has_no_cause_and_no_stack() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a", restart="transient")) as supervisor:
        events = supervisor.subscribe()

        finish(factory.loops["a"][0])

        event = events.wait_for(EventKind.EXITED)
        assert (event.reason, event.cause, event.stack) == (ExitReason.NORMAL, None, None)


def test_a_failed_start_is_told_with_what_the_factory_raised_and_where() -> None:
    with supervising() as supervisor:
        outcome(supervisor.send(StartChildRequest(child=ChildSpec(id="a", start=raise_from_deep_down))))

        [event] = supervisor.events()
        assert (event.kind, event.child, event.cause) == (EventKind.START_FAILED, "a", "Boom('deep down')")
        assert event.stack is not None
        assert "in raise_from_deep_down" in event.stack


def test_a_restart_is_told_with_its_attempt_its_delay_and_its_cause(clock: FakeClock) -> None:
    factory = ChildFactory()
    backoff = Backoff(minimum=2.0, jitter=0.0)
    with supervising(clock=clock, children=factory.specs("a"), backoff=backoff) as supervisor:
        events = supervisor.subscribe()
        factory.failures["a"] = 1

        crash(supervisor.child("a"))

        first = events.wait_for(EventKind.RESTARTING)
        clock.advance(2.0)
        failed = events.wait_for(EventKind.START_FAILED)
        second = events.wait_for(EventKind.RESTARTING)
        clock.advance(4.0)
        started = events.wait_for(EventKind.STARTED)
        assert (first.attempt, first.delay, first.cause) == (1, 2.0, "Boom('crashed')")
        assert (second.attempt, second.delay, second.cause) == (2, 4.0, "Boom('a cannot be made')")
        assert (failed.attempt, started.attempt) == (1, 2)


def test_a_termination_is_told() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        supervisor.send(TerminateChildRequest(id="a")).wait(timeout=60)

        assert kinds(supervisor) == ["started", "exited", "terminated"]
        assert supervisor.events()[1].reason == ExitReason.SHUTDOWN


def test_a_termination_during_a_back_off_is_told(clock: FakeClock) -> None:
    factory = ChildFactory()
    with supervising(clock=clock, children=factory.specs("a"), backoff=Backoff()) as supervisor:
        events = supervisor.subscribe()
        crash(supervisor.child("a"))
        events.wait_for(EventKind.RESTARTING)

        supervisor.send(TerminateChildRequest(id="a")).wait(timeout=60)

        assert kinds(supervisor) == ["started", "exited", "restarting", "terminated"]


def test_a_child_that_failed_too_often_for_itself_is_told_with_the_last_cause() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a", intensity=0)) as supervisor:
        events = supervisor.subscribe()

        crash(supervisor.child("a"))

        assert events.wait_for(EventKind.CHILD_GAVE_UP).cause == "Boom('crashed')"


@pytest.mark.parametrize(
    ("fields", "kind"), [({}, EventKind.GAVE_UP), ({"decide": {Boom: "escalate"}}, EventKind.ESCALATED)]
)
def test_a_supervisor_that_gives_up_tells_because_of_whom(fields: Any, kind: EventKind) -> None:
    factory = ChildFactory()
    with supervising(children=(factory.spec("a", **fields), factory.spec("b")), intensity=0) as supervisor:
        crash(supervisor.child("a"))

        with pytest.raises(SupervisorGaveUp):
            supervisor.wait(timeout=60)
        assert kinds(supervisor) == ["started", "started", "exited", kind.value, "exited", "terminated"]
        assert (supervisor.events()[3].child, supervisor.events()[3].cause) == ("a", "Boom('crashed')")


def test_an_automatic_shutdown_tells_because_of_whom() -> None:
    factory = ChildFactory()
    children = factory.specs("a", restart="temporary", significant=True)
    with supervising(children=children, auto_shutdown="any_significant") as supervisor:
        finish(factory.loops["a"][0])

        supervisor.wait(timeout=60)
        assert kinds(supervisor) == ["started", "exited", "auto_shutdown"]


@pytest.mark.parametrize(("is_recalled", "kind"), [(False, EventKind.STALLED), (True, EventKind.RECALLED)])
def test_a_worker_that_gives_no_sign_of_life_is_told_with_its_stack(is_recalled: bool, kind: EventKind) -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        stall = StallReport(worker=7, last_heartbeat=1.0, silent_for=12.0, stack="here", is_recalled=is_recalled)

        supervisor.child("a").send(stall).wait(timeout=60)

        event = supervisor.events()[-1]
        assert (event.kind, event.worker, event.stack, event.reason) == (kind, 7, "here", "silent for 12.0 s")


def test_an_abandonment_is_told_with_its_reason_its_stack_and_what_was_in_hand() -> None:
    factory, hold = ChildFactory(), Hold()
    with supervising(children=(factory.spec("a", hold),)) as supervisor, hold:
        events = supervisor.subscribe()
        factory.loops["a"][0].feed("held")
        hold.wait_reached()

        supervisor.child("a").send(AbandonRequest(reason="it hangs", stack="here")).wait(timeout=60)

        abandoned = events.wait_for(EventKind.ABANDONED)
        assert (abandoned.reason, abandoned.stack) == ("it hangs", "here")
        assert [message.message_id for message in abandoned.in_hand] == ["body-1"]
        hold.release()
    wait_no_threads()


def test_events_tell_the_whole_story_of_a_child_in_order() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        events = supervisor.subscribe()
        crash_and_wait(supervisor.child("a"), events)
        supervisor.child("a").send(ShutdownRequest()).wait(timeout=60)
        supervisor.send(RestartChildRequest(id="a")).wait(timeout=60)

        assert kinds(supervisor) == ["started", "exited", "restarting", "started", "exited", "terminated", "started"]


# What was in hand


def crashing_loop(mailbox: InMemoryMailbox[str, None]) -> MailboxLoop[str]:
    def handle(message: Message[str, None]) -> None:
        if message.body == "crash":
            raise_from_deep_down()

    return MailboxLoop(mailbox, handle, crash_on=(Boom,))


def test_a_crash_is_told_with_the_message_that_was_in_hand() -> None:
    mailbox: InMemoryMailbox[str, None] = InMemoryMailbox("jobs")
    child = ChildSpec(id="jobs", start=lambda: crashing_loop(mailbox), restart="temporary")
    with supervising(children=(child,)) as supervisor:
        events = supervisor.subscribe()
        message_id = mailbox.send("crash")

        event = events.wait_for(EventKind.EXITED)

        assert [(message.message_id, message.delivery_count) for message in event.in_hand] == [(message_id, 1)]
        assert event.stack is not None
        assert "in raise_from_deep_down" in event.stack
    mailbox.close()


def test_in_hand_of_one_child_is_not_in_the_events_of_another() -> None:
    mailbox: InMemoryMailbox[str, None] = InMemoryMailbox("jobs")
    factory, hold = ChildFactory(), Hold()
    child = ChildSpec(id="jobs", start=lambda: crashing_loop(mailbox), restart="temporary")
    with supervising(children=(child,)) as supervisor, hold:
        events = supervisor.subscribe()
        mailbox.send("crash")
        assert events.wait_for(EventKind.EXITED).in_hand != ()
        factory.holds["a"] = hold
        supervisor.send(StartChildRequest(child=factory.spec("a")))
        hold.wait_reached()
        supervisor.send(TerminateChildRequest(id="a"))
        assert supervisor.children()[0].state == "stopping"

        hold.release()

        assert events.wait_for(EventKind.EXITED, "a").in_hand == ()
    mailbox.close()


# Keeping, and listening


def test_the_last_thousand_events_are_kept() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a"), intensity=None) as supervisor:
        events = supervisor.subscribe()
        factory.failures["a"] = 600

        crash(supervisor.child("a"))

        events.wait_for(EventKind.STARTED)
        kept = supervisor.events()
        assert len(kept) == KEPT == 1_000
        assert kept[-1].kind is EventKind.STARTED
        assert kept[-2].attempt == 601
        assert kept[0].attempt == 102  # two events for each attempt, and the last start


def test_a_stream_has_what_happens_after_the_subscription_in_order() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        events = supervisor.subscribe()

        supervisor.spawn(factory.spec("b"), timeout=60)
        supervisor.spawn(factory.spec("c"), timeout=60)

        assert [events.get(timeout=60).child, events.get(timeout=60).child] == ["b", "c"]


def test_a_stream_that_is_not_read_forgets_the_oldest() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a"), intensity=None) as supervisor:
        lazy, eager = supervisor.subscribe(), supervisor.subscribe()
        factory.failures["a"] = 600

        crash(supervisor.child("a"))

        eager.wait_for(EventKind.STARTED)
        assert lazy.get(timeout=60) == supervisor.events()[0]


def test_unsubscribe_request_ends_the_events_of_its_listener() -> None:
    factory = ChildFactory()
    with supervising() as supervisor:
        events, others = supervisor.subscribe(), supervisor.subscribe()
        supervisor.spawn(factory.spec("a"), timeout=60)

        supervisor.send(UnsubscribeRequest(listener=events)).wait(timeout=60)
        supervisor.send(UnsubscribeRequest(listener=events)).wait(timeout=60)  # again
        supervisor.spawn(factory.spec("b"), timeout=60)

        assert events.get(timeout=60).child == "a"
        assert "0 unread" in repr(events)
        assert [others.get(timeout=60).child, others.get(timeout=60).child] == ["a", "b"]


class Listener(pykka.ThreadingActor):
    """Keeps what it is told, and says when it has heard of a child."""

    def __init__(self, child: str) -> None:
        super().__init__()
        self.child = child
        self.heard: list[SupervisionEvent] = []
        self.done: Ticket[list[str]] = Ticket()

    def on_receive(self, message: SupervisionEvent) -> None:
        self.heard.append(message)
        if message.child == self.child:
            self.done.complete([event.child for event in self.heard])


def test_an_actor_may_listen() -> None:
    factory = ChildFactory()
    listener = Listener.start("b")
    done: Ticket[list[str]] = listener.proxy().done.get()
    with supervising() as supervisor:
        supervisor.send(SubscribeRequest(listener=listener)).wait(timeout=60)

        supervisor.spawn(factory.spec("a"), timeout=60)
        supervisor.spawn(factory.spec("b"), timeout=60)

        assert done.wait(timeout=60) == ["a", "b"]
    listener.stop(timeout=60)


class Deaf(ControlActor):
    """One of our own actors."""


@pytest.mark.parametrize("kind", [lambda: Listener.start("ended"), Deaf.start], ids=["pykka", "ours"])
def test_an_actor_that_has_ended_listens_no_more_and_the_others_do(kind: Any) -> None:
    factory = ChildFactory()
    listener = kind()
    with supervising() as supervisor:
        supervisor.send(SubscribeRequest(listener=listener)).wait(timeout=60)
        events = supervisor.subscribe()
        listener.stop(timeout=60)

        supervisor.spawn(factory.spec("a"), timeout=60)
        supervisor.spawn(factory.spec("b"), timeout=60)

        assert [events.get(timeout=60).child, events.get(timeout=60).child] == ["a", "b"]


def test_a_child_that_listens_to_its_own_supervisor_may_die() -> None:
    factory = ChildFactory()
    with supervising(children=(*factory.specs("a"), ChildSpec(id="ear", actor=Listener, args=("a",)))) as supervisor:
        events = supervisor.subscribe()
        ear = supervisor.child("ear")
        supervisor.send(SubscribeRequest(listener=ear)).wait(timeout=60)

        ear.stop(timeout=60)
        crash_and_wait(supervisor.child("a"), events)

        assert {info.id: info.state.value for info in supervisor.children()} == {"a": "up", "ear": "down"}


def test_subscribe_request_refuses_what_cannot_listen() -> None:
    with pytest.raises(ValueError, match="listener must be"):
        SubscribeRequest(listener=print)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  the misuse under test


def test_an_event_is_a_value_that_can_be_written_as_json() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        events = supervisor.subscribe()
        crash_and_wait(supervisor.child("a"), events)

        stories = [event.model_dump_json() for event in supervisor.events()]

        assert tuple(SupervisionEvent.model_validate_json(story) for story in stories) == supervisor.events()


def test_an_error_that_cannot_be_printed_is_told_all_the_same() -> None:
    class UnspeakableError(Exception):
        def __str__(self) -> str:
            raise SystemExit("str")

        __repr__ = __str__

    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        events = supervisor.subscribe()

        crash(supervisor.child("a"), UnspeakableError())

        event = events.wait_for(EventKind.EXITED)
        assert event.cause is not None
        assert "UnspeakableError" in event.cause
        assert event.stack is not None
        assert "UnspeakableError" in event.stack
        events.wait_for(EventKind.STARTED)


def test_a_stream_says_how_much_is_unread() -> None:
    factory = ChildFactory()
    with supervising() as supervisor:
        events: EventStream = supervisor.subscribe()
        supervisor.spawn(ChildSpec(id="a", start=ProbeLoop), timeout=60)
        supervisor.spawn(factory.spec("b"), timeout=60)

        assert repr(events) == "<EventStream, 2 unread>"
