"""The blocking seam: the only place where a thread of ours blocks, or starts.

Whatever blocks is made by a `Blocking`, chosen when an object is constructed: the one that its clock has, or the
current one. `SYSTEM` is the real one. `loopwarden.testing.Simulation` runs the same threads one at a time, in an order
that a test can repeat.
"""

from __future__ import annotations

import queue
import random
import threading
from contextlib import nullcontext
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, final

from loopwarden._lock_order import checked, is_checked

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

__all__ = [
    "CURRENT",
    "SYSTEM",
    "Blocking",
    "Gate",
    "Lock",
    "Slot",
    "SystemThread",
    "ThreadHandle",
    "WorkQueue",
]

T = TypeVar("T")


class Lock(Protocol):
    """Mutual exclusion for a few lines that call no user code."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Gate(Protocol):
    """One wake-up for one waiting thread; a thread that is to be woken twice makes two."""

    def open(self, opener: object = None, /) -> None:
        """Let the waiter through, now or when it comes; opening again changes nothing.

        The argument is ignored; it lets ``gate.open`` be a ticket's callback as it is.
        """
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the gate is open or ``timeout`` seconds have passed, real or simulated ones; say which."""
        ...


class WorkQueue(Protocol[T]):
    """An unbounded first-in-first-out queue; ``put`` never blocks and is safe in a signal handler."""

    def put(self, item: T, /) -> None: ...

    def get(self) -> T: ...

    def get_nowait(self) -> T:
        """Take the next item, or raise ``queue.Empty``."""
        ...

    def empty(self) -> bool: ...


class Slot(Protocol[T]):
    """A cell that is written once; the first of racing writers wins, atomically."""

    def setdefault(self, key: int, value: T, /) -> T:
        """Write ``value`` unless something stands there; return what stands there now."""
        ...

    def get(self, key: int, /) -> T | None: ...


class ThreadHandle(Protocol):
    """A thread that was started."""

    @property
    def name(self) -> str: ...

    @property
    def ident(self) -> int | None: ...

    def is_alive(self) -> bool: ...

    def join(self, timeout: float | None = None) -> None: ...


class Blocking(Protocol):
    """Makes everything that can block a thread, and starts threads."""

    @property
    def is_virtual(self) -> bool:
        """Whether the time-outs of its gates are simulated seconds, and nothing outside takes part."""
        ...

    def lock(self) -> Lock: ...

    def gate(self) -> Gate: ...

    def queue(self) -> WorkQueue[Any]: ...

    def slot(self) -> Slot[Any]: ...

    def start_thread(self, target: Callable[[], object], name: str) -> ThreadHandle:
        """Start a daemon thread.

        Raises:
            RuntimeError: if the system, or an interpreter that is ending, allows no more threads.
        """
        ...

    def outside(self) -> AbstractContextManager[object]:
        """Return a context in which a thread waits for what no thread of ours does: a client, a signal.

        Tests that wait until all threads are at rest take one that is in there for resting.
        """
        ...

    def dice(self) -> random.Random:
        """Return what draws numbers to spread retries with: the same ones in a simulation that is repeated."""
        ...


@final
class SystemThread(threading.Thread):  # noqa: TID251  this is the seam
    """A thread of ours; its class is how a leak check tells it from other people's."""


@final
class _LockGate:
    """A gate made of one bare lock, which is locked while the gate is shut."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self, opener: object = None, /) -> None:  # noqa: ARG002  see Gate.open
        try:  # noqa: SIM105  suppress() costs more than the whole gate
            self._lock.release()
        except RuntimeError:
            pass  # it was open already

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX))


@final
class _SystemBlocking:
    """Real locks, queues and threads."""

    # The standard library's own types, without a call of ours in between: they are on the path of every message.
    lock = staticmethod(checked(threading.Lock) if is_checked() else threading.Lock)
    gate = staticmethod(_LockGate)
    queue = staticmethod(cast("Callable[[], WorkQueue[Any]]", queue.SimpleQueue))
    # `dict.setdefault` is one atomic step for an int key, so it decides a race without a lock: a lock could
    # deadlock in a signal handler that completes the very ticket which the interrupted thread is completing.
    slot = staticmethod(cast("Callable[[], Slot[Any]]", dict))

    is_virtual = False
    outside = staticmethod(nullcontext)
    dice = staticmethod(random.Random)

    def start_thread(self, target: Callable[[], object], name: str) -> ThreadHandle:
        # In a context of its own, as most Pythons have it: what is current for the starter is not for the thread.
        thread = SystemThread(target=Context().run, args=(target,), name=name, daemon=True)
        thread.start()
        return thread

    def __repr__(self) -> str:
        return "SYSTEM"


SYSTEM: Blocking = _SystemBlocking()
#: The seam of whatever is made here without a clock of its own; a seam for tests hands itself on to its threads.
CURRENT: ContextVar[Blocking] = ContextVar("loopwarden_blocking", default=SYSTEM)
