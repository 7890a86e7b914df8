"""Which files are opened, and that those which are not are left as they were."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from loopwarden.errors import InvalidParameterError
from loopwarden.mailbox import SqliteMailbox
from loopwarden.mailbox.sqlite._schema import APPLICATION_ID, VERSION, apply_schema, check_schema

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


def refuse_to_write_the_version(action: int, name: str | None, value: str | None, *_: object) -> int:
    is_version = action == sqlite3.SQLITE_PRAGMA and name == "user_version" and value is not None
    return sqlite3.SQLITE_DENY if is_version else sqlite3.SQLITE_OK


def downgrade(path: Path, number: int, *bodies: str) -> None:
    """Make a file of version 1, with messages of which each is in the state that its body says."""
    jobs: SqliteMailbox[str, Any] = SqliteMailbox(path, "jobs")
    for body in bodies:
        jobs.send(body, delay=600 if body == "delayed" else 0)
    for message in jobs.receive(max_messages=10):
        if message.body == "nacked":
            message.nack(visibility_timeout=600)
    jobs.close()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("DROP TABLE holders")
        database.execute("ALTER TABLE messages DROP COLUMN holder")
        database.execute(f"PRAGMA user_version = {number}")


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
        ("CREATE TABLE customers (name TEXT); PRAGMA user_version = 2", "tables of another application"),
        ("CREATE TABLE holders (name TEXT); PRAGMA user_version = 1", "version 1 and another table 'holders'"),
        ("PRAGMA user_version = -1", "this one has version -1"),
        ("PRAGMA application_id = 5", "marked 0x5, as another application's"),
    ],
    ids=[
        "an older schema",
        "a foreign table",
        "a foreign view",
        "another foreign table",
        "another version",
        "tables of another application",
        "tables of another application with our first version",
        "tables of another application with our version",
        "a foreign table that our first version did not have",
        "no version",
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


@pytest.mark.parametrize("number", [0, 1])
def test_file_of_version_1_is_migrated_and_its_leases_are_known_from_its_delays(path: Path, number: int) -> None:
    downgrade(path, number, "delayed", "leased", "nacked")

    with contextlib.closing(SqliteMailbox[str, Any](path, "jobs")) as jobs:
        assert jobs.approximate_count() == 3
    with contextlib.closing(sqlite3.connect(path)) as database:
        found = dict(database.execute("SELECT CAST(body AS TEXT), holder FROM messages").fetchall())

    assert found == {'"delayed"': None, '"leased"': 0, '"nacked"': None}
    assert version(path) == VERSION


@pytest.mark.parametrize(
    "script",
    ["PRAGMA user_version = 2", "ALTER TABLE messages ADD COLUMN holder INTEGER", "DROP TABLE line"],
    ids=["marked as of version 2", "with the column", "without a table"],
)
def test_file_that_is_not_quite_of_version_1_is_refused_and_left_as_it_was(path: Path, script: str) -> None:
    downgrade(path, 1)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(script)
    before = path.read_bytes()

    with pytest.raises(InvalidParameterError, match=rf"schema version {VERSION} or older \(this one has "):
        SqliteMailbox(path, "jobs")

    assert path.read_bytes() == before


def test_migration_that_is_interrupted_leaves_the_file_as_it_was(path: Path) -> None:
    downgrade(path, 1)
    with contextlib.closing(sqlite3.connect(path)) as database:
        before = [*database.iterdump()]
        database.set_authorizer(refuse_to_write_the_version)
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            apply_schema(database, path)
        database.set_authorizer(None)
        assert [*database.iterdump()] == before
    assert version(path) == 1


def test_file_that_another_process_migrates_meanwhile_is_opened(path: Path) -> None:
    downgrade(path, 1, "kept")
    migrated = list[str]()

    class Slow(sqlite3.Connection):
        @override
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            cursor = super().execute(sql, parameters)
            if sql == "PRAGMA application_id" and not migrated:
                migrated.append(sql)
                SqliteMailbox[str, Any](path, "jobs").close()
            return cursor

    with contextlib.closing(sqlite3.connect(path, factory=Slow, isolation_level=None)) as database:
        assert check_schema(database, path) == 1
        assert check_schema(database, path) == VERSION
    assert migrated == ["PRAGMA application_id"]


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
