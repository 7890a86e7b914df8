"""Receiving from a SQLite file: taking what is there, or waiting for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar, final

from loopwarden._log import report
from loopwarden.errors import MailboxClosedError
from loopwarden.mailbox._token import Token, wait_with
from loopwarden.mailbox._validation import check_receive, check_token

if TYPE_CHECKING:
    from loopwarden._blocking import Gate, Lock
    from loopwarden.clock import Clock
    from loopwarden.mailbox._message import Message
    from loopwarden.mailbox._waiters import Waiters
    from loopwarden.mailbox.sqlite._queue import SqliteQueue
    from loopwarden.mailbox.sqlite._store import SqliteStore


__all__ = ["RECHECK", "SqliteWaitable", "receive"]

B = TypeVar("B")

#: Seconds after which a waiting receive looks again by itself. The one place where something is polled: the
#: notification of another process may be lost, or there may be no notifier at all.
RECHECK = 1.0


def receive(  # noqa: PLR0917  one caller for messages, one for letters
    store: SqliteStore,
    queue: SqliteQueue[B],
    clock: Clock,
    max_messages: int,
    visibility_timeout: float,
    wait_time_seconds: float,
    token: Token | None,
) -> list[Message[B, Any]]:
    """Do what `Mailbox.receive` says."""
    check_receive(queue.name, max_messages, visibility_timeout, wait_time_seconds)
    check_token(queue.name, token)
    deadline = clock.monotonic() + wait_time_seconds
    gate: Gate | None = None
    waiters = queue.waiters
    unread: list[tuple[str, str, str]] = []
    try:
        while True:
            with store.lock:
                was_woken = gate is not None and not waiters.leave(gate)
                if store.closed:
                    raise MailboxClosedError(queue.name)  # noqa: TRY301  it passes the clean-up below as it should
                is_stopped = token is not None and token.stopped
                messages = [] if is_stopped else queue.take(max_messages, visibility_timeout, token)
                unread = queue.take_unread()
                if messages:
                    waiters.wake_one()  # there may be more, or something due sooner than the others know
                    return messages
                left = deadline - clock.monotonic()
                if left <= 0 or is_stopped or (token is not None and token.take_nudge()):
                    if was_woken:
                        waiters.wake_one()  # what this one was woken for is for another receive
                    return []
                # Under the lock since the look, so a notification from now on finds this gate.
                store.notifier.listen()
                gate = clock.blocking.gate()
                due = queue.next_due()
                until_due = RECHECK if due is None else max(0.0, due - clock.wall())
                waiters.park(gate)  # without an alarm: it looks again soon enough by itself
            unread = _tell(queue.name, unread)
            wait_with(
                clock, gate, min(left, until_due, RECHECK), token
            )  # woken by a send, a notification, close, or time
    except BaseException:
        with store.lock:
            if gate is not None and not waiters.leave(gate):
                waiters.wake_one()
        raise
    finally:
        _tell(queue.name, unread)


def _tell(mailbox: str, unread: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Log what was dead-lettered unread; not under the lock, because log handlers are user code."""
    for message_id, reason, error in unread:
        report(logging.WARNING, "mailbox %r: dead-lettered message %s, %s: %s", mailbox, message_id, reason, error)
    return []


@final
class SqliteWaitable:
    """Looks at one mailbox of a store."""

    def __init__(self, store: SqliteStore, name: str, waiters: Waiters, clock: Clock) -> None:
        self._store = store
        self._name = name
        self._clock = clock
        self.waiters = waiters

    @property
    def name(self) -> str:
        """The mailbox's."""
        return self._name

    @property
    def lock(self) -> Lock:
        """The store's."""
        return self._store.lock

    def poll(self) -> tuple[bool, float]:
        """Say whether something is visible or due, and when to look again; see `Waitable.poll`."""
        if self._store.closed:
            raise MailboxClosedError(self._name)
        self._store.notifier.listen()
        with self._store.connection(self._name) as cursor:
            [due] = cursor.execute("SELECT min(due) FROM messages WHERE mailbox = ?", (self._name,)).fetchone()
        if due is None:
            return False, RECHECK
        until = due - self._clock.wall()
        return until <= 0, min(RECHECK, max(0.0, until))
