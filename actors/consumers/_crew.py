"""`Crew`: the coroutine workers of a loop, what gives them messages, and the thread that settles those."""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, cast, final

from typing_extensions import override

from loopwarden._log import report
from loopwarden._threads import run_in_thread
from loopwarden._ticket import Ticket, write
from loopwarden.actors.consumers._coroutine_worker import CoroutineWorker, Place, in_time
from loopwarden.actors.consumers._event_loop import EventLoopThread, host_of
from loopwarden.actors.consumers._event_loop_host import run_coroutine
from loopwarden.actors.consumers._mailbox_worker import MailboxWorker
from loopwarden.actors.loop._current import current
from loopwarden.mailbox._token import wait_with
from loopwarden.mailbox._validation import MAX_BATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from loopwarden._blocking import Gate, WorkQueue
    from loopwarden.actors.consumers._event_loop_host import EventLoopRun
    from loopwarden.actors.consumers._message_holder import MessageHolder, Terms
    from loopwarden.actors.consumers._worker_group import WorkerGroup
    from loopwarden.actors.loop._work_budget import Share, WorkBudget
    from loopwarden.mailbox import Message, Token

__all__ = ["Crew"]

#: Seconds that coroutines have to end after they were cancelled, before their messages are given back nevertheless.
CANCEL_SECONDS = 0.1
#: Threads that give back, so that a store which hangs with one message does not keep all others.
RETURNERS = 8


