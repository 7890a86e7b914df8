"""Requests to an actor that goes on living leave nothing behind: neither callbacks nor objects."""

from __future__ import annotations

import gc
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from pydantic import BaseModel

from loopwarden import ChildSpec, HealthCheckRequest, ShutdownConfirmRequest, Ticket
from loopwarden.actors import LoopActor, PauseRequest, ResumeRequest, Session, ShutdownRequest, Slice
from loopwarden.errors import ActorDeadError, TicketTimeoutError, UnsupportedRequestError
from loopwarden.supervision import CountChildrenRequest, EventStream, Supervisor, WhichChildrenRequest
from loopwarden.testing import FakeClock, ProbeLoop

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 60.0


class Count(BaseModel, frozen=True):
    count: int = 0


class Counted(BaseModel, frozen=True):
    pass


class Plain(pykka.ThreadingActor):
    def on_receive(self, message: Any) -> Any:
        return message


def counting() -> Slice[Count]:
    def count(counted: Count, _: Counted) -> Count:
        return Count(count=counted.count + 1)

    return Slice(Count()).on(Counted, count)


def cancel_all(*tickets: Ticket[Any]) -> None:
    for ticket in tickets:
        assert ticket.cancel()


def wait_in_vain(*tickets: Ticket[Any]) -> None:
    for ticket in tickets:
        with pytest.raises(TicketTimeoutError):
            ticket.wait(0.0001)


def rounds(stack: ExitStack) -> dict[str, Callable[[], object]]:  # noqa: C901  one function for each thing to ask
    loop = LoopActor.start(ProbeLoop(), name="loop")
    stack.callback(loop.stop)
    supervisor = stack.enter_context(
        Supervisor.open("root", children=[ChildSpec(id="loop", start=ProbeLoop), ChildSpec(id="plain", actor=Plain)])
    )
    child, plain = supervisor.child("loop"), supervisor.child("plain")
    session = stack.enter_context(Session.open("shop", [counting()]))
    stream = supervisor.subscribe()

    def confirm_and_cancel() -> None:
        cancel_all(*(ref.send(ShutdownConfirmRequest()) for ref in (loop, child, plain, supervisor)))
        health()  # answered after them

    def confirm_carried_and_cancel() -> None:
        carried: Ticket[Any] = Ticket()
        asked = loop.ask(ShutdownConfirmRequest(ticket=carried), block=False)
        cancel_all(carried, asked)
        health()

    def health() -> None:
        for ref in (loop, child, plain, supervisor):
            ref.send(HealthCheckRequest()).wait(PATIENCE)

    def children() -> None:
        supervisor.send(WhichChildrenRequest()).wait(PATIENCE)
        supervisor.send(CountChildrenRequest()).wait(PATIENCE)
        supervisor.child("loop")
        supervisor.events()

    def open_and_close_a_child() -> None:
        with session.child("basket", [counting()]) as basket:
            basket.dispatch(Counted()).wait(PATIENCE)

    def subscribe_and_drop() -> None:
        supervisor.subscribe()

    def subscribe_and_close() -> None:
        with supervisor.subscribe() as opened:
            wait_for_event(opened)

    def wait_for_event(opened: EventStream) -> None:
        with pytest.raises(TicketTimeoutError):
            opened.get(0.0001)

    def wait_for_the_end() -> None:
        wait_in_vain(loop.ended, child.ended, supervisor.ended, session.ended)

    def derive_and_cancel() -> None:
        cancel_all(loop.ended.map(lambda _: None), loop.ended.join(child.ended), supervisor.ended.map(lambda _: None))

    def ask() -> None:
        plain.ask("hello", timeout=PATIENCE)
        plain.proxy()
        with pytest.raises(UnsupportedRequestError):
            loop.ask("hello", timeout=PATIENCE)
        session.dispatch(Counted()).wait(PATIENCE)
        session.snapshot()

    def pause_and_resume() -> None:
        supervisor.send(PauseRequest()).wait(PATIENCE)
        supervisor.send(ResumeRequest()).wait(PATIENCE)

    return {
        "confirm and cancel": confirm_and_cancel,
        "confirm carried and cancel": confirm_carried_and_cancel,
        "health": health,
        "children": children,
        "a child of a session": open_and_close_a_child,
        "subscribe and drop": subscribe_and_drop,
        "subscribe and close": subscribe_and_close,
        "an event in vain": lambda: wait_for_event(stream),
        "the end in vain": wait_for_the_end,
        "derive and cancel": derive_and_cancel,
        "ask": ask,
        "pause and resume": pause_and_resume,
    }


def live(clock: FakeClock) -> tuple[int, int]:
    """Return how many objects there are, and how many callbacks of tickets, when all threads are at rest."""
    clock.settle()  # or those that are about to end are counted too
    gc.collect()
    objects: list[Any] = gc.get_objects()
    return len(objects), sum(len(each._callbacks) for each in objects if issubclass(type(each), Ticket))


def grown(count: int) -> dict[str, tuple[float, float]]:
    """Return by how many objects and callbacks a round of each kind grows what lives, if it does."""
    result: dict[str, tuple[float, float]] = {}
    most = 0.2 if sys.gettrace() is None else 4.2  # what measures coverage keeps four objects of each thread
    with FakeClock() as clock, ExitStack() as stack:
        gc.freeze()  # what other tests have left is neither looked at nor counted
        stack.callback(gc.unfreeze)
        for name, ask in rounds(stack).items():
            for _ in range(10):
                ask()
            objects, callbacks = live(clock)
            for _ in range(count):
                ask()
            more_objects, more_callbacks = live(clock)
            growth = (more_objects - objects) / count, (more_callbacks - callbacks) / count
            if growth[0] > most or growth[1] > 0.2:
                result[name] = growth
    return result


def test_service_session_and_stream_keep_nothing_of_what_was_asked() -> None:
    assert grown(100) == {}


@pytest.mark.prove
@pytest.mark.timeout(600)
def test_service_session_and_stream_keep_nothing_of_what_was_asked_ten_thousand_times() -> None:
    assert grown(10_000) == {}


def test_session_forgets_a_child_that_has_ended() -> None:
    with Session.open("shop", [counting()]) as session:
        for number in range(20):
            session.child(f"basket {number}", [counting()]).close()
        session.ask(ShutdownRequest(), block=False).wait_ready(PATIENCE)  # answered after the ends of the children

        assert session._children == {}


def test_closed_stream_is_told_nothing_more_and_says_so() -> None:
    with Supervisor.open("root") as supervisor:
        stream = supervisor.subscribe()
        supervisor.spawn(ChildSpec(id="first", start=ProbeLoop))
        stream.close()
        supervisor.spawn(ChildSpec(id="second", start=ProbeLoop))

        assert list(stream) == []
        with pytest.raises(ValueError, match=r"subscribe\(\) gives a new one"):
            stream.get(0.0)
        assert (stream.closed, repr(stream)) == (True, "<EventStream, closed>")


def test_stream_that_ends_with_its_supervisor_is_not_closed() -> None:
    with Supervisor.open("root") as supervisor:
        stream = supervisor.subscribe()

    assert not stream.closed
    with pytest.raises(ActorDeadError):
        stream.get(0.0)
