"""Which files are opened, and that those which are not are left as they were."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.errors import InvalidParameterError
from loopwarden.mailbox import SqliteMailbox
from loopwarden.mailbox.sqlite._schema import APPLICATION_ID, VERSION

if TYPE_CHECKING:
    from pathlib import Path

#: The messages of the schema that had no version yet, in short.
OLDER = """
CREATE TABLE mailboxes (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
CREATE TABLE messages (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, mailbox TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL,
    headers BLOB NOT NULL, reply_to TEXT, sent_at REAL NOT NULL, visible INTEGER NOT NULL, due REAL,
    count INTEGER NOT NULL DEFAULT 0, receipt INTEGER NOT NULL DEFAULT 0, error TEXT, source TEXT, dead_at REAL,
    reason TEXT, dead_count INTEGER
) STRICT;
INSERT INTO messages (mailbox, id, body, headers, sent_at, visible) VALUES ('jobs', 'a', x'31', x'7b7d', 0, 1);
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mail.db"


def version(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return int(database.execute("PRAGMA user_version").fetchone()[0])


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (OLDER, "version 0 and another table 'messages'"),
        ("CREATE TABLE messages (text TEXT)", "version 0 and another table 'messages'"),
        ("CREATE VIEW messages AS SELECT 1 AS text", "version 0 and another table 'messages'"),
        ("CREATE TABLE line (points BLOB)", "version 0 and another table 'line'"),
        ("PRAGMA user_version = 7", "this one has version 7"),
        ("CREATE TABLE customers (name TEXT)", "tables of another application, such as 'customers'"),
        ("CREATE TABLE customers (name TEXT); PRAGMA user_version = 1", "tables of another application"),
        ("PRAGMA application_id = 5", "marked 0x5, as another application's"),
    ],
    ids=[
        "an older schema",
        "a foreign table",
        "a foreign view",
        "another foreign table",
        "another version",
        "tables of another application",
        "tables of another application with our version",
        "the mark of another application",
    ],
)
def test_a_file_of_another_schema_is_refused_by_one_error_and_left_as_it_was(
    path: Path, script: str, found: str
) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(script)
    before = path.read_bytes()

    with pytest.raises(InvalidParameterError, match=rf"mail\.db.*schema version {VERSION} .*{found}"):
        SqliteMailbox(path, "jobs")

    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == ["mail.db"]


def test_a_new_file_has_the_version_and_is_opened_again(path: Path) -> None:
    SqliteMailbox[str, Any](path, "jobs").close()

    assert version(path) == VERSION
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    again: SqliteMailbox[str, Any] = SqliteMailbox(path, "jobs")
    again.send("body")
    again.close()


def test_a_file_with_our_tables_and_without_a_version_keeps_its_messages_and_gets_one(path: Path) -> None:
    jobs: SqliteMailbox[str, Any] = SqliteMailbox(path, "jobs")
    jobs.send("body")
    jobs.close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 0")

    again: SqliteMailbox[str, Any] = SqliteMailbox(path, "jobs")

    assert again.approximate_count() == 1
    again.close()
    assert version(path) == VERSION


@pytest.mark.parametrize("attempt", range(5))
def test_new_file_can_be_opened_by_many_threads_at_once(path: Path, attempt: int) -> None:
    many = 8
    together = threading.Barrier(many)

    def open_and_send(number: int) -> None:
        together.wait(60)
        with contextlib.closing(SqliteMailbox[str, Any](path, f"box-{number % 2}")) as box:
            box.send(f"{attempt}/{number}")

    with ThreadPoolExecutor(many) as pool:
        list(pool.map(open_and_send, range(many)))

    with contextlib.closing(SqliteMailbox[str, Any](path, "box-0")) as box:
        assert box.approximate_count() == many // 2
