"""A run of jobs in an `OffloadPool`, asked for by the handlers of two loops: one in memory, one on SQLite."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from soak_books import SUCCEEDED, TIMED_OUT, PoolFacts

from loopwarden import LoopActor, MailboxLoop, ShutdownRequest, Ticket, Token
from loopwarden.actors import OffloadPool
from loopwarden.errors import ActorDeadError, TicketTimeoutError
from loopwarden.mailbox import InMemoryMailbox, SqliteMailbox
from loopwarden.testing import wait_no_threads

if TYPE_CHECKING:
    from pathlib import Path

    from soak_settings import Settings

    from loopwarden import Mailbox, Message

__all__ = ["run_pool"]

#: Jobs for each worker of the pool, from each mailbox.
JOBS = 8
#: Jobs for each worker that take as long as they may, how long that is, and how much either may be longer, in seconds.
RACES = 10
RACE, HEAD_START = 0.003, 0.001


def run_pool(settings: Settings, scenario: str, seed: int, folder: Path) -> PoolFacts:
    """Run until every message is acknowledged and the pool is closed."""
    dice = random.Random(seed)
    must_time_out = scenario == "must-time-out"
    deadline = settings.must_time_out_deadline if must_time_out else settings.mostly_succeed_deadline
    each = settings.concurrency * JOBS
    pool = OffloadPool("soak", workers=settings.concurrency)
    ran: list[int] = []
    outcomes: list[str] = []
    all_done: Ticket[None] = Ticket()
    numbers = itertools.count(1)

    def job(number: int, seconds: float) -> None:
        ran.append(number)
        Token().wait(seconds)

    def handle(message: Message[int, Any]) -> None:
        seconds = settings.must_time_out_job if must_time_out else dice.uniform(0, settings.mostly_succeed_job)
        outcomes.append(_outcome(pool.submit(job, message.body, seconds, timeout=deadline)))
        if next(numbers) == 2 * each:
            all_done.complete(None)

    mailboxes: list[Mailbox[int, Any]] = [
        InMemoryMailbox("memory", body=int),
        SqliteMailbox(folder / "mail.db", "jobs", body=int),
    ]
    for number, mailbox in enumerate(mailboxes):
        mailbox.send_many(range(number * each, (number + 1) * each))
    loops = [
        LoopActor.start(MailboxLoop(mailbox, handle, concurrency=settings.concurrency), name=mailbox.name)
        for mailbox in mailboxes
    ]
    all_done.wait()
    races: Counter[str] = Counter()
    for begin in range(
        2 * each, 2 * each + (0 if must_time_out else RACES * settings.concurrency), settings.concurrency
    ):
        # As many as there are workers, so that all start at once.
        tickets = [
            pool.submit(job, number, RACE, timeout=RACE + dice.uniform(-HEAD_START, HEAD_START))
            for number in range(begin, begin + settings.concurrency)
        ]
        races.update(map(_outcome, tickets))
        pool.wait_idle()
    pool.wait_idle()
    closed_idle = pool.close(0)
    refuses = _is_refused(pool.submit(ran.append, -1))
    for loop in loops:
        loop.send(ShutdownRequest(timeout=10)).wait()
        loop.ended.wait()
    left, dead = (sum(counts) for counts in zip(*map(_count, mailboxes), strict=True))
    for mailbox in mailboxes:
        mailbox.close()
    return PoolFacts(
        sent=2 * each,
        left=left,
        dead=dead,
        outcomes=Counter(outcomes),
        races=races,
        runs=Counter(Counter(ran).values()),
        late=pool.late,
        refused=pool.refused,
        in_flight=pool.in_flight,
        closed_idle=closed_idle,
        refuses=refuses,
        threads=[thread.name for thread in wait_no_threads()],
    )


def _count(mailbox: Mailbox[int, Any]) -> tuple[int, int]:
    return mailbox.approximate_count(), mailbox.dead_letters.approximate_count()


def _outcome(ticket: Ticket[None]) -> str:
    """Wait for a ticket, for ever if need be: that is the guard's business."""
    try:
        ticket.wait()
    except TicketTimeoutError:
        return TIMED_OUT
    except Exception as error:  # noqa: BLE001  whatever it is, it is told
        return repr(error)
    return SUCCEEDED


def _is_refused(ticket: Ticket[None]) -> bool:
    try:
        ticket.wait()
    except ActorDeadError:
        return True
    return False
