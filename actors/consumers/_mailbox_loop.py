"""`MailboxLoop`: a handler over a mailbox, as a loop."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from loopwarden._arguments import MAX_VISIBILITY, is_whole
from loopwarden._backoff import Backoff
from loopwarden._log import describe
from loopwarden._threads import run_in_thread
from loopwarden._ticket import Ticket, write
from loopwarden.actors.consumers._breaker import Breaker
from loopwarden.actors.consumers._event_loop import EventLoopThread
from loopwarden.actors.consumers._mailbox_worker import (
    MailboxWorker,
    RunsIn,
    Source,
    check_handler,
    refuse_unfinished,
)
from loopwarden.actors.consumers._message_holder import MessageHolder, Terms
from loopwarden.actors.consumers._pause_state import PauseState
from loopwarden.actors.consumers._retry import RetryPolicy, RetryRule, check_crash_on
from loopwarden.actors.consumers._worker_group import WorkerGroup
from loopwarden.actors.loop._current import here
from loopwarden.actors.loop._protocols import LoopTimeouts, ReadsMessages
from loopwarden.actors.loop._work_budget import WorkBudget, check_budget
from loopwarden.clock import Clock, resolve_clock
from loopwarden.mailbox import SupportsDeadLetterWatch, SupportsPauseWatch, SupportsTransactions, check_seconds
from loopwarden.mailbox._renewer import renewer_of
from loopwarden.mailbox._validation import check_loop, check_run
from loopwarden.mailbox.memory._mailbox import make_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from loopwarden._heartbeat import Heartbeat
    from loopwarden.actors.consumers._crew import Crew
    from loopwarden.actors.loop._health import Progress
    from loopwarden.mailbox import DeadLetterNotice, Message

__all__ = ["MailboxLoop"]

#: Seconds for which a message is leased: how long others wait for it if this process vanishes.
LEASE = 30.0
#: Seconds that a poll waits, as in SQS; a stop wakes it, so it need not be short.
WAIT = 20.0
#: Seconds without a sign of life for which leases are renewed, if neither a watchdog nor the tree says: the watchdog's.
SILENCE = 720.0
#: What is to be done about a mailbox that is closed under a loop.
CLOSE_LATER = "close mailboxes after the tree has ended, as serve(…, mailboxes=[…]) does"

T = TypeVar("T")


class MailboxLoop(ReadsMessages, Generic[T]):
    """Receives messages, calls the handler with each, and acknowledges those that it returns from.

    A handler that raises an ``Exception`` gives its message back, to come again after a back-off, and the loop goes on.
    Anything else, and the classes in ``crash_on``, gives it back and ends the loop with that cause. A handler that
    finalises its message itself is left alone. A stop completes the message in hand and gives all others back.

    It is a `Runnable` and `SupportsProcess`: run it alone, or as a `LoopActor`.

    >>> from loopwarden.mailbox import InMemoryMailbox
    >>> jobs: InMemoryMailbox[str, None] = InMemoryMailbox("jobs")
    >>> _ = jobs.send("resize")
    >>> MailboxLoop(jobs, lambda message: print(message.body)).run(max_iterations=1)
    resize

    Args:
        source: A mailbox, or the dead letters of one.
        handler: Called with each message, on a worker.
        concurrency: How many workers there are.
        prefetch: How many messages each worker takes at once; more than 1 keeps messages from workers that are free.
        runs_in: ``"thread"``: each worker is a thread. ``"asyncio"``: the handler returns a coroutine for each message,
            and the coroutines of all workers run on one event loop, in one thread. It is so for an ``async def``.
        timeout: Seconds that the coroutine of one message may take; then it is cancelled, and has failed.
        event_loop: The event loop that its coroutines share with those of other loops; without it they have their own.
        pass_body: Whether the handler is called with the body in place of the message. With type checkers write
            ``lambda message: handle(message.body)``, because they cannot know.
        transactional: Whether the handler runs in a transaction of the mailbox's own database: ``message.connection``
            is in it, and its commit acknowledges too, so that what the handler writes there is done exactly once.
        crash_on: Classes of exceptions that end the loop.
        backoff: How long a message whose handler raised stays away.
        retry: What else is done after which exception, the nearest class counts: another `Backoff`, or
            ``"dead_letter"`` to give the message up at once. A handler may also raise `Retry`.
        breaker: After how many failures in a row, without one success, the loop takes no more messages, but tries one
            now and then; None means never.
        visibility_timeout: How long others wait for a message if this process vanishes, if neither `run` nor the tree
            says otherwise: 30 s. The lease of a worker that shows signs of life is renewed.
        wait_time_seconds: How long a poll waits, likewise: 20 s.
        longest_handler: For how many seconds without a sign of life (`beat`) a lease is renewed if there is no watchdog
            to say so; 720 if the tree does not know either.
        longest_lease: How long the lease of one message is kept at most.
        budget: A limit of messages in hand that it shares with other loops; then ``prefetch`` is 1.
        weight: How much one of its messages counts in the budget.
        clock: The time it lives by.
    """

    def __init__(  # noqa: PLR0915  one check after the other
        self,
        source: Source[T],
        handler: Callable[[Message[T, Any]], object],
        *,
        concurrency: int = 1,
        prefetch: int = 1,
        runs_in: RunsIn | None = None,
        timeout: float | None = None,
        event_loop: EventLoopThread | None = None,
        pass_body: bool = False,
        transactional: bool = False,
        crash_on: tuple[type[BaseException], ...] = (),
        backoff: Backoff = Backoff(),  # noqa: B008  it is frozen
        retry: Mapping[type[Exception], RetryRule] | None = None,
        breaker: int | None = 10,
        visibility_timeout: float | None = None,
        wait_time_seconds: float | None = None,
        longest_handler: float | None = None,
        longest_lease: float = MAX_VISIBILITY,
        budget: WorkBudget | None = None,
        weight: int = 1,
        clock: Clock | None = None,
    ) -> None:
        clock = resolve_clock(clock)
        if not callable(getattr(source, "receive", None)):
            raise TypeError(f"source must be a mailbox, as open_mailbox() makes one, got {describe(source)}")
        if getattr(source, "closed", False) is True:
            raise ValueError(f"source must be an open mailbox, but {source.name!r} was closed: open it again")
        check_loop(
            source.name,
            concurrency=concurrency,
            prefetch=prefetch,
            visibility_timeout=LEASE if visibility_timeout is None else visibility_timeout,
            wait_time_seconds=WAIT if wait_time_seconds is None else wait_time_seconds,
            longest_lease=longest_lease,
        )
        if longest_handler is not None:
            check_seconds(source.name, "longest_handler", longest_handler)
        self._runs_in: RunsIn = check_handler(handler, runs_in=runs_in)
        _check_coroutines(source.name, self._runs_in, prefetch, timeout, event_loop)
        if type(pass_body) is not bool:
            raise TypeError(f"pass_body must be True or False, got {describe(pass_body)}")
        _check_transactional(transactional, source, self._runs_in, pass_body=pass_body)
        check_crash_on(crash_on)
        policy = RetryPolicy(backoff, retry)
        _check_no_class_in_both(retry or {}, crash_on)
        if breaker is not None and (not is_whole(breaker) or breaker < 1):
            raise ValueError(f"breaker must be a whole number of failures from 1 on, or None, got {describe(breaker)}")
        if not is_whole(weight) or weight < 1:
            raise ValueError(f"weight must be a whole number from 1 on, got {describe(weight)}")
        if budget is not None:
            check_budget(budget, source, prefetch)
        #: The limit that it shares with other loops.
        self.budget = budget
        self._own = LoopTimeouts(visibility_timeout, wait_time_seconds, longest_handler)
        #: The time-outs that it uses.
        self.timeouts = self._timeouts_in(LoopTimeouts())
        self._source = source
        handle = cast("Callable[[Any], object]", handler)
        self._handler: Callable[[Message[T, Any]], object] = (
            (lambda message: handle(message.body)) if pass_body else handle
        )
        if transactional:
            self._handler = _in_transaction(source, handle)
        self._clock = clock
        self._breaker = Breaker(breaker, backoff, clock.blocking)
        self._halted = False  # set before the tokens are stopped, so that a worker with a new one sees it
        self._pause_state = PauseState(clock.blocking)
        terms = Terms(
            source=source,
            is_stopped=lambda: self._halted,
            pause_state=self._pause_state,
            breaker=self._breaker,
            retry=policy,
            renewer=renewer_of(source, clock),
            crash_on=crash_on,
            backoff=backoff,
            silence=self._silence,
            longest_lease=longest_lease,
            clock=clock,
        )
        allowance = None if budget is None else (budget, budget.share(weight))
        self._make_worker = partial(MailboxWorker, terms, self._handler, self._run_posted, allowance, prefetch)
        self._crew: Crew | None = None
        if self._runs_in == "asyncio":
            from loopwarden.actors.consumers._crew import Crew  # noqa: PLC0415  it imports asyncio

            self._crew = Crew(
                terms,
                self._handler,
                self._do_posted,
                allowance,
                concurrency=concurrency,
                timeout=timeout,
                event_loop=event_loop,
            )
        #: Those that have a thread of their own.
        self._threads = [self._make_worker() for _ in range(concurrency)] if self._crew is None else [self._crew.intake]
        #: Why the last `run` returned although nothing had stopped it: its mailbox was closed. Otherwise empty.
        self.end_reason = ""
        #: Told of each message of the mailbox that becomes a dead letter; set by the loop's actor.
        self.on_dead_letter: Callable[[DeadLetterNotice], object] | None = None
        self._replaced: list[MessageHolder] = []  # whose messages are still to be given back
        # Guards _refuses together with _posted, _shift together with _done, and _workers against two changes at once.
        self._lock = clock.blocking.lock()
        self._refuses = False
        self._posted: deque[Callable[[], object]] = deque()
        self._stopped = False
        self._group: WorkerGroup | None = None
        self._done: Ticket[None] | None = None
        # Resolve when what was not started is given back; and how long a stop waits for that.
        self._returning: set[Ticket[None]] = set()
        self._patience = 0.0

    # Runnable.

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float | None = None,
        wait_time_seconds: float | None = None,
    ) -> None:
        """Work until the stop, the close of the mailbox, or ``max_iterations`` polls of each worker.

        Only with ``max_iterations`` may ``wait_time_seconds`` be 0: an idle loop that never waits uses up a processor.

        Raises:
            InvalidParameterError: if the loop cannot work like that.
            RuntimeError: if it is running already.
            BaseException: what a handler raised that ends the loop.
        """
        uses = self.timeouts
        lease = uses.visibility_timeout if visibility_timeout is None else visibility_timeout
        wait = uses.wait_time_seconds if wait_time_seconds is None else wait_time_seconds
        assert lease is not None and wait is not None, "each has a default"  # noqa: PT018  for the type checkers
        check_run(self._source.name, lease, wait, max_iterations)
        done: Ticket[None] = Ticket(self._clock.blocking)

        def work(worker: MailboxWorker) -> None:
            self._work(worker, group, max_iterations, lease, wait)

        group = WorkerGroup(
            work,
            self._stop_workers,
            name=self._source.name,
            blocking=self._clock.blocking,
        )
        with self._lock:
            if self._group is not None:
                raise RuntimeError(f"the loop over {self._source.name!r} is running already")
            self._group, self._done = group, done
            self.end_reason = ""
            self._refuses = self._halted = self._stopped
            for worker in self._workers:
                worker.renew(with_token=not self._stopped)  # the last run may have ended with a crash, which stops all
        unwatch: Callable[[], None] | None = None
        try:
            unwatch = self._watch(group)
            group.begin([*self._threads])
        except BaseException:
            self._stop_workers()
            raise
        finally:
            try:
                group.over.wait()
                for returned in tuple(self._returning):
                    returned.wait_ready(self._patience, self._clock)  # what a stop gives back is back before the end
                with self._lock:
                    self._refuses = True
                if not group.failures:
                    self._run_posted()
                if self._source.closed and not self._stopped:
                    self.end_reason = f"its mailbox {self._source.name!r} was closed: {CLOSE_LATER}"
            finally:
                if unwatch is not None:
                    unwatch()
                self._group = self._done = None
                done.complete(None)
        if group.failures:
            raise group.failures[0]

    def _work(
        self, worker: MailboxWorker, group: WorkerGroup, max_iterations: int | None, lease: float, wait: float
    ) -> None:
        """Do a worker's job, on its thread."""
        if self._crew is None:
            worker.run(max_iterations, lease, wait)
            return
        self._crew.begin(group)
        try:
            worker.run(max_iterations, lease, wait)
        except BaseException:
            self._stop_workers()  # the coroutines hear of it while they are waited for
            raise
        finally:
            self._crew.end()

    def _watch(self, group: WorkerGroup) -> Callable[[], None] | None:
        """Hear of each dead letter of the mailbox, and of its pauses, if it tells; return what ends that."""
        endings = ExitStack()
        try:
            if isinstance(self._source, SupportsDeadLetterWatch):
                endings.callback(self._source.watch_dead_letters(self._dead_lettered))
            if isinstance(self._source, SupportsPauseWatch):
                endings.callback(self._source.watch_pauses(self._paused_for_all))
        except BaseException:  # a back end may be user code
            endings.close()
            write(group.over)  # no worker has begun
            raise
        return endings.close

    def _paused_for_all(self, is_paused: bool) -> None:
        """Give back what is not started: others must not wait for it until the mailbox is resumed."""
        if is_paused:
            for worker in self._workers:
                worker.return_unstarted()

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Stop: wake the polls, give back what is not started, and wait for what is in hand.

        Called from a handler of this loop, it does not wait, and returns false.
        """
        done, deadline = self._done, self._clock.monotonic() + timeout
        nothing_to_secure = self.shutdown_nowait(timeout)
        group = self._group
        if self.is_own_thread(threading.get_ident()) or (group is not None and here().group is group):
            return False  # each worker gives back its own
        if not nothing_to_secure:
            # While the workers are busy, and apart, because a store that hangs must not hang the stop.
            returned = run_in_thread(self.secure, f"{self._source.name}-returns", self._clock.blocking)
            returned.wait_ready(timeout, self._clock)
        return done is None or done.wait_ready(max(0.0, deadline - self._clock.monotonic()), self._clock)

    def shutdown_nowait(self, timeout: float = 30.0) -> bool:
        """Stop, without waiting for anything; false if there are messages to be secured, which may take time."""
        with self._lock:
            self._refuses = self._stopped = True
        self._secure_for(timeout)
        self._stop_workers()
        return not self.needs_securing

    @property
    def running(self) -> bool:
        """True while ``run`` is working."""
        return self._done is not None

    @property
    def _workers(self) -> list[MessageHolder]:
        """All that have messages in hand or prefetched."""
        return [*self._threads] if self._crew is None else [self._crew.intake, *self._crew.workers]

    @property
    def max_deliveries(self) -> int | None:
        """How often its mailbox delivers a message before it is a dead letter; None if it does not say, or for ever."""
        deliveries: object = getattr(self._source, "max_deliveries", None)
        return deliveries if is_whole(deliveries) else None  # it may mean something else elsewhere

    @property
    def heartbeat(self) -> Heartbeat:
        """The first worker's; each worker's own is in `progress`."""
        return self._workers[0].heartbeat

    @property
    def progress(self) -> tuple[Progress, ...]:
        """What each worker is doing."""
        return tuple(worker.progress for worker in self._workers)

    def is_own_thread(self, thread: int) -> bool:
        """Say whether that thread is one of the workers', which would wait for itself if it waited for the end."""
        group = self._group
        return group is not None and thread in group.threads

    # SupportsTimeouts.

    def use_timeouts(self, timeouts: LoopTimeouts) -> LoopTimeouts:
        """Take from the tree what the loop was not given itself; return all that it uses from the next `run` on."""
        self.timeouts = self._timeouts_in(timeouts)
        return self.timeouts

    def _timeouts_in(self, tree: LoopTimeouts) -> LoopTimeouts:
        own = self._own
        return LoopTimeouts(
            _first(own.visibility_timeout, tree.visibility_timeout, LEASE),
            _first(own.wait_time_seconds, tree.wait_time_seconds, WAIT),
            _first(own.longest_handler, tree.longest_handler),
            tree.stall_threshold,
        )

    def _silence(self) -> float:
        """Return for how long the lease of a worker without a sign of life is renewed."""
        uses = self.timeouts
        return _first(uses.stall_threshold, uses.longest_handler, SILENCE) or 0.0

    # SupportsProcess.

    def post(self, work: Callable[[], object]) -> bool:
        """Accept work for a worker, waking its poll; false from the stop on."""
        with self._lock:
            if self._refuses:
                return False
            self._posted.append(work)
        self._nudge()
        return True

    def _nudge(self) -> None:
        for worker in self._threads:
            worker.token.nudge()

    def process(self, body: T) -> object:
        """Return what the handler makes of ``body``, as a message that comes from no mailbox of yours."""
        message = make_message(body, self._clock)
        return self._handler(message) if self._crew is None else self._crew.process(message)

    # SupportsPause.

    def pause(self, lease: float | None = None) -> Ticket[bool]:
        """Take no more messages; the ticket is true once nothing is in hand, false if `resume` came first."""
        if lease is not None:
            self._secure_for(lease)
        at_rest = self._pause_state.close()
        self._nudge()
        return at_rest

    def resume(self) -> None:
        """Take messages again."""
        self._pause_state.open()
        self._nudge()

    @property
    def needs_securing(self) -> bool:
        """True if something is prefetched, or the lease of something in hand ends too soon."""
        return any(worker.needs_securing for worker in self._workers)

    def secure(self) -> None:
        """Give back what is not started, and extend the leases of what is in hand up to the time that was given."""
        returned: Ticket[None] = Ticket(self._clock.blocking)
        self._returning.add(returned)
        self._pause_state.enter(returned)  # the loop is not at rest before this is done
        try:
            for worker in self._workers:
                worker.secure()
        finally:
            self._returning.discard(returned)
            self._pause_state.leave(returned)
            returned.complete(None)

    def _secure_for(self, seconds: float) -> None:
        self._pause_state.secured_until = self._clock.monotonic() + seconds
        self._patience = seconds

    # SupportsRecovery.

    def recall(self, worker: int) -> bool:
        """Stop the token of one worker, which goes on with a new one."""
        for each in self._workers:
            if each.progress.worker == worker:
                each.recall()
                return True
        return False

    def replace(self, worker: int) -> Ticket[None] | None:
        """Let another worker do the work of one; not if it is the only one, whose thread is that of `run`."""
        group = self._group
        if self._crew is not None and group is not None:
            given_up = self._crew.replace(worker)
            if given_up is None:
                return None
            with self._lock:
                self._replaced.append(given_up)
            return given_up.ended
        if group is None or len(self._threads) == 1:
            return None
        with self._lock:
            old = next((each for each in self._threads if each.progress.worker == worker), None)
            if old is None:
                return None
            if not group.is_at_work(old):  # it has left by itself, and needs no replacement
                return old.ended
            new = self._make_worker()
            self._threads = [new if each is old else each for each in self._threads]
            self._replaced.append(old)
        group.replace(old, new)
        return old.ended

    def give_back(self, worker: int | None, error: str) -> None:
        """Give back what one worker, or all, have in hand or prefetched, and fence them."""
        if worker is None:
            with self._lock:  # as a stop is, it is remembered by a run that has not begun
                self._refuses = self._stopped = self._halted = True
        found = [each for each in (*self._replaced, *self._workers) if worker in {None, each.progress.worker}]
        is_end = worker is None
        crew = self._crew
        with_threads = [each for each in found if crew is None or each is crew.intake]
        jobs: list[Callable[[], None]] = [partial(each.give_back, error, is_end=is_end) for each in with_threads]
        if crew is not None:
            jobs += crew.give_back([each for each in found if each is not crew.intake], error, is_end=is_end)
        # Each apart, so that a store that hangs with one worker keeps neither message nor fence of the others.
        given_back = [run_in_thread(job, f"{self._source.name}-returns", self._clock.blocking) for job in jobs[1:]]
        for job in jobs[:1]:
            job()
        for each in given_back:
            each.wait_ready()
        with self._lock:
            self._replaced = [each for each in self._replaced if each not in found]

    def _dead_lettered(self, notice: DeadLetterNotice) -> bool:
        """Count a dead letter, and have it told; on any thread. It is this loop's, and of no other on the mailbox."""
        with self._lock:
            self._workers[0].progress.dead_letters += 1
        if notice.unread:  # others are counted by the worker whose handler failed
            self._workers[0].count_failure(f"{notice.reason}: {notice.error}")
        if self.on_dead_letter is not None:
            self.on_dead_letter(notice)
        return True

    def _run_posted(self) -> None:
        """Run what was posted; on a worker."""
        for work in self._take_posted():
            work()

    def _do_posted(self) -> None:
        """Have done what was posted, beside the coroutines; on the intake."""
        assert self._crew is not None, "its intake calls this"
        for work in self._take_posted():
            self._crew.do(work)

    def _take_posted(self) -> Iterator[Callable[[], object]]:
        while self._posted:
            try:
                yield self._posted.popleft()
            except IndexError:  # another worker has popped the last one
                return

    def _stop_workers(self) -> None:
        self._halted = True
        for worker in self._workers:
            worker.token.stop()  # each gives back its own

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        state = "running" if self.running else "not running"
        workers: list[Any] = [*self._threads] if self._crew is None else self._crew.workers
        return f"<{type(self).__name__} over {self._source.name!r}, {len(workers)} workers, {state}>"


