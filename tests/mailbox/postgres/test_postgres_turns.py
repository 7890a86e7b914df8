"""How many calls a process makes at once: no more than a server has connections for, in the order of their asking."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from private_server import wait_until

from loopwarden._blocking import SYSTEM
from loopwarden.errors import MailboxConnectionError
from loopwarden.mailbox import PostgresMailbox
from loopwarden.mailbox.postgres import _connection, _store
from loopwarden.mailbox.postgres._turns import Turns
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from private_postgres import PostgresServer

    from loopwarden.testing import FakeClock

PATIENCE = 60.0  # real seconds; it only matters when a test fails
CALLS = 40


def test_turns_are_had_in_the_order_in_which_they_were_asked_for(clock: FakeClock) -> None:
    turns = Turns(2, clock.blocking)
    had: list[int] = []

    def take(number: int) -> None:
        if turns.take(PATIENCE):
            had.append(number)

    for number in range(5):
        clock.blocking.start_thread(partial(take, number), f"taker-{number}")
        clock.settle()
    at_first = list(had)
    for _ in range(3):
        turns.give()
        clock.settle()

    assert (at_first, had) == ([0, 1], [0, 1, 2, 3, 4])


def test_turn_that_does_not_come_in_time_is_none_and_costs_none() -> None:
    turns = Turns(1, SYSTEM)

    assert turns.take(0)
    assert not turns.take(0)
    turns.give()
    assert turns.take(0)


def test_turn_that_comes_as_the_patience_ends_goes_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    class Impatient:
        """A gate whose opening comes after its time is over."""

        def open(self) -> None: ...

        def wait(self, timeout: float | None = None) -> bool:
            turns.give()
            return False

    turns = Turns(1, SYSTEM)
    turns.take(0)
    monkeypatch.setattr(turns, "_blocking", type("Seam", (), {"gate": Impatient}))

    assert not turns.take(5)
    assert repr(turns) == "<Turns, 1 left, 0 waiting>"


def test_calls_that_come_together_take_few_connections_and_all_are_made(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_connection, "_SETTINGS", _connection._SETTINGS.replace("4s", "600s"))
    monkeypatch.setattr(_connection, "ANSWER_SECONDS", 600.0)
    jobs: PostgresMailbox[Any, Any] = PostgresMailbox(postgres.url, "jobs")
    jobs.send("body")
    with postgres.connect() as other:
        other.execute("LOCK TABLE loopwarden.messages IN ACCESS EXCLUSIVE MODE")
        counts = [run_in_background(jobs.approximate_count, SYSTEM) for _ in range(CALLS)]
        wait_until(lambda: f"{CALLS - _store.MOST_CALLS} waiting" in repr(jobs._store._turns))
        other.rollback()

    assert [count.wait(PATIENCE) for count in counts] == [1] * CALLS
    jobs.close()


def never(_patience: float) -> bool:
    return False


def test_call_that_has_no_turn_in_time_says_so(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_store, "MOST_CALLS", 1)
    jobs: PostgresMailbox[Any, Any] = PostgresMailbox(postgres.url, "jobs")
    monkeypatch.setattr(jobs._store._turns, "take", never)

    with pytest.raises(MailboxConnectionError, match="all 1 connections of this process were busy for 5 s"):
        jobs.send("body")

    monkeypatch.undo()
    assert jobs.approximate_count() == 0
    jobs.close()
