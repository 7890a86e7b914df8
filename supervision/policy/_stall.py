"""The steps against a worker that gives no sign of life, as a pure function."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Literal

from pydantic import Field

from loopwarden._model import Model

__all__ = ["StallAction", "StallPolicy", "next_action"]

_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class StallAction(IntEnum):
    """The steps; each is taken only if the one before did not help."""

    NONE = 0
    REPORT = 1  # the stack of the thread is logged
    RECALL = 2  # the worker's token is stopped
    ABANDON = 3  # the worker is fenced, its message returned, and the worker replaced
    EXIT = 4  # the process ends, once all other messages were returned


class StallPolicy(Model):
    """When a loop counts as stalled, and which step is the last.

    >>> StallPolicy().grace
    72.0
    """

    #: Seconds without a sign of life after which a worker counts as stalled.
    threshold: _Seconds = 720.0
    #: The last step: ``report`` only logs it, ``recall`` stops the worker's token, ``replace`` replaces the worker,
    #: ``exit`` ends the process.
    last: Literal["report", "recall", "replace", "exit"] = "replace"

    @property
    def grace(self) -> float:
        """Seconds between one step and the next."""
        return self.threshold / 10


_LAST = {
    "report": StallAction.REPORT,
    "recall": StallAction.RECALL,
    "replace": StallAction.ABANDON,
    "exit": StallAction.EXIT,
}


def next_action(done: StallAction, silent_for: float, policy: StallPolicy) -> StallAction:
    """Return the step to take now, or NONE.

    Args:
        done: The last step that was taken against this silence.
        silent_for: How long the worker has given no sign of life, in seconds.
        policy: The loop's policy.
    """
    steps = [StallAction.REPORT, StallAction.RECALL, _LAST[policy.last]][: _LAST[policy.last]]
    for number, step in enumerate(steps):
        if step > done:
            # One step at a time, even if the watchdog itself could not look for long.
            return step if silent_for >= policy.threshold + number * policy.grace else StallAction.NONE
    return StallAction.NONE
