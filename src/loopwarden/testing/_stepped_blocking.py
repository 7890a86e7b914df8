"""`SteppedBlocking`: the same threads, one at a time, in an order that a test chooses."""

from __future__ import annotations

import queue
import random
import threading
from collections import deque
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from loopwarden._blocking import SYSTEM, SystemThread
from loopwarden._log import mute
from loopwarden.testing._scheduler import AbandonedError, DeadlockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from loopwarden._blocking import Gate, Lock, Slot, ThreadHandle, WorkQueue

__all__ = ["SteppedBlocking"]

T = TypeVar("T")


@final
class _Step:
    """A managed thread: where it stands, and the gate that lets it go on to its next point."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.point = "start"
        self.can_go: Callable[[], bool] = lambda: True
        self.timed = False
        self.go = SYSTEM.gate()
        self.ended = False
        self.error: BaseException | None = None


@final
class SteppedBlocking:
    """A `Blocking` that runs its threads one at a time.

    Before each step that could race (taking a lock, opening or waiting at a gate, putting and getting, writing
    or reading a slot) a thread stops and `run` decides who goes on: first as the schedule names them, then in
    the order in which they were started, or at random. A timed wait runs out when no other can go on.
    Threads that it did not start, such as the test itself, pass without stopping.

    >>> steps = SteppedBlocking()
    >>> slot = steps.slot()
    >>> for name in ("first", "second"):
    ...     _ = steps.start_thread(lambda name=name: slot.setdefault(0, name) and None, name)
    >>> steps.run(["second", "second"])
    >>> slot.get(0)
    'second'
    """

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._here = threading.local()
        self._back = SYSTEM.gate()
        self._abandoned = False
        #: Every step taken, as (thread, point): what to print when a test fails.
        self.trace: list[tuple[str, str]] = []

    def lock(self) -> Lock:
        """Make a lock."""
        return _SteppedLock(self)

    def gate(self) -> Gate:
        """Make a gate."""
        return _SteppedGate(self)

    def queue(self) -> WorkQueue[Any]:
        """Make a queue."""
        return _SteppedQueue(self)

    def slot(self) -> Slot[Any]:
        """Make a slot."""
        return _SteppedSlot(self)

    def start_thread(self, target: Callable[[], object], name: str) -> ThreadHandle:
        """Start a thread that stops at once, until `run` lets it go on."""
        step = _Step(name)
        self._steps.append(step)

        def stepped() -> None:
            self._here.step = step
            step.go.wait()
            try:
                if not self._abandoned:
                    target()
            except AbandonedError:
                pass
            except BaseException as error:  # noqa: BLE001  raised again by `run`, in the test
                step.error = error
            finally:
                step.ended = True
                self._back.open()

        thread = SystemThread(target=stepped, name=name, daemon=True)
        thread.start()
        return thread

    is_virtual = True

    def outside(self) -> AbstractContextManager[object]:
        """Return a context that does nothing: a thread in there is waited for."""
        return nullcontext()

    def dice(self) -> random.Random:
        """Return the same numbers each time."""
        return random.Random(0)  # noqa: S311  as in `run`

    def run(self, schedule: Iterable[str] = (), *, seed: int | None = None) -> None:
        """Let the threads go on, one step at a time, until all have ended.

        Args:
            schedule: Names of threads, one for each of the first steps.
            seed: Whom to let go after that: at random, but the same for the same seed. Without it, the
                thread that was started first and can go.

        Raises:
            DeadlockError: if none of them can go on, or if the one that the schedule names cannot.
            BaseException: whatever one of the threads raised.
        """
        self._abandoned = False
        try:
            for name in schedule:
                self._go(self._named(name))
            dice = None if seed is None else random.Random(seed)  # noqa: S311  an order that can be repeated, no secret
            while step := self._next(dice):
                self._go(step)
            stuck = [f"{step.name} at {step.point}" for step in self._steps if not step.ended]
            if stuck:
                raise DeadlockError("no thread can go on: " + ", ".join(stuck))
        finally:
            self._abandon()

    def point(self, label: str, can_go: Callable[[], bool] = lambda: True, *, timed: bool = False) -> None:
        """Stop here until it is this thread's turn and ``can_go`` holds."""
        step: _Step | None = getattr(self._here, "step", None)
        if step is None:
            return
        step.point, step.can_go, step.timed = label, can_go, timed
        step.go = SYSTEM.gate()
        self._back.open()
        step.go.wait()
        if self._abandoned:
            mute()
            raise AbandonedError

    def _named(self, name: str) -> _Step:
        for step in self._steps:
            if step.name == name and not step.ended:
                if not step.can_go():
                    raise DeadlockError(f"the schedule names {name}, which cannot go on at {step.point}")
                return step
        raise DeadlockError(f"the schedule names {name}, which has ended or was never started")

    def _next(self, dice: random.Random | None) -> _Step | None:
        alive = [step for step in self._steps if not step.ended]
        # If no thread is left to open a gate, the first timed wait runs out.
        able = [step for step in alive if step.can_go()] or [step for step in alive if step.timed][:1]
        if not able:
            return None
        return dice.choice(able) if dice else able[0]

    def _abandon(self) -> None:
        """End the threads that are left, one after another; after a good run there are none."""
        self._abandoned = True
        for step in self._steps:
            while not step.ended:
                self._back = SYSTEM.gate()
                step.go.open()
                self._back.wait()

    def _go(self, step: _Step) -> None:
        self.trace.append((step.name, step.point))
        self._back = SYSTEM.gate()
        step.go.open()
        self._back.wait()
        if step.error is not None:
            raise step.error


@final
class _SteppedLock:
    def __init__(self, steps: SteppedBlocking) -> None:
        self._steps = steps
        self._held = False

    def __enter__(self) -> bool:
        self._steps.point("take lock", lambda: not self._held)
        self._held = True
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._held = False


@final
class _SteppedGate:
    def __init__(self, steps: SteppedBlocking) -> None:
        self._steps = steps
        self._opened = False

    def open(self, opener: object = None, /) -> None:  # noqa: ARG002  see Gate.open
        self._steps.point("open gate")
        self._opened = True

    def wait(self, timeout: float | None = None) -> bool:
        self._steps.point("wait at gate", lambda: self._opened, timed=timeout is not None)
        return self._opened


@final
class _SteppedQueue(Generic[T]):
    def __init__(self, steps: SteppedBlocking) -> None:
        self._steps = steps
        self._items: deque[T] = deque()

    def put(self, item: T, /) -> None:
        self._steps.point("put")
        self._items.append(item)

    def get(self) -> T:
        self._steps.point("get", lambda: bool(self._items))
        return self._items.popleft()

    def get_nowait(self) -> T:
        self._steps.point("get now")
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        self._steps.point("look")
        return not self._items


@final
class _SteppedSlot(Generic[T]):
    def __init__(self, steps: SteppedBlocking) -> None:
        self._steps = steps
        self._content: dict[int, T] = {}

    def setdefault(self, key: int, value: T, /) -> T:
        self._steps.point("write slot")
        return self._content.setdefault(key, value)

    def get(self, key: int, /) -> T | None:
        self._steps.point("read slot")
        return self._content.get(key)
