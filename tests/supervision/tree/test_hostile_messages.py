"""Messages whose own code raises: they end no actor of ours, and every ask is answered."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import pytest
from pydantic import BaseModel

from loopwarden import ChildSpec, HealthCheckRequest, Ticket
from loopwarden._ticket import TicketCarrier
from loopwarden.actors import ControlActor, LoopActor, Request, Session, ShutdownRequest, Slice
from loopwarden.errors import ActorDeadError, UnsupportedRequestError
from loopwarden.supervision import ReaperActor, Supervisor, WatchdogActor
from loopwarden.testing import ProbeLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors import ControlRef

PATIENCE = 60.0


class Count(BaseModel, frozen=True):
    count: int = 0


class Counted(BaseModel, frozen=True):
    pass


class Worse(BaseException):
    """Neither an error nor an interrupt."""


class Fuse:
    """Raises, except on the thread of the test, which has to make the message and to send it."""

    def __init__(self, kind: type[BaseException]) -> None:
        self._kind = kind
        self._thread = threading.get_ident()

    def blow(self) -> None:
        if threading.get_ident() != self._thread:
            raise self._kind("a message of other people's")


# What a hostile class does, and what it derives from for that.


def with_class(base: type, fuse: Fuse) -> type:
    def get(self: object) -> type:
        fuse.blow()
        return type(self)

    return type(base)("Hostile", (base,), {"__class__": property(get), "__module__": __name__})


def with_metaclass_hash(base: type, fuse: Fuse) -> type:
    def own_hash(kind: type) -> int:
        fuse.blow()
        return type.__hash__(kind)

    meta = type("Meta", (type(base),), {"__hash__": own_hash})
    return cast("type", meta("Hostile", (base,), {"__module__": __name__}))


def with_metaclass_name(base: type, fuse: Fuse) -> type:
    def get(kind: type, name: str) -> Any:
        fuse.blow()
        return type.__getattribute__(kind, name)

    meta = type("Meta", (type(base),), {"__getattribute__": get})
    return cast("type", meta("Hostile", (base,), {"__module__": __name__}))


def with_method(name: str) -> Callable[[type, Fuse], type]:
    def make(base: type, fuse: Fuse) -> type:
        def method(self: Any, *args: Any) -> Any:
            fuse.blow()
            return getattr(base, name)(self, *args)

        return type(base)("Hostile", (base,), {name: method, "__module__": __name__})

    return make


def with_bool(base: type, fuse: Fuse) -> type:
    def true(_self: object) -> bool:
        fuse.blow()
        return True

    return type(base)("Hostile", (base,), {"__bool__": true, "__module__": __name__})


def with_ticket(base: type, fuse: Fuse) -> type:
    def get(self: object, name: str) -> Any:
        if name == "ticket":
            fuse.blow()
            return None
        return object.__getattribute__(self, name)

    return type(base)("Hostile", (base,), {"__getattribute__": get, "__module__": __name__})


HOSTILE = {
    "class": with_class,
    "metaclass-hash": with_metaclass_hash,
    "metaclass-name": with_metaclass_name,
    "getattribute": with_method("__getattribute__"),
    "eq": with_method("__eq__"),
    "hash": with_method("__hash__"),
    "bool": with_bool,
    "repr": with_method("__repr__"),
    "str": with_method("__str__"),
    "ticket": with_ticket,
}


class Own(Request[str]):
    """A request that no actor of ours knows."""


class Carrier(TicketCarrier):
    """Carries no ticket, and is no model."""

    ticket = None


BASES: dict[str, type] = {
    "object": object,
    "carrier": Carrier,
    "request": Own,
    "health": HealthCheckRequest,
    "exception": ValueError,
    "type": type,
}


def loop() -> tuple[ControlRef, Callable[[], object]]:
    ref = LoopActor.start(ProbeLoop(), name="resize")
    return ref, lambda: ref.send(HealthCheckRequest()).wait(PATIENCE).running


def supervisor() -> tuple[ControlRef, Callable[[], object]]:
    ref = Supervisor.start("media", children=[ChildSpec(id="resize", start=ProbeLoop)])
    return ref, lambda: ref.send(HealthCheckRequest()).wait(PATIENCE).running


def session() -> tuple[ControlRef, Callable[[], object]]:
    def count(counted: Count, _: Counted) -> Count:
        return Count(count=counted.count + 1)

    ref = Session.open("shop", [Slice(Count()).on(Counted, count)])
    return ref, lambda: ref.dispatch(Counted()).wait(PATIENCE)


def watchdog() -> tuple[ControlRef, Callable[[], object]]:
    return with_unsupported(WatchdogActor.start([]))


def reaper() -> tuple[ControlRef, Callable[[], object]]:
    return with_unsupported(ReaperActor.start([]))


def with_unsupported(ref: ControlRef) -> tuple[ControlRef, Callable[[], object]]:
    def is_there() -> bool:
        with pytest.raises(UnsupportedRequestError):
            ref.ask("anything", timeout=PATIENCE)
        return True

    return ref, is_there


ACTORS = {"loop": loop, "supervisor": supervisor, "session": session, "watchdog": watchdog, "reaper": reaper}


def make(hostile: type, base: str, fuse: Fuse) -> Any:
    del fuse
    return hostile("Sent", (), {}) if base == "type" else hostile()


@pytest.mark.parametrize("error", [ValueError, Worse, KeyboardInterrupt])
@pytest.mark.parametrize("actor", ACTORS)
def test_actor_is_ended_by_no_message_whose_own_code_raises_and_answers_the_asker(
    actor: str, error: type[BaseException]
) -> None:
    ref, is_there = ACTORS[actor]()
    fuse = Fuse(error)
    tickets: list[tuple[str, Ticket[Any]]] = []

    for how, hostile in HOSTILE.items():
        for base, kind in BASES.items():
            message = make(hostile(kind, fuse), base, fuse)
            ref.tell(message)
            tickets.append((f"{how}-{base}", ref.ask(message, block=False)))
            if issubclass(type(message), TicketCarrier):
                tickets.append((f"{how}-{base}", ref.send(message)))
            if base in {"request", "health"} and how not in {"ticket", "getattribute"}:
                carried: Ticket[Any] = Ticket()
                tickets.append((f"{how}-{base}", carried))
                ref.tell(type(message)(ticket=carried))

    assert is_there()
    assert [how for how, ticket in tickets if not ticket.is_ready()] == []
    ref.stop()
    assert ref.ended.wait(PATIENCE).cause is None


@pytest.mark.parametrize("error", [ValueError, Worse, KeyboardInterrupt])
@pytest.mark.parametrize("how", HOSTILE)
def test_control_actor_answers_an_ask_with_a_message_whose_own_code_raises(
    how: str, error: type[BaseException]
) -> None:
    class Echo(ControlActor):
        def on_receive(self, message: Any) -> Any:
            return message

    ref = Echo.start()
    fuse = Fuse(error)
    messages = [make(HOSTILE[how](kind, fuse), base, fuse) for base, kind in BASES.items()]

    tickets = [ref.ask(message, block=False) for message in messages]

    assert all(ticket.wait_ready(PATIENCE) for ticket in tickets)
    assert [ticket.wait(0) is message for ticket, message in zip(tickets, messages, strict=True)] == [True] * 6
    ref.stop()


@pytest.mark.parametrize("error", [ValueError, Worse, KeyboardInterrupt])
@pytest.mark.parametrize("how", HOSTILE)
def test_actor_that_has_ended_refuses_a_message_whose_own_code_raises(how: str, error: type[BaseException]) -> None:
    ref, _ = loop()
    ref.send(ShutdownRequest()).wait(PATIENCE)
    fuse = Fuse(error)

    tickets = [
        ref.ask(make(HOSTILE[how](kind, fuse), base, fuse), block=False)
        for base, kind in BASES.items()
        if base != "health"
    ]

    for ticket in tickets:
        with pytest.raises(ActorDeadError):
            ticket.wait(PATIENCE)
