"""`CoroutineWorker`: has one message at a time in hand, for which a coroutine is at work."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, cast, final

from typing_extensions import override

from loopwarden._frames import stack_of
from loopwarden._log import describe
from loopwarden._running import TASK, Running
from loopwarden._ticket import write
from loopwarden.actors.consumers._mailbox_worker import refuse_unfinished
from loopwarden.actors.consumers._message_holder import MessageHolder, Terms
from loopwarden.actors.consumers._retry import UnfinishedError
from loopwarden.actors.loop._health import fate_of
from loopwarden.mailbox import SupportsWaitedUntil, Token

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from contextvars import Context
    from types import FrameType

    from loopwarden.actors.consumers._event_loop_host import EventLoopRun
    from loopwarden.actors.loop._health import Fate
    from loopwarden.actors.loop._work_budget import Permit
    from loopwarden.mailbox import Message

__all__ = ["CoroutineWorker", "Place", "in_time"]


@final
class Place(Running):
    """What is running in a coroutine, and in what it starts."""

    def __init__(self, run: EventLoopRun, loop: str | None, owner: object, group: object, mailbox: str) -> None:
        self._run = run
        self.loop, self.owner, self.group, self.mailbox = loop, owner, group, mailbox

    def context(self) -> Context:
        """Return a context of its own for the coroutine."""
        context = self._run.context.copy()
        context.run(TASK.set, self)
        return context

    @property
    @override
    def is_alone(self) -> bool:  # type: ignore[override]  # it depends on who asks
        """True on the event loop: if that is blocked, nothing else works for the loop; a thread may wait."""
        return threading.get_ident() == self._run.thread_id


@final
class CoroutineWorker(MessageHolder):
    """Is given a message by the intake, begins its coroutine on the event loop, and settles it on a third thread.

    Args:
        terms: What all workers of the loop go by.
        handler: Returns the coroutine for a message.
        timeout: Seconds that it may take; None is for ever.
        over: Called on the event loop when the coroutine has ended.
    """

    def __init__(
        self,
        terms: Terms,
        handler: Callable[[Message[Any, Any]], object],
        timeout: float | None,
        over: Callable[[CoroutineWorker], None],
    ) -> None:
        super().__init__(terms)
        self._handler = handler
        self._timeout = timeout
        self._tell = over
        self._run: EventLoopRun | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost_before = 0.0  # what the event loop had lost when it began
        self._is_begun = self._is_over = False
        self._has_let_go = False  # it was given up, and its coroutine has ended: its message is another's to give back
        self._error: BaseException | None = None  # what its coroutine has raised
        self._cancelled_for = ""
        self._is_cancelled = False  # it has been thrown into the coroutine
        self._is_excused = False  # it was given up because of another one
        self._fate_if_cancelled: Fate = "returned"
        self.progress.waited_until = self._excused_until
        self.progress.say_where(self._where)
        self.progress.free()

    # The intake gives it a message.

    def take(self, message: Message[Any, Any], run: EventLoopRun, owner: MessageHolder, permit: Permit | None) -> None:
        """Take a message in hand, which another holder has had until now; on the intake's thread."""
        if self.token.stopped:  # who was recalled goes on
            self._is_recalled, self.token = False, Token()
        self._run, self._permit, self._lost_before = run, permit, run.lost
        self.lease, self.lease_ends, self.held_since = owner.lease, owner.lease_ends, owner.held_since
        self._lost.clear()
        message.token = self.token  # so that it can be fenced alone
        self.progress.working(message.id, message.delivery_count)
        self.heartbeat.beat()
        self._pause_state.enter(self)
        with self._lock:  # in one step: what comes late, and is about the message before, finds another one
            self._is_begun = self._is_over = self._has_let_go = False
            self._error, self._cancelled_for, self._is_cancelled = None, "", False
            self._fate_if_cancelled = "returned"
            self._in_hand = message
        # It is in hand, and then the look: `secure` does it in the other order.
        deadline = self._pause_state.secured_until
        if deadline is not None:
            self._extend_until(message, deadline)

    # On the event loop.

    def begin(self, loop: str | None, owner: object, group: object) -> None:
        """Begin the coroutine, unless nothing is to be begun any more."""
        message, run = self._in_hand, self._run
        is_over = self._is_stopped() or self._pause_state.is_closed or self.token.stopped
        if message is None or run is None or is_over or self.is_abandoned:
            self.over(message)
            return
        self._is_begun = True
        place = Place(run, loop, owner, group, self._source.name)
        token = self.token  # not that of a later message
        place.heartbeat, place.is_stopped = self.heartbeat, lambda: token.stopped
        place.message_id, place.delivery = message.id, message.delivery_count
        context = place.context()
        coroutine = self._work(message, run, place)
        task: asyncio.Task[None]
        if sys.version_info >= (3, 12):  # one that need not wait is done at once
            task = asyncio.Task(coroutine, loop=run.loop, context=context, eager_start=True)
        else:
            task = asyncio.Task(coroutine, loop=run.loop, context=context)
        if not task.done():
            self._is_done_by(task, run)
            if self._cancelled_for:  # it was recalled or given up before there was a task
                self._cancel_task(message)

    def _is_done_by(self, task: asyncio.Task[None], run: EventLoopRun) -> None:
        self._task = task
        run.tasks[task] = self

    async def _work(self, message: Message[Any, Any], run: EventLoopRun, place: Running) -> None:
        # Not only by who begins it: one that blocks before it has ever waited is to be known as its worker's.
        self._is_done_by(cast("asyncio.Task[None]", asyncio.current_task()), run)
        error: BaseException | None = None
        self.heartbeat.beat()
        try:
            work = self._handler(message)
            # By type(): the class of other people's things may be a property that raises.
            if not issubclass(type(work), Awaitable):
                raise TypeError(  # noqa: TRY301  it is as if the handler had raised it
                    "a handler that runs in asyncio must return a coroutine, as an async def does, but this one has"
                    f" returned {describe(work)}"
                )
            _refuse_unfinished(await in_time(cast("Awaitable[object]", work), self._timeout))
            if self._is_cancelled:  # the handler has swallowed it, so it is not known what is done
                raise asyncio.CancelledError  # noqa: TRY301  as if it had not
        except BaseException as raised:  # noqa: BLE001  isolates user code; and a cancellation ends here
            error = raised
        place.heartbeat = None  # a task that it has left running must not beat for the next message
        self.over(message, error)

    # When the coroutine has ended.

    def over(self, message: Message[Any, Any] | None, error: BaseException | None = None) -> None:
        """Say that the coroutine of a message has ended, or why it never can; only the first to say so is heard."""
        with self._lock:
            if message is None or self._in_hand is not message or self._is_over:
                return
            self._is_over = True
            if error is not None:
                self._is_begun, self._error = True, error
        self._tell(self)

    @property
    def in_hand(self) -> Message[Any, Any] | None:
        """The message that is in hand."""
        return self._in_hand

    @property
    def acknowledges(self) -> Message[Any, Any] | None:
        """The message that is to be acknowledged, if that is all there is to do."""
        message = self._in_hand
        if message is None or not self._is_begun or self._error is not None or self.is_abandoned:
            return None
        return None if message.is_finalized else message

    def acknowledged(self, message: Message[Any, Any], *, is_refused: bool) -> None:
        """Take note that its message was acknowledged with others, or that its lease was over."""
        if is_refused and not message.is_finalized:
            self.lost([message], "it had ended before the message was settled, or the worker was given up")
        self._count_success(message, is_done=message.is_finalized)
        self._leave()

    @property
    def lets_go(self) -> bool:
        """True if who gave the worker up gives its message back, so that there is nothing to settle."""
        return self.is_abandoned and self._is_begun

    def settle(self) -> BaseException | None:
        """Do with the message what its end asks for; return what ends the loop, if anything does. It may block."""
        message, error = self._in_hand, self._error
        try:
            if message is None or self.lets_go:
                return None
            if not self._is_begun:
                self.progress.returned += (is_back := self._settled(message, message.put_back))
                if self._is_ending:
                    self._note_fate(message, "returned" if is_back else fate_of(message))
            elif error is None:
                self._succeeded(message)
            elif issubclass(type(error), asyncio.CancelledError) and (why := self._cancelled_for or self._run_failed()):
                self._give_back_cancelled(message, why)
            else:
                self._give_back_failed(message, error)
                if self._ends_loop(error):
                    self.progress.has_raised = True
                    return error
            return None
        finally:
            self._leave()

    def _run_failed(self) -> str:
        """Say why all that was on the event loop was cancelled; empty if it was not."""
        failure = None if self._run is None else self._run.failure
        return "" if failure is None else f"the event loop has ended: {describe(failure)}"

    def _give_back_cancelled(self, message: Message[Any, Any], why: str) -> None:
        is_back = self._settled(message, lambda: message.nack(0, error=why))
        self.progress.returned += is_back
        if self._is_ending or self._fate_if_cancelled == "abandoned":
            self._note_fate(message, self._fate_if_cancelled if is_back else fate_of(message))

    def _leave(self) -> None:
        run, task = self._run, self._task
        if run is not None and task is not None:
            run.tasks.pop(task, None)
        with self._lock:
            # Who has given it up may not have come to give back yet, and finds it there.
            self._has_let_go = self.is_abandoned
            if not self._has_let_go:
                self._in_hand = None
        self._task = self._error = None
        self._release()
        if not self.progress.has_raised:
            self.progress.free()
        self._pause_state.leave(self)
        if self.is_abandoned:
            self._renewer.leave(self)
            write(self.ended)

    @override
    def _ends_loop(self, error: BaseException) -> bool:
        kind = type(error)
        if issubclass(kind, (asyncio.CancelledError, GeneratorExit)):  # of another coroutine that it waited for
            return issubclass(kind, self._crash_on)
        return super()._ends_loop(error)

    # Others stop it.

    @override
    def recall(self) -> None:
        super().recall()
        self.cancel("recalled, because it gave no sign of life")

    def cancel(self, why: str, fate: Fate = "returned") -> None:
        """Cancel the coroutine: its message goes back when it has ended. On any thread; never blocks."""
        with self._lock:
            message, run = self._in_hand, self._run
            if message is None or run is None or self._is_over:
                return
            self._cancelled_for, self._fate_if_cancelled = why, fate
        run.call(self._cancel_task, message)

    def _cancel_task(self, message: Message[Any, Any]) -> None:
        if self._task is not None and self._in_hand is message:
            self._is_cancelled = self._task.cancel() or self._is_cancelled

    @override
    def give_back(self, error: str, *, is_end: bool) -> None:
        self.is_abandoned = True
        run = self._run
        if run is not None and run.stuck_for():
            current = run.current()
            culprit = None if current is None else run.tasks.get(current)
            self._is_excused = culprit is not None and culprit is not self
        self.cancel(error)
        super().give_back(error, is_end=is_end)

    @override
    def _give_back_abandoned(self, message: Message[Any, Any], error: str) -> None:
        if self._is_excused:  # another coroutine is to blame, whose message is counted
            message.put_back()
        else:
            super()._give_back_abandoned(message, error)

    def join(self) -> None:
        """Make ready for a run of the loop."""
        self.progress.free()
        self._renewer.join(self)

    def leave(self) -> None:
        """Go home, at the end of the run."""
        self._renewer.leave(self)
        self.progress.leave()

    @property
    def is_free(self) -> bool:
        """True if no coroutine is at work for it."""
        return self._in_hand is None or self._has_let_go

    @property
    def blocks(self) -> bool:
        """True if the event loop executes its coroutine just now, or is stuck, so that it cannot be cancelled."""
        run = self._run
        return run is not None and (run.stuck_for() > 0 or (self._task is not None and run.current() is self._task))

    # What it looks like from outside.

    def _excused_until(self) -> float:
        """Say up to when it was kept waiting by its store, or by another coroutine that keeps the event loop busy."""
        run, source = self._run, self._source
        waited = source.waited_until() if isinstance(source, SupportsWaitedUntil) else 0.0
        if run is None or self._in_hand is None:
            return waited
        stuck_for = run.stuck_for()
        if stuck_for:
            executing = run.current()
            # What no loop has begun cannot be judged by itself, so all are; and all have to leave what was given up.
            if executing is self._task or executing not in run.tasks or run.is_given_up:
                stuck_for = 0.0
        lost = run.lost - self._lost_before + stuck_for
        return max(waited, self.heartbeat.last_beat + lost) if lost else waited

    def _where(self) -> str:
        """Return the stack of the coroutine, or of the thread if that does not get on."""
        run, task = self._run, self._task
        if run is None or task is None:
            return stack_of(None if run is None else run.thread_id)
        if run.stuck_for() or run.current() is task:
            others = max(0, len(run.tasks) - 1)
            remedy = "await asyncio.to_thread(…) for what blocks"
            return f"It blocks its event loop, and {others} others wait: {remedy}.\n{stack_of(run.thread_id)}"
        return "".join(traceback.StackSummary.extract(_awaited(task.get_coro())).format())


