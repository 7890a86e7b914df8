"""The test kit: time, faults and interleavings under a test's control."""

from __future__ import annotations

from loopwarden.testing._counted_blocking import CountedBlocking, RestlessError
from loopwarden.testing._crash import SimulatedCrash, crash_here
from loopwarden.testing._fake_clock import FakeClock
from loopwarden.testing._faulty_blocking import FaultyBlocking
from loopwarden.testing._flaky_source import FlakySource
from loopwarden.testing._hold import Hold
from loopwarden.testing._hooked_blocking import HookedBlocking
from loopwarden.testing._interleavings import Exploration, explore, interleavings
from loopwarden.testing._probe_loop import ProbeLoop
from loopwarden.testing._scheduler import DeadlockError
from loopwarden.testing._simulation import Simulation
from loopwarden.testing._stepped_blocking import SteppedBlocking
from loopwarden.testing._threads import our_threads, wait_no_threads

__all__ = [
    # Time
    "CountedBlocking",
    "FakeClock",
    "RestlessError",
    # Interleavings
    "DeadlockError",
    "Exploration",
    "Simulation",
    "explore",
    "interleavings",
    "SteppedBlocking",
    # Faults
    "SimulatedCrash",
    "crash_here",
    "FaultyBlocking",
    "FlakySource",
    "HookedBlocking",
    # Loops
    "Hold",
    "ProbeLoop",
    # Leaks
    "our_threads",
    "wait_no_threads",
]
