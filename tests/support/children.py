"""What the tests of supervisors share: loops that write down what they are told, and ends for them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, final

from pykka._envelope import Envelope

from loopwarden.supervision import ChildSpec, EventKind, Supervisor
from loopwarden.testing import Hold, ProbeLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import pykka
    from typing_extensions import Unpack

    from loopwarden._ticket import Ticket
    from loopwarden.clock import Clock
    from loopwarden.supervision import ChildRef, EventStream, SupervisorOptions, SupervisorRef

__all__ = [
    "Boom",
    "ChildFactory",
    "crash",
    "crash_and_wait",
    "finish",
    "outcome",
    "supervising",
    "wake",
]

T = TypeVar("T")


class Boom(Exception):  # noqa: N818  it is what happened
    """What children die of."""


@contextmanager
def supervising(
    name: str = "root", *, clock: Clock | None = None, **options: Unpack[SupervisorOptions]
) -> Generator[SupervisorRef, None, None]:
    """Open a supervisor without back-off, whose end a failing test does not wait for without limit."""
    options.setdefault("backoff", None)
    ref = Supervisor.start(name, clock=clock, **options)
    try:
        yield ref
    finally:
        ref.stop(timeout=60)


def crash(ref: ChildRef, error: BaseException | None = None) -> None:
    """Let the loop behind a ref raise."""

    def raise_error() -> None:
        raise Boom("crashed") if error is None else error

    assert ref.post(raise_error)


def crash_and_wait(ref: ChildRef, events: EventStream, error: BaseException | None = None) -> None:
    """Let the loop behind a ref raise, and wait until it runs again."""
    crash(ref, error)
    events.wait_for(EventKind.EXITED, ref.name)
    events.wait_for(EventKind.STARTED, ref.name)


def outcome(ticket: Ticket[Any]) -> object:
    """Return what a ticket resolves to, the error if it is one."""
    try:
        return ticket.wait(timeout=60)
    except BaseException as error:  # noqa: BLE001  it is data here
        return error


@final
class ChildFactory:
    """Makes loops, and keeps a log: ``+a`` is the call of a factory, ``-a`` is the order to stop."""

    def __init__(self) -> None:
        self.log: list[str] = []
        #: All loops of a child, oldest first.
        self.loops: dict[str, list[ProbeLoop]] = {}
        #: How many of the next starts of a child fail.
        self.failures: dict[str, int] = {}
        #: Where the factory of a child stops.
        self.holds: dict[str, Hold] = {}

    def spec(self, name: str, handler: Callable[[object], object] = lambda body: body, **fields: Any) -> ChildSpec:
        """Return the spec of a child that is a loop."""

        def make() -> ProbeLoop:
            self.log.append(f"+{name}")
            if name in self.holds:
                self.holds[name]()
            if self.failures.get(name):
                self.failures[name] -= 1
                raise Boom(f"{name} cannot be made")
            loop = ProbeLoop(handler)
            loop.stop_asked.on_ready(lambda _: self.log.append(f"-{name}"))
            self.loops.setdefault(name, []).append(loop)
            return loop

        return ChildSpec(id=name, start=make, **fields)

    def specs(self, *names: str, **fields: Any) -> tuple[ChildSpec, ...]:
        """Return several alike."""
        return tuple(self.spec(name, **fields) for name in names)

    def told(self) -> list[str]:
        """Return what was done since the last look."""
        log, self.log[:] = list(self.log), []
        return log


def finish(loop: ProbeLoop) -> None:
    """Let a loop return by itself."""
    loop.shutdown_nowait()


def wake(actor: pykka.ThreadingActor) -> None:
    """Let a plain actor that was told to stop see it, so that a failing test leaves no thread behind."""
    inbox: Any = actor.actor_inbox
    put: Any = inbox.__class__.put  # without what a supervisor has put around it
    put(inbox, Envelope(None))
