"""`Timeouts`: all time-outs of a process of loops, checked against each other."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Self, final

from pydantic import AliasChoices, Field, model_validator

from loopwarden._arguments import MAX_VISIBILITY
from loopwarden._log import report
from loopwarden._model import Model
from loopwarden.actors import LoopTimeouts
from loopwarden.mailbox._validation import LEAST_LEASE, MAX_WAIT
from loopwarden.supervision.policy._budget import SHARES

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Timeouts", "log_untold", "log_warnings", "loop_timeouts_of", "loop_warnings"]

#: Seconds that a drain lasts at least: in less no message completes.
SHORTEST_DRAIN = 1.0
#: Seconds that a drain lasts at most: a message that takes longer hangs.
LONGEST_DRAIN = 300.0
#: Seconds between the end of a shutdown and that of the process, to return the messages in hand and to exit.
SPARE_GRACE = 5.0
#: The share of the budget after which a loop of normal priority is given up.
NORMAL_SHARE = SHARES["normal"]

_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Period = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@final
class Timeouts(Model):
    """The time-outs of a process, in seconds, checked against each other.

    A combination that cannot be kept raises ``ValueError``. One that can be kept, but is hardly what was meant, is in
    `warnings`.

    >>> Timeouts(shutdown_timeout=60).drain_timeout
    60.0
    >>> Timeouts(drain_timeout=0.2).warnings
    ('drain_timeout 0.2 is not within 1 to 300, so 1 is used',)
    """

    #: The budget: how long a whole shutdown takes at most.
    shutdown_timeout: _Period = 30.0
    #: `drain_timeout` as it was given, under either name; None means as long as the budget.
    drain_timeout_seconds: _Seconds | None = Field(
        default=None, alias="drain_timeout", validation_alias=AliasChoices("drain_timeout", "drain_timeout_seconds")
    )
    #: How long other processes wait for a message if this one vanishes. Leases of workers that show signs of life are
    #: renewed, so it need not be longer than a handler takes.
    visibility_timeout: Annotated[_Seconds, Field(ge=LEAST_LEASE, le=MAX_VISIBILITY)] = 30.0
    #: How long a poll waits for a message.
    wait_time_seconds: Annotated[_Period, Field(le=MAX_WAIT)] = 20.0
    #: How long the slowest message takes; None if it is not known.
    longest_handler: _Seconds | None = None
    #: Seconds without a sign of life after which a worker counts as stalled; None means that there is no watchdog.
    stall_threshold: _Period | None = 720.0
    #: How long the process has to end before it is killed: ``terminationGracePeriodSeconds`` of Kubernetes,
    #: ``TimeoutStopSec`` of systemd; None if it is not known.
    grace: _Seconds | None = None

    @model_validator(mode="after")
    def _refuse_the_impossible(self) -> Self:
        faults = [fault for fault in (_drain_fault(self), _grace_fault(self)) if fault is not None]
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @property
    def drain_timeout(self) -> float:
        """How long messages in hand may take to complete: 1 to 300 seconds, and never longer than the budget."""
        given = self.shutdown_timeout if self.drain_timeout_seconds is None else self.drain_timeout_seconds
        return min(max(given, SHORTEST_DRAIN), LONGEST_DRAIN, self.shutdown_timeout)

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence about each time-out that was clamped, or that does not fit another."""
        # A handler that beats extends its lease and is not stalled, however long it takes: nothing here is impossible.
        doubts = (_clamp_doubt(self), _stall_doubt(self), _handler_doubt(self), _grace_doubt(self))
        return tuple(doubt for doubt in doubts if doubt is not None)


def loop_timeouts_of(timeouts: Timeouts) -> LoopTimeouts:
    """Return what the loops of a tree are told."""
    return LoopTimeouts(
        timeouts.visibility_timeout, timeouts.wait_time_seconds, timeouts.longest_handler, timeouts.stall_threshold
    )


def loop_warnings(child: str, uses: LoopTimeouts, tree: Timeouts) -> tuple[str, ...]:
    """Return what goes badly with the time-outs that a loop was given itself, in place of those of its tree."""
    own = {
        name: value
        for name in ("wait_time_seconds", "longest_handler")
        if (value := getattr(uses, name)) is not None and value != getattr(tree, name)
    }
    if not own:
        return ()
    told = set(tree.warnings)
    its = tree.model_copy(update=own)
    return tuple(f"child {child!r}: {warning}" for warning in its.warnings if warning not in told)


def log_warnings(timeouts: Timeouts, background: Sequence[str] = ()) -> None:
    """Log each of the warnings, and one more if children of background priority, given by their ids, get too little."""
    for warning in (*timeouts.warnings, *filter(None, [_background_doubt(timeouts, background)])):
        report(logging.WARNING, "%s", warning)


