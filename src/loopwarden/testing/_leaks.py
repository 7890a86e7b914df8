"""What a test has left behind: threads, actors, leases, and tickets that were never answered."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pykka

from loopwarden._ticket import Ticket
from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.testing._scheduler import LAST_GRACE
from loopwarden.testing._threads import join_all, our_threads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from loopwarden._blocking import Blocking, SystemThread
    from loopwarden.testing._faulty_mailbox import FaultyMailbox
    from loopwarden.testing._simulation import Simulation

__all__ = ["LeakError", "find_leaks", "standing"]


class LeakError(AssertionError):
    """A test has left something behind; the text names it."""

    __module__ = "loopwarden.testing"


def find_leaks(
    *,
    before: Iterable[object] = (),
    simulation: Simulation | None = None,
    mailboxes: Iterable[FaultyMailbox[object, object]] = (),
    seam: Blocking | None = None,
) -> list[str]:
    """Return what is there and was not before, each with the place that made it where that is known.

    Args:
        before: The threads of ours and the actors that were there before the test, see `standing`.
        simulation: The one that the test was in; its threads are those that are looked at.
        mailboxes: Whose leases are looked at.
        seam: Whose tickets are looked at; all, if neither this nor a simulation is given.
    """
    before = list(before)
    known = {id(each) for each in before}
    known_actors = {each.actor_urn for each in before if isinstance(each, pykka.ActorRef)}
    leaks: list[str] = []
    if simulation is None:
        leaks += [f"thread {each.name}" for each in _wait_ended(known)]
    else:
        leaks += [f"thread {each}" for each in simulation.threads()]
    leaks += [f"actor {ref}" for ref in pykka.ActorRegistry.get_all() if ref.actor_urn not in known_actors]
    leaks += [f"lease of {mailbox.name!r}: {each}" for mailbox in mailboxes for each in mailbox.leases()]
    its_seam = seam if simulation is None else simulation
    if unanswered := _unanswered(its_seam):
        gc.collect()  # what only refers to itself is waited for by no thread, and may be of a test before
        unanswered = _unanswered(its_seam)
    return leaks + [f"ticket {each}" for each in unanswered]


def standing() -> list[object]:
    """Return the threads of ours and the actors that are there now: what is not to be taken for a leak later."""
    return [*our_threads(), *pykka.ActorRegistry.get_all()]


def _wait_ended(known: set[int]) -> list[SystemThread]:
    """Give the threads that are new some real seconds to end; return those that do not."""
    deadline = SYSTEM_CLOCK.monotonic() + LAST_GRACE
    while fresh := [each for each in our_threads() if id(each) not in known]:  # again: one may have started another
        if SYSTEM_CLOCK.monotonic() >= deadline:
            return fresh
        join_all(fresh, deadline)
    return []


def _unanswered(seam: Blocking | None) -> list[str]:
    """Return the requests whose tickets are still referred to, and were never answered."""
    found: list[str] = []
    for each in gc.get_objects():
        # By type(): the class of other people's objects may be a property that raises.
        if not issubclass(type(each), Ticket) or each.about is None:
            continue
        if (seam is None or each._blocking is seam) and not each.is_ready():  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  its maker may be gone
            request, asked = each.about
            found.append(f"for {type(request).__name__} to {asked}, which was never answered")
    return found
