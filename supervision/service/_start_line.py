"""`tell_start`: the one line that says what is served, and how."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from loopwarden._log import printable, report, type_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loopwarden.supervision.policy._timeouts import Timeouts

__all__ = ["tell_start"]

#: Names of children, or of mailboxes, that the line has; the fields of the record have all of them.
MAX_NAMES = 5
_TIMEOUTS = (
    "shutdown_timeout",
    "drain_timeout",
    "visibility_timeout",
    "wait_time_seconds",
    "longest_handler",
    "stall_threshold",
    "grace",
)
#: Those that are for loops alone.
_OF_LOOPS = {"visibility_timeout", "wait_time_seconds", "longest_handler"}


def tell_start(
    tree: str,
    *,
    children: Sequence[str],
    mailboxes: Sequence[object],
    probes: str | None,
    why: str,
    timeouts: Timeouts,
    are_told: bool,
) -> None:
    """Log what is served.

    Args:
        tree: The name of the root.
        children: The ids of its children.
        mailboxes: The mailboxes that are reaped and closed.
        probes: The URL of the probes, if there are any.
        why: Why they are there.
        timeouts: The time-outs in force.
        are_told: Whether the loops use them too; otherwise those are left out that only loops have.
    """
    names = [_name_of(each) for each in mailboxes]
    seconds: dict[str, float | None] = {
        name: getattr(timeouts, name) for name in _TIMEOUTS if are_told or name not in _OF_LOOPS
    }
    report(
        logging.INFO,
        "serving tree %r: children: %s; mailboxes: %s; probes: %s; %s",
        tree,
        _counted(children),
        _counted(names),
        "none" if probes is None else f"{probes} ({why})",
        ", ".join(f"{name} {value:g} s" for name, value in seconds.items() if value is not None),
        tree=tree,
        children=list(children),
        mailboxes=names,
        probes=probes,
        timeouts=seconds,
    )


def _counted(names: Sequence[str]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{len(names)} ({', '.join(map(printable, names[:MAX_NAMES]))}{more})"


def _name_of(mailbox: object) -> str:
    name: object = getattr(mailbox, "name", None)
    return name if isinstance(name, str) else type_name(mailbox)