def log_untold(tree: str, timeouts: Timeouts) -> None:
    """Warn of time-outs that were given for the loops of a tree which runs already, and so has not taken them."""
    asked, usual = loop_timeouts_of(timeouts), loop_timeouts_of(Timeouts())
    names = (each.name for each in fields(asked))
    untold = {name: getattr(asked, name) for name in names if getattr(asked, name) != getattr(usual, name)}
    if untold:
        text = (
            "supervisor %r was started before, so its loops have not taken %s from here: give serve a Supervisor that"
            " is not started"
        )
        report(logging.WARNING, text, tree, " and ".join(f"{name} {_or_none(each)}" for name, each in untold.items()))


def _or_none(seconds: float | None) -> str:
    return "None" if seconds is None else _plain(seconds)


def _drain_fault(its: Timeouts) -> str | None:
    given = its.drain_timeout_seconds
    # What the clamp takes away is only a warning.
    if given is None or min(given, LONGEST_DRAIN) <= its.shutdown_timeout:
        return None
    return (
        f"drain_timeout {_plain(given)} is part of shutdown_timeout {_plain(its.shutdown_timeout)}, and cannot be"
        " longer, so messages would be given up before their drain is over: raise shutdown_timeout or lower"
        " drain_timeout"
    )


def _grace_fault(its: Timeouts) -> str | None:
    if its.grace is None or its.grace >= its.shutdown_timeout:
        return None
    return (
        f"grace {_plain(its.grace)} is shorter than shutdown_timeout {_plain(its.shutdown_timeout)}, so the process"
        " would be killed before its shutdown is over, with messages cut in half: raise grace or lower"
        " shutdown_timeout"
    )


def _clamp_doubt(its: Timeouts) -> str | None:
    given = its.drain_timeout_seconds
    if given is None or given == its.drain_timeout:
        return None
    limits = f"within {_plain(SHORTEST_DRAIN)} to {_plain(LONGEST_DRAIN)}"
    if its.shutdown_timeout < SHORTEST_DRAIN:  # then a drain is exactly as long as that
        limits = f"as long as shutdown_timeout {_plain(its.shutdown_timeout)}, which is below {_plain(SHORTEST_DRAIN)}"
    return f"drain_timeout {_plain(given)} is not {limits}, so {_plain(its.drain_timeout)} is used"


def _stall_doubt(its: Timeouts) -> str | None:
    longest = its.longest_handler
    # A poll of our own loops is not silence, but other loops may beat only once in a round, before they poll.
    if its.stall_threshold is None or its.stall_threshold > its.wait_time_seconds + (longest or 0.0):
        return None
    return (
        f"stall_threshold {_plain(its.stall_threshold)} is not longer than"
        f" {_sum(wait_time_seconds=its.wait_time_seconds, longest_handler=longest)}, so a healthy loop may be taken for"
        " stalled, unless its handler calls beat(): raise stall_threshold"
    )


def _handler_doubt(its: Timeouts) -> str | None:
    longest, budget, drain = its.longest_handler, its.shutdown_timeout, its.drain_timeout
    if longest is None or longest <= min(drain, NORMAL_SHARE * budget):
        return None
    if drain < NORMAL_SHARE * budget:
        limit, remedy = f"drain_timeout {_plain(drain)}", f"drain_timeout, up to {_plain(LONGEST_DRAIN)}"
    else:
        limit = f"{NORMAL_SHARE * 100:g} % of shutdown_timeout {_plain(budget)}, the share of a loop of normal priority"
        remedy = "shutdown_timeout"
    return (
        f"longest_handler {_plain(longest)} is longer than {limit}, so a shutdown gives up a message that takes its"
        f" longest, and it is delivered again: raise {remedy}, or have the handler check stop_asked()"
    )


def _background_doubt(its: Timeouts, children: Sequence[str]) -> str | None:
    longest, share = its.longest_handler, SHARES["background"]
    if longest is None or not children or not share * its.shutdown_timeout < longest or _handler_doubt(its) is not None:
        return None
    named = ", ".join(repr(child) for child in children[:3]) + (", …" if len(children) > 3 else "")  # noqa: PLR2004  a few
    return (
        f"longest_handler {_plain(longest)} is longer than {share * 100:g} % of shutdown_timeout"
        f" {_plain(its.shutdown_timeout)}, the share of children of background priority ({named}), so a shutdown gives"
        " up a message of theirs that takes its longest, and it is delivered again: raise shutdown_timeout, or have"
        " the handler check stop_asked()"
    )


def _grace_doubt(its: Timeouts) -> str | None:
    enough = its.shutdown_timeout + SPARE_GRACE
    if its.grace is None or its.grace >= enough:
        return None
    return (
        f"grace {_plain(its.grace)} is less than {_plain(SPARE_GRACE)} s longer than shutdown_timeout"
        f" {_plain(its.shutdown_timeout)}, so there is hardly time to return the messages in hand and to exit, and"
        f" Kubernetes counts preStop in as well: raise grace to {_plain(enough)}"
    )


def _sum(**parts: float | None) -> str:
    """Return the ``parts`` that are known, by name and value."""
    known = [f"{name} {_plain(value)}" for name, value in parts.items() if value is not None]
    return " and ".join(known) + (" together" if len(known) > 1 else "")


def _plain(seconds: float) -> str:
    # Not rounded: a reader must see which of two close numbers is the longer.
    return str(seconds).removesuffix(".0")
