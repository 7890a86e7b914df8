"""`DeadLetter`: a message that was given up; `DeadLetterWatch`, which tells of it; `paced`, the rate of a redrive."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, final

from pydantic import BaseModel, ConfigDict

from loopwarden._arguments import is_number
from loopwarden._log import printable, report
from loopwarden.errors import InvalidParameterError
from loopwarden.mailbox._token import Token, wait_with
from loopwarden.mailbox._validation import check_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from loopwarden.clock import Clock, Timer

__all__ = ["NO_ERROR", "DeadLetter", "DeadLetterNotice", "DeadLetterWatch", "exhausted_notice", "paced"]

#: The error of a letter that was delivered as often as it may be, without one word about what went wrong.
NO_ERROR = (
    "none was told: each delivery ended with its lease, because the process was gone, the worker hung, or the message"
    " was done too late to be acknowledged"
)
#: How many letters of a storm are told one by one, in so many seconds; the others are counted.
TOLD_ONE_BY_ONE = 5
STORM_SECONDS = 10.0

T = TypeVar("T")


class DeadLetter(BaseModel, Generic[T]):
    """A message that was delivered too often, or whose body cannot be read."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    message_id: str
    #: The mailbox that gave it up, and that a redrive sends it back to.
    mailbox: str
    #: None if the body cannot be read; then `raw` has its bytes.
    body: T | None
    raw: bytes | None
    #: Why it was given up.
    reason: str
    #: The last error that a handler gave, if one survived to tell.
    error: str | None
    delivery_count: int
    headers: dict[str, str]
    #: When it was sent and when it was given up, in seconds since the epoch.
    sent_at: float
    dead_at: float


@final
@dataclass(frozen=True, slots=True)
class DeadLetterNotice:
    """A message has become a dead letter."""

    mailbox: str
    message_id: str
    #: Why, and what its handler raised last if that is known.
    reason: str
    error: str | None
    delivery_count: int
    #: True if its body or its headers could not be read, so that no handler has had it.
    unread: bool = False


def exhausted_notice(mailbox: str, message_id: str, deliveries: int, error: str | None) -> DeadLetterNotice:
    """Return what is told of a message that was delivered as often as it may be."""
    times = "1 time" if deliveries == 1 else f"{deliveries} times"
    return DeadLetterNotice(mailbox, message_id, f"it was delivered {times}", error, deliveries)


@final
class DeadLetterWatch:
    """Tells of each message of a mailbox that becomes a dead letter in this process: the log, and one listener.

    The back end adds notices under its lock, when the letter is there, and has them told when the lock is free, because
    handlers of a log and listeners are other people's code.

    Args:
        mailbox: The mailbox's name.
        clock: The time.
    """

    def __init__(self, mailbox: str, clock: Clock) -> None:
        self._mailbox = mailbox
        self._clock = clock
        self._pending: deque[DeadLetterNotice] = deque()
        self._listeners: tuple[Callable[[DeadLetterNotice], bool], ...] = ()
        # Without a lock, because a Ctrl-C may come at any line: if two threads tell at once, one letter more is told.
        self._began = -STORM_SECONDS
        self._told = 0
        self._untold: deque[DeadLetterNotice] = deque()
        self._timer: Timer | None = None

    def add(self, notice: DeadLetterNotice) -> None:
        """Have a letter told of by the next `tell`."""
        self._pending.append(notice)

    def watch(self, listener: Callable[[DeadLetterNotice], bool]) -> Callable[[], None]:
        """Have each notice told to the first listener that takes it; see `SupportsDeadLetterWatch`."""
        self._listeners += (listener,)

        def unwatch() -> None:
            self._listeners = tuple(each for each in self._listeners if each is not listener)

        return unwatch

    def tell(self) -> None:
        """Tell of what was added; without the mailbox's lock."""
        while self._pending:
            try:
                notice = self._pending.popleft()
            except IndexError:  # another thread was faster
                return
            self._log(notice)
            for listener in self._listeners:
                try:
                    if listener(notice):
                        break
                except Exception as error:  # noqa: BLE001  isolates user code
                    report(logging.ERROR, "a listener for dead letters of %r raised", self._mailbox, error=error)

    def _log(self, notice: DeadLetterNotice) -> None:
        now = self._clock.monotonic()
        if now - self._began >= STORM_SECONDS:
            self._began, self._told = now, 0
        if self._told < TOLD_ONE_BY_ONE:
            self._told += 1
            report(
                logging.WARNING,
                "%s",
                _sentence(notice),
                mailbox=notice.mailbox,
                message_id=notice.message_id,
                delivery=notice.delivery_count,
            )
            return
        self._untold.append(notice)
        if self._timer is None:
            try:
                self._timer = self._clock.call_later(max(0.0, self._began + STORM_SECONDS - now), self.summarize)
            except RuntimeError:  # no thread for timers
                self.summarize()

    def summarize(self) -> None:
        """Say how many letters were not told one by one; when a storm has lasted for so long, and at the close."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        untold, last = 0, None
        with suppress(IndexError):
            while True:
                last = self._untold.popleft()
                untold += 1
        if last is not None:
            text = "mailbox %r: %d more messages are dead letters, the last one: %s"
            report(logging.WARNING, text, self._mailbox, untold, _sentence(last), mailbox=self._mailbox)


def _sentence(notice: DeadLetterNotice) -> str:
    count = notice.delivery_count
    when = "before it was delivered" if not count else "after 1 delivery" if count == 1 else f"after {count} deliveries"
    error = "" if notice.error is None else f"; last error: {notice.error[:500]}"
    text = f"mailbox {notice.mailbox!r}: message {notice.message_id} is a dead letter, {when}: {notice.reason}{error}"
    return printable(text)


I = TypeVar("I")  # noqa: E741  an item


def paced(items: Iterable[I], rate: float | None, clock: Clock, token: Token | None, mailbox: str) -> Iterator[I]:
    """Yield ``items``, at most ``rate`` of them a second, until ``token`` is stopped.

    Raises:
        InvalidParameterError: if ``rate`` is not a positive number, before anything is yielded.
    """
    if rate is not None and (not is_number(rate) or rate <= 0):
        raise InvalidParameterError(mailbox, "rate", rate, "a positive number of letters a second")
    check_token(mailbox, token)
    return _paced(items, rate, clock, token)


def _paced(items: Iterable[I], rate: float | None, clock: Clock, token: Token | None) -> Iterator[I]:
    due = clock.monotonic()
    for item in items:
        wait = due - clock.monotonic()
        if wait > 0:
            wait_with(clock, clock.blocking.gate(), wait, token)  # woken by time, or by the token
        if token is not None and token.stopped:
            return
        yield item
        if rate is not None:
            due = max(due, clock.monotonic()) + 1 / rate
