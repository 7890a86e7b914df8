"""`Simulation`: a whole system of real threads in simulated time, in an order that can be repeated."""

from __future__ import annotations

import itertools
import queue
import random
import sys
from collections import deque
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, final

import pykka

from loopwarden._frames import current_frames
from loopwarden._log import describe
from loopwarden.actors.runtime._exit_hook import forget_all
from loopwarden.clock import Timer, TimerThread, current_clock, use_clock
from loopwarden.testing._place import OURS, place_of
from loopwarden.testing._scheduler import Scheduler, Task, Thing
from loopwarden.testing._tape import Pct, RandomWalk, Tape

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from types import TracebackType

    from loopwarden._blocking import Gate, Lock, Slot, ThreadHandle, WorkQueue
    from loopwarden.testing._tape import Strategy

__all__ = ["Simulation"]

T = TypeVar("T")

#: Steps after which a run that does not end is given up: minutes of real time, and weeks of simulated.
MAX_STEPS = 2_000_000
#: Interruptions that a story tells; one that was shrunk has a few.
_MOST_LINES = 40


@final
class Simulation:
    """Clock and seam in one: everything made in its block runs one thread at a time, in simulated time.

    The threads are real, and so is all that they do; only whose turn it is, and what time it is, are decided here. The
    thread that enters the block takes part as the test: when it waits for an answer, an event or a message, the others
    go on until that is there. When all are at rest and a thread waits for time, time jumps to the next moment for which
    one does. So nothing has to be advanced, and hours pass in a second.

    What a thread raises and does not catch is raised at the end of the block. Threads and actors that are alive then
    are ended and forgotten; only the fixtures of the pytest plugin take them for leaks.

    The same seed gives the same run, choice by choice. A run that fails is told by its seed, or by its `tape`.

    >>> from loopwarden import LoopActor, MailboxLoop, Ticket, open_mailbox
    >>> with Simulation(seed=7) as sim:
    ...     jobs, done = open_mailbox("memory://jobs", body=str), Ticket()
    ...     loop = LoopActor.start(MailboxLoop(jobs, lambda message: done.complete(message.body)))
    ...     message_id = jobs.send("later", delay=3600)
    ...     began = sim.now
    ...     print(done.wait(), sim.now - began)
    ...     loop.stop()
    later 3600.0
    True

    Args:
        seed: What the choices are drawn from.
        tape: Choices of an earlier run, to repeat it with the same seed, from which back-offs are spread; what comes
            after its end is not drawn, but always the first.
        strategy: How to draw: ``"random"`` lets any thread go on with the same odds, ``"pct"`` prefers long stretches
            of one thread (see `Pct`), ``"first"`` never interrupts a thread that can go on.
        start: The monotonic time at first.
        max_steps: After how many steps a run that does not end is given up.
    """

    is_virtual = True

    def __init__(
        self,
        seed: int | str = 0,
        *,
        tape: Sequence[int] | None = None,
        strategy: Literal["random", "pct", "first"] = "random",
        start: float = 1_000.0,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self.seed = seed
        self.scheduler = Scheduler(Tape(tape or (), _strategy_of(seed, strategy, tape)), start, max_steps)
        self._start = start
        self._numbers: dict[str, itertools.count[int]] = {}
        self._dice = itertools.count()
        #: Whether something was drawn that is not on the tape, but follows from the seed.
        self.has_rolled_dice = False
        self._timers = TimerThread(self, self.monotonic)
        self._entered = ExitStack()
        self._is_used = False

    # As a context.

    def __enter__(self) -> Self:
        if self._is_used:
            raise RuntimeError("a simulation can be entered once; make a new one, with the same seed")
        other = current_clock()
        if other.blocking.is_virtual:
            raise RuntimeError(f"there is a simulation around this one already, and one alone can be: {other!r}")
        self._is_used = True
        self.scheduler.adopt_test()
        self._entered.enter_context(use_clock(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._entered.close()
        try:
            self.scheduler.end()
        finally:
            for ref in forget_all(self):  # their threads are gone: they can no longer be stopped, and need not be
                pykka.ActorRegistry.unregister(ref)
        if self.scheduler.errors and error is None:
            raise self.scheduler.errors[0]

    # For tests.

    @property
    def now(self) -> float:
        """The simulated time, in monotonic seconds."""
        return self.scheduler.now

    @property
    def is_over(self) -> bool:
        """True from the end of its block on, or from a hang that ended the test: no thread waits for another then."""
        return self.scheduler.over

    @property
    def tape(self) -> list[int]:
        """All choices up to now: give them to another simulation to repeat this one."""
        return self.scheduler.tape.choices

    @property
    def steps(self) -> int:
        """How many steps there were."""
        return self.scheduler.steps

    def settle(self) -> None:
        """Let the others run until all are at rest; time stands still meanwhile."""
        task = self._task()
        self.scheduler.settle(task)

    def advance(self, seconds: float) -> None:
        """Let time pass; when this returns, everything that fell due on the way is done, and all are at rest.

        Raises:
            ValueError: if ``seconds`` is negative.
        """
        if seconds < 0:
            raise ValueError(f"time does not run backwards: advance({seconds!r})")
        task = self._task()
        self.scheduler.settle(task)
        task.verb, task.thing = "lets time pass", ""
        self.scheduler.block(task, self.now + seconds)
        self.scheduler.settle(task)

    def choose(self, options: int) -> int:
        """Return a number below ``options`` from the tape: for faults. 0 means that nothing happens."""
        return self.scheduler.tape.chance(options)

    def threads(self) -> list[str]:
        """Return the names of the threads that have not ended, without the test's own.

        Each has where it was made and, if that was by a thread of ours, where in the code of others it is.
        """
        tasks = [task for task in list(self.scheduler.tasks.values()) if task is not self.scheduler.main]
        return [f"{task.name}{_origin(task)}" for task in tasks]

    def story(self, last: int = 12) -> str:
        """Return what happened, in words: who was interrupted where, and the last steps."""
        scheduler = self.scheduler
        lines = [
            f"at {now - self._start:9.3f} s  {task.name} was interrupted before it {_said(verb, thing)}; "
            f"{chosen.name} went on"
            for task, verb, thing, now, chosen in scheduler.preemptions
        ]
        if len(lines) > _MOST_LINES:
            lines = [f"({len(lines) - _MOST_LINES} interruptions before)", *lines[-_MOST_LINES:]]
        steps = list(scheduler.trace)[-last:]
        ends = [f"at {now - self._start:9.3f} s  {task.name} {_said(verb, thing)}" for task, verb, thing, now in steps]
        total = max(self.steps, len(scheduler.trace))  # that a thread begins, or ends, is no step of its own
        return "\n".join([*lines, *([f"the last {len(ends)} of {total} steps:"] if ends else []), *ends])

    def _task(self) -> Task:
        task = self.scheduler.current
        if task is None:
            raise RuntimeError("only a thread of the simulation can let it go on: call this in its `with` block")
        return task

    # As a clock.

    @property
    def blocking(self) -> Simulation:
        """Itself."""
        return self

    def monotonic(self) -> float:
        """Return the simulated time."""
        return self.scheduler.now

    def wall(self) -> float:
        """Return the same time as seconds since the epoch."""
        return 1_700_000_000.0 + self.scheduler.now - self._start

    def wait(self, gate: Gate, timeout: float | None) -> bool:
        """Wait at the gate itself: its time is this one."""
        return gate.wait(timeout)

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call back on the simulation's timer thread, which races with the others as the real one does."""
        return self._timers.call_later(delay, callback)

    # As a seam.

    def lock(self) -> Lock:
        """Make a lock."""
        return _Lock(self.scheduler, *self._name("lock"))

    def gate(self) -> Gate:
        """Make a gate."""
        return _Gate(self.scheduler, *self._name("gate"))

    def queue(self) -> WorkQueue[Any]:
        """Make a queue."""
        return _Queue(self.scheduler, *self._name("queue"))

    def slot(self) -> Slot[Any]:
        """Make a slot."""
        return _Slot(self.scheduler, *self._name("slot"))

    def start_thread(self, target: Callable[[], object], name: str) -> ThreadHandle:
        """Start a thread that begins when its turn comes."""

        def run() -> None:
            with use_clock(self):
                target()

        return _Thread(self.scheduler, self.scheduler.begin(run, name, place_of(sys._getframe(1))))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the only way to the starter

    @contextmanager
    def outside(self) -> Generator[None, None, None]:
        """Let the others go on while this thread waits for something that is not simulated."""
        task = self.scheduler.go_out()
        try:
            yield
        except BaseException as error:
            # A Ctrl-C, or the end of the test's time: the thread that has the baton may never give it up.
            if task is self.scheduler.main and (not isinstance(error, Exception) or hasattr(error, "is_hang")):
                self.scheduler.interrupt(error)
            raise
        finally:
            if task is not None:
                self.scheduler.come_back(task)

    def dice(self) -> random.Random:
        """Return a source of numbers of its own for each who asks, the same in each run."""
        self.has_rolled_dice = True
        return random.Random(f"{self.seed}-{next(self._dice)}")  # noqa: S311  chance that can be repeated, no secret

    def _name(self, kind: str) -> tuple[int, str]:
        maker = sys._getframe(2).f_code.co_qualname.partition(".")[0]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the only way to its maker
        numbers = self._numbers.get(f"{kind} {maker}")
        if numbers is None:
            numbers = self._numbers[f"{kind} {maker}"] = itertools.count(1)
        return next(numbers), maker

    def __repr__(self) -> str:
        return f"<Simulation of seed {self.seed!r} at {self.now:.3f} s, {self.steps} steps>"


def _origin(task: Task) -> str:
    if task.is_foreign:
        return f" {_said(task.verb, task.thing)}"
    frame = None if task.place != OURS or task.ident is None else current_frames().get(task.ident)
    now = OURS if frame is None else place_of(frame)
    return f", started {task.place}" + ("" if now == OURS else f", now {now}")


def _said(verb: str, thing: Thing | str) -> str:
    return f"{verb} {thing if isinstance(thing, str) else thing.name}".rstrip()


def _strategy_of(seed: int | str, strategy: str, tape: Sequence[int] | None) -> Strategy | None:
    if tape is not None or strategy == "first":
        return None
    if strategy == "pct":
        return Pct(seed)
    if strategy == "random":
        return RandomWalk(seed)
    raise ValueError(f"strategy must be 'random', 'pct' or 'first', got {describe(strategy)}")


@final
class _Thread:
    """A thread that was started."""

    def __init__(self, scheduler: Scheduler, task: Task) -> None:
        self._scheduler = scheduler
        self._task = task
        self.name = task.name

    @property
    def ident(self) -> int | None:
        return None if self._task.thread is None else self._task.thread.ident

    def is_alive(self) -> bool:
        return not self._task.ended

    def join(self, timeout: float | None = None) -> None:
        scheduler = self._scheduler
        me = scheduler.point("waits for the end of", self.name)
        if not self._task.ended:
            me.verb, me.thing = "waits for the end of", self.name
            self._task.joiners.append(me)
            try:
                scheduler.block(me, None if timeout is None else scheduler.now + timeout)
            finally:
                self._task.joiners.remove(me)
        scheduler.leave(me)


@final
class _Lock(Thing):
    __slots__ = ("_owner", "_scheduler", "_waiting")
    kind = "lock"

    def __init__(self, scheduler: Scheduler, number: int, maker: str) -> None:
        super().__init__(number, maker)
        self._scheduler = scheduler
        self._owner: Task | None = None
        self._waiting: list[Task] = []

    def __enter__(self) -> bool:
        task = self._scheduler.point("takes", self, is_lock=True)
        while self._owner is not None:
            task.verb, task.thing = "waits for", self
            self._waiting.append(task)
            try:
                self._scheduler.block(task)
            except BaseException:
                if task in self._waiting:
                    self._waiting.remove(task)
                raise
        self._owner = task
        task.holds += 1
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        task, self._owner = self._owner, None
        if task is None:
            return  # its holder was left behind
        task.holds -= 1
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._scheduler.wake(each)
        if task.is_foreign:
            self._scheduler.leave(task)


@final
class _Gate(Thing):
    __slots__ = ("_is_open", "_scheduler", "_waiting")
    kind = "gate"

    def __init__(self, scheduler: Scheduler, number: int, maker: str) -> None:
        super().__init__(number, maker)
        self._scheduler = scheduler
        self._is_open = False
        self._waiting: list[Task] = []

    def open(self, opener: object = None, /) -> None:  # noqa: ARG002  see Gate.open
        task = self._scheduler.point("opens", self)
        # One whose time is over has been woken already, and will not take it.
        self._is_open = not any(map(self._scheduler.wake, self._waiting))
        if task.is_foreign:
            self._scheduler.leave(task)

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = self._scheduler
        task = scheduler.point("waits at", self)
        try:
            if self._is_open:
                self._is_open = False
                return True
            if timeout is not None and timeout <= 0:
                return False
            task.verb, task.thing = "waits at", self
            self._waiting.append(task)
            try:
                return scheduler.block(task, None if timeout is None else scheduler.now + timeout)
            finally:
                if task in self._waiting:
                    self._waiting.remove(task)
        finally:
            if task.is_foreign:
                scheduler.leave(task)


@final
class _Queue(Thing, Generic[T]):
    __slots__ = ("_items", "_scheduler", "_waiting")
    kind = "queue"

    def __init__(self, scheduler: Scheduler, number: int, maker: str) -> None:
        super().__init__(number, maker)
        self._scheduler = scheduler
        self._items: deque[T] = deque()
        self._waiting: list[Task] = []

    def put(self, item: T, /) -> None:
        task = self._scheduler.point("puts into", self)
        self._items.append(item)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self._scheduler.wake(each)
        if task.is_foreign:
            self._scheduler.leave(task)

    def get(self) -> T:
        scheduler = self._scheduler
        task = scheduler.point("gets from", self)
        try:
            while not self._items:
                task.verb, task.thing = "waits for something in", self
                self._waiting.append(task)
                try:
                    scheduler.block(task)
                except BaseException:
                    if task in self._waiting:
                        self._waiting.remove(task)
                    raise
            return self._items.popleft()
        finally:
            if task.is_foreign:
                scheduler.leave(task)

    def get_nowait(self) -> T:
        task = self._scheduler.point("looks into", self)
        try:
            if not self._items:
                raise queue.Empty
            return self._items.popleft()
        finally:
            if task.is_foreign:
                self._scheduler.leave(task)

    def empty(self) -> bool:
        task = self._scheduler.point("looks into", self)
        if task.is_foreign:
            self._scheduler.leave(task)
        return not self._items


@final
class _Slot(Thing, Generic[T]):
    __slots__ = ("_content", "_scheduler")
    kind = "slot"

    def __init__(self, scheduler: Scheduler, number: int, maker: str) -> None:
        super().__init__(number, maker)
        self._scheduler = scheduler
        self._content: dict[int, T] = {}

    def setdefault(self, key: int, value: T, /) -> T:
        task = self._scheduler.point("writes", self)
        stands = self._content.setdefault(key, value)
        if task.is_foreign:
            self._scheduler.leave(task)
        return stands

    def get(self, key: int, /) -> T | None:
        task = self._scheduler.point("reads", self)
        stands = self._content.get(key)
        if task.is_foreign:
            self._scheduler.leave(task)
        return stands
