"""An exception at any line of the way of a message, as an interrupt of the thread would raise it."""

from __future__ import annotations

import sys
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from loopwarden import HealthCheckRequest, Ticket
from loopwarden.actors import ControlActor, Deferred, LoopActor, Request, Session, Slice
from loopwarden.errors import ActorDeadError
from loopwarden.testing import ProbeLoop

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from loopwarden.actors import ControlRef

PATIENCE = 60.0
#: Where an interrupt may come: the code that takes a message, handles it and answers it.
FILES = (
    "_actor.py",
    "_envelope.py",
    "_ticket.py",
    "_callbacks.py",
    "_session.py",
    "_loop_actor.py",
    "_message_kinds.py",
)
#: More lines than a way of a message has.
FAR = 2_000


class Interrupter:
    """Raises on an actor's thread at the n-th line of ours that it runs from `arm` on."""

    def __init__(self, line: int) -> None:
        self._left = line
        self._is_armed = False
        self.has_fired = False

    def arm(self) -> None:
        frame: FrameType | None = sys._getframe(1)  # there is no other way to see the lines that run
        self._is_armed = True
        sys.settrace(self._trace)
        while frame is not None:  # those frames are at work already
            if frame.f_code.co_filename.endswith(FILES):
                frame.f_trace = self._trace
            frame = frame.f_back

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        if event == "line" and self._is_armed:
            self._left -= 1
            if self._left < 0:
                self._is_armed = False
                self.has_fired = True
                sys.settrace(None)
                raise KeyboardInterrupt("at any line")
        return self._trace


class Later(Request[str]):
    """Is answered by a deferred ticket."""


class Obedient(ControlActor):
    """Calls what it is told to call."""

    def __init__(self) -> None:
        super().__init__()
        self.later: Ticket[str] = Ticket()

    def on_receive(self, message: Any) -> Any:
        if type(message) is Later:
            return Deferred(self.later)
        return message() if callable(message) else message


class Count(BaseModel, frozen=True):
    count: int = 0


class Counted(BaseModel, frozen=True):
    arm: Any = None


def obedient(interrupter: Interrupter) -> tuple[ControlRef, list[Ticket[Any]]]:
    ref = Obedient.start()
    carried: Ticket[str] = Ticket()
    tickets = [
        ref.ask(interrupter.arm, block=False),
        ref.ask("hello", block=False),
        ref.ask(Later(ticket=carried), block=False),
        carried,
        ref.ask(lambda: ref.tell(lambda: 1 / 0), block=False),
        ref.ask("behind it", block=False),
    ]
    return ref, tickets


def loop(interrupter: Interrupter) -> tuple[ControlRef, list[Ticket[Any]]]:
    class Armed(LoopActor):
        def on_receive(self, message: object) -> object:
            if message == "arm":
                interrupter.arm()
                return None
            return super().on_receive(message)

    ref = Armed.start(ProbeLoop(), name="resize")
    return ref, [
        ref.ask("arm", block=False),
        ref.send(HealthCheckRequest()),
        ref.ask("what it does not know", block=False),
        ref.stop(block=False),
    ]


def session(interrupter: Interrupter) -> tuple[ControlRef, list[Ticket[Any]]]:
    def count(counted: Count, event: Counted) -> Count:
        if event.arm is not None:
            event.arm()
        return Count(count=counted.count + 1)

    ref = Session.open("shop", [Slice(Count()).on(Counted, count)])
    return ref, [
        ref.dispatch(Counted(arm=interrupter.arm)),
        ref.dispatch(Counted()),
        ref.ask("what it does not know", block=False),
        ref.dispatch(Counted()),
    ]


WAYS: dict[str, Callable[[Interrupter], tuple[ControlRef, list[Ticket[Any]]]]] = {
    "control-actor": obedient,
    "loop": loop,
    "session": session,
}


def noting(called: SimpleQueue[Ticket[Any]]) -> Callable[[Ticket[Any]], None]:
    def note(ticket: Ticket[Any]) -> None:
        called.put(ticket)

    return note


def interrupt_each(way: str, step: int) -> int:
    """Go a way again and again, each time with an interrupt at another line; return at how many there was one."""
    for count, line in enumerate(range(0, FAR, step)):
        interrupter = Interrupter(line)
        ref, tickets = WAYS[way](interrupter)
        called: SimpleQueue[Ticket[Any]] = SimpleQueue()
        for ticket in tickets:
            ticket.on_ready(noting(called))
        stopped = ref.stop(block=False)
        assert stopped.wait_ready(PATIENCE), f"stop, line {line}"
        ended = ref.ended.wait(PATIENCE)
        assert [each.wait_ready(PATIENCE) for each in tickets] == [True] * len(tickets), f"line {line}"
        assert {id(called.get(timeout=PATIENCE)) for _ in tickets} == {id(each) for each in tickets}, f"line {line}"
        assert ended.cause is None or isinstance(ended.cause, (KeyboardInterrupt, ZeroDivisionError)), f"line {line}"
        if not interrupter.has_fired:
            return count
    raise AssertionError("the way is longer than it should be")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("way", WAYS)
def test_interrupt_at_any_line_of_the_way_of_a_message_leaves_no_ticket_unresolved(way: str) -> None:
    assert interrupt_each(way, 7) >= 10


@pytest.mark.prove
@pytest.mark.parametrize("way", WAYS)
def test_interrupt_at_each_line_of_the_way_of_a_message_leaves_no_ticket_unresolved(way: str) -> None:
    assert interrupt_each(way, 1) >= 70


def test_ticket_whose_writer_is_interrupted_before_the_write_keeps_its_readers() -> None:
    class Interrupted(dict[int, Any]):
        is_armed = True

        def setdefault(self, key: int, default: Any = None) -> Any:
            if self.is_armed:
                raise KeyboardInterrupt
            return super().setdefault(key, default)

    ticket: Ticket[str] = Ticket()
    ticket._slot = slot = Interrupted()
    read: list[str] = []
    ticket.on_ready(lambda each: read.append(each.wait(0)))

    with pytest.raises(KeyboardInterrupt):
        ticket.complete("answer")
    slot.is_armed = False
    ticket.complete("answer")

    assert read == ["answer"]


def test_actor_that_is_interrupted_answers_the_messages_behind_with_the_cause() -> None:
    ref = Obedient.start()

    def interrupt() -> None:
        raise KeyboardInterrupt

    tickets = [ref.ask(interrupt, block=False), ref.ask("behind it", block=False)]

    for ticket in tickets:
        with pytest.raises(ActorDeadError) as caught:
            ticket.wait(PATIENCE)
        assert isinstance(caught.value.__cause__, KeyboardInterrupt)
