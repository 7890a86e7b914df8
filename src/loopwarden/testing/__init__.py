"""The test kit: time, faults and interleavings under a test's control."""

from __future__ import annotations

from loopwarden.testing._fake_clock import FakeClock
from loopwarden.testing._faulty_blocking import FaultyBlocking
from loopwarden.testing._flaky_source import FlakySource
from loopwarden.testing._hold import Hold
from loopwarden.testing._hooked_blocking import HookedBlocking
from loopwarden.testing._probe_loop import ProbeLoop
from loopwarden.testing._stepped_blocking import DeadlockError, SteppedBlocking
from loopwarden.testing._threads import our_threads, wait_no_threads

__all__ = [
    # Time
    "FakeClock",
    # Interleavings
    "DeadlockError",
    "SteppedBlocking",
    # Faults
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
