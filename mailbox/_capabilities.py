"""What a back end can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

__all__ = ["Capabilities"]


@final
@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a back end can do; asking for what it cannot is an error that says so.

    The conformance suite runs every rule that no missing capability excuses.
    """

    #: Messages survive the death of the process.
    durable: bool
    #: Several processes may share the mailbox.
    shared: bool
    #: Visible messages are received in the order in which they were sent, and keep their place when they return.
    ordered: bool
    #: `approximate_count` is exact.
    exact_count: bool
    #: An unstarted message can be put back without raising its delivery count.
    uncounted_return: bool
    #: `send(delay=…)` is possible.
    delay: bool
    #: `send(dedup_id=…)` is possible.
    dedup: bool
    #: `max_size` is possible.
    bounded: bool
    #: A late acknowledge is refused by the store itself, not only by the worker's own clock.
    fenced_by_store: bool
