"""What the runs of a soak tell, and whether it adds up: pure functions over data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, final

from pydantic import BaseModel, ConfigDict

from loopwarden import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "GARBLED",
    "NEVER_DONE",
    "SUCCEEDED",
    "TIMED_OUT",
    "Life",
    "PoolFacts",
    "Stock",
    "TreeFacts",
    "busiest",
    "judge_books",
    "judge_life",
    "judge_pool",
]

SUCCEEDED, TIMED_OUT = "succeeded", "timed out"
#: What its handlers cannot even read.
GARBLED = "garbled"
#: Kinds of messages that no handler ever completes.
NEVER_DONE = frozenset({"poison", "deadly", GARBLED})
#: The share of jobs with a generous deadline that must succeed.
MOST = 0.9
#: How many ids a text about a fault names.
NAMED = 5


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


@final
class PoolFacts(_Facts):
    """What a run of jobs in a pool has come to."""

    #: Messages that asked for a job each, and what is in the mailboxes and among the dead letters at the end.
    sent: int
    left: int
    dead: int
    #: How many tickets of those jobs ended how.
    outcomes: dict[str, int]
    #: The same of jobs that take exactly as long as they may, so that either is right.
    races: dict[str, int]
    #: How often each job was run, by how many jobs.
    runs: dict[int, int]
    late: int
    refused: int
    in_flight: int
    #: What the `close` of the pool has said.
    closed_idle: bool
    #: Whether what was submitted afterwards was refused, and not run.
    refuses: bool
    threads: list[str]


@final
class TreeFacts(_Facts):
    """What a process with a tree says of its end."""

    exit_code: int
    #: Ids of the messages that the report calls done.
    done: list[str]
    fates: dict[str, int]
    threads: list[str]
    #: How much of the shared budget may be used, was used at most, and is still used at the end.
    limit: int
    busiest: int
    used: int
    waiting: int
    in_flight: int


@final
class Life(_Facts):
    """One process, as its parent sees its end."""

    code: int
    #: Those that may be.
    allowed: frozenset[int]
    stderr: str
    #: None if it was given no time to tell.
    facts: TreeFacts | None


@final
class Stock(_Facts):
    """What there is at the end of all processes."""

    #: Kinds of what was sent, by id.
    sent: dict[str, str]
    #: Ids in the order in which handlers have noted them, before they returned.
    completed: list[str]
    left: list[str]
    dead: list[str]
    #: How many are leased to a process that is gone.
    leased: int

    @property
    def acknowledged(self) -> set[str]:
        """Return what is gone from the store."""
        return set(self.sent) - set(self.left) - set(self.dead)


def judge_pool(scenario: str, facts: PoolFacts) -> list[str]:
    """Return what is wrong with a run of jobs in a pool."""
    jobs, races = sum(facts.outcomes.values()), sum(facts.races.values())
    succeeded, timed_out = (facts.outcomes.get(each, 0) for each in (SUCCEEDED, TIMED_OUT))
    all_timed_out = timed_out + facts.races.get(TIMED_OUT, 0)
    others = {*facts.outcomes, *facts.races} - {SUCCEEDED, TIMED_OUT}
    faults = [
        (jobs != facts.sent, f"{facts.sent} messages were sent, and {jobs} tickets resolved"),
        (bool(others), f"tickets ended otherwise: {sorted(others)}"),
        (facts.runs != {1: jobs + races}, f"not every job ran once: {facts.runs} (how often: how many jobs)"),
        (facts.late != all_timed_out, f"{all_timed_out} timed out, and {facts.late} completions were late"),
        (facts.in_flight != 0, f"{facts.in_flight} jobs are in flight in a pool that is closed"),
        (not facts.closed_idle, "the pool was idle, and its close says that it was not"),
        (not facts.refuses or facts.refused != 1, f"a closed pool took a job, or counts {facts.refused} refusals"),
        (facts.left + facts.dead != 0, f"{facts.left} messages are left, and {facts.dead} are dead letters"),
        (bool(facts.threads), f"threads are left: {facts.threads}"),
        (
            scenario == "must-time-out" and timed_out != jobs,
            f"all {jobs} had to time out, and only {timed_out} did",
        ),
        (
            scenario == "mostly-succeed" and succeeded < MOST * jobs,
            f"{succeeded} of {jobs} succeeded, less than {MOST:.0%}",
        ),
    ]
    return [text for is_wrong, text in faults if is_wrong]


def judge_life(life: Life) -> list[str]:
    """Return what is wrong with the end of a process."""
    facts = life.facts
    faults = [
        (life.code not in life.allowed, f"it ended with code {life.code}, and not one of {sorted(life.allowed)}"),
        (bool(life.stderr), f"it wrote to standard error:\n{life.stderr}"),
    ]
    if facts is None:
        # Those that end themselves, or are ended, at once; all others return and tell.
        silent = life.code in {-9, ExitCode.TOO_MANY_ZOMBIES}
        faults.append((not silent, "it told nothing of its end"))
    else:
        faults += [
            (
                life.code not in {facts.exit_code, ExitCode.TOO_MANY_ZOMBIES},
                f"it ended with code {life.code}, and its report says {facts.exit_code}",
            ),
            (facts.busiest > facts.limit, f"{facts.busiest} of a budget of {facts.limit} was used at once"),
            (facts.used + facts.waiting != 0, f"{facts.used} of the budget is used at the end, {facts.waiting} wait"),
            (facts.in_flight != 0, f"{facts.in_flight} jobs are in flight in a pool that is closed"),
            (bool(facts.threads), f"threads are left: {facts.threads}"),
        ]
    return [text for is_wrong, text in faults if is_wrong]


def judge_books(stock: Stock, lives: Iterable[Life]) -> list[str]:
    """Return what is wrong with the books: each message is acknowledged once, left, or a dead letter."""
    sent, left, dead, gone = stock.sent, set(stock.left), set(stock.dead), stock.acknowledged
    never_done = {each for each, kind in sent.items() if kind in NEVER_DONE}
    done = {each for life in lives if life.facts is not None for each in life.facts.done}
    faults = [
        ((left | dead) - set(sent), "are there, but were never sent"),
        (_repeated(stock.left), "are in a mailbox twice"),
        (_repeated(stock.dead), "are dead letters twice"),
        (left & dead, "are both in a mailbox and dead letters"),
        (gone - set(stock.completed), "are gone, and no handler has completed them"),
        (gone & never_done, "were acknowledged, though their handler always raises"),
        (dead - never_done, "are dead letters, though they can be handled"),
        (done & (left | dead), "are done, says the report, and still there"),
    ]
    texts = [f"{len(ids)} messages {text}: {_some(ids, sent)}" for ids, text in faults if ids]
    if stock.leased:
        texts.append(f"{stock.leased} messages are leased to a process that is gone")
    return texts


def busiest(spans: Iterable[tuple[float, float, int]]) -> int:
    """Return the most weight that was there at once, of spans with a beginning, an end and a weight.

    >>> busiest([(0, 2, 1), (1, 3, 2), (3, 4, 1)])
    3
    """
    steps = [step for begin, end, weight in spans for step in ((begin, weight), (end, -weight))]
    most = now = 0
    for _, weight in sorted(steps):  # at the same moment, a release goes first
        now += weight
        most = max(most, now)
    return most


def _repeated(ids: Iterable[str]) -> set[str]:
    return {each for each, count in Counter(ids).items() if count > 1}


def _some(ids: Iterable[str], kinds: dict[str, str]) -> str:
    return ", ".join(f"{each} ({kinds.get(each, 'unknown')})" for each in sorted(ids)[:NAMED])
