"""`MessageHolder`: has messages in hand, keeps their leases, and settles them."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from loopwarden._arguments import MAX_VISIBILITY
from loopwarden._heartbeat import Heartbeat
from loopwarden._log import describe, report
from loopwarden._ticket import Ticket
from loopwarden.actors.consumers._retry import is_retry
from loopwarden.actors.loop._abandon import FENCE_AFTER
from loopwarden.actors.loop._health import Progress, fate_of
from loopwarden.errors import MessageFinalizedError, ReceiptHandleExpiredError
from loopwarden.mailbox import SupportsWaitedUntil, Token

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loopwarden._backoff import Backoff
    from loopwarden.actors.consumers._breaker import Breaker
    from loopwarden.actors.consumers._mailbox_worker import Source
    from loopwarden.actors.consumers._pause_state import PauseState
    from loopwarden.actors.consumers._retry import RetryPolicy
    from loopwarden.actors.loop._health import Fate
    from loopwarden.actors.loop._work_budget import Permit
    from loopwarden.clock import Clock
    from loopwarden.mailbox import Message
    from loopwarden.mailbox._renewer import LeaseRenewer

__all__ = ["MessageHolder", "Terms"]


@final
@dataclass(frozen=True, slots=True)
class Terms:
    """What all workers of a loop go by."""

    #: Where messages come from.
    source: Source[Any]
    #: Says whether the whole loop is stopped.
    is_stopped: Callable[[], bool]
    #: Says whether messages are to be taken.
    pause_state: PauseState
    #: Says whether messages may be taken, or only one now and then.
    breaker: Breaker
    #: What becomes of a message whose handler raised.
    retry: RetryPolicy
    #: Keeps the leases of what is in hand.
    renewer: LeaseRenewer
    #: Classes of exceptions that end the loop.
    crash_on: tuple[type[BaseException], ...]
    #: How long to wait for a mailbox that is unavailable.
    backoff: Backoff
    #: Returns for how many seconds without a sign of life leases are renewed.
    silence: Callable[[], float]
    #: How long the lease of one message is kept at most.
    longest_lease: float
    #: The time.
    clock: Clock


def _with_cause(error: BaseException) -> str:
    """Describe a `Retry` with what made the handler raise it, which no log tells."""
    cause = error.__cause__ if error.__suppress_context__ else error.__context__
    return describe(error) if cause is None else f"{describe(error)}, because of {describe(cause)}"


class MessageHolder:
    """Has its own heartbeat, token, progress and prefetched messages; the thread that pops one of those owns it."""

    def __init__(self, terms: Terms) -> None:
        source, clock = terms.source, terms.clock
        self._source = source
        self._is_stopped = terms.is_stopped
        self._pause_state = terms.pause_state
        self._permit: Permit | None = None
        self._breaker = terms.breaker
        self._retry = terms.retry
        self._renewer = terms.renewer
        self._crash_on = terms.crash_on
        self._backoff = terms.backoff
        self._silence = terms.silence
        self._longest_lease = terms.longest_lease
        self._clock = clock
        self._dice = clock.blocking.dice()
        self.token = Token()
        self.heartbeat = Heartbeat(clock)
        self.progress = Progress(clock, self.heartbeat)
        self.progress.mailbox = source.name
        if isinstance(source, SupportsWaitedUntil):
            self.progress.waited_until = source.waited_until
        self._settling: Message[Any, Any] | None = None  # what it had in hand last that it began to settle
        self.prefetched: deque[Message[Any, Any]] = deque()
        # Makes one of several that give back take all of it, because two would mix up the order; and makes a message
        # go from prefetched to in hand in one step.
        self._lock = clock.blocking.lock()
        self._in_hand: Message[Any, Any] | None = None
        #: For how many seconds messages are received, and when the leases of those that it holds end.
        self.lease = self.lease_ends = 0.0
        #: Since when.
        self.held_since = 0.0
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
                is_back = self._settled(message, lambda: self._give_back_abandoned(message, error))
                if notes:
                    self._note_fate(message, "abandoned" if is_back else fate_of(message))
            self.return_unstarted(notes=notes)
        finally:
            self.token.fence()
            if timer is not None:
                timer.cancel()

    def _give_back_abandoned(self, message: Message[Any, Any], error: str) -> None:
        message.nack(0, error=error)

    def _release(self) -> None:
        """Let others have what this one needs no more."""
        if self._breaker.is_open:
            self._breaker.has_tried(self)
        permit, self._permit = self._permit, None
        if permit is not None:
            permit.release()

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
        is_too_long = self._clock.monotonic() - self.held_since >= self._longest_lease
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

    # What a handler has returned or raised.

    def _succeeded(self, message: Message[Any, Any]) -> None:
        """Acknowledge a message whose handler has returned, unless it has settled it itself."""
        self._count_success(message, is_done=message.is_finalized or self._settled(message, message.acknowledge))

    def _count_success(self, message: Message[Any, Any], *, is_done: bool) -> None:
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
