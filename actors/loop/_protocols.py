"""What a loop must offer to be supervised."""

from __future__ import annotations

import inspect
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, TypeGuard, cast, final, runtime_checkable

from loopwarden._heartbeat import Heartbeat
from loopwarden._log import describe

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from loopwarden._ticket import Ticket

# Classes that were found good, so that a thousand loops of one class are looked at once.
_checked: weakref.WeakSet[type] = weakref.WeakSet()
# Classes whose ``shutdown_nowait`` is as new as their ``shutdown``, or not.
_nowait: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()
_STOPS = {"shutdown", "shutdown_nowait"}

__all__ = [
    "LoopTimeouts",
    "ReadsMessages",
    "Runnable",
    "SupportsPause",
    "SupportsProcess",
    "SupportsRecovery",
    "SupportsRun",
    "SupportsTimeouts",
    "can_pause",
    "can_process",
    "can_recover",
    "check_loop",
    "shutdown_nowait_of",
    "takes_timeouts",
]


@runtime_checkable
class SupportsRun(Protocol):
    """The least that a loop must have; a ``heartbeat`` is read if there is one.

    `LoopActor` calls ``run`` on the worker's thread and ``shutdown`` on a helper's, so both may block.
    """

    def run(self) -> object:
        """Work until `shutdown`; what it raises fails the loop."""
        ...

    def shutdown(self, *, timeout: float) -> object:
        """Ask the loop to stop, and wait for that at most ``timeout`` seconds."""
        ...


class ReadsMessages:
    """A loop of ours that has ``on_dead_letter`` and ``max_deliveries``.

    A class to inherit: a supervisor asks for it without an import of each loop that may be meant, and a loop of other
    people's, which may have attributes with these names, is not taken for one.
    """

    __slots__ = ()


@runtime_checkable
class Runnable(Protocol):
    """A loop that runs standing alone, in a group, and as an actor."""

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: int = 300,
        wait_time_seconds: int = 20,
    ) -> None:
        """Work until ``max_iterations``, `shutdown` or a closed mailbox; what it raises fails the loop."""
        ...

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Ask the loop to stop; return whether it has, after at most ``timeout`` seconds."""
        ...

    @property
    def running(self) -> bool:
        """True while ``run`` is working."""
        ...

    @property
    def heartbeat(self) -> Heartbeat | None:
        """The worker's sign of life; None means that the loop is not watched."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


@runtime_checkable
class SupportsProcess(Protocol):
    """A loop that work can be handed to from outside, as `ProcessRequest` and ``LoopRef.post`` do.

    Such a loop also remembers a stop that comes before ``run``: ``run`` then does what was posted, and returns.
    """

    def post(self, work: Callable[[], object]) -> bool:
        """Accept work that ``run`` will call, waking its poll; false from the stop on.

        What it accepted runs, also when a stop follows at once, unless the loop itself fails. What it
        refused never runs. An `Inlet` does exactly this.
        """
        ...

    def process(self, body: object) -> object:
        """Handle one body as if it had been received, and return the handler's result."""
        ...


@runtime_checkable
class SupportsRecovery(Protocol):
    """A loop whose workers can be given up one by one; see `AbandonRequest`."""

    def recall(self, worker: int) -> bool:
        """Stop the token of one worker, which then goes on with a new one; must not block."""
        ...

    def replace(self, worker: int) -> Ticket[None] | None:
        """Put another worker in the place of one; must not block.

        Returns:
            The ticket of the old one's end; None if it cannot be replaced alone, and the loop must be.
        """
        ...

    def give_back(self, worker: int | None, error: str) -> None:
        """Give back what one worker, or all, have in hand, and fence them; may block."""
        ...


@runtime_checkable
class SupportsPause(Protocol):
    """A loop that can be told to take no more messages, without being stopped; see `DrainRequest`."""

    def pause(self, lease: float | None = None) -> Ticket[bool]:
        """Take no more; must not block.

        Args:
            lease: Seconds that the leases of what is in hand must last; None leaves them as they are.

        Returns:
            A ticket that is true once nothing is in hand, false if `resume` came first.
        """
        ...

    def resume(self) -> None:
        """Take messages again; must not block."""
        ...

    @property
    def needs_securing(self) -> bool:
        """True if there is something for `secure` to do."""
        ...

    def secure(self) -> None:
        """Give back what is not started, and extend the leases of what is in hand as `pause` said; may block."""
        ...


