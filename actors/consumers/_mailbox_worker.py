"""`MailboxWorker`: one worker of a mailbox loop: receive, handle, acknowledge."""

from __future__ import annotations

import inspect
import logging
import threading
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, final

from loopwarden._arguments import MAX_VISIBILITY, check_plain
from loopwarden._heartbeat import Heartbeat
from loopwarden._log import describe, report
from loopwarden._ticket import Ticket
from loopwarden.actors.consumers._retry import UnfinishedError, is_retry
from loopwarden.actors.loop._abandon import FENCE_AFTER
from loopwarden.actors.loop._current import current
from loopwarden.actors.loop._health import Progress, fate_of
from loopwarden.errors import (
    MailboxClosedError,
    MailboxConnectionError,
    MessageFinalizedError,
    ReceiptHandleExpiredError,
)
from loopwarden.mailbox import SupportsWaitedUntil, SupportsWarnings, Token
from loopwarden.mailbox._token import wait_with

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loopwarden._backoff import Backoff
    from loopwarden.actors.consumers._breaker import Breaker
    from loopwarden.actors.consumers._pause_state import PauseState
    from loopwarden.actors.consumers._retry import RetryPolicy
    from loopwarden.actors.loop._health import Fate
    from loopwarden.actors.loop._work_budget import Permit, Share, WorkBudget
    from loopwarden.clock import Clock
    from loopwarden.mailbox import Message, SupportsWaitVisible
    from loopwarden.mailbox._renewer import LeaseRenewer

__all__ = ["MailboxWorker", "Source", "check_handler", "refuse_unfinished"]

T = TypeVar("T")


def check_handler(handler: object, what: str = "message") -> None:
    """Refuse what cannot be a handler.

    Args:
        handler: What was given.
        what: What it is to be called with.

    Raises:
        TypeError: if it cannot be called with one argument, or is a coroutine function or a generator.
    """
    if not callable(handler):
        raise TypeError(f"handler must be a function of one {what}, got {describe(handler)}")
    check_plain("handler", handler)
    try:
        parameters = inspect.signature(handler)
    except (TypeError, ValueError):  # C code may have none: then it is tried
        return
    try:
        parameters.bind(None)
    except TypeError:
        raise TypeError(
            f"handler must take one argument, the {what}, but {describe(handler)} takes {parameters}: what else it"
            " needs can be bound by functools.partial or a lambda"
        ) from None


def refuse_unfinished(result: object) -> None:
    """Raise if a handler has returned before it has done anything, as a coroutine function or a generator does."""
    # Not only the interpreter's own: Cython has coroutines too, and aiohttp's `session.post(…)` returns one. By type():
    # the class of other people's things may be a property that raises.
    if result is None or not issubclass(type(result), (Coroutine, GeneratorType, AsyncGeneratorType)):
        return
    unfinished = cast("Any", result)
    if not isinstance(result, AsyncGeneratorType):
        unfinished.close()
    raise UnfinishedError(
        f"a handler must be a plain function, but this one returned a {type(unfinished).__name__}, so nothing was done:"
        " let it call the function that does the work, as asyncio.run(…) does for a coroutine"
    )


def _with_cause(error: BaseException) -> str:
    """Describe a `Retry` with what made the handler raise it, which no log tells."""
    cause = error.__cause__ if error.__suppress_context__ else error.__context__
    return describe(error) if cause is None else f"{describe(error)}, because of {describe(cause)}"


