"""`ShutdownReport`: what a shutdown did: every phase, every loop, every message that was in hand."""

from __future__ import annotations

from collections import Counter
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict
from typing_extensions import override

from loopwarden.actors import MessageFate, ShutdownResult
from loopwarden.actors.loop._health import merged_fates
from loopwarden.supervision.daemons._exit import ExitCode

__all__ = [
    "REPORT_GRACE",
    "LoopReport",
    "Phase",
    "PhaseReport",
    "ShutdownReport",
    "exit_code_of",
    "report_of",
    "reports_of",
    "with_left_behind",
]

#: In this order: intake stops everywhere; what is in hand completes; the work of pools completes; loops end; daemons
#: stop and mailboxes are closed.
Phase: TypeAlias = Literal["not ready", "drain", "offload", "loops", "close"]
#: The endings of the names of a loop's threads, which may be abandoned.
THREADS = ("worker", "control", "start")


#: Seconds for what is left to do when the budget is over, or the loops have ended: to return what was in hand, to stop
#: daemons, to close mailboxes. That takes milliseconds unless a store hangs. It is less than the spare grace.
REPORT_GRACE = 3.0


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PhaseReport(_Part):
    """How long one phase took."""

    name: Phase
    duration: float
    #: False if its time was over before it was complete, or it was cut short.
    completed: bool


class LoopReport(_Part):
    """How one loop ended."""

    #: Its name, after the names of the supervisors above it.
    path: str
    #: True if it ended by itself, and in time, or had nothing to end.
    clean: bool
    #: True if it was abandoned, because it did not end in time.
    abandoned: bool
    duration: float
    fates: tuple[MessageFate, ...] = ()
    error: str | None = None
    #: Where its threads were when it was abandoned.
    stack: str | None = None
    #: False if it was never started.
    started: bool = True


class ShutdownReport(_Part):
    """What a shutdown did; ``str`` makes a text of it."""

    #: What asked for the shutdown.
    reason: str
    exit_code: ExitCode
    #: Seconds that it had, and that it took.
    budget: float
    duration: float
    phases: tuple[PhaseReport, ...]
    loops: tuple[LoopReport, ...]
    #: What ended the tree, if it was not asked to end.
    error: str | None = None
    #: The threads of this process that were abandoned, even before the shutdown, and still run.
    left_behind: tuple[str, ...] = ()

    @property
    def fates(self) -> tuple[MessageFate, ...]:
        """The last known fate of every message that was in hand, or received and not started."""
        return merged_fates(fate for loop in self.loops for fate in loop.fates)

    @property
    def counts(self) -> dict[str, int]:
        """The number of messages by fate."""
        return dict(Counter(fate.fate for fate in self.fates))

    @override
    def __str__(self) -> str:
        started = [loop for loop in self.loops if loop.started]
        clean = sum(loop.clean for loop in started)
        fates = ", ".join(f"{count} {fate}" for fate, count in self.counts.items()) or "none in hand"
        lines = [
            f"shutdown ({self.reason}) took {self.duration:.3f} s of {self.budget:g} s",
            f"loops: {clean} of {len(started)} ended cleanly",
            f"messages: {fates}",
            *(f"{loop.path}: {_what_happened(loop)}" for loop in self.loops if not (loop.clean and loop.started)),
            *(f"phase {each.name!r} was not completed" for each in self.phases if not each.completed),
            *([f"threads left behind: {', '.join(self.left_behind)}"] if self.left_behind else []),
            *([] if self.error is None else [f"ended by {self.error}"]),
            f"exit code {self.exit_code.value} ({self.exit_code.name})",
        ]
        return "\n".join(lines)


def _what_happened(loop: LoopReport) -> str:
    if not loop.started:
        return "was never started"
    if loop.abandoned:
        return f"abandoned{'' if loop.stack is None else f', at{chr(10)}{loop.stack.rstrip()}'}"
    return loop.error or "did not end cleanly"


def reports_of(result: ShutdownResult, above: str = "") -> tuple[LoopReport, ...]:
    """Return the report of each loop below a supervisor."""
    reports: list[LoopReport] = []
    for child in result.children:
        path = f"{above}{child.loop_name}"
        if child.children:
            reports += reports_of(child, f"{path}/")
            continue
        reports.append(report_of(child, path))
    return tuple(reports)


def report_of(result: ShutdownResult, path: str | None = None) -> LoopReport:
    """Return the report of one loop."""
    return LoopReport(
        path=path or result.loop_name,
        clean=result.clean_shutdown,
        abandoned=result.abandoned,
        duration=result.duration,
        fates=result.fates,
        error=result.error,
        stack=result.stack,
        started=result.started,
    )


def with_left_behind(loops: tuple[LoopReport, ...], threads: tuple[str, ...]) -> tuple[LoopReport, ...]:
    """Return the reports of loops; a loop that has left a thread behind is no longer clean."""

    def judge(loop: LoopReport) -> LoopReport:
        name = loop.path.rpartition("/")[2]
        left = [each for each in threads if each in {name, *(f"{name}-{kind}" for kind in THREADS)}]
        if not left or not loop.clean:
            return loop
        text = f"abandoned before the shutdown, and still running: {', '.join(left)}"
        return loop.model_copy(update={"clean": False, "error": text})

    return tuple(judge(loop) for loop in loops)


def exit_code_of(loops: tuple[LoopReport, ...], *, gave_up: bool, in_time: bool, overtime: float) -> ExitCode:
    """Return the exit code of the process.

    Args:
        loops: How the loops ended.
        gave_up: Whether the tree ended by itself, with an error.
        in_time: Whether all of it ended in time.
        overtime: Seconds that the shutdown took beyond its budget, for any reason: a main thread that got no turn is
            late as well.
    """
    if gave_up:
        return ExitCode.GAVE_UP
    if not in_time or overtime > REPORT_GRACE or any(loop.abandoned for loop in loops):
        return ExitCode.DRAIN_TIMED_OUT
    return ExitCode.OK