@final
@dataclass(frozen=True, slots=True)
class LoopTimeouts:
    """What a tree says of the time-outs of its loops, in seconds; None where it says nothing."""

    #: How long other processes wait for a message if this one vanishes.
    visibility_timeout: float | None = None
    #: How long a poll waits for a message.
    wait_time_seconds: float | None = None
    #: How long the slowest message takes.
    longest_handler: float | None = None
    #: After how long without a sign of life a worker counts as stalled; None means that there is no watchdog.
    stall_threshold: float | None = None


class SupportsTimeouts(Protocol):
    """What a loop needs to take its time-outs from its tree."""

    def use_timeouts(self, timeouts: LoopTimeouts) -> LoopTimeouts:
        """Take those that the loop was not given itself, before it is run; return all that it uses."""
        ...


def takes_timeouts(loop: object) -> TypeGuard[SupportsTimeouts]:
    """Say whether a loop is `SupportsTimeouts`."""
    return _has(loop, "use_timeouts")


def can_pause(loop: object) -> TypeGuard[SupportsPause]:
    """Say whether a loop is `SupportsPause`."""
    return _has(loop, "pause", "resume", "secure") and hasattr(loop, "needs_securing")


def can_process(loop: object) -> TypeGuard[SupportsProcess]:
    """Say whether a loop is `SupportsProcess`; a hundred times as fast as ``isinstance`` with a protocol."""
    return _has(loop, "post", "process")


def can_recover(loop: object) -> TypeGuard[SupportsRecovery]:
    """Say whether a loop is `SupportsRecovery`."""
    return _has(loop, "recall", "replace", "give_back")


def _has(loop: object, *methods: str) -> bool:
    return all(callable(getattr(loop, method, None)) for method in methods)


def shutdown_nowait_of(loop: object) -> Callable[[float], bool] | None:
    """Return the loop's ``shutdown_nowait``, unless it has a ``shutdown`` of its own that this would pass over.

    Such a method does what ``shutdown`` does, with the same time-out, but never blocks, and says whether that was all
    there is to do. With it a loop is stopped without a thread for the purpose.
    """
    kind = type(loop)
    if kind not in _nowait:
        # Of our own classes only: that of another class may block.
        first = next((each for each in kind.__mro__ if each.__dict__.keys() & _STOPS), object)
        _nowait[kind] = "shutdown_nowait" in first.__dict__ and first.__module__.startswith("loopwarden.")
    if not _nowait[kind] or "shutdown" in getattr(loop, "__dict__", {}):
        return None
    method = getattr(loop, "shutdown_nowait", None)
    return cast("Callable[[float], bool]", method) if callable(method) else None


def check_loop(loop: object) -> None:
    """Refuse, by name, what cannot be run as a loop.

    Raises:
        TypeError: if it is a class, lacks a method, or has one that cannot be called as `SupportsRun` says.
    """
    if isinstance(loop, type):
        raise TypeError(f"loop must be an instance, got the class: did you mean {loop.__name__}(...)?")
    _check_methods(type(loop))
    heartbeat = getattr(loop, "heartbeat", None)
    if heartbeat is not None and not isinstance(heartbeat, Heartbeat):
        raise TypeError(
            f"{type(loop).__name__}.heartbeat must be a loopwarden.Heartbeat or None, got {describe(heartbeat)}"
        )


def _check_methods(kind: type) -> None:
    if kind in _checked:
        return
    for name, keywords in (("run", {}), ("shutdown", {"timeout": 30.0})):
        method = getattr(kind, name, None)
        if not callable(method):
            raise TypeError(f"loop must have run() and shutdown(), but {kind.__name__} has no {name}()")
        if inspect.iscoroutinefunction(method):
            raise TypeError(f"{kind.__name__}.{name}() is a coroutine function, but is called on a thread")
        try:
            inspect.signature(method).bind(kind, **keywords)
        except TypeError as error:
            call = ", ".join(f"{key}={value}" for key, value in keywords.items())
            raise TypeError(f"{kind.__name__}.{name}() cannot be called as {name}({call}): {error}") from None
        except ValueError:
            pass  # a method without a signature, as C code may have, is tried when it is needed
    _checked.add(kind)
