"""`Scheduler`: real threads, one at a time, in the order that a tape gives, through time that jumps.

The thread that runs holds the baton. At each point where something could race it draws who goes on, and hands the
baton over itself; if nobody can go on, time jumps to the next moment for which somebody waits. Only the thread with the
baton touches what is here, so nothing is guarded by a lock.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import sys
import threading
import traceback
from collections import deque
from typing import TYPE_CHECKING, final

from loopwarden._blocking import SystemThread
from loopwarden._log import mute, report

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from loopwarden.testing._tape import Tape

__all__ = ["AbandonedError", "DeadlockError", "Scheduler", "Task", "Thing"]

#: Real seconds after which a thread that blocks outside of the simulation is named.
STUCK = 1.0
#: Real seconds that threads which the test has left behind have to end.
LAST_GRACE = 5.0
#: How many of the last steps are kept for the story of a run.
KEPT_STEPS = 20_000
#: Simulated seconds after which a test that waits without a time-out is told that nothing comes: a week.
LONGEST_WAIT = 604_800.0
#: A thread that goes on after it was told this often to end is left behind for good.
_DEAF = 200
#: Files that say nothing about where a thread is.
_UNINTERESTING = (
    "testing/_scheduler.py",
    "testing/_simulation.py",
    "testing/_hang_guard.py",
    "/threading.py",
    "/pluggy/",
    "/_pytest/",
)


class DeadlockError(AssertionError):
    """No thread can go on; the text says what each of them waits for."""


class AbandonedError(BaseException):
    """Raised in a thread that the end of the simulation has left behind, so that it ends too."""


class Thing:
    """Something that threads meet at; its name is the same in each run with the same tape."""

    __slots__ = ("_maker", "number")
    kind = "thing"

    def __init__(self, number: int, maker: str) -> None:
        self.number = number
        self._maker = maker

    @property
    def name(self) -> str:
        """What it is called in a story."""
        if self.kind in {"slot", "queue"}:  # a ticket is its slot, an inbox is its queue
            return f"{self._maker} #{self.number}"
        return f"{self.kind} {self.number} of {self._maker}"

    def __repr__(self) -> str:
        return f"<{self.name}>"


@final
class Task:
    """A thread that takes part."""

    __slots__ = (
        "_ears",
        "baton",
        "ended",
        "error",
        "holds",
        "is_foreign",
        "is_outside",
        "is_switching",
        "joiners",
        "name",
        "number",
        "place",
        "thing",
        "thread",
        "timed_out",
        "verb",
        "wait",
    )

    def __init__(self, number: int, name: str, *, is_foreign: bool = False, place: str = "") -> None:
        self.number = number
        self.name = name
        self.is_foreign = is_foreign
        #: Where it was started.
        self.place = place
        #: Locked; whoever hands the baton to this thread releases it.
        self.baton = threading.Lock()
        self.baton.acquire()
        #: What it does, or is about to do, and with what.
        self.verb = "begins"
        self.thing: Thing | str = ""
        #: Which of its waits this is; what was meant for an earlier one is void.
        self.wait = 0
        self.timed_out = False
        self.ended = False
        self.is_outside = False
        self.is_switching = False
        #: How many locks it holds.
        self.holds = 0
        #: Raised in it when it goes on.
        self.error: BaseException | None = None
        self.joiners: list[Task] = []
        self.thread: SystemThread | None = None
        self._ears = 0

    def refuse_to_hear(self) -> bool:
        """Count how often it was told to end; true if that was often enough."""
        self._ears += 1
        return self._ears > _DEAF


@final
class Scheduler:
    """Decides who runs, and what time it is.

    Args:
        tape: The choices.
        start: The time at first.
        max_steps: After how many steps a run that does not end is given up.
    """

    def __init__(self, tape: Tape, start: float, max_steps: int) -> None:
        self.tape = tape
        self.now = start
        self.steps = 0
        #: A checksum of all steps: equal for runs that did the same.
        self.digest = 0
        #: The last steps: who did what with what, at which time.
        self.trace: deque[tuple[Task, str, Thing | str, float]] = deque(maxlen=KEPT_STEPS)
        #: The last pre-emptions: who was about to do what with what, at which time, and who went on instead.
        self.preemptions: deque[tuple[Task, str, Thing | str, float, Task]] = deque(maxlen=KEPT_STEPS)
        #: True from the end of the simulation on: then nobody waits for anybody.
        self.over = False
        self.tasks: dict[int, Task] = {}
        #: Threads that would not end when the simulation did.
        self.deaf: list[Task] = []
        self._max_steps = max_steps
        self._numbers = itertools.count(1)
        self._ready: list[Task] = []  # who can go on, but for the one that runs
        self._sleepers: list[tuple[float, int, Task, int]] = []  # a heap: deadline, order, who, which wait
        self._order = itertools.count()
        self._settlers: list[Task] = []
        self._here = threading.local()
        self._arrival = threading.Lock()  # released when somebody comes in from outside
        self._arrival.acquire()
        self._named_steps = -1
        self._waits_since: float | None = None  # the time from which on the test waits, without a time-out
        self.main = Task(next(self._numbers), "the test")
        self.tasks[self.main.number] = self.main
        self.running = self.main

    def adopt_test(self) -> None:
        """Let the calling thread be the test's, and give it the baton."""
        self._here.task = self.main

    @property
    def current(self) -> Task | None:
        """The thread that calls, if it takes part now."""
        task: Task | None = getattr(self._here, "task", None)
        return task

    # Points, called by what threads meet at.

    def point(self, verb: str, thing: Thing | str, *, is_lock: bool = False) -> Task:
        """Stop where something could race, until it is this thread's turn.

        A thread that holds a lock is stopped only where it takes another: nobody else can be where it is. `leave` must
        follow when what it does is done, if the thread is not one of ours.
        """
        task: Task | None = getattr(self._here, "task", None)
        if task is None:
            return self._come_in(verb, thing)
        if self.over or task.is_switching:
            return task
        self.steps += 1
        if self.steps > self._max_steps:
            self._give_up(task)
        if self._ready and (task.holds == 0 or is_lock):
            task.verb, task.thing = verb, thing
            task.is_switching = True
            ready = self._ready
            index = self.tape.draw([task.number, *[each.number for each in ready]], step=self.steps, can_stay=True)
            if index:
                chosen = ready.pop(index - 1)
                ready.append(task)
                self.preemptions.append((task, verb, thing, self.now, chosen))
                self._hand_over(task, chosen)
            task.is_switching = False
        self._note(task, verb, thing)
        return task

    def block(self, task: Task, deadline: float | None = None) -> bool:
        """Wait until `wake`, or until ``deadline``; say which. For the thread with the baton."""
        __tracebackhide__ = True
        if self.over:
            raise self._left_behind(task)
        if task.is_switching:
            raise RuntimeError("a finaliser or a signal handler would have to wait inside of the simulation")
        task.is_switching = True
        task.wait += 1
        task.timed_out = False
        if deadline is not None:
            heapq.heappush(self._sleepers, (deadline, next(self._order), task, task.wait))
        elif task is self.main:
            self._waits_since = self.now
        chosen = self._pick()
        if chosen is not task:
            self._hand_over(task, chosen)
        task.is_switching = False
        if task is self.main:
            self._waits_since = None
        if task.error is not None:
            error, task.error = task.error, None
            raise error
        return not task.timed_out

    def wake(self, task: Task) -> None:
        """Let a thread that blocks go on when its turn comes."""
        task.wait += 1
        self._ready.append(task)

    def leave(self, task: Task) -> None:
        """Let a thread go that came in for one call; ours stay."""
        if task.is_foreign and task.holds == 0 and not task.is_switching:
            self._here.task = None
            self.tasks.pop(task.number, None)
            if not self.over:
                self._pass_on()

    # The test's own.

    def settle(self, task: Task) -> None:
        """Run until all others are at rest."""
        self._settlers.append(task)
        self.block(task)

    def begin(self, target: Callable[[], object], name: str, place: str) -> Task:
        """Start a thread, which goes on when its turn comes."""
        starter = self.point("starts", name)
        task = Task(next(self._numbers), name, place=place)

        def run() -> None:
            self._here.task = task
            task.baton.acquire()
            try:
                if not self.over:
                    self._note(task, "begins", "")
                    target()
            except AbandonedError:
                pass
            finally:
                self._end(task)

        if not self.over:
            self.tasks[task.number] = task
            self._ready.append(task)
        thread = task.thread = SystemThread(target=run, name=name, daemon=True)
        if self.over:  # nobody would ever let it begin
            raise RuntimeError(f"the simulation is over: {name} cannot be started")
        thread.start()
        self.leave(starter)
        return task

    def go_out(self) -> Task | None:
        """Let the others go on while this thread waits for something outside; `come_back` must follow."""
        task = self.current
        if task is None or self.over or task.is_switching:
            return None
        task.verb, task.thing = "waits outside", ""
        task.is_outside = True
        self._pass_on()
        return task

    def come_back(self, task: Task) -> None:
        """Wait until it is the turn of a thread that was outside."""
        task.is_outside = False
        if not self.over:
            self._arrive(task)
        if self.over:
            raise self._left_behind(task)

    def end(self) -> None:
        """End the simulation: whoever is left is told to end, one after another."""
        self.over = True
        for task in list(self.tasks.values()):
            if task is self.main or task.is_foreign or task.thread is None:
                continue
            if task.is_outside or task.ended:
                continue
            if task is not self.running:
                task.baton.release()
                task.thread.join(LAST_GRACE)
            if task.thread.is_alive():
                self.deaf.append(task)
        self.main.is_switching = False

    # Whose turn it is.

    def _pick(self) -> Task:
        """Return who goes on after one that cannot, or is gone."""
        while True:
            ready = self._ready
            if ready:
                if len(ready) == 1:
                    return ready.pop()
                numbers = [each.number for each in ready]
                return ready.pop(self.tape.draw(numbers, step=self.steps, can_stay=False))
            if self._settlers:
                return self._settlers.pop()
            if not self._jump() and not self._await_arrival():
                return self._deadlocked()

    def _jump(self) -> bool:
        """Let time pass until the next moment for which somebody waits; false if nobody does."""
        sleepers = self._sleepers
        while sleepers and sleepers[0][2].wait != sleepers[0][3]:
            heapq.heappop(sleepers)
        if not sleepers:
            return False
        self.now = max(self.now, sleepers[0][0])
        if self._waits_since is not None and self.now > self._waits_since + LONGEST_WAIT:
            self._waits_since = None
            self.main.error = DeadlockError(f"the test has waited for a simulated week:\n{self.describe()}")
            self.wake(self.main)
            return True
        while sleepers and sleepers[0][0] <= self.now:
            _, _, task, wait = heapq.heappop(sleepers)
            if task.wait == wait:
                task.timed_out = True
                self.wake(task)
        return True

    def _await_arrival(self) -> bool:
        """Wait in real time for a thread that is outside; false if there is none, or none comes."""
        if not any(task.is_outside for task in self.tasks.values()):
            return bool(self._ready)
        return self._arrival.acquire(timeout=LAST_GRACE * 2) or bool(self._ready)

    def _deadlocked(self) -> Task:
        self.main.error = DeadlockError(f"nobody can go on, and nobody waits for time:\n{self.describe()}")
        return self.main

    def _give_up(self, task: Task) -> None:
        self._max_steps += self._max_steps  # the test may go on after it has seen the error
        error = DeadlockError(f"no end after {self.steps} steps, at {self.now:.1f} s:\n{self.describe()}")
        if task is self.main:
            raise error
        if self.main not in self._ready:
            self.main.error = error
            self.wake(self.main)

    def _hand_over(self, task: Task, chosen: Task) -> None:
        self.running = chosen
        chosen.baton.release()
        self._await_turn(task)

    def _pass_on(self) -> None:
        """Give the baton away for good, or until the thread comes in again."""
        chosen = self._pick()
        self.running = chosen
        chosen.baton.release()

    def _await_turn(self, task: Task) -> None:
        if task is self.main:
            try:
                while not task.baton.acquire(timeout=STUCK):
                    self._name_the_stuck()
            except BaseException:  # a Ctrl-C, or the end of its time: it has no baton, so nothing can go on in order
                self.over = True
                task.is_switching = False
                raise
        else:
            task.baton.acquire()
        if self.over:
            task.is_switching = False
            raise self._left_behind(task)

    def _left_behind(self, task: Task) -> BaseException:
        if task is self.main or task.is_foreign:
            return DeadlockError("the simulation is over: nobody is left who could end this wait")
        if task.refuse_to_hear():
            self.deaf.append(task)
            threading.Lock().acquire()
            task.baton.acquire()  # for ever: it catches whatever is raised in it, and goes on
        mute()
        return AbandonedError()

    def _come_in(self, verb: str, thing: Thing | str) -> Task:
        """Let a thread that is not one of ours take part for one call."""
        name = f"{threading.current_thread().name}, which is not of the simulation,"
        task = Task(next(self._numbers), name, is_foreign=True)
        if self.over:
            return task
        task.verb, task.thing = verb, thing
        self._here.task = task
        self.tasks[task.number] = task
        self._arrive(task)
        self._note(task, verb, thing)
        return task

    def _arrive(self, task: Task) -> None:
        self._ready.append(task)
        try:  # noqa: SIM105  as in the seam
            self._arrival.release()
        except RuntimeError:
            pass  # somebody else has just arrived
        task.baton.acquire()
        self._arrival.acquire(blocking=False)

    def _end(self, task: Task) -> None:
        task.ended = True
        self.tasks.pop(task.number, None)
        if self.over:
            return
        self._note(task, "ends", "")
        for each in task.joiners:
            self.wake(each)
        self._pass_on()

    # What happened.

    def _note(self, task: Task, verb: str, thing: Thing | str) -> None:
        key = thing if isinstance(thing, str) else thing.number
        self.digest = hash((self.digest, task.number, verb, key))
        self.trace.append((task, verb, thing, self.now))

    def _name_the_stuck(self) -> None:
        """Say who has run for a real second without coming to a point; once for each."""
        task = self.running
        if self.steps == self._named_steps or task is self.main:
            return
        self._named_steps = self.steps
        text = "%s blocks outside of the simulation, which waits for it in real time; it is at\n%s"
        report(logging.WARNING, text, task.name, stack_of_thread(task))

    def describe(self) -> str:
        """Return what every thread does."""
        lines: list[str] = []
        for task in self.tasks.values():
            thing = task.thing if isinstance(task.thing, str) else task.thing.name
            what = f"{task.verb} {thing}" if task is not self.running or task is self.main else "runs"
            lines.append(f"- {task.name} {what}".rstrip())
            lines.append(stack_of_thread(task))
        return "\n".join(lines)


def stack_of_thread(task: Task) -> str:
    """Return where a thread is, without the frames of the simulation itself."""
    ident = threading.main_thread().ident if task.thread is None else task.thread.ident
    frame = None if ident is None else sys._current_frames().get(ident)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the only way to it
    return "".join(traceback.format_list(_interesting(frame))) or "    (it has not begun)\n"


def _interesting(frame: FrameType | None) -> list[traceback.FrameSummary]:
    if frame is None:
        return []
    stack = traceback.extract_stack(frame)
    kept = [each for each in stack if not any(part in each.filename for part in _UNINTERESTING)]
    return kept[-6:]
