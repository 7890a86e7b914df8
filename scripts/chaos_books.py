"""What is left of a storm of messages and kills, and whether it adds up: pure functions over data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, final

from pydantic import BaseModel, ConfigDict
from soak_books import Stock, judge_books

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Batch", "Figures", "Note", "count_sent", "find_doubles", "judge", "kind_of", "tally"]


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


@final
class Batch(_Facts):
    """Bodies that were sent in one step."""

    bodies: tuple[str, ...]
    #: False if its sender died before it could say that the step was done.
    is_sure: bool


@final
class Note(_Facts):
    """One effect of one message, as its handler wrote it down before it returned."""

    #: Which process, or which run of a loop, it was.
    life: str
    body: str


@final
class Figures(_Facts):
    """What a storm came to."""

    back_end: str
    seed: int
    sent: int
    effects: int
    dead: int
    left: int
    #: Effects that came again, because the one who had the message was killed or stopped before it could acknowledge.
    redelivered: int
    #: How many were ended, by what.
    kills: dict[str, int]
    seconds: float
    faults: tuple[str, ...]


def kind_of(body: str) -> str:
    """Return what a message asks its handler to do."""
    return body.split("/", 1)[0]


def count_sent(batches: Iterable[Batch], found: set[str]) -> tuple[dict[str, str], list[str]]:
    """Return the kinds of what was sent, by body, and what is wrong with the sends.

    A batch whose sender died is there as a whole, or not at all.
    """
    sent: dict[str, str] = {}
    faults: list[str] = []
    for batch in batches:
        there = [body for body in batch.bodies if body in found]
        if not batch.is_sure and there and len(there) < len(batch.bodies):
            faults.append(f"of the batch of {batch.bodies[0]}, {len(there)} of {len(batch.bodies)} were sent")
        sent.update((body, kind_of(body)) for body in (batch.bodies if batch.is_sure else there))
    return sent, faults


def find_doubles(notes: Iterable[Note], excused: set[str]) -> tuple[int, list[str]]:
    """Return how many effects are a redelivery's, and those that are doubled without one.

    Args:
        notes: In the order in which they were written.
        excused: The lives that were killed or stopped: what they had done may not have been acknowledged.
    """
    last: dict[str, str] = {}
    redelivered = 0
    doubled: list[str] = []
    for note in notes:
        before = last.get(note.body)
        if before in excused:
            redelivered += 1
        elif before is not None:
            doubled.append(f"{note.body} in {before} and in {note.life}")
        last[note.body] = note.life
    return redelivered, doubled


def judge(stock: Stock, notes: Iterable[Note], excused: set[str]) -> tuple[int, list[str]]:
    """Return how many effects are a redelivery's, and everything that is wrong with the books."""
    notes = list(notes)
    redelivered, doubled = find_doubles(notes, excused)
    faults = judge_books(stock, [])
    if doubled:
        faults.append(f"{len(doubled)} effects are doubled, and no process was killed in between: {doubled[:5]}")
    unknown = {note.body for note in notes} - set(stock.sent)
    if unknown:
        faults.append(f"{len(unknown)} effects are of messages that were never sent: {sorted(unknown)[:5]}")
    return redelivered, faults


def tally(names: Mapping[str, int]) -> dict[str, int]:
    """Return counts in the order of their names."""
    return dict(sorted(Counter(names).items()))
