"""What is still running when the interpreter exits is stopped, and complained about."""

from __future__ import annotations

import atexit
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

from loopwarden._ticket import wait_all
from loopwarden.errors import TicketTimeoutError

if TYPE_CHECKING:
    from loopwarden.actors._ref import ControlRef

__all__ = ["forget", "remember", "stop_forgotten"]

#: Seconds that forgotten actors have to end, all together. All our threads are daemons, so after that
#: the interpreter exits whatever they do: a forgotten loop neither hangs it nor is cut off in mid-message.
PATIENCE = 5.0

# Actors that have been started and have not ended, by URN. A dict, because its single steps are atomic.
_alive: dict[str, ControlRef] = {}


def remember(ref: ControlRef) -> None:
    """Note that an actor was started."""
    _alive[ref.actor_urn] = ref


def forget(ref: ControlRef) -> None:
    """Note that an actor has ended."""
    _alive.pop(ref.actor_urn, None)


def stop_forgotten() -> None:
    """Stop every actor that is alive, together, within one deadline, with a ``ResourceWarning``."""
    refs = list(_alive.values())
    if not refs:
        return
    try:
        names = ", ".join(str(ref) for ref in refs)
        warnings.warn(f"not stopped before exit: {names}", ResourceWarning, stacklevel=1)
    finally:  # also if warnings are errors
        with suppress(TicketTimeoutError):
            wait_all([ref.stop(block=False) for ref in refs], PATIENCE)


atexit.register(stop_forgotten)