class Source(Protocol[T]):
    """What a worker receives from: a mailbox, or its dead letters."""

    @property
    def name(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    def receive(
        self, *, max_messages: int, visibility_timeout: float, wait_time_seconds: float, token: Token
    ) -> Sequence[Message[T, Any]]: ...


@final
class MailboxWorker:
    """Has its own heartbeat, token, progress and prefetched messages; the thread that pops one of those owns it.

    Args:
        source: Where messages come from.
        handler: Called with each message.
        run_posted: Runs the work that was posted to the loop.
        is_stopped: Says whether the whole loop is stopped.
        intake: Says whether messages are to be taken.
        allowance: What limits how many are in hand, in this loop and others: the budget, and this loop's share.
        breaker: Says whether messages may be taken, or only one now and then.
        retry: What becomes of a message whose handler raised.
        renewer: Keeps the leases of what is in hand.
        crash_on: Classes of exceptions that end the loop.
        backoff: How long to wait for a mailbox that is unavailable.
        prefetch: How many messages one receive may return.
        silence: Returns for how many seconds without a sign of life leases are renewed.
        longest_lease: How long the lease of one message is kept at most.
        clock: The time.
    """

    def __init__(  # noqa: PLR0917  one caller, which makes many alike
        self,
        source: Source[Any],
        handler: Callable[[Message[Any, Any]], object],
        run_posted: Callable[[], None],
        is_stopped: Callable[[], bool],
        pause_state: PauseState,
        allowance: tuple[WorkBudget, Share] | None,
        *,
        breaker: Breaker,
        retry: RetryPolicy,
        renewer: LeaseRenewer,
        crash_on: tuple[type[BaseException], ...],
        backoff: Backoff,
        prefetch: int,
        silence: Callable[[], float],
        longest_lease: float,
        clock: Clock,
    ) -> None:
        self._source = source
        self._handler = handler
        self._run_posted = run_posted
        self._is_stopped = is_stopped
        self._pause_state = pause_state
        self._allowance = allowance
        self._permit: Permit | None = None
        self._breaker = breaker
        self._retry = retry
        self._renewer = renewer
        self._crash_on = crash_on
        self._backoff = backoff
        self._batch = prefetch
        self._silence = silence
        self._longest_lease = longest_lease
        self._clock = clock
        self._dice = clock.blocking.dice()
        self.token = Token()
        self.heartbeat = Heartbeat(clock)
        self.progress = Progress(clock, self.heartbeat)
        self.progress.mailbox = source.name
        if isinstance(source, SupportsWaitedUntil):
            self.progress.waited_until = source.waited_until
        self._warns = isinstance(source, SupportsWarnings)
        self._settling: Message[Any, Any] | None = None  # what it had in hand last that it began to settle
        self.prefetched: deque[Message[Any, Any]] = deque()
        # Makes one of several that give back take all of it, because two would mix up the order; and makes a message
        # go from prefetched to in hand in one step.
        self._lock = clock.blocking.lock()
        self._in_hand: Message[Any, Any] | None = None
        #: For how many seconds messages are received, and when the leases of those that it holds end.
        self.lease = self.lease_ends = 0.0
        self._held_since = 0.0
        self._lost: set[str] = set()  # deliveries that it holds, but whose lease is over
        self._is_recalled = False
        #: True once another worker does its work.
        self.is_abandoned = False
        #: Resolves when the thread that works has ended.
        self.ended: Ticket[None] = Ticket(clock.blocking)

    def renew(self, *, with_token: bool) -> None:
        """Make ready for another run."""
        self.ended = Ticket(self._clock.blocking)
        self._is_recalled = self.is_abandoned = False
        if with_token:
            self.token = Token()

    def recall(self) -> None:
        """Stop what the worker does now; it goes on with a new token."""
        self._is_recalled = True
        self.token.stop()

    def give_back(self, error: str, *, is_end: bool) -> None:
        """Give back what is in hand and what is prefetched, then fence; by others, while the worker hangs.

        A message that is given back is no longer the worker's, whatever it does: the fence is for back ends that would
        take it from the worker nevertheless. At the end of the whole loop it is noted what became of them.
        """
        notes = is_end or self._is_ending
        self.is_abandoned = True
        self.token.stop()
        self._pause_state.leave(self)
        self._release()
        with self._lock:
            message = self._in_hand
        timer = None
        try:
            # A store that hangs must not keep the fence open.
            with suppress(RuntimeError):  # no thread for timers
                timer = self._clock.call_later(FENCE_AFTER, self.token.fence)
            if message is not None and not message.is_finalized:
                is_back = self._settled(message, lambda: message.nack(0, error=error))
                if notes:
                    self._note_fate(message, "abandoned" if is_back else fate_of(message))
            self.return_unstarted(notes=notes)
        finally:
            self.token.fence()
            if timer is not None:
                timer.cancel()

    def run(self, max_iterations: int | None, visibility_timeout: float, wait_time_seconds: float) -> None:
        """Poll and work until the stop, the close of the mailbox, or ``max_iterations`` polls."""
        failures = polls = 0
        before = current.heartbeat
        current.heartbeat, current.is_stopped = self.heartbeat, lambda: self.token.stopped
        current.mailbox = self._source.name
        self.progress.thread_id = threading.get_ident()
        self.lease = visibility_timeout
        self._pause_state.enter(self)
        self._renewer.join(self)
        try:
            while max_iterations is None or polls < max_iterations:
                self._release()
                if self._is_recalled:
                    self.return_unstarted()  # their leases may have ended, and others may be free
                    # First the new token, then the look: a stop, an abandon or a post does it in the other order.
                    self._is_recalled, self.token = False, Token()
                self._run_posted()
                if self._is_done():
                    return
                if self._pause_state.is_closed:
                    self._rest()
                    continue
                is_try = self._breaker.is_open
                if is_try and not self._may_try():
                    continue
                self.token.tries_one = is_try
                polls += 1
                try:
                    wait = wait_time_seconds if not failures else 0
                    if self._allowance is None or self._has_turn(*self._allowance, wait):
                        self._poll(visibility_timeout, wait if self._allowance is None else 0)
                    if failures:
                        report(logging.INFO, "mailbox available again", mailbox=self._source.name)
                    failures = 0
                except MailboxClosedError:
                    return
                except MailboxConnectionError as error:
                    failures += 1
                    self._wait_for_the_broker(failures, error)
                    continue
                self._work_off()
        finally:
            self.return_unstarted()
            self._renewer.leave(self)
            self._release()
            self.progress.leave()
            self._pause_state.leave(self)
            current.heartbeat, current.is_stopped, current.mailbox = before, None, None

    def _is_done(self) -> bool:
        is_stopped = self.token.stopped and not self._is_recalled  # who was recalled goes on
        return self.is_abandoned or self._is_stopped() or is_stopped or self._source.closed

    def _may_try(self) -> bool:
        """Wait until a message may be tried, although none succeeds at present; false if the wait was cut short."""
        self._release()
        delay = self._breaker.wait(self, self._clock.monotonic(), self._dice.random())
        self._say_polling(delay)
        if delay:
            wait_with(self._clock, self._clock.blocking.gate(), delay, self.token)  # woken by time, or by the token
            self.token.take_nudge()
            return False
        return True

    def _has_turn(self, budget: WorkBudget, share: Share, wait: float) -> bool:
        """Wait until there is something to receive, and then for the permit to; false if it is none of its turn."""
        self._say_polling(wait)
        if not cast("SupportsWaitVisible", self._source).wait_visible(wait, self.token):
            return False
        self.progress.throttled()
        self._permit = budget.take(share, self.token)
        return self._permit is not None

    def _release(self) -> None:
        """Let others have what this one needs no more."""
        if self._breaker.is_open:
            self._breaker.has_tried(self)
        permit, self._permit = self._permit, None
        if permit is not None:
            permit.release()

    def _rest(self) -> None:
        """Take nothing until the intake is open again; woken by a nudge, or by the token's stop."""
        self.return_unstarted()
        self.token.take_nudge()  # a resume or a post comes first, and nudges then
        self.progress.paused()
        self.heartbeat.beat()
        if self._pause_state.rest(self):
            wait_with(self._clock, self._clock.blocking.gate(), None, self.token)
            self.token.take_nudge()
            self._pause_state.enter(self)

    @property
    def needs_securing(self) -> bool:
        """True if something is prefetched, or the lease of what is in hand ends too soon."""
        until = self._pause_state.secured_until
        return bool(self.prefetched) or (self._in_hand is not None and until is not None and self.lease_ends < until)

    def secure(self) -> None:
        """Give back what is not started, and let the lease of what is in hand last; safe while the worker is busy."""
        self.return_unstarted()
        message, deadline = self._in_hand, self._pause_state.secured_until
        if message is not None and deadline is not None:
            self._extend_until(message, deadline)

    def _extend_until(self, message: Message[Any, Any], deadline: float) -> None:
        """Let the lease of what is in hand last until then, in monotonic seconds, unless it does anyway."""
        left = deadline - self._clock.monotonic()
        if self.lease_ends >= deadline or left <= 0 or message.is_finalized:
            return
        try:
            message.extend_visibility(min(left, MAX_VISIBILITY))
        except MessageFinalizedError:
            return
        except Exception as error:  # noqa: BLE001  a back end may be user code
            if isinstance(error, ReceiptHandleExpiredError) and (self._settling is message or message.is_finalized):
                return  # it is settled in this moment, on the worker's own thread
            text = "could not extend the lease of message %s: %s"
            report(logging.WARNING, text, message.id, describe(error), **self._fields(message))
            return
        self.lease_ends = deadline

    # As a `Holder` of leases.

    def held(self) -> list[Message[Any, Any]]:
        """Return what it has in hand or prefetched, unless it shows no sign of life, or was given up."""
        return [] if self._is_silent else self._kept()

    @property
    def may_go_on(self) -> bool:
        """True if it holds something, and shows no sign of life, but may do so again before its lease ends."""
        return self._is_silent and self._clock.monotonic() < self.lease_ends and bool(self._kept())

    @property
    def _is_silent(self) -> bool:
        return self._clock.monotonic() - self.heartbeat.last_beat >= self._silence()

    def _kept(self) -> list[Message[Any, Any]]:
        with self._lock:
            first, waiting = self._in_hand, list(self.prefetched)
        held = waiting if first is None else [first, *waiting]
        is_too_long = self._clock.monotonic() - self._held_since >= self._longest_lease
        if is_too_long or self.is_abandoned or self.token.fenced:
            return []
        return [message for message in held if not message.is_finalized and message.receipt_handle not in self._lost]

    def renewed(self, until: float) -> None:
        """Take note that the leases of what it holds end then."""
        self.lease_ends = max(self.lease_ends, until)

    def lost(self, messages: Sequence[Message[Any, Any]], why: str) -> None:
        """Say that messages are delivered again although they are in hand here; once for each."""
        for message in messages:
            # Not by the message: the next delivery of it may be in hand here before the end of this one is known.
            if message.receipt_handle not in self._lost:
                self._lost.add(message.receipt_handle)
                text = "lease lost: message %s of %r will be delivered again, although it is in hand: %s"
                report(logging.WARNING, text, message.id, self._source.name, why, **self._fields(message))

    def return_unstarted(self, *, notes: bool = False) -> None:
        """Put the prefetched messages back in their order; safe while the worker is busy."""
        notes = notes or self._is_ending
        batch: list[Message[Any, Any]] = []
        with self._lock, suppress(IndexError):
            while True:
                batch.append(self.prefetched.popleft())
        if notes:  # a store that hangs keeps all of them
            self.progress.fates |= {message.id: "extended" for message in batch}
        for message in batch:
            self.progress.returned += (is_back := self._settled(message, message.put_back))
            if notes:
                self._note_fate(message, "returned" if is_back else "extended")

    def _note_fate(self, message: Message[Any, Any], fate: Fate) -> None:
        self.progress.fates[message.id] = fate

    def _poll(self, visibility_timeout: float, wait_time_seconds: float) -> None:
        self._say_polling(wait_time_seconds)
        failures = self._breaker.failures
        if self._warns:
            self.progress.warnings = cast("SupportsWarnings", self._source).warnings
        messages = self._source.receive(
            max_messages=1 if self.token.tries_one else self._batch,
            visibility_timeout=visibility_timeout,
            wait_time_seconds=wait_time_seconds,
            token=self.token,
        )
        if not messages:
            if self.token.tries_one and not self._is_anything_left():
                self._breaker.found_nothing(failures)
            return
        self._held_since = now = self._clock.monotonic()
        self.lease_ends = now + visibility_timeout
        self._lost.clear()
        with self._lock:
            self.prefetched.extend(messages)
        self._renewer.received(self)

    def _is_anything_left(self) -> bool:
        """Say whether there are messages, even if they are not visible: what was tried comes back after a while."""
        count: Callable[[], int] | None = getattr(self._source, "approximate_count", None)
        return count is None or count() > 0

    def _say_polling(self, wait: float) -> None:
        if self._breaker.is_open and not self._breaker.is_idle:
            self.progress.degraded(wait, self._breaker.reason, self._breaker.failures)
        elif wait or not self.progress.is_degraded:
            self.progress.polling(wait)
        self.heartbeat.beat()

    def _wait_for_the_broker(self, failures: int, error: MailboxConnectionError) -> None:
        """Stay alive and retry later; a mailbox that is unavailable is not a reason to end."""
        self._release()
        delay = self._backoff.delay(failures, self._dice.random())
        self.progress.degraded(delay, f"mailbox unavailable: {error}")
        self.heartbeat.beat()
        if failures == 1:
            report(logging.WARNING, "mailbox unavailable, retrying: %s", error, mailbox=self._source.name)
        wait_with(self._clock, self._clock.blocking.gate(), delay, self.token)  # woken by time, or by the token
        self.token.take_nudge()  # it has done its work: the loop looks at what was posted next

    def _work_off(self) -> None:
        has_waited = False
        while (message := self._take()) is not None:
            try:
                # The lease of one that waited behind others is renewed with theirs; if that failed, it is over.
                if has_waited and (message.receipt_handle in self._lost or self._clock.monotonic() >= self.lease_ends):
                    self.lost([message], "it ended while the message waited behind another one")
                else:
                    self._handle(message)
            finally:
                self._in_hand = None
                current.leave_message()
            has_waited = True

    def _take(self) -> Message[Any, Any] | None:
        """Take the next one in hand; None if there is none, or if nothing more is to be begun."""
        if self._breaker.is_open and not self.token.tries_one:
            # It has opened since they were received: they are no try, which is one message of one worker.
            self.return_unstarted()
        # In one step: an abandon stops the token, and then looks what is in hand.
        with self._lock:
            if not self.prefetched or self.is_abandoned or self.token.stopped or self._pause_state.is_closed:
                return None
            self._in_hand = message = self.prefetched.popleft()
            return message

    def _handle(self, message: Message[Any, Any]) -> None:
        self.progress.working(message.id, message.delivery_count)
        self.heartbeat.beat()
        # It is in hand, and then the look: `secure` does it in the other order.
        deadline = self._pause_state.secured_until
        try:
            if deadline is not None:
                self._extend_until(message, deadline)
            refuse_unfinished(self._handler(message))
        except BaseException as error:
            self._give_back_failed(message, error)
            if self._ends_loop(error):
                self.progress.has_raised = True
                raise
        else:
            is_done = message.is_finalized or self._settled(message, message.acknowledge)
            self.progress.processed += is_done and not message.is_returned  # a handler may give back what it cannot do
            if self._breaker.succeeded():
                text = "the loop over %r goes on: a message has succeeded"
                report(logging.WARNING, text, self._source.name, mailbox=self._source.name)
            if self._is_ending:
                self._note_fate(message, fate_of(message))

    def _give_back_failed(self, message: Message[Any, Any], error: BaseException) -> None:
        """Do with a message what is to be done with one whose handler raised that."""
        is_to_retry = is_retry(error)
        text = _with_cause(error) if is_to_retry else describe(error)
        if is_to_retry:
            self.progress.returned += 1
        else:
            self.progress.failed += 1
            self.progress.last_error = text
        ends_loop = self._ends_loop(error)
        delay = self._retry.delay(error, message.delivery_count, self._dice.random())
        if not is_to_retry:
            self.count_failure(text)
        if delay is not None and self._breaker.is_open and not ends_loop and not is_to_retry:
            # It was taken to see whether anything succeeds, so it costs the message no delivery; and others have a try.
            longest = self._backoff.maximum
            is_back = self._settled(message, lambda: message.put_back(longest))
        elif delay is None:
            is_back = self._settled(message, lambda: message.dead_letter("its handler refused it", error=text))
        else:
            is_back = self._settled(message, lambda: message.nack(delay, error=text))
        if self._is_ending:
            self._note_fate(message, "returned" if is_back else fate_of(message))
        if is_to_retry:
            return
        if not ends_loop and self._retry.is_to_be_told(error):
            report(
                logging.WARNING,
                "a handler of %r raised on delivery %d of message %s",
                self._source.name,
                message.delivery_count,
                message.id,
                error=error,
                **self._fields(message),
            )

    def _ends_loop(self, error: BaseException) -> bool:
        # By type(): the class of other people's things may be a property that raises.
        kind = type(error)
        return issubclass(kind, self._crash_on) or not issubclass(kind, Exception)

    def count_failure(self, why: str) -> None:
        """Count a message that did not succeed; on any thread."""
        if self._breaker.failed(why, self._clock.monotonic(), self._dice.random()):
            text = "the loop over %r takes no more messages, but tries one now and then: %s"
            report(logging.ERROR, text, self._source.name, self._breaker.reason, mailbox=self._source.name)

    def _fields(self, message: Message[Any, Any]) -> dict[str, Any]:
        """Return what a log record about a message carries."""
        return {"mailbox": self._source.name, "message_id": message.id, "delivery": message.delivery_count}

    @property
    def _is_ending(self) -> bool:
        return (self._is_stopped() or self._pause_state.is_closed) and not self.is_abandoned

    def _settled(self, message: Message[Any, Any], settle: Callable[[], None]) -> bool:
        """Finalise a message, or renew its lease, unless it is finalised; if that fails, it comes back by itself."""
        if message.is_finalized:
            return False
        if message is self._in_hand:
            self._settling = message
        try:
            settle()
        except MessageFinalizedError:
            return False
        except ReceiptHandleExpiredError:
            self.lost([message], "it had ended before the message was settled, or the worker was given up")
            return False
        except Exception as error:  # noqa: BLE001  a back end may be user code
            report(
                logging.WARNING,
                "could not settle message %s; it will be redelivered unless the store has it as done: %s",
                message.id,
                error,
                **self._fields(message),
            )
            return False
        return True
