"""A thread of its own for one job of a rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from loopwarden._ticket import Ticket, settle

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Blocking

__all__ = ["run_in_background"]

T = TypeVar("T")


def run_in_background(job: Callable[[], T], blocking: Blocking) -> Ticket[T]:
    """Run a job on a thread of that seam; return the ticket of what it returns or raises."""
    result: Ticket[T] = Ticket()
    blocking.start_thread(lambda: settle(result, job), "in-background")
    return result
