"""What is done about a worker that gives no sign of life, step by step, as a pure function."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["StallAction", "StallPolicy", "next_action"]

_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class StallAction(IntEnum):
    """The steps, each of which is only taken if the one before did not help."""

    NONE = 0
    REPORT = 1  # the stack of the thread is logged
    RECALL = 2  # the worker's token is stopped
    ABANDON = 3  # the worker is fenced, its message given back, and another put in its place
    EXIT = 4  # the process ends, once everything else was given back


class StallPolicy(BaseModel):
    """When a loop counts as stalled, and how far to go about it.

    >>> StallPolicy().grace
    72.0
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    #: Seconds without a sign of life after which a worker counts as stalled.
    threshold: _Seconds = 720.0
    #: The last step: ``report`` only says so, ``replace`` puts another worker in its place, ``exit`` ends the process.
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
        done: The last step that was taken about this silence.
        silent_for: How long the worker has given no sign of life, in seconds.
        policy: The loop's policy.
    """
    steps = [StallAction.REPORT, StallAction.RECALL, _LAST[policy.last]][: _LAST[policy.last]]
    for number, step in enumerate(steps):
        if step > done:
            # One step at a time, however long the watchdog itself was kept from looking.
            return step if silent_for >= policy.threshold + number * policy.grace else StallAction.NONE
    return StallAction.NONE
