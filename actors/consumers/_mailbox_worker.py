"""`MailboxWorker`: one worker of a mailbox loop: receive, handle, acknowledge."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Coroutine
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, cast

from loopwarden._arguments import check_plain, is_coroutine_function
from loopwarden._log import describe, report
from loopwarden.actors.consumers._message_holder import MessageHolder
from loopwarden.actors.consumers._retry import UnfinishedError
from loopwarden.actors.loop._current import current
from loopwarden.errors import (
    MailboxClosedError,
    MailboxConnectionError,
)
from loopwarden.mailbox import SupportsWarnings, Token
from loopwarden.mailbox._token import wait_with

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loopwarden.actors.consumers._message_holder import Terms
    from loopwarden.actors.loop._work_budget import Share, WorkBudget
    from loopwarden.mailbox import Message, SupportsWaitVisible

__all__ = ["MailboxWorker", "RunsIn", "Source", "check_handler", "refuse_unfinished"]

T = TypeVar("T")
#: Where the handler of a loop runs.
RunsIn: TypeAlias = Literal["thread", "asyncio"]


def check_handler(handler: object, what: str = "message", *, runs_in: object = None) -> RunsIn:
    """Refuse what cannot be a handler.

    Args:
        handler: What was given.
        what: What it is to be called with.
        runs_in: What was given for that.

    Returns:
        Where it runs.

    Raises:
        TypeError: if it cannot be called with one argument, or is a generator.
        ValueError: if it cannot run there.
    """
    if not callable(handler):
        raise TypeError(f"handler must be a function of one {what}, got {describe(handler)}")
    where = _runs_in(handler, runs_in)
    try:
        parameters = inspect.signature(handler)
    except (TypeError, ValueError):  # C code may have none: then it is tried
        return where
    try:
        parameters.bind(None)
    except TypeError:
        raise TypeError(
            f"handler must take one argument, the {what}, but {describe(handler)} takes {parameters}: what else it"
            " needs can be bound by functools.partial or a lambda"
        ) from None
    return where


def _runs_in(handler: object, runs_in: object) -> RunsIn:
    if runs_in not in {None, "thread", "asyncio"}:
        raise ValueError(f"runs_in must be 'thread' or 'asyncio', got {describe(runs_in)}")
    if not is_coroutine_function(handler):
        check_plain("handler", handler)
        return "asyncio" if runs_in == "asyncio" else "thread"
    if runs_in == "thread":
        raise ValueError(
            f"runs_in='thread' needs a plain function, but {describe(handler)} is a coroutine function:"
            " leave runs_in out"
        )
    return "asyncio"


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
        f"a handler must be a plain function or an async def, but this one returned a {type(unfinished).__name__}, so"
        " nothing was done: await it in an async def, or say runs_in='asyncio' if the loop is to"
    )


class Source(Protocol[T]):
    """What a worker receives from: a mailbox, or its dead letters."""

    @property
    def name(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    def receive(
        self, *, max_messages: int, visibility_timeout: float, wait_time_seconds: float, token: Token
    ) -> Sequence[Message[T, Any]]: ...


class MailboxWorker(MessageHolder):
    """Receives, and handles what it has received on the same thread, one message after the other.

    Args:
        terms: What all workers of the loop go by.
        handler: Called with each message.
        run_posted: Runs the work that was posted to the loop.
        allowance: What limits how many are in hand, in this loop and others: the budget, and this loop's share.
        prefetch: How many messages one receive may return.
    """

    def __init__(
        self,
        terms: Terms,
        handler: Callable[[Message[Any, Any]], object],
        run_posted: Callable[[], None],
        allowance: tuple[WorkBudget, Share] | None,
        prefetch: int,
    ) -> None:
        super().__init__(terms)
        self._handler = handler
        self._run_posted = run_posted
        self._allowance = allowance
        self._batch = prefetch
        self._warns = isinstance(self._source, SupportsWarnings)

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
                if not self._may_take():
                    continue
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

    def _may_take(self) -> bool:
        """Wait until messages may be taken, or one to see whether any succeeds; false if the wait was cut short."""
        if not self._has_room():
            return False
        is_try = self._breaker.is_open
        if is_try and not self._may_try():
            return False
        self.token.tries_one = is_try
        return True

    def _has_room(self) -> bool:
        """Wait until a message can be taken in hand; false if the wait was cut short."""
        return True

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
        self.held_since = now = self._clock.monotonic()
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
            self._succeeded(message)
