"""`MailboxWorker`: one worker of a mailbox loop: receive, handle, acknowledge."""

from __future__ import annotations

import inspect
import logging
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, final

from loopwarden._heartbeat import Heartbeat
from loopwarden._log import describe, report
from loopwarden._ticket import Ticket
from loopwarden.actors.loop._abandon import FENCE_AFTER
from loopwarden.actors.loop._current import current
from loopwarden.actors.loop._health import Progress, fate_of
from loopwarden.errors import (
    MailboxClosedError,
    MailboxConnectionError,
    MessageFinalizedError,
)
from loopwarden.mailbox import LeaseExtender, SupportsWaitedUntil, Token
from loopwarden.mailbox._token import wait_with

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loopwarden._backoff import Backoff
    from loopwarden.actors.consumers._pause_state import PauseState
    from loopwarden.actors.loop._health import Fate
    from loopwarden.actors.loop._work_budget import Permit, Share, WorkBudget
    from loopwarden.clock import Clock
    from loopwarden.mailbox import Message, SupportsWaitVisible

__all__ = ["MailboxWorker", "Source", "check_handler", "refuse_unfinished"]

T = TypeVar("T")


def check_handler(handler: object) -> None:
    """Refuse what cannot be a handler.

    Raises:
        TypeError: if it cannot be called, or is a coroutine function or a generator.
    """
    if not callable(handler):
        raise TypeError(f"handler must be callable, got {describe(handler)}")
    if inspect.iscoroutinefunction(handler) or inspect.isgeneratorfunction(handler):
        raise TypeError(f"handler must be a plain function, but {handler!r} is a coroutine function or a generator")


