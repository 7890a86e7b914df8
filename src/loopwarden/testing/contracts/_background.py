"""Threads of their own for the jobs of a rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from loopwarden._ticket import Ticket, settle, write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from loopwarden._blocking import Blocking

__all__ = ["first_of", "run_in_background"]

T = TypeVar("T")


def run_in_background(job: Callable[[], T], blocking: Blocking) -> Ticket[T]:
    """Run a job on a thread of that seam; return the ticket of what it returns or raises."""
    result: Ticket[T] = Ticket()
    blocking.start_thread(lambda: settle(result, job), "in-background")
    return result


def first_of(tickets: Sequence[Ticket[T]]) -> Ticket[Ticket[T]]:
    """Return the ticket of the one that is ready first."""
    first: Ticket[Ticket[T]] = Ticket()
    for each in tickets:
        each.on_ready(lambda ready: write(first, ready))
    return first
