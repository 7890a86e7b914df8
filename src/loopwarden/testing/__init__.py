"""The test kit: time, faults and interleavings under a test's control."""

from __future__ import annotations

from loopwarden.testing._counted_blocking import CountedBlocking, RestlessError
from loopwarden.testing._crash import SimulatedCrash, crash_here
from loopwarden.testing._fake_clock import FakeClock
from loopwarden.testing._faulty_blocking import FaultyBlocking
from loopwarden.testing._faulty_mailbox import FaultyMailbox
from loopwarden.testing._flaky_source import FlakySource
from loopwarden.testing._hang_guard import HangError, hang_guard
from loopwarden.testing._hold import Hold
from loopwarden.testing._hooked_blocking import HookedBlocking
from loopwarden.testing._interleavings import Exploration, explore, interleavings
from loopwarden.testing._leaks import LeakError, find_leaks
from loopwarden.testing._probe import Probe
from loopwarden.testing._probe_loop import ProbeLoop
from loopwarden.testing._run_all import Outcome, run_all
from loopwarden.testing._scheduler import DeadlockError
from loopwarden.testing._simulation import Simulation
from loopwarden.testing._stepped_blocking import SteppedBlocking
from loopwarden.testing._threads import our_threads, wait_no_threads
from loopwarden.testing._tree import assert_tree, draw_tree

__all__ = [
    # Time
    "CountedBlocking",
    "FakeClock",
    "RestlessError",
    "Simulation",
    # Interleavings
    "DeadlockError",
    "Exploration",
    "SteppedBlocking",
    "explore",
    "interleavings",
    # Faults
    "FaultyBlocking",
    "FaultyMailbox",
    "FlakySource",
    "HookedBlocking",
    "SimulatedCrash",
    "crash_here",
    # Loops and actors
    "Hold",
    "Outcome",
    "Probe",
    "ProbeLoop",
    "assert_tree",
    "draw_tree",
    "run_all",
    # Leaks and hangs
    "HangError",
    "LeakError",
    "find_leaks",
    "hang_guard",
    "our_threads",
    "wait_no_threads",
]
