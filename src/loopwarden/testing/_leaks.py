"""What a test has left behind: threads, actors, leases, and tickets that nobody has answered."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pykka

from loopwarden._ticket import Ticket
from loopwarden.testing._threads import our_threads, wait_no_threads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from loopwarden._blocking import SystemThread
    from loopwarden.testing._faulty_mailbox import FaultyMailbox
    from loopwarden.testing._simulation import Simulation

__all__ = ["LeakError", "find_leaks"]


class LeakError(AssertionError):
    """A test has left something behind; the text names it."""


def find_leaks(
    *,
    before: Iterable[SystemThread],
    simulation: Simulation | None = None,
    mailboxes: Iterable[FaultyMailbox[object, object]] = (),
) -> list[str]:
    """Return what is there and was not before, each with the place that made it where that is known.

    Args:
        before: The threads of ours that were there before the test.
        simulation: The one that the test was in; its threads are those that are looked at.
        mailboxes: Whose leases are looked at.
    """
    leaks: list[str] = []
    if simulation is None:
        known = set(before)
        if set(our_threads()) - known:
            leaks += [f"thread {each.name}" for each in wait_no_threads(timeout=5.0) if each not in known]
    else:
        leaks += [f"thread {each}" for each in simulation.threads()]
    leaks += [f"actor {ref}" for ref in pykka.ActorRegistry.get_all()]
    leaks += [f"lease of {mailbox.name!r}: {each}" for mailbox in mailboxes for each in mailbox.leases()]
    leaks += [f"ticket {each}" for each in _unanswered()]
    return leaks


def _unanswered() -> list[str]:
    """Return the requests whose tickets are still held by somebody, and were never answered."""
    found: list[str] = []
    for each in gc.get_objects():
        # By type(): the class of other people's objects may be a property that raises.
        if issubclass(type(each), Ticket) and each.about is not None and not each.is_ready():
            request, asked = each.about
            found.append(f"for {type(request).__name__} to {asked}, which was never answered")
    return found
