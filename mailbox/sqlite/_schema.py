"""What a SQLite file must be like for mailboxes to be in it, looked at before anything is written."""

from __future__ import annotations

import functools
import sqlite3
from typing import TYPE_CHECKING, Any

from loopwarden._sqlite_file import statements_of
from loopwarden.errors import InvalidParameterError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["VERSION", "apply_schema", "check_schema"]

#: The file's ``user_version``; to be raised with every change of the schema that older code must not write to.
VERSION = 2
#: Marks a file as one of mailboxes, in SQLite's ``application_id``: "LWM" and a 1. Older files have none.
APPLICATION_ID = 0x4C574D01
#: What version 1 did not have: a table, and a column of `messages`, its last.
_SINCE_2 = ("holders", "holder")
#: Makes messages of version 2 of those of version 1. There the receipt was raised when a lease began and when it ended.
_FROM_1 = (
    "ALTER TABLE messages ADD COLUMN holder INTEGER",
    "UPDATE messages SET holder = 0 WHERE due > 0 AND receipt % 2 = 1",
)
#: The package, and the file in it, that has the tables.
SCHEMA = ("loopwarden.mailbox.sqlite", "schema.sql")

_COLUMNS = (
    'SELECT tables.name, columns.name, columns.type, columns."notnull", columns.pk'
    " FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns WHERE tables.type IN ('table', 'view')"
)


def check_schema(database: sqlite3.Connection, path: Path) -> int:
    """Return the version of a file, which is 0 if it has none yet; it only reads, all of it at one moment.

    Raises:
        InvalidParameterError: if the file has another version, or is another application's: marked as such, with a
            table of the same name that is not ours, or with tables, but without ours.
    """
    if database.in_transaction:
        return _check(database, path)
    database.execute("BEGIN")  # another process may migrate the file just now: between two looks it would be neither
    try:
        return _check(database, path)
    finally:
        database.rollback()


def _check(database: sqlite3.Connection, path: Path) -> int:
    [version] = database.execute("PRAGMA user_version").fetchone()
    if not 0 <= version <= VERSION:
        raise _refusal(path, f"this one has version {version}")
    [mark] = database.execute("PRAGMA application_id").fetchone()
    if mark not in {0, APPLICATION_ID}:
        raise _refusal(path, f"this one is marked {mark:#x}, as another application's")
    found = _tables(database)
    expected = _expected(1 if version == 1 or (version == 0 and _is_first(found)) else VERSION)
    for table, columns in (_expected(VERSION) | expected).items():
        if found.get(table, columns) != columns:
            raise _refusal(path, f"this one has version {version} and another table {table!r}")
    if found and not found.keys() >= expected.keys():
        raise _refusal(path, f"this one has tables of another application, such as {min(found)!r}")
    return int(version)


def apply_schema(database: sqlite3.Connection, path: Path) -> None:
    """Make what is not there yet, all or nothing; another process that opens the file meanwhile waits.

    Raises:
        InvalidParameterError: as `check_schema`.
    """
    database.execute("BEGIN IMMEDIATE")
    with database:
        # Again, now that no other process writes: the file may have become another one since.
        version = check_schema(database, path)
        if _is_first(_tables(database)):
            for statement in _FROM_1:
                database.execute(statement)
        for statement in statements_of(*SCHEMA):
            database.execute(statement)
        if version < VERSION:
            database.execute(f"PRAGMA user_version = {VERSION}")
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _refusal(path: Path, found: str) -> InvalidParameterError:
    expected = f"a new file, or one of mailboxes with schema version {VERSION} or older ({found})"
    return InvalidParameterError(str(path), "path", str(path), expected)


def _tables(database: sqlite3.Connection) -> dict[str, list[tuple[Any, ...]]]:
    tables: dict[str, list[tuple[Any, ...]]] = {}
    for table, *column in database.execute(_COLUMNS):
        tables.setdefault(table, []).append(tuple(column))
    return tables


def _is_first(tables: dict[str, list[tuple[Any, ...]]]) -> bool:
    """Say whether a file has the messages of version 1; one without a version may have either."""
    return tables.get("messages") == _expected(1)["messages"]


@functools.cache
def _expected(version: int) -> dict[str, list[tuple[Any, ...]]]:
    """Return the columns that our tables have; asked of SQLite, so that they are written down once."""
    if version == 1:
        table, column = _SINCE_2
        tables = {name: columns for name, columns in _expected(VERSION).items() if name != table}
        return tables | {"messages": [each for each in tables["messages"] if each[0] != column]}
    database = sqlite3.connect(":memory:")
    try:
        for statement in statements_of(*SCHEMA):
            database.execute(statement)
        return _tables(database)
    finally:
        database.close()
