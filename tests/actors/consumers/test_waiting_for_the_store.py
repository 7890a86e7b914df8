"""A worker that waits for the store, because another process has it, does not hang."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden import Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.actors import MailboxLoop
from loopwarden.mailbox import SqliteMailbox, SupportsWaitedUntil
from loopwarden.mailbox.sqlite._store import STUCK_AFTER
from loopwarden.testing import FakeClock
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def jobs(tmp_path: Path, clock: FakeClock) -> Iterator[SqliteMailbox[str, Any]]:
    with contextlib.closing(SqliteMailbox[str, Any](tmp_path / "mail.db", "jobs", body=str, clock=clock)) as jobs:
        yield jobs


@contextlib.contextmanager
def held(path: Path) -> Generator[sqlite3.Connection]:
    """Have the file, as a backup in another process does."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield database


def next_call(jobs: SqliteMailbox[Any, Any]) -> Ticket[None]:
    """Return the ticket of the moment at which SQLite is asked for the file."""
    reached: Ticket[None] = Ticket()

    def note(statement: str) -> None:
        if statement.startswith("BEGIN") and not reached.is_ready():
            reached.complete(None)

    with jobs._store.lock, jobs._store.connection("jobs") as cursor:
        cursor.connection.set_trace_callback(note)
    return reached


def silence(loop: MailboxLoop[Any]) -> float | None:
    return loop.progress[0].status().silent_for


@pytest.mark.parametrize("step", ["receive", "acknowledge", "nack"])
def test_a_worker_that_waits_for_the_store_is_not_silent_until_the_store_itself_is_stuck(
    jobs: SqliteMailbox[str, Any], clock: FakeClock, tmp_path: Path, step: str
) -> None:
    in_hand: Ticket[None] = Ticket()
    goes_on: Ticket[None] = Ticket()

    def handle(_message: object) -> None:
        in_hand.complete(None)
        goes_on.wait(60)
        if step == "nack":
            raise ValueError(step)

    # With a lease so long that it is not to be renewed while the store is away.
    loop: MailboxLoop[str] = MailboxLoop(jobs, handle, wait_time_seconds=1, visibility_timeout=300, clock=clock)
    assert isinstance(jobs, SupportsWaitedUntil)
    jobs.send("body")
    with contextlib.ExitStack() as stack:
        if step == "receive":
            reached, other = next_call(jobs), stack.enter_context(held(tmp_path / "mail.db"))
            returned = run_in_background(lambda: loop.run(max_iterations=1), SYSTEM)
        else:
            returned = run_in_background(lambda: loop.run(max_iterations=1), SYSTEM)
            in_hand.wait(60)
            reached, other = next_call(jobs), stack.enter_context(held(tmp_path / "mail.db"))
        goes_on.complete(None)
        reached.wait(60)

        clock.advance(STUCK_AFTER - 1)
        while_it_waits = silence(loop)
        clock.advance(2)
        when_it_is_stuck = silence(loop)
        other.execute("ROLLBACK")
        returned.wait(60)

    assert while_it_waits == 0
    assert when_it_is_stuck is not None
    assert when_it_is_stuck > STUCK_AFTER - 2


def test_a_worker_that_has_waited_for_the_store_is_silent_from_then_on(
    jobs: SqliteMailbox[str, Any], clock: FakeClock, tmp_path: Path
) -> None:
    reached = next_call(jobs)
    with held(tmp_path / "mail.db") as other:
        sent = run_in_background(lambda: jobs.send_many(["body"]), SYSTEM)
        reached.wait(60)
        clock.advance(20)
        other.execute("ROLLBACK")
        sent.wait(60)
    until = clock.monotonic()

    clock.advance(100)

    assert jobs.waited_until() == until == jobs.dead_letters.waited_until()
