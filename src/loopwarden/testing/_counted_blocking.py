"""`CountedBlocking`: real threads, of which it is known how many are at work."""

from __future__ import annotations

import queue
import threading
import traceback
from collections import deque
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from loopwarden._blocking import SYSTEM, SystemThread
from loopwarden._frames import current_frames
from loopwarden.clock import use_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from loopwarden._blocking import Gate, ThreadHandle, WorkQueue
    from loopwarden.clock import Clock

__all__ = ["CountedBlocking", "RestlessError"]

T = TypeVar("T")


#: Guards which threads are at work, and the state of all gates and queues. It is reentrant for the sake of signal
#: handlers; nothing is called while it is held.
_mutex = threading.RLock()
_here = threading.local()  # .counted: the seam that has started this thread, and its number there


class RestlessError(AssertionError):
    """Threads did not come to rest; the text says which, and what they are doing."""

    __module__ = "loopwarden.testing"


@final
class CountedBlocking:
    """A `Blocking` of real locks, queues and threads that knows when all of its threads are at rest.

    A thread is at rest while it waits at a gate that is not opened, at a queue with nothing in it, or outside.
    Opening the gate, or putting something, counts the waiting thread as at work in the same instant: so there is no
    moment in which what was set off is on its way and no thread is at work.

    Threads that it did not start, such as the test itself, are not counted. One that waits at the gate of another
    seam of this kind is at rest in its own.
    """

    is_virtual = False
    slot = staticmethod(SYSTEM.slot)
    lock = staticmethod(SYSTEM.lock)  # a thread that waits for a lock is at work: its holder is
    dice = staticmethod(SYSTEM.dice)

    def __init__(self) -> None:
        self._at_work: set[int] = set()  # threads by their number in _threads
        self._threads: dict[int, tuple[str, int | None]] = {}
        self._settlers: list[tuple[frozenset[int], threading.Lock]] = []
        self._last_number = 0
        self._clock: Clock | None = None

    def belong_to(self, clock: Clock) -> None:
        """Hand that clock on to the threads that are started, for whatever is made there without one."""
        self._clock = clock

    def gate(self) -> Gate:
        """Make a gate."""
        return CountedGate()

    def queue(self) -> WorkQueue[Any]:
        """Make a queue."""
        return _CountedQueue()

    def start_thread(self, target: Callable[[], object], name: str) -> ThreadHandle:
        """Start a real thread, which is at work from this moment on."""
        with _mutex:
            self._last_number += 1
            number = self._last_number
            self._threads[number] = (name, None)
            self._at_work.add(number)

        def counted() -> None:
            _here.counted = (self, number)
            self._threads[number] = (name, threading.get_ident())
            try:
                with nullcontext() if self._clock is None else use_clock(self._clock):
                    target()
            finally:
                self._end(number)

        thread = SystemThread(target=counted, name=name, daemon=True)
        try:
            thread.start()
        except BaseException:
            self._end(number)
            raise
        return thread

    @contextmanager
    def outside(self) -> Generator[None, None, None]:
        """Count this thread as at rest for a ``with`` block, whatever it waits for in there."""
        counted = _counted_here()
        if counted is None:
            yield
            return
        seam, number = counted
        _here.counted = None
        seam.rest(number)
        try:
            yield
        finally:
            seam.resume(number)
            _here.counted = counted

    def wait_rest(self, patience: float) -> None:
        """Block until all threads but this one are at rest.

        Raises:
            RestlessError: if they are not after ``patience`` real seconds; it says what each of them is doing.
        """
        own = _counted_here()
        excepted = frozenset((own[1],) if own is not None and own[0] is self else ())
        gate = threading.Lock()
        gate.acquire()
        with _mutex:
            if self._at_work <= excepted:
                return
            entry = (excepted, gate)
            self._settlers.append(entry)
        try:
            if gate.acquire(timeout=patience):
                return
        finally:
            with _mutex:
                if entry in self._settlers:
                    self._settlers.remove(entry)
        raise RestlessError(f"not at rest after {patience:g} real seconds:\n{self._describe(excepted)}")

    # For gates and queues.

    def rest(self, number: int) -> None:
        """Count a thread as at rest."""
        with _mutex:
            self._at_work.discard(number)
            for entry in [each for each in self._settlers if self._at_work <= each[0]]:
                self._settlers.remove(entry)
                entry[1].release()

    def resume(self, number: int) -> None:
        """Count a thread as at work again."""
        with _mutex:
            self._at_work.add(number)

    def _end(self, number: int) -> None:
        with _mutex:
            self._threads.pop(number, None)
            self.rest(number)

    def _describe(self, excepted: frozenset[int]) -> str:
        with _mutex:
            busy = [self._threads[number] for number in sorted(self._at_work - excepted) if number in self._threads]
        frames = current_frames()
        texts: list[str] = []
        for name, ident in busy:
            frame = None if ident is None else frames.get(ident)
            stack = "  it has not begun\n" if frame is None else "".join(traceback.format_stack(frame))
            texts.append(f"{name} is at\n{stack}")
        return "\n".join(texts)

    def __repr__(self) -> str:
        return f"<CountedBlocking, {len(self._at_work)} of {len(self._threads)} threads at work>"


@final
class CountedGate:
    """A gate that counts its waiter as at work from the moment in which it is opened."""

    __slots__ = ("_lock", "_waiter")

    def __init__(self) -> None:
        self._waiter: tuple[CountedBlocking, int] | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self, opener: object = None, /) -> None:  # noqa: ARG002  see Gate.open
        with _mutex:
            self._resume_waiter()
            if self._lock.locked():
                self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None and timeout <= 0:
            return self._lock.acquire(blocking=False)
        counted = _counted_here()
        if counted is None:
            return self._acquire(timeout)
        with _mutex:
            if self._lock.acquire(blocking=False):
                return True
            self._waiter = counted
            counted[0].rest(counted[1])
        try:
            return self._acquire(timeout)
        finally:
            with _mutex:
                self._resume_waiter()  # unless the one that opened it did: the time is over

    def _resume_waiter(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter[0].resume(waiter[1])

    def _acquire(self, timeout: float | None) -> bool:
        return self._lock.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))


@final
class _CountedQueue(Generic[T]):
    """A queue that hands each item to the reader who has waited longest, and counts that one as at work."""

    __slots__ = ("_items", "_readers")

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._readers: deque[tuple[CountedGate, list[T]]] = deque()

    def put(self, item: T, /) -> None:
        with _mutex:
            if not self._readers:
                self._items.append(item)
                return
            gate, hand = self._readers.popleft()
            hand.append(item)
            gate.open()

    def get(self) -> T:
        with _mutex:
            if self._items:
                return self._items.popleft()
            reader: tuple[CountedGate, list[T]] = (CountedGate(), [])
            self._readers.append(reader)
        gate, hand = reader
        try:
            gate.wait()
        except BaseException:  # a Ctrl-C: what was handed over is for the next one
            with _mutex:
                if hand:
                    self._items.appendleft(hand.pop())
                else:
                    self._readers.remove(reader)
            raise
        return hand.pop()

    def get_nowait(self) -> T:
        with _mutex:
            if not self._items:
                raise queue.Empty
            return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


def _counted_here() -> tuple[CountedBlocking, int] | None:
    """Return the seam that has started this thread, and its number there; None if none of these has."""
    counted: tuple[CountedBlocking, int] | None = getattr(_here, "counted", None)
    return counted
