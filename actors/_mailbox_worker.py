"""`MailboxWorker`: one worker of a mailbox loop: receive, handle, acknowledge."""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections import deque
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, final

from loopwarden._heartbeat import Heartbeat
from loopwarden._log import describe, report
from loopwarden.actors._progress import MessageFate, Progress
from loopwarden.errors import (
    MailboxClosedError,
    MailboxConnectionError,
    MessageFinalizedError,
)
from loopwarden.mailbox import LeaseExtender, Token
from loopwarden.mailbox._token import wait_with

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loopwarden._backoff import Backoff
    from loopwarden.clock import Clock
    from loopwarden.mailbox import Message

__all__ = ["MailboxWorker", "Source", "beat"]

T = TypeVar("T")


class Source(Protocol[T]):
    """What a worker receives from: a mailbox, or its dead letters."""

    @property
    def name(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    def receive(
        self, *, max_messages: int, visibility_timeout: float, wait_time_seconds: float, token: Token
    ) -> Sequence[Message[T, Any]]: ...


class _Current(threading.local):
    """The heartbeat of the worker that this thread is."""

    heartbeat: Heartbeat | None = None


_current = _Current()


def beat() -> None:
    """Say, from inside a handler, that the work goes on: it is not stalled, and its lease is extended.

    Outside of a handler it does nothing.
    """
    if _current.heartbeat is not None:
        _current.heartbeat.beat()


@final
class MailboxWorker:
    """Has its own heartbeat, token, progress and prefetched messages; whoever pops one of those owns it.

    Args:
        source: Where messages come from.
        handler: Called with each message.
        run_posted: Runs the work that was posted to the loop.
        crash_on: Classes of exceptions that end the loop.
        backoff: How long a message whose handler raised stays away.
        prefetch: How many messages one receive may return.
        longest_lease: How long beats may keep a lease alive.
        clock: The time.
    """

    def __init__(
        self,
        source: Source[Any],
        handler: Callable[[Message[Any, Any]], object],
        run_posted: Callable[[], None],
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
        self._crash_on = crash_on
        self._backoff = backoff
        self._batch = prefetch
        self._longest_lease = longest_lease
        self._clock = clock
        self._dice = random.Random()  # noqa: S311  spreads retries, guards nothing
        self.token = Token()
        self.heartbeat = Heartbeat(clock)
        self.progress = Progress(clock, self.heartbeat)
        self.prefetched: deque[Message[Any, Any]] = deque()

    def run(self, max_iterations: int | None, visibility_timeout: float, wait_time_seconds: float) -> None:
        """Poll and work until the stop, the close of the mailbox, or ``max_iterations`` polls."""
        failures = 0
        _current.heartbeat = self.heartbeat
        try:
            for _ in itertools.count() if max_iterations is None else range(max_iterations):
                self._run_posted()
                if self.token.stopped or self._source.closed:
                    return
                try:
                    self._poll(visibility_timeout, wait_time_seconds if not failures else 0)
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
            _current.heartbeat = None

    def return_unstarted(self) -> None:
        """Put the prefetched messages back in their order; safe while the worker is busy."""
        while self.prefetched:
            try:
                message = self.prefetched.popleft()
            except IndexError:  # the worker, or another stop, has popped the last one
                return
            if self._settled(message, message.put_back):
                self.progress.returned += 1
                self.progress.fates.append(MessageFate(message_id=message.id, fate="returned"))

    def _poll(self, visibility_timeout: float, wait_time_seconds: float) -> None:
        if wait_time_seconds or not self.progress.is_degraded:
            self.progress.polling()
        self.heartbeat.beat()
        messages = self._source.receive(
            max_messages=self._batch,
            visibility_timeout=visibility_timeout,
            wait_time_seconds=wait_time_seconds,
            token=self.token,
        )
        self.prefetched.extend(messages)

    def _wait_for_the_broker(self, failures: int, error: MailboxConnectionError) -> None:
        """Stay alive and look again later; a broker that is away is no reason to end."""
        self.progress.degraded()
        self.heartbeat.beat()
        if failures == 1:
            report(logging.WARNING, "the broker is away: %s", error)
        delay = self._backoff.delay(failures, self._dice.random())
        wait_with(self._clock, self._clock.blocking.gate(), delay, self.token)  # woken by time, or by the token
        self.token.take_nudge()  # it has done its work: the loop looks at what was posted next

    def _work_off(self, visibility_timeout: float) -> None:
        has_waited = False
        while self.prefetched and not self.token.stopped:
            try:
                message = self.prefetched.popleft()
            except IndexError:  # a stop has given it back
                return
            # The lease of one that waited behind others has been running: it begins anew, or is over.
            if not has_waited or self._settled(message, partial(message.extend_visibility, visibility_timeout)):
                self._handle(message, visibility_timeout)
            has_waited = True

    def _handle(self, message: Message[Any, Any], visibility_timeout: float) -> None:
        self.progress.working(message.id, message.delivery_count)
        self.heartbeat.beat()
        extender = LeaseExtender(
            message, self.heartbeat, lease=visibility_timeout, longest=self._longest_lease, clock=self._clock
        )
        try:
            with extender:
                _refuse_unfinished(self._handler(message))
        except BaseException as error:
            self.progress.failed += 1
            delay = self._backoff.delay(message.delivery_count, self._dice.random())
            text = describe(error)
            self.progress.last_error = text
            self._settled(message, lambda: message.nack(delay, error=text))
            if isinstance(error, self._crash_on) or not isinstance(error, Exception):
                raise
            report(
                logging.WARNING,
                "a handler of %r raised, with delivery %d of message %s",
                self._source.name,
                message.delivery_count,
                message.id,
                error=error,
            )
        else:
            if message.is_finalized or self._settled(message, message.acknowledge):
                self.progress.processed += 1
            if self.token.stopped:
                self.progress.fates.append(MessageFate(message_id=message.id, fate="done"))

    def _settled(self, message: Message[Any, Any], settle: Callable[[], None]) -> bool:
        """Finalise a message, or renew its lease, unless it is finalised; if that fails, it comes back by itself."""
        if message.is_finalized:
            return False
        try:
            settle()
        except MessageFinalizedError:
            return False
        except Exception as error:  # noqa: BLE001  a back end may be anybody's
            report(
                logging.WARNING, "message %s is not finalised, and comes back unless it is done: %s", message.id, error
            )
            return False
        return True


def _refuse_unfinished(result: object) -> None:
    """Raise if a handler has returned before it has done anything, as a coroutine function or a generator does."""
    if not isinstance(result, CoroutineType | GeneratorType | AsyncGeneratorType):
        return
    unfinished = cast("Any", result)
    if not isinstance(result, AsyncGeneratorType):
        unfinished.close()
    raise TypeError(f"a handler must be a plain function, but this one returned a {type(unfinished).__name__}")
