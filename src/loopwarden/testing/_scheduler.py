"""`Scheduler`: real threads, one at a time, in the order that a tape gives, through time that jumps.

The thread that runs holds the baton. At each point where something could race it draws who goes on, and hands the
baton over itself; if no thread can go on, time jumps to the next moment for which one waits. Only the thread with the
baton touches what is here, so nothing is guarded by a lock but the door: where threads come in from outside.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import traceback
from collections import deque
from typing import TYPE_CHECKING, final

from loopwarden._blocking import SystemThread
from loopwarden._frames import current_frames
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
#: Real seconds in which nothing happens, after which no thread is expected to come in from outside any more.
LAST_ARRIVAL = 10.0
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
    "loopwarden/_frames.py",
    "/threading.py",
    "/pluggy/",
    "/_pytest/",
    "/pytest/__main__.py",
    "/xdist/",
    "/execnet/",
    "<frozen runpy>",
)
#: Scripts that start pytest, by their whole name.
_STARTERS = {"pytest", "py.test"}
#: What to do about a thread that blocks where the simulation does not see it.
REMEDY = (
    "use current_clock().blocking (lock, gate, queue), or wait in `with current_clock().blocking.outside():`; if it "
    "waits for a lock that another thread of the simulation holds, nothing can go on"
)


class DeadlockError(AssertionError):
    """No thread can go on; the text says what each of them waits for."""

    __module__ = "loopwarden.testing"


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
        "ident",
        "is_foreign",
        "is_outside",
        "is_switching",
        "is_waiting",
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
        #: Locked; the thread that hands the baton to this one releases it.
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
        #: Whether it blocks, and was not woken yet.
        self.is_waiting = False
        #: Which thread it is, once it has begun.
        self.ident: int | None = None
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
        #: True from the end of the simulation on: then no thread waits for another.
        self.over = False
        self.tasks: dict[int, Task] = {}
        #: What threads have raised and not caught.
        self.errors: list[BaseException] = []
        #: Threads that would not end when the simulation did.
        self.deaf: list[Task] = []
        self._max_steps = max_steps
        self._numbers = itertools.count(1)
        self._ready: list[Task] = []  # who can go on, but for the one that runs
        self._sleepers: list[tuple[float, int, Task, int]] = []  # a heap: deadline, order, who, which wait
        self._order = itertools.count()
        self._settlers: list[Task] = []
        self._here = threading.local()
        self._door = threading.Lock()  # guards _is_idle, over and the way into _ready for those who come in
        self._is_idle = False  # whether the baton lies at the door: no thread can go on, but one may come in
        self._outside = 0  # how many are outside
        self._interruption: BaseException | None = None  # what ended the test while it waited
        self._named_steps = -1
        self._waits_since: float | None = None  # the time from which on the test waits, without a time-out
        self.main = Task(next(self._numbers), "the test")
        self.tasks[self.main.number] = self.main
        self.running = self.main

    def adopt_test(self) -> None:
        """Let the calling thread be the test's, and give it the baton."""
        self._here.task = self.main
        self.main.ident = threading.get_ident()

    @property
    def current(self) -> Task | None:
        """The thread that calls, if it takes part now."""
        task: Task | None = getattr(self._here, "task", None)
        return task

    # Points, called by what threads meet at.

    def point(self, verb: str, thing: Thing | str, *, is_lock: bool = False) -> Task:
        """Stop where something could race, until it is this thread's turn.

        A thread that holds a lock is stopped only where it takes another: no other thread can be where it is. `leave`
        must follow when what it does is done, if the thread is not one of ours.
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
            self._raise_error(task)
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
        task.is_waiting = True
        task.wait += 1
        task.timed_out = False
        if deadline is not None and deadline != math.inf:
            heapq.heappush(self._sleepers, (deadline, next(self._order), task, task.wait))
        elif task is self.main:
            self._waits_since = self.now
        chosen = self._pick()
        if chosen is None:
            self._await_turn(task)
        elif chosen is not task:
            self._hand_over(task, chosen)
        task.is_switching = False
        if task is self.main:
            self._waits_since = None
        self._raise_error(task)
        return not task.timed_out

    @staticmethod
    def _raise_error(task: Task) -> None:
        __tracebackhide__ = True
        if task.error is not None:
            error, task.error = task.error, None
            raise error

    def wake(self, task: Task) -> bool:
        """Let a thread that blocks go on when its turn comes; false if it does not, or was woken before."""
        if not task.is_waiting:
            return False
        task.is_waiting = False
        task.wait += 1
        self._ready.append(task)
        return True

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
        task.verb, task.thing = "waits until all are at rest", ""
        self._settlers.append(task)
        try:
            self.block(task)
        finally:
            if task in self._settlers:  # it was given up
                self._settlers.remove(task)

    def begin(self, target: Callable[[], object], name: str, place: str) -> Task:
        """Start a thread, which goes on when its turn comes."""
        starter = self.point("starts", name)
        task = Task(next(self._numbers), name, place=place)

        def run() -> None:
            self._here.task = task
            task.ident = threading.get_ident()
            task.baton.acquire()
            try:
                if not self.over:
                    self._note(task, "begins", "")
                target()  # also after the end: then it is told to end at its first wait, and cleans up after itself
            except AbandonedError:
                pass
            except BaseException as error:  # noqa: BLE001  raised again at the end, in the test
                # After the end it is what user code has made of being abandoned; and a thread may exit.
                if not self.over and not isinstance(error, SystemExit):
                    error.add_note(f"raised by the thread {name}")
                    self.errors.append(error)
            finally:
                self._end(task)

        if self.over:  # no thread would ever let it begin
            if starter.thread is not None:
                raise self._left_behind(starter)
            raise RuntimeError(f"the simulation is over: {name} cannot be started")
        thread = task.thread = SystemThread(target=run, name=name, daemon=True)
        try:
            thread.start()  # it waits for its turn
        finally:
            if thread.ident is not None:  # also if a Ctrl-C comes just here
                self.tasks[task.number] = task
                self._ready.append(task)
            self.leave(starter)
        return task

    def go_out(self) -> Task | None:
        """Let the others go on while this thread waits for something outside; `come_back` must follow.

        What it does here meanwhile, it does as a thread that is not one of ours.
        """
        task = self.current
        if task is None or self.over or task.is_switching:
            return None
        self._note(task, "goes outside", "")
        task.verb, task.thing = "waits outside", ""
        task.is_switching = True  # whatever interrupts it here has no baton
        task.is_outside = True
        self._outside += 1
        try:
            self._pass_on()
        finally:
            self._here.task = None
            task.is_switching = False
        return task

    def come_back(self, task: Task) -> None:
        """Wait until it is the turn of a thread that was outside."""
        task.is_switching = True
        self._here.task = task
        task.is_outside = False
        self._arrive(task)
        task.is_switching = False
        self._outside -= 1
        if self.over:
            raise self._left_behind(task)
        self._raise_error(task)

    def interrupt(self, error: BaseException) -> None:
        """End the simulation at once, because the test has been interrupted, outside, by ``error``."""
        with self._door:
            self.over = True
            self._interruption = error

    def end(self) -> None:
        """End the simulation: the threads that are left are told to end, one after another."""
        with self._door:
            self.over = True
        for task in list(self.tasks.values()):
            if task is self.main or task.is_outside or task.ended:
                continue
            if task is not self.running:
                task.baton.release()
            if task.thread is None:
                continue  # not one of ours: it is told, and goes its way
            if task is not self.running:
                task.thread.join(LAST_GRACE)
            if task.thread.is_alive():
                self.deaf.append(task)
        self.main.is_switching = False

    # Whose turn it is.

    def _pick(self) -> Task | None:
        """Return which goes on after one that cannot, or is gone; None if that will be the next to come in."""
        while True:
            ready = self._ready
            if ready:
                if len(ready) == 1:
                    return ready.pop()
                numbers = [each.number for each in ready]
                return ready.pop(self.tape.draw(numbers, step=self.steps, can_stay=False))
            if self._settlers:
                settler = self._settlers.pop()
                settler.is_waiting = False
                settler.wait += 1
                return settler
            if self._jump():
                continue
            if not self._outside:
                return self._deadlocked()
            if self._lay_down():
                return None

    def _jump(self) -> bool:
        """Let time pass until the next moment for which a thread waits; false if none does."""
        sleepers = self._sleepers
        while sleepers and sleepers[0][2].wait != sleepers[0][3]:
            heapq.heappop(sleepers)
        if not sleepers:
            return False
        self.now = max(self.now, sleepers[0][0])
        if self._waits_since is not None and self.now > self._waits_since + LONGEST_WAIT:
            self._waits_since = None
            error = DeadlockError(f"the test has waited for a simulated week:\n{self.describe()}")
            if self.wake(self.main):
                self.main.error = error
            return True
        while sleepers and sleepers[0][0] <= self.now:
            _, _, task, wait = heapq.heappop(sleepers)
            if task.wait == wait:
                task.timed_out = True
                self.wake(task)
        return True

    def _lay_down(self) -> bool:
        """Leave the baton to the thread that comes in next; false if one just did."""
        with self._door:
            self._is_idle = not self._ready
            return self._is_idle

    def _pick_up(self) -> bool:
        """Take the baton if it was laid down."""
        with self._door:
            was_idle, self._is_idle = self._is_idle, False
            return was_idle

    def _deadlocked(self) -> Task:
        outside = [task.name for task in list(self.tasks.values()) if task.is_outside]
        missing = f" ({', '.join(outside)} did not come back from outside)" if outside else ""
        self.main.error = DeadlockError(
            f"no thread can go on, and none waits for time{missing}:\n{self.describe()}"
            "(a thread that is not of the simulation is waited for with `with simulation.outside():` alone)"
        )
        self.main.is_waiting = False
        self.main.wait += 1
        return self.main

    def _give_up(self, task: Task) -> None:
        self._max_steps += self._max_steps  # the test may go on after it has seen the error
        error = DeadlockError(f"no end after {self.steps} steps, at {self.now:.1f} s:\n{self.describe()}")
        main = self.main
        if task is main:
            raise error
        main.error = error  # raised where it is
        if main.is_outside:
            return
        # It goes on at once: on a tape that is at its end it might never be chosen.
        main.is_waiting = False
        main.wait += 1
        if main in self._ready:
            self._ready.remove(main)
        self._ready.append(task)
        task.is_switching = True
        self._hand_over(task, main)
        task.is_switching = False

    def _hand_over(self, task: Task, chosen: Task) -> None:
        self.running = chosen
        chosen.baton.release()
        self._await_turn(task)

    def _pass_on(self) -> None:
        """Give the baton away for good, or until the thread comes in again."""
        chosen = self._pick()
        if chosen is not None:
            self.running = chosen
            chosen.baton.release()

    def _await_turn(self, task: Task) -> None:
        if task is self.main or task.is_foreign:
            self._await_baton(task)
        else:
            task.baton.acquire()
        if self.over:
            task.is_switching = False
            raise self._left_behind(task)

    def _await_baton(self, task: Task) -> None:
        """Wait for the baton, and look each second whether it is still on its way."""
        steps, idle = self.steps, 0.0
        try:
            while not task.baton.acquire(timeout=STUCK):
                if self.over:
                    return  # it is not handed on any more
                if self._is_idle:
                    idle += STUCK
                    if task is self.main and idle >= LAST_ARRIVAL and self._pick_up():
                        self.running = self._deadlocked()
                        return
                elif self.steps == steps:
                    self._name_the_stuck()
                steps = self.steps
        except BaseException as error:  # a Ctrl-C, or the end of its time: it has no baton, so nothing goes on in order
            self.over = True
            self._interruption = error
            task.is_switching = False
            raise

    def _left_behind(self, task: Task) -> BaseException:
        if task is self.main and self._interruption is not None:
            return self._interruption  # what the test does about it must not hide it
        if task is self.main or task.is_foreign:
            return DeadlockError("the simulation is over: no thread is left that could end this wait")
        if task.refuse_to_hear():
            self.deaf.append(task)
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
        task.ident = threading.get_ident()
        task.is_switching = True
        self._here.task = task
        self.tasks[task.number] = task
        self._arrive(task)
        task.is_switching = False
        self._note(task, verb, thing)
        return task

    def _arrive(self, task: Task) -> None:
        """Wait for the baton, or pick it up if no thread has it."""
        with self._door:
            if self.over:
                return
            if self._is_idle:
                self._is_idle = False
                self.running = task
                return
            self._ready.append(task)
        self._await_baton(task)

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
        # Names may be numbered over the whole process: they are not the same in a run that is repeated.
        key = 0 if isinstance(thing, str) else thing.number
        self.digest = hash((self.digest, task.number, verb, key))
        self.trace.append((task, verb, thing, self.now))

    def _name_the_stuck(self) -> None:
        """Say who has run for a real second without coming to a point; once for each."""
        task = self.running
        if self.steps == self._named_steps:
            return
        self._named_steps = self.steps
        text = "%s blocks outside of the simulation, which waits for it in real time: %s. It is at\n%s"
        report(logging.WARNING, text, task.name, REMEDY, stack_of_thread(task))

    def describe(self) -> str:
        """Return what every thread does."""
        lines: list[str] = []
        for task in list(self.tasks.values()):  # a copy: threads that are not ours come in at any time
            thing = task.thing if isinstance(task.thing, str) else task.thing.name
            if task.is_waiting or task.is_outside:
                what = f"{task.verb} {thing}"
            else:
                what = "runs" if task is self.running else f"can go on: it {task.verb} {thing}"
            lines.append(f"- {task.name} {what}".rstrip())
            lines.append(stack_of_thread(task))
        return "\n".join(lines)


def stack_of_thread(task: Task) -> str:
    """Return where a thread is, without the frames of the simulation itself."""
    frame = None if task.ident is None else current_frames().get(task.ident)
    return "".join(traceback.format_list(interesting(frame))) or "    (it has not begun)\n"


def interesting(frame: FrameType | None) -> list[traceback.FrameSummary]:
    if frame is None:
        return []
    stack = traceback.extract_stack(frame)
    kept = [
        each
        for each in stack
        if not any(part in each.filename for part in _UNINTERESTING)
        and each.filename.rpartition("/")[2] not in _STARTERS
    ]
    return kept[-6:]
