"""`ExitCode`: what a process says about its end, to whoever starts it again."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitCode"]


class ExitCode(IntEnum):
    """The codes with which a process of loops ends.

    They keep clear of Python's own (1, 2), of the shell's (126 and above), and of each other, so that Kubernetes'
    ``podFailurePolicy`` and systemd's ``RestartPreventExitStatus`` can tell them apart.
    """

    #: Everything was stopped in time.
    OK = 0
    #: The root supervisor gave up, or could not start its children.
    GAVE_UP = 70
    #: More threads hang than may, so only a new process helps; all other leases were returned first.
    TOO_MANY_ZOMBIES = 71
    #: A loop hangs whose policy is to end the process.
    STALLED = 72
    #: The time for a shutdown was over before everything had stopped.
    DRAIN_TIMED_OUT = 75
    #: A setting is wrong, so nothing was started.
    BAD_CONFIGURATION = 78