def _first(*values: float | None) -> float | None:
    """Return the first that is given."""
    return next((value for value in values if value is not None), None)


def _check_transactional(transactional: object, source: Source[Any], runs_in: RunsIn, *, pass_body: bool) -> None:
    if type(transactional) is not bool:
        raise TypeError(f"transactional must be True or False, got {describe(transactional)}")
    if transactional and runs_in == "asyncio":
        raise ValueError(
            "transactional needs a plain function as its handler, because its connection blocks: in an async def, use"
            " mailbox.transaction(message) in a function for asyncio.to_thread(…)"
        )
    if transactional and not isinstance(source, SupportsTransactions):
        raise ValueError(
            "transactional needs a mailbox in a database with transactions, such as PostgresMailbox,"
            f" and {source.name!r} is {describe(source)}"
        )
    if transactional and pass_body:
        raise ValueError("transactional and pass_body do not go together: the connection comes with the message")


def _in_transaction(source: Source[T], handle: Callable[[Any], object]) -> Callable[[Message[T, Any]], object]:
    """Return a handler that runs in a transaction of its mailbox, which acknowledges too."""
    mailbox = cast("SupportsTransactions", source)

    def handle_in_transaction(message: Message[T, Any]) -> object:
        with mailbox.transaction(message):
            result = handle(message)
            refuse_unfinished(result)  # before the commit
        return result

    return handle_in_transaction


