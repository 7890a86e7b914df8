"""What is still running when the interpreter exits is stopped, and complained about."""

from __future__ import annotations

import atexit
import logging
import os
import warnings
from typing import TYPE_CHECKING

from loopwarden._log import report
from loopwarden._ticket import wait_all
from loopwarden.errors import TicketTimeoutError

if TYPE_CHECKING:
    from loopwarden.actors._ref import ControlRef

__all__ = ["alive", "forget", "remember", "stop_forgotten"]

#: Seconds that forgotten actors have to end, all together: a forgotten loop may complete the message in hand, and
#: still does not hang the interpreter. All our threads are daemons, so after that it exits whatever they do.
PATIENCE = 5.0

# Actors that have been started and have not ended, by URN. A dict, because its single steps are atomic.
_alive: dict[str, ControlRef] = {}


def remember(ref: ControlRef) -> None:
    """Note that an actor was started."""
    _alive[ref.actor_urn] = ref


def forget(ref: ControlRef) -> None:
    """Note that an actor has ended."""
    _alive.pop(ref.actor_urn, None)


def alive() -> list[ControlRef]:
    """Return the actors that have been started and have not ended."""
    return list(_alive.values())


def stop_forgotten() -> None:
    """Stop every actor that is alive, together, within one deadline, with a ``ResourceWarning``."""
    refs = alive()
    if not refs:
        return
    try:
        names = ", ".join(str(ref) for ref in refs)
        warnings.warn(f"not stopped before exit: {names}", ResourceWarning, stacklevel=1)
    finally:  # also if warnings are errors
        try:
            wait_all([ref.stop(block=False) for ref in refs], PATIENCE)
        except TicketTimeoutError:
            cut_off = ", ".join(str(ref) for ref in refs if not ref.ended.is_ready())
            report(logging.WARNING, "not stopped before exit, and cut off after %g s: %s", PATIENCE, cut_off)


atexit.register(stop_forgotten)
# A child process has none of its parent's threads: what runs there is the parent's to stop.
os.register_at_fork(after_in_child=_alive.clear)
