"""A Ctrl-C at the worst instant: just where a function begins."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.mailbox import SqliteMailbox
from loopwarden.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path
    from types import FrameType


@contextlib.contextmanager
def interrupted_at(function: str) -> Generator[None]:
    """Raise KeyboardInterrupt, once, where the interpreter does when a signal has come.

    That is where ``function`` begins or, if it is written in C, just behind it.
    """

    def profile(frame: FrameType, event: str, called: object) -> None:
        begins = event == "call" and frame.f_code.co_qualname == function
        if begins or (event == "c_return" and getattr(called, "__qualname__", "") == function):
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        sys.setprofile(None)


def can_write(path: Path) -> bool:
    with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as database:
        try:
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mail.db"


@pytest.fixture
def jobs(path: Path) -> Iterator[SqliteMailbox[str, Any]]:
    made: SqliteMailbox[str, Any] = SqliteMailbox(path, "jobs", clock=FakeClock())
    yield made
    made.close()


STEPS: dict[str, Callable[[SqliteMailbox[str, Any]], object]] = {
    "send_many": lambda jobs: jobs.send_many(["a", "b"]),
    "receive": lambda jobs: jobs.receive(),
    "acknowledge": lambda jobs: jobs.receive()[0].acknowledge(),
    "reap": lambda jobs: jobs.reap(),
    "redrive": lambda jobs: jobs.dead_letters.redrive(["letter"]),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_an_interrupt_where_a_step_ends_leaves_the_file_to_the_others(
    jobs: SqliteMailbox[str, Any], path: Path, step: Callable[[SqliteMailbox[str, Any]], object]
) -> None:
    jobs.send("body")

    with interrupted_at("Transaction.__exit__"):
        step(jobs)

    assert can_write(path)


def test_send_of_which_only_the_end_was_interrupted_is_stored(jobs: SqliteMailbox[str, Any]) -> None:
    with interrupted_at("Transaction.__exit__"):
        jobs.send_many(["first", "second"])

    assert [message.body for message in jobs.receive(max_messages=10)] == ["first", "second"]


def test_a_connection_for_one_use_is_let_go(jobs: SqliteMailbox[str, Any]) -> None:
    jobs.send("body")
    [message] = jobs.receive()
    jobs.close()

    message.acknowledge()

    assert jobs._queue._step._cursor is None


@pytest.mark.parametrize("instant", ["Connection.close", "Waiters.wake_all", "Notifier.close"])
def test_a_close_that_is_interrupted_leaves_what_is_leased_to_be_finalised_and_a_second_one_does_the_rest(
    jobs: SqliteMailbox[str, Any], instant: str
) -> None:
    jobs.send("body")
    [message] = jobs.receive()
    with jobs._store.lock:
        jobs._store.notifier.listen()
    address = jobs._store.notifier._address

    with interrupted_at(instant):
        jobs.close()
    message.acknowledge()
    jobs.close()

    assert jobs.closed
    assert address is not None
    assert not address.exists()
    assert jobs.approximate_count() == 0
