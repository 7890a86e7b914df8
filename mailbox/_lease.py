"""`LeaseExtender`: keeps a lease alive for as long as the work itself shows that it goes on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Self, final

from loopwarden._arguments import MAX_VISIBILITY
from loopwarden._log import describe, report
from loopwarden.clock import Clock, resolve_clock
from loopwarden.errors import MailboxConnectionError, MailboxError

if TYPE_CHECKING:
    from types import TracebackType

    from loopwarden._heartbeat import Heartbeat
    from loopwarden.mailbox._message import Message

__all__ = ["LeaseExtender"]


@final
class LeaseExtender:
    """Extends the lease of one message with the beats of the work, never with a timer.

    A timer would go on over a handler that hangs, and the message would never come back. A beat in the second half of
    the lease extends it, on the thread that beats. After ``longest`` seconds there are no more extensions. It is for
    your own code that receives messages: a `MailboxLoop` renews its leases in the background, without it.

    >>> from loopwarden import Heartbeat
    >>> from loopwarden.mailbox import InMemoryMailbox
    >>> jobs: InMemoryMailbox[str, None] = InMemoryMailbox("jobs")
    >>> _ = jobs.send("long")
    >>> [message], heartbeat = jobs.receive(visibility_timeout=60), Heartbeat()
    >>> with LeaseExtender(message, heartbeat, lease=60) as extender:
    ...     heartbeat.beat()
    >>> extender.extensions
    0

    Args:
        message: Whose lease.
        heartbeat: Who beats.
        lease: The seconds that it was received for, and that each extension gives.
        longest: The seconds that all of them together may last.
        clock: The time.
    """

    def __init__(
        self,
        message: Message[Any, Any],
        heartbeat: Heartbeat,
        *,
        lease: float,
        longest: float = MAX_VISIBILITY,
        clock: Clock | None = None,
    ) -> None:
        clock = resolve_clock(clock)
        self._message = message
        self._heartbeat = heartbeat
        self._lease = lease
        self._clock = clock
        now = clock.monotonic()
        self._end = now + longest
        self._next = now + lease / 2
        #: When the lease ends, in monotonic seconds.
        self.ends_at = now + lease
        #: How often the lease was extended.
        self.extensions = 0

    def __enter__(self) -> Self:
        self._heartbeat.listen(self._beaten)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._heartbeat.listen(None)

    def _beaten(self) -> None:
        now = self._clock.monotonic()
        if now < self._next or now >= self._end or self._message.is_finalized:
            return
        timeout = min(self._lease, self._end - now)
        if now + timeout <= self.ends_at:  # the handler or a drain has extended it for longer
            return
        try:
            self._message.extend_visibility(timeout)
        except MailboxConnectionError as error:
            report(logging.WARNING, "could not extend the lease of message %s, retrying: %s", self._message.id, error)
            return
        except MailboxError as error:
            self._next = self._end  # it is lost, and stays so
            report(logging.WARNING, "lost the lease of message %s: %s", self._message.id, error)
            return
        except Exception as error:  # noqa: BLE001  a back end may be user code, and a handler is running
            report(
                logging.WARNING,
                "could not extend the lease of message %s, retrying: %s",
                self._message.id,
                describe(error),
            )
            return
        self.extensions += 1
        self._next = now + timeout / 2
        self.ends_at = now + timeout

    def extend_until(self, deadline: float) -> None:
        """Let the lease last until then, in monotonic seconds, unless it does anyway; on any thread.

        For your own shutdown, whose deadline lies behind the lease.
        """
        left = deadline - self._clock.monotonic()
        if self.ends_at >= deadline or left <= 0 or self._message.is_finalized:
            return
        try:
            self._message.extend_visibility(min(left, MAX_VISIBILITY))
        except Exception as error:  # noqa: BLE001  a back end may be user code
            report(logging.WARNING, "could not extend the lease of message %s: %s", self._message.id, describe(error))
            return
        self.extensions += 1
        self.ends_at = deadline
