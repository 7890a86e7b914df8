"""`DeadLetter`: a message that was given up, with what is known of it; and `paced`, the rate of a redrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from loopwarden._arguments import is_number
from loopwarden.errors import InvalidParameterError
from loopwarden.mailbox._token import Token, wait_with
from loopwarden.mailbox._validation import check_token

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from loopwarden.clock import Clock

__all__ = ["DeadLetter", "paced"]

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
