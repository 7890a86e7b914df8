"""A process with a tree of loops on SQLite, whose handlers work, fail, crash and stall, until a signal ends it."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, final

from soak_books import TreeFacts, busiest

from loopwarden import ChildSpec, MailboxLoop, Supervisor, Ticket, Token, serve
from loopwarden.actors import OffloadPool, WorkBudget
from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.mailbox import SqliteMailbox
from loopwarden.supervision import Backoff
from loopwarden.testing import wait_no_threads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from loopwarden import Message
    from loopwarden.supervision.tree._spec import Strategy

__all__ = ["BOXES", "MAX_DELIVERIES", "TreePlan", "run_tree"]

BOXES = ("red", "green", "blue")
#: More than what a message that can be handled may go through: a stall, a crash, and a kill for each process.
MAX_DELIVERIES = 6
#: Seconds after which a worker is taken for stalled: long for any healthy handler here, also on a busy machine.
STALL = 0.5
#: Seconds that a shutdown may take; one that meets a stalled worker takes 80 % of it.
SHUTDOWN = 2.0
#: How long a message stays away, and a loop that died.
RETRY = Backoff(minimum=0.01, maximum=0.05)
RESTART = Backoff(minimum=0.01, maximum=0.1)
SHORT, LONG = 0.01, 0.06


class CrashError(Exception):
    """Ends a loop, because it is in its ``crash_on``."""


@final
@dataclass(frozen=True, slots=True)
class TreePlan:
    """What a process is to be; the one that starts it draws it."""

    #: How many loops.
    concurrency: int
    #: How long messages are leased: so long that none comes back by itself, or so short that all do.
    lease: float
    #: How many restarts the root bears; None means any number.
    intensity: int | None
    has_probes: bool


@final
@dataclass(slots=True)
class _Handler:
    """Does what a message says, and notes it when it is done."""

    notes: int
    pool: OffloadPool
    dice: random.Random
    #: Stalled handlers wait for it; it is completed when everything else is over.
    released: Ticket[None]
    #: From when to when how much of the budget was used.
    spans: list[tuple[float, float, int]] = field(default_factory=list[tuple[float, float, int]])

    def within_budget(self, weight: int, message: Message[str, Any]) -> None:
        began = SYSTEM_CLOCK.monotonic()
        try:
            self(message)
        finally:
            ended = SYSTEM_CLOCK.monotonic()
            if ended - began < STALL:  # one that took longer may have been given up, and its permit with it
                self.spans.append((began, ended, weight))

    def __call__(self, message: Message[str, Any]) -> None:
        kind, is_first = message.body.split("/")[0], message.delivery_count == 1
        if kind == "poison" or (kind == "fail" and is_first):
            raise ValueError(kind)
        if kind == "deadly" or (kind == "crash" and is_first):
            raise self.dice.choice((SystemExit, KeyboardInterrupt, GeneratorExit))(kind)
        if kind == "crash-on" and is_first:
            raise CrashError
        if kind == "stall" and is_first:
            self.released.wait()
            return  # nothing is noted: if this were acknowledged, it would be missing in the books
        if kind == "pool":
            self.pool.submit(Token().wait, self.dice.uniform(0, SHORT), timeout=1.0).wait()
        else:
            Token().wait(LONG if kind == "slow" else self.dice.uniform(0, SHORT))
        os.write(self.notes, f"{message.id}\n".encode())


def run_tree(plan: TreePlan, seed: int, folder: Path, say_ready: Callable[[], None]) -> TreeFacts:
    """Serve until a signal; then let those go that stall, and tell how it was.

    Args:
        plan: What to be.
        seed: Of everything that is drawn.
        folder: Where the mailboxes and the notes are.
        say_ready: Called when signals are heard.
    """
    dice = random.Random(seed)
    budget = WorkBudget(max(2, plan.concurrency // 2), "shared")
    pool = OffloadPool("soak", workers=max(2, plan.concurrency // 2))
    notes = os.open(folder / "completed", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    handler = _Handler(notes, pool, dice, Ticket())
    boxes: list[SqliteMailbox[str, Any]] = [
        SqliteMailbox(folder / "mail.db", name, body=str, max_deliveries=MAX_DELIVERIES) for name in BOXES
    ]

    def spec(number: int) -> ChildSpec:
        shares = number % 2 == 0
        weight = dice.randint(1, 2)
        make = partial(
            MailboxLoop[str],
            boxes[number % len(boxes)],
            partial(handler.within_budget, weight) if shares else handler,
            concurrency=dice.randint(1, 3),
            prefetch=1 if shares else dice.randint(1, 4),
            crash_on=(CrashError,),
            backoff=RETRY,
            visibility_timeout=plan.lease,
            wait_time_seconds=5,
            budget=budget if shares else None,
            weight=weight,
        )

        def start() -> MailboxLoop[str]:
            say_ready()
            return make()

        return ChildSpec(id=f"loop-{number}", start=start, shutdown=1.0, backoff=RESTART)

    loops = [spec(number) for number in range(plan.concurrency)]
    half = len(loops) // 2
    strategies: tuple[Strategy, ...] = ("one_for_one", "one_for_all", "rest_for_one")
    strategy = dice.choice(strategies)

    def inner() -> Supervisor:
        return Supervisor("inner", children=loops[:half], strategy=strategy, intensity=None)

    groups = [ChildSpec(id="inner", start=inner, backoff=RESTART)] if half else []
    tree = Supervisor("soak", children=[*groups, *loops[half:]], intensity=plan.intensity, backoff=RESTART)
    report = serve(
        tree,
        mailboxes=boxes,
        pools=[pool],
        health_port=0 if plan.has_probes else None,
        shutdown_timeout=SHUTDOWN,
        stall_threshold=STALL,
        visibility_timeout=plan.lease,
        wait_time_seconds=5.0,
    )
    handler.released.complete(None)
    threads = [thread.name for thread in wait_no_threads()]
    usage = budget.snapshot()
    os.close(notes)
    return TreeFacts(
        exit_code=report.exit_code,
        done=[fate.message_id for fate in report.fates if fate.fate == "done"],
        fates=Counter(fate.fate for fate in report.fates),
        threads=threads,
        limit=budget.limit,
        busiest=busiest(handler.spans),
        used=usage.used,
        waiting=usage.waiting,
        in_flight=pool.in_flight,
    )