def _check_coroutines(
    mailbox: str, runs_in: RunsIn, prefetch: int, timeout: float | None, event_loop: EventLoopThread | None
) -> None:
    if runs_in == "asyncio":
        if prefetch != 1:
            raise ValueError(
                f"prefetch is not for coroutines, got {prefetch}: as many messages are received as workers are free"
            )
        if timeout is not None:
            check_seconds(mailbox, "timeout", timeout)
            if timeout <= 0:
                raise ValueError(f"timeout must be more than 0 seconds, or None, got {describe(timeout)}")
        if event_loop is not None and not isinstance(event_loop, EventLoopThread):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
            raise TypeError(f"event_loop must be an EventLoopThread, got {describe(event_loop)}")
        return
    for name, value in (("timeout", timeout), ("event_loop", event_loop)):
        if value is not None:
            raise ValueError(
                f"{name} is for coroutines alone, and the handler is a plain function: make it an async def"
            )


def _check_no_class_in_both(
    retry: Mapping[type[Exception], RetryRule], crash_on: tuple[type[BaseException], ...]
) -> None:
    # By the classes themselves, not by hash or equality: other people's classes may have neither.
    both = [kind.__name__ for kind, _ in retry.items() if any(kind is each for each in crash_on)]
    if both:
        raise ValueError(
            f"retry and crash_on must not name the same class, got {', '.join(both)} in both: crash_on ends the loop,"
            " and retry lets it go on"
        )
