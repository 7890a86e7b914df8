"""The end of a process that only a new process can help: return all messages, then exit."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from loopwarden._log import flush_log, report
from loopwarden._threads import run_in_thread
from loopwarden._ticket import Ticket
from loopwarden.actors import AbandonRequest, LoopRef
from loopwarden.actors.runtime._exit_hook import alive
from loopwarden.supervision.tree._supervisor_ref import SupervisorRef

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors import ControlRef
    from loopwarden.clock import Clock

__all__ = ["ExitCode", "exit_process"]


class ExitCode(IntEnum):
    """The codes with which a process of loops ends.

    They keep clear of Python's own (1, 2), of the shell's (126 and above), and of each other, so that Kubernetes'
    ``podFailurePolicy`` and systemd's ``RestartPreventExitStatus`` can tell them apart.
    """

    #: Everything was stopped in time.
    OK = 0
    #: The root supervisor gave up, or could not start its children.
    GAVE_UP = 70
    #: More threads hang than allowed, so only a new process helps; all other leases were returned first.
    TOO_MANY_ZOMBIES = 71
    #: A loop hangs whose policy is to end the process.
    STALLED = 72
    #: The time for a shutdown was over before everything had stopped.
    DRAIN_TIMED_OUT = 75
    #: A setting is wrong, and nothing was started.
    BAD_CONFIGURATION = 78


#: Seconds that stores have to take back what actors that did not stop had in hand.
EXIT_GRACE = 2.0


def exit_process(
    code: ExitCode, why: str, patience: float, clock: Clock, leave: Callable[[int], object] = os._exit, **about: Any
) -> None:
    """Stop every actor of the process, return what the others have in hand, and leave; blocks.

    Args:
        code: The exit code.
        why: The reason, for the log.
        patience: Seconds that all actors together have to stop.
        clock: The time.
        leave: Ends the process.
        about: What the log record carries besides, such as a ``stack``.
    """
    report(logging.CRITICAL, "the process exits with code %d: %s", code, why, exit_code=int(code), **about)
    given_back: Ticket[None] = Ticket(clock.blocking)

    def leave_now() -> None:
        given_back.wait_ready()
        if flush_log(EXIT_GRACE):
            # Even so it may hang: a thread that was abandoned may hold the lock of a stream.
            run_in_thread(_flush, "loopwarden-last-words", clock.blocking).wait_ready(EXIT_GRACE)
        leave(int(code))

    # The main thread may return meanwhile, because what it waited for was stopped: even then the code must be ours.
    atexit.register(leave_now)
    try:
        _give_back(patience, clock)
    finally:
        given_back.complete(None)
        leave_now()
        atexit.unregister(leave_now)


def _flush() -> None:
    handlers = [*logging.getLogger("loopwarden").handlers, *logging.getLogger().handlers]
    for stream in (*handlers, sys.stdout, sys.stderr):
        with suppress(Exception):  # it may be closed, or user code
            stream.flush()


def _give_back(patience: float, clock: Clock) -> None:
    refs = alive()
    for ref in refs:
        ref.stop(block=False)
    left = _wait(refs, patience, clock)
    for ref in left:
        if isinstance(ref, LoopRef | SupervisorRef):  # other actors do not know the request
            ref.send(AbandonRequest(reason="the process ends"))
    _wait(left, EXIT_GRACE, clock)


def _wait(refs: list[ControlRef], timeout: float, clock: Clock) -> list[ControlRef]:
    """Wait for all actors, within one deadline; return those that have not ended."""
    deadline = clock.monotonic() + timeout
    return [ref for ref in refs if not ref.ended.wait_ready(max(0.0, deadline - clock.monotonic()), clock)]