@final
class Crew:
    """Makes the workers, and runs them: one thread receives, one runs the coroutines, one settles.

    Args:
        terms: What all workers go by.
        handler: Returns the coroutine for a message.
        run_posted: Has the work done that was posted to the loop.
        allowance: What limits how many are in hand, in this loop and others: the budget, and this loop's share.
        concurrency: How many workers there are.
        timeout: Seconds that a message may take; None is for ever.
        event_loop: Where the coroutines run; None is a thread of their own.
    """

    def __init__(
        self,
        terms: Terms,
        handler: Callable[[Message[Any, Any]], object],
        run_posted: Callable[[], None],
        allowance: tuple[WorkBudget, Share] | None,
        *,
        concurrency: int,
        timeout: float | None,
        event_loop: EventLoopThread | None,
    ) -> None:
        clock = self._clock = terms.clock
        self._name = terms.source.name
        self._source = terms.source
        self._is_own = event_loop is None
        self._event_loop = host_of(event_loop or EventLoopThread(f"{self._name}-asyncio", clock=clock))
        self._handler = handler
        self._timeout = timeout
        self._make = partial(CoroutineWorker, terms, handler, timeout, self._coroutine_over)
        self.workers = [self._make() for _ in range(concurrency)]
        #: What receives; on the thread of the loop's `run`.
        self.intake = Intake(terms, handler, run_posted, allowance, self)
        self._lock = clock.blocking.lock()  # guards all that follows together with _gates
        self._free: deque[CoroutineWorker] = deque()
        self._posted = 0  # works that were posted, and are being done
        self._gates: list[Gate] = []  # of who waits for a change
        self._ended: WorkQueue[CoroutineWorker | None] = clock.blocking.queue()
        self._settler: Ticket[None] | None = None
        self._group: WorkerGroup | None = None
        self._loop_name: str | None = None
        self._owner: object = None
        self._run: EventLoopRun | None = None

    # A run of the loop; on the thread of the intake.

    def begin(self, group: WorkerGroup) -> None:
        """Have the threads begin.

        Raises:
            RuntimeError: if there is no thread to be had.
            OSError: if there is no file descriptor to be had.
        """
        self._group, self._loop_name, self._owner = group, current.loop, current.owner
        self._free = deque(self.workers)
        try:
            self._run = run = self._event_loop.join(self, self._failed)
            group.threads.add(cast("int", run.thread_id))
            ended: WorkQueue[CoroutineWorker | None] = self._clock.blocking.queue()
            settled: Ticket[None] = Ticket(self._clock.blocking)
            self._clock.blocking.start_thread(partial(self._settle, ended, settled), f"{self._name}-settler")
            self._ended, self._settler = ended, settled
            for worker in self.workers:
                worker.join()
        except BaseException:
            self._dismiss()
            raise

    def end(self) -> None:
        """Return when nothing is in hand any more, and the threads have ended."""
        try:
            self._wait(None, lambda: not self._posted and all(each.is_free for each in self.workers))
        finally:
            self._dismiss()

    def _dismiss(self) -> None:
        run, settler, self._run, self._settler = self._run, self._settler, None, None
        for worker in self.workers:
            worker.leave()
        if run is not None:
            self._event_loop.leave(run, self)
            if self._is_own:
                run.ended.wait_ready()  # what it cancels is settled
        if settler is not None:
            self._ended.put(None)
            settler.wait_ready()

    def wait_free(self, token: Token, *, all_of_them: bool) -> int:
        """Wait until a worker is free, or all are; return how many are, or 0 if the wait was cut short."""
        least = len(self.workers) if all_of_them else 1
        # Also if one is free by then: what has cut the wait short is to be looked at, and its nudge is taken.
        return len(self._free) if self._wait(token, lambda: len(self._free) >= least) else 0

    def _wait(self, token: Token | None, is_so: Callable[[], bool]) -> bool:
        """Wait until it is so; false if a token has cut the wait short."""
        while not is_so():
            gate = self._gate()
            if not is_so():
                wait_with(self._clock, gate, None, token)
            if token is not None and (token.take_nudge() or token.stopped):
                return False
        return True

    def _gate(self) -> Gate:
        """Return a gate that the next change opens."""
        gate = self._clock.blocking.gate()
        with self._lock:
            self._gates.append(gate)
        return gate

    def _changed(self) -> None:
        """Wake who waits for a change."""
        with self._lock:
            gates, self._gates = self._gates, []
        for gate in gates:
            gate.open()

    @property
    def has_free(self) -> bool:
        """True if a worker is free."""
        return bool(self._free)

    def pop_free(self) -> CoroutineWorker:
        """Return a worker that is free."""
        with self._lock:
            return self._free.popleft()

    def start(self, workers: list[CoroutineWorker]) -> None:
        """Have the coroutines of workers begun, which have a message in hand."""
        run = self._run
        if run is None or not run.call(self._begin_all, workers):
            for worker in workers:
                worker.over(worker.in_hand)

    @property
    def run(self) -> EventLoopRun:
        """Where the coroutines run."""
        assert self._run is not None, "it runs"
        return self._run

    # On the event loop.

    def _begin_all(self, workers: list[CoroutineWorker]) -> None:
        for worker in workers:
            try:
                worker.begin(self._loop_name, self._owner, self._group)
            except BaseException as error:  # noqa: BLE001  the others must begin, and this one be settled
                worker.over(worker.in_hand, error)

    def _coroutine_over(self, worker: CoroutineWorker) -> None:
        if worker.lets_go:  # at once: the run of its loop, and the thread that settles, may have ended long since
            worker.settle()
            self._changed()
        else:
            self._ended.put(worker)

    def _failed(self, error: BaseException) -> None:
        """Give back what is in hand, because the event loop has ended under it; on its thread, as its last act."""
        for worker in tuple(self.workers):
            worker.over(worker.in_hand, error)
        if self._group is not None:
            self._group.fail(error)

    # On the thread that settles.

    def _settle(self, ended: WorkQueue[CoroutineWorker | None], settled: Ticket[None]) -> None:
        try:
            self._settle_until_the_end(ended)
        finally:
            settled.complete(None)

    def _settle_until_the_end(self, ended: WorkQueue[CoroutineWorker | None]) -> None:
        is_over = False
        while not is_over:
            batch: list[CoroutineWorker] = []
            worker = ended.get()
            while worker is not None:
                batch.append(worker)
                try:
                    worker = ended.get_nowait()
                except queue.Empty:
                    break
            is_over = worker is None
            try:
                self._settle_all(batch)
            except BaseException as error:  # noqa: BLE001  what it has not settled comes back by itself
                report(logging.ERROR, "settling messages of %r raised", self._name, error=error, mailbox=self._name)
                self._freed(batch)

    def _settle_all(self, batch: list[CoroutineWorker]) -> None:
        done = self._acknowledge(batch)
        for worker in batch:
            if worker in done:
                continue
            try:
                error = worker.settle()
            except BaseException as raised:  # noqa: BLE001  of the back end: it ends the loop, as on a thread
                error = raised
            if error is not None and self._group is not None:
                self._group.fail(error)
        self._freed(batch)

    def _acknowledge(self, workers: list[CoroutineWorker]) -> set[CoroutineWorker]:
        """Acknowledge in one step what is only to be acknowledged, if it is several; return whose it was."""
        acknowledge_many: Callable[[Iterable[Any]], list[Any]] | None = getattr(self._source, "acknowledge_many", None)
        messages = {worker: message for worker in workers if (message := worker.acknowledges) is not None}
        if len(messages) <= 1 or acknowledge_many is None:
            return set()
        try:
            refused = {id(each) for each in acknowledge_many(messages.values())}
        except BaseException:  # noqa: BLE001  a back end may be user code: each is tried by itself, and tells why
            return set()
        for worker, message in messages.items():
            worker.acknowledged(message, is_refused=id(message) in refused)
        return set(messages)

    def _freed(self, workers: list[CoroutineWorker]) -> None:
        with self._lock:
            self._free.extend(worker for worker in workers if not worker.is_abandoned)
        if self._gates:  # after what has changed; who waits looks once more after it has a gate
            self._changed()

    # Work that was posted.

    def do(self, work: Callable[[], object]) -> None:
        """Have work done beside the messages, on a thread of its own; what it raises ends the loop."""
        with self._lock:
            self._posted += 1

        def attempt() -> None:
            try:
                current.loop, current.owner = self._loop_name, self._owner
                work()
            except BaseException as error:  # noqa: BLE001  isolates user code
                if self._group is not None:
                    self._group.fail(error)
            finally:
                with self._lock:
                    self._posted -= 1
                self._changed()

        run_in_thread(attempt, f"{self._name}-posted", self._clock.blocking)

    def process(self, message: Message[Any, Any]) -> object:
        """Return what the handler makes of a message that comes from no mailbox; not on the event loop."""
        try:
            return self._process(message)
        except (asyncio.CancelledError, GeneratorExit) as error:  # as with a message, it ends no loop
            raise RuntimeError(f"the handler of the loop over {self._name!r} was cancelled") from error

    def _process(self, message: Message[Any, Any]) -> object:
        run, result = self._run, cast("Ticket[object]", Ticket(self._clock.blocking))
        if run is None:
            return run_coroutine(self._clock, lambda: self._handler(message))
        if threading.get_ident() == run.thread_id:
            raise RuntimeError(f"process() of the loop over {self._name!r} would wait for itself: await the handler")

        async def answer() -> None:
            try:
                made = await in_time(cast("Any", self._handler(message)), self._timeout)
            except BaseException as error:  # noqa: BLE001  isolates user code: who asked gets it
                write(result, error=error)
            else:
                write(result, made)

        place = Place(run, self._loop_name, self._owner, self._group, self._name)
        place.is_stopped = lambda: self.intake.token.stopped
        context = place.context()

        def begin() -> None:
            task = run.loop.create_task(answer(), context=context)
            task.add_done_callback(lambda _: write(result, error=RuntimeError("the event loop has ended")))

        if not run.call(begin):
            return run_coroutine(self._clock, lambda: self._handler(message))
        run.ended.on_ready(lambda _: write(result, error=RuntimeError("the event loop has ended")))
        return result.wait()

    # Giving workers up.

    def replace(self, number: int) -> CoroutineWorker | None:
        """Put another worker in the place of one; None if that is not possible, because the event loop is stuck."""
        old = next((each for each in self.workers if each.progress.worker == number), None)
        if old is None:
            return None
        if old.blocks:
            self.give_up()
            return None
        new = self._make()
        new.join()
        with self._lock:
            self.workers = [new if each is old else each for each in self.workers]
            old.is_abandoned = True
            self._free = deque(each for each in self._free if each is not old)
            self._free.append(new)
        self._changed()
        return old

    def give_up(self) -> None:
        """Have others that share the event loop be given another one."""
        if self._run is not None:
            self._event_loop.give_up(self._run)

    def give_back(self, holders: list[MessageHolder], error: str, *, is_end: bool) -> list[Callable[[], None]]:
        """Cancel coroutines, and wait a moment for them to end; return what gives the rest back."""
        workers = cast("list[CoroutineWorker]", holders)  # what has no thread
        for worker in workers:
            worker.cancel(error, "abandoned")
        rest = [each for each in workers if not each.is_free]
        if rest and is_end:
            self._wait_moment(lambda: all(each.is_free for each in rest))
        if is_end:  # otherwise they were given up before, and have given back nothing since
            workers = [each for each in workers if not each.is_free]
            if workers:
                self.give_up()
        slices = [workers[start::RETURNERS] for start in range(min(RETURNERS, len(workers)))]
        return [partial(_give_back_each, each, error, is_end=is_end) for each in slices]

    def _wait_moment(self, is_so: Callable[[], bool]) -> None:
        deadline = self._clock.monotonic() + CANCEL_SECONDS
        while not is_so() and (left := deadline - self._clock.monotonic()) > 0:
            gate = self._gate()
            if not is_so():
                self._clock.wait(gate, left)

    def __repr__(self) -> str:
        return f"<Crew of {self._name!r}, {len(self.workers)} workers, {len(self._free)} free>"