def refuse_unfinished(result: object) -> None:
    """Raise if a handler has returned before it has done anything, as a coroutine function or a generator does."""
    if not isinstance(result, CoroutineType | GeneratorType | AsyncGeneratorType):
        return
    unfinished = cast("Any", result)
    if not isinstance(result, AsyncGeneratorType):
        unfinished.close()
    raise TypeError(f"a handler must be a plain function, but this one returned a {type(unfinished).__name__}")


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
        crash_on: Classes of exceptions that end the loop.
        backoff: How long a message whose handler raised stays away.
        prefetch: How many messages one receive may return.
        longest_lease: How long beats may keep a lease alive.
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
        crash_on: tuple[type[BaseException], ...],
        backoff: Backoff,
        prefetch: int,
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
        self._crash_on = crash_on
        self._backoff = backoff
        self._batch = prefetch
        self._longest_lease = longest_lease
        self._clock = clock
        self._dice = clock.blocking.dice()
        self.token = Token()
        self.heartbeat = Heartbeat(clock)
        self.progress = Progress(clock, self.heartbeat)
        if isinstance(source, SupportsWaitedUntil):
            self.progress.waited_until = source.waited_until
        self.prefetched: deque[Message[Any, Any]] = deque()
        # Makes one of several that give back take all of it, because two would mix up the order; and makes a message
        # go from prefetched to in hand in one step.
        self._lock = clock.blocking.lock()
        self._in_hand: Message[Any, Any] | None = None
        self._extender: LeaseExtender | None = None  # of what is in hand
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
        self.progress.thread_id = threading.get_ident()
        self._pause_state.enter(self)
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
                polls += 1
                try:
                    wait = wait_time_seconds if not failures else 0
                    if self._allowance is None or self._has_turn(*self._allowance, wait):
                        self._poll(visibility_timeout, wait if self._allowance is None else 0)
                    failures = 0
                except MailboxClosedError:
                    return
                except MailboxConnectionError as error:
                    failures += 1
                    self._wait_for_the_broker(failures, error)
                    continue
                self._work_off(visibility_timeout)
        finally:
            self.return_unstarted()
            self._release()
            self.progress.leave()
            self._pause_state.leave(self)
            current.heartbeat, current.is_stopped = before, None

    def _is_done(self) -> bool:
        is_stopped = self.token.stopped and not self._is_recalled  # who was recalled goes on
        return self.is_abandoned or self._is_stopped() or is_stopped or self._source.closed

    def _has_turn(self, budget: WorkBudget, share: Share, wait: float) -> bool:
        """Wait until there is something to receive, and then for the permit to; false if it is none of its turn."""
        if wait or not self.progress.is_degraded:
            self.progress.polling(wait)
        self.heartbeat.beat()
        if not cast("SupportsWaitVisible", self._source).wait_visible(wait, self.token):
            return False
        self.progress.throttled()
        self._permit = budget.take(share, self.token)
        return self._permit is not None

    def _release(self) -> None:
        """Let others have what this one needs no more."""
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
        extender, until = self._extender, self._pause_state.secured_until
        return bool(self.prefetched) or (extender is not None and until is not None and extender.ends_at < until)

    def secure(self) -> None:
        """Give back what is not started, and let the lease of what is in hand last; safe while the worker is busy."""
        self.return_unstarted()
        extender, deadline = self._extender, self._pause_state.secured_until
        if extender is not None and deadline is not None:
            extender.extend_until(deadline)

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
        if wait_time_seconds or not self.progress.is_degraded:
            self.progress.polling(wait_time_seconds)
        self.heartbeat.beat()
        messages = self._source.receive(
            max_messages=self._batch,
            visibility_timeout=visibility_timeout,
            wait_time_seconds=wait_time_seconds,
            token=self.token,
        )
        self.prefetched.extend(messages)

    def _wait_for_the_broker(self, failures: int, error: MailboxConnectionError) -> None:
        """Stay alive and retry later; a mailbox that is unavailable is not a reason to end."""
        self._release()
        delay = self._backoff.delay(failures, self._dice.random())
        self.progress.degraded(delay)
        self.heartbeat.beat()
        if failures == 1:
            report(logging.WARNING, "mailbox unavailable, retrying: %s", error)
        wait_with(self._clock, self._clock.blocking.gate(), delay, self.token)  # woken by time, or by the token
        self.token.take_nudge()  # it has done its work: the loop looks at what was posted next

    def _work_off(self, visibility_timeout: float) -> None:
        has_waited = False
        while (message := self._take()) is not None:
            try:
                # The lease of one that waited behind others has been running: it begins anew, or is over.
                if not has_waited or self._settled(message, partial(message.extend_visibility, visibility_timeout)):
                    self._handle(message, visibility_timeout)
            finally:
                self._in_hand = self._extender = None
            has_waited = True

    def _take(self) -> Message[Any, Any] | None:
        """Take the next one in hand; None if there is none, or if nothing more is to be begun."""
        # In one step: an abandon stops the token, and then looks what is in hand.
        with self._lock:
            if not self.prefetched or self.is_abandoned or self.token.stopped or self._pause_state.is_closed:
                return None
            self._in_hand = message = self.prefetched.popleft()
            return message

    def _handle(self, message: Message[Any, Any], visibility_timeout: float) -> None:
        self.progress.working(message.id, message.delivery_count)
        self.heartbeat.beat()
        extender = LeaseExtender(
            message, self.heartbeat, lease=visibility_timeout, longest=self._longest_lease, clock=self._clock
        )
        # First the extender, then the look: `secure` does it in the other order.
        self._extender, deadline = extender, self._pause_state.secured_until
        try:
            if deadline is not None:
                extender.extend_until(deadline)
            with extender:
                refuse_unfinished(self._handler(message))
        except BaseException as error:
            self.progress.failed += 1
            delay = self._backoff.delay(message.delivery_count, self._dice.random())
            text = describe(error)
            self.progress.last_error = text
            is_back = self._settled(message, lambda: message.nack(delay, error=text))
            if self._is_ending:
                self._note_fate(message, "returned" if is_back else fate_of(message))
            if isinstance(error, self._crash_on) or not isinstance(error, Exception):
                raise
            report(
                logging.WARNING,
                "a handler of %r raised on delivery %d of message %s",
                self._source.name,
                message.delivery_count,
                message.id,
                error=error,
            )
        else:
            is_done = message.is_finalized or self._settled(message, message.acknowledge)
            self.progress.processed += is_done and not message.is_returned  # a handler may give back what it cannot do
            if self._is_ending:
                self._note_fate(message, fate_of(message))

    @property
    def _is_ending(self) -> bool:
        return (self._is_stopped() or self._pause_state.is_closed) and not self.is_abandoned

    def _settled(self, message: Message[Any, Any], settle: Callable[[], None]) -> bool:
        """Finalise a message, or renew its lease, unless it is finalised; if that fails, it comes back by itself."""
        if message.is_finalized:
            return False
        try:
            settle()
        except MessageFinalizedError:
            return False
        except Exception as error:  # noqa: BLE001  a back end may be user code
            report(
                logging.WARNING,
                "could not settle message %s; it will be redelivered unless the store has it as done: %s",
                message.id,
                error,
            )
            return False
        return True
