"""What every SQLite file of ours needs: its schema, WAL mode, and connections that a fork leaves alone."""

from __future__ import annotations

import sqlite3
import weakref
from importlib import resources
from typing import TYPE_CHECKING, Protocol

from loopwarden._forks import at_fork

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["outlive_forks", "statements_of", "use_wal"]


class _Outlives(Protocol):
    def outlive(self) -> list[object]:
        """Return what must not be dropped in a forked process, not even by the garbage collector."""
        ...


# What is open, so that a fork finds it.
_open: weakref.WeakSet[_Outlives] = weakref.WeakSet()
# What was inherited by a fork: kept, because to drop a connection is to close it, and that writes.
_inherited: list[object] = []


def outlive_forks(file: _Outlives) -> None:
    """Keep what a file has open from being closed in processes that are forked from now on."""
    _open.add(file)


def statements_of(package: str, schema: str) -> Iterator[str]:
    """Yield the statements of a schema, one by one, because ``executescript`` would commit what was begun."""
    statement = ""
    for line in resources.files(package).joinpath(schema).read_text("utf-8").splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def use_wal(database: sqlite3.Connection) -> None:
    """Put a file into WAL mode, which it keeps; if others do the same at this moment, wait for them."""
    for _ in range(100):
        try:
            database.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            # Changing the mode does not wait for another writer. Beginning a transaction does.
            database.execute("BEGIN IMMEDIATE")
            database.execute("ROLLBACK")
        else:
            return
    database.execute("PRAGMA journal_mode = WAL")


def _keep_inherited() -> None:
    for file in tuple(_open):
        _inherited.extend(file.outlive())


at_fork(in_child=_keep_inherited)