def _give_back_each(workers: list[CoroutineWorker], error: str, *, is_end: bool) -> None:
    for worker in workers:
        worker.give_back(error, is_end=is_end)


@final
class Intake(MailboxWorker):
    """Receives as many messages as there are workers free, and gives each of them one.

    Args:
        terms: What all workers of the loop go by.
        handler: Not called by it.
        run_posted: Has the work done that was posted to the loop.
        allowance: What limits how many are in hand: with it, one message is received at a time.
        crew: The workers.
    """

    def __init__(
        self,
        terms: Terms,
        handler: Callable[[Message[Any, Any]], object],
        run_posted: Callable[[], None],
        allowance: tuple[WorkBudget, Share] | None,
        crew: Crew,
    ) -> None:
        super().__init__(terms, handler, run_posted, allowance, 1)
        self._crew = crew

    @override
    def _has_room(self) -> bool:
        if not self._crew.has_free:
            self._say_polling(math.inf)
        free = self._crew.wait_free(self.token, all_of_them=self._breaker.is_open)
        if self._allowance is None:
            self._batch = max(1, min(free, MAX_BATCH))
        return free > 0

    @override
    def _work_off(self) -> None:
        begun: list[CoroutineWorker] = []
        try:
            while (message := self._take()) is not None:
                worker = self._crew.pop_free()
                begun.append(worker)
                permit, self._permit = self._permit, None
                worker.take(message, self._crew.run, self, permit)
                self._in_hand = None
        finally:
            self._in_hand = None
            current.leave_message()
            if begun:
                self._crew.start(begun)