def _refuse_unfinished(result: object) -> None:
    refuse_unfinished(result)
    if issubclass(type(result), asyncio.Future):
        raise UnfinishedError(
            f"a handler must be a plain function or an async def, but this one returned {describe(result)}, so nothing"
            " was done: await it in the async def"
        )


async def in_time(work: Awaitable[object], seconds: float | None) -> object:
    """Return what is awaited.

    Raises:
        TimeoutError: if it takes longer than ``seconds``, whatever it makes of its cancellation.
    """
    if seconds is None:
        return await work
    limit = asyncio.timeout(seconds)
    result: object = None
    cause: BaseException | None = None
    try:
        async with limit:
            result = await work
    except (Exception, asyncio.CancelledError) as error:
        if not limit.expired():
            raise
        cause = error
    if not limit.expired():
        return result
    # A plain time-out says nothing more; what the handler has raised in its place may.
    is_plain = cause is None or type(cause) is TimeoutError
    raise TimeoutError(f"the handler was cancelled, because it took longer than {seconds:g} s") from (
        None if is_plain else cause
    )


def _awaited(coroutine: Coroutine[Any, Any, Any] | Any) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a coroutine that waits, from the first to the one that waits."""
    is_ours = True
    while coroutine is not None:
        frame: FrameType | None = None
        inner: object = None
        for kind in ("cr", "gi", "ag"):
            frame = frame or getattr(coroutine, f"{kind}_frame", None)
            inner = inner or getattr(coroutine, "gi_yieldfrom" if kind == "gi" else f"{kind}_await", None)
        if frame is not None and not (is_ours and frame.f_code.co_filename == __file__):
            is_ours = False
            yield frame, frame.f_lineno
        coroutine = inner
