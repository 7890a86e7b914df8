"""`hang_guard`: ends a test that hangs, with everything that one wants to know then."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from loopwarden._frames import current_frames
from loopwarden.actors import LoopRef
from loopwarden.actors.runtime._exit_hook import alive
from loopwarden.clock import current_clock
from loopwarden.supervision import SupervisorRef
from loopwarden.testing._scheduler import REMEDY, interesting
from loopwarden.testing._simulation import Simulation
from loopwarden.testing._tree import draw_tree

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

__all__ = ["HangError", "describe_everything", "hang_guard"]

#: Real seconds between one `HangError` and the next, if what the test does at its end hangs too: more than the grace
#: that a simulation gives to a thread at its end.
AGAIN = 10.0
#: Real seconds that one run of `@interleavings` may take; the pytest plugin puts its setting here.
limit = 60.0


class HangError(AssertionError):
    """A test did not end in time; the text has the tree, each loop's state and each thread's stack."""

    __module__ = "loopwarden.testing"

    #: Tells a simulation that it is not one of the test's own errors.
    is_hang = True


@contextmanager
def hang_guard(seconds: float) -> Generator[None, None, None]:
    """Raise `HangError` in the block if it takes longer than that many real seconds.

    It is raised again each ten seconds until the block ends: what is done about the first one may hang as well. What
    it says is printed to stderr too, once.

    It needs the main thread and the signal SIGALRM; where other code has these, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGALRM) not in {
        signal.SIG_DFL,
        None,
    }:
        yield
        return

    told = ""
    has_ended = False

    def hang(_number: int, _frame: FrameType | None) -> None:
        nonlocal told
        if has_ended:
            return
        if told:
            raise HangError("the test has hung, and what it does at its end hangs too")
        try:
            told = describe_everything()
        except BaseException as error:  # noqa: BLE001  whatever cannot be told, the test must end
            told = f"({error!r} while telling what it does)"
        told = f"the test has not ended after {seconds:g} real seconds\n{told}"
        with suppress(Exception):  # this may have interrupted a thread that prints
            sys.stderr.write(f"{told}\n")
        raise HangError(told)

    signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        has_ended = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def describe_everything() -> str:
    """Return the trees, the loops that are in none, and what every thread does; no actor is asked."""
    refs = alive()
    below = {id(ref) for each in refs if isinstance(each, SupervisorRef) for _, _, ref in each.glimpse()}
    trees = [draw_tree(ref) for ref in refs if isinstance(ref, SupervisorRef) and id(ref) not in below]
    loops = [f"{ref.name}: {ref.state.value}" for ref in refs if isinstance(ref, LoopRef) and id(ref) not in below]
    clock = current_clock()
    is_simulated = isinstance(clock, Simulation)
    parts = [
        ("the tree", "\n".join(trees)),
        ("loops without a supervisor", "\n".join(loops)),
        ("threads", clock.scheduler.describe() if isinstance(clock, Simulation) else _stacks()),
        ("if the one that runs blocks outside of the simulation", REMEDY if is_simulated else ""),
    ]
    return "\n".join(f"{title}:\n{text}" for title, text in parts if text)


def _stacks() -> str:
    frames = current_frames()
    return "\n".join(
        f"- {thread.name}\n{''.join(traceback.format_list(interesting(frames[thread.ident])))}"
        for thread in threading.enumerate()
        if thread.ident in frames
    )
