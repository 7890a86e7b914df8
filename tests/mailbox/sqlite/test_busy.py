"""A file that another process has for long: each call waits, but calls that take turns do not add up."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.errors import MailboxConnectionError
from loopwarden.mailbox import SqliteMailbox
from loopwarden.mailbox.sqlite import _store
from loopwarden.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    Jobs = SqliteMailbox[str, Any]


@contextlib.contextmanager
def had_by_another(path: Path) -> Generator[None]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield


def patience(jobs: Jobs) -> float:
    assert jobs._store._cursor is not None
    [milliseconds] = jobs._store._cursor.connection.execute("PRAGMA busy_timeout").fetchone()
    return float(milliseconds) / 1000


def count(jobs: Jobs) -> object:
    return jobs.approximate_count()


def send(jobs: Jobs) -> object:
    return jobs.send("body")


@pytest.mark.parametrize("success", [send, count], ids=["in-a-transaction", "by-one-statement"])
def test_mailbox_waits_briefly_after_a_call_that_has_waited_in_vain_until_one_gets_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, success: Callable[[Jobs], object]
) -> None:
    monkeypatch.setattr(_store, "BUSY_SECONDS", 0.06)
    monkeypatch.setattr(_store, "HASTY_SECONDS", 0.01)
    with contextlib.closing(SqliteMailbox[str, Any](tmp_path / "mail.db", "jobs", body=str)) as jobs:
        seen = [patience(jobs)]
        with had_by_another(tmp_path / "mail.db"):
            for _ in range(2):
                with pytest.raises(MailboxConnectionError, match="database is locked"):
                    jobs.send("body")
                seen.append(patience(jobs))
        success(jobs)

        assert [*seen, patience(jobs)] == [0.06, 0.01, 0.01, 0.06]


def test_mailbox_tells_of_a_step_that_had_to_wait_for_long(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    with contextlib.closing(SqliteMailbox[str, Any](tmp_path / "mail.db", "jobs", body=str, clock=clock)) as jobs:
        for took in (5.0, 5.5):
            jobs._store.begin_call()
            clock.advance(took)
            jobs._store.end_call()

    [record] = caplog.records
    assert record.getMessage().endswith(
        "mail.db: a step took 5.5 s, because another process has the file, or the disk is slow"
    )
