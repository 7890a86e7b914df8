"""`Line`: gives the places in line of a SQLite file."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    import sqlite3

__all__ = ["Line"]

#: Places that are set aside at a time, if a send does not need more.
BLOCK = 1_000


@final
class Line:
    """Gives places in line: each is higher than all that were given before by whomever, and none is given twice.

    A store sets a block of them aside in the file, and gives from it for as long as its block is the last one: then
    nobody can have given a higher one, and nothing needs to be written. What is left of a block is never given.
    """

    __slots__ = ("_last", "_next", "_owner")

    def __init__(self) -> None:
        # With a name of its own it takes nobody else's block for its own: after a rollback, another store may have set
        # aside the very numbers that this one remembers.
        self._owner = secrets.randbits(63)
        self._last = 0
        self._next = 1

    def give(self, database: sqlite3.Cursor, count: int) -> int:
        """Return the first of ``count`` places in a row; in a transaction that holds the file for writing."""
        last, owner = database.execute("SELECT last, owner FROM line").fetchone()
        if owner != self._owner or last != self._last or self._next + count > last + 1:
            self._next, self._last = last + 1, last + max(count, BLOCK)
            database.execute("UPDATE line SET last = ?, owner = ?", (self._last, self._owner))
        first = self._next
        self._next += count
        return first

    def next_own(self) -> tuple[int, int, int] | None:
        """Return the next place of the block, with the `last` and `owner` that the file must have for it to be good.

        None if no place is left, or there is no block yet.
        """
        if self._next > self._last:
            return None
        place = self._next
        self._next += 1  # before it is used: an interrupt may hide that it was
        return place, self._last, self._owner
