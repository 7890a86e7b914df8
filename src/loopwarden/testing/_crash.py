"""`crash_here`: a point at which a simulation may let its thread die."""

from __future__ import annotations

from loopwarden.clock import current_clock
from loopwarden.testing._simulation import Simulation

__all__ = ["SimulatedCrash", "crash_here"]


class SimulatedCrash(BaseException):
    """What a thread dies of at `crash_here`; no handler of ours or of others takes it for an ordinary error."""

    __module__ = "loopwarden.testing"


def crash_here(odds: int = 2) -> None:
    """Raise `SimulatedCrash` once in ``odds`` times, as the tape of the simulation has it; never outside of one."""
    clock = current_clock()
    if isinstance(clock, Simulation) and clock.choose(odds) == odds - 1:
        raise SimulatedCrash("as the simulation has it")
