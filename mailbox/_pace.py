"""Doing things at a rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from loopwarden._arguments import is_number
from loopwarden.errors import InvalidParameterError
from loopwarden.mailbox._token import Token, wait_with
from loopwarden.mailbox._validation import check_token

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from loopwarden.clock import Clock

__all__ = ["paced"]

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
