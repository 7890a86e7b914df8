"""`SequenceAllocator`: gives the places in line of a SQLite file."""

from __future__ import annotations

import secrets
import sqlite3
from typing import final

__all__ = ["SequenceAllocator"]

#: Places that are set aside at a time, if a send does not need more.
BLOCK = 1_000

#: The highest number that SQLite has.
_HIGHEST = 2**63 - 1

#: The highest places that are in use. By mailbox, because of what is visible in one only the last row is looked at;
#: what is leased or delayed is looked at one by one.
_TAKEN = """
WITH names (name) AS (SELECT name FROM mailboxes UNION ALL SELECT name || ':dead' FROM mailboxes)
SELECT
    coalesce((SELECT max((SELECT max(sequence) FROM messages WHERE mailbox = name AND due = 0)) FROM names), 0),
    coalesce((SELECT max(sequence) FROM names JOIN messages ON mailbox = name AND due > 0), 0),
    coalesce((SELECT max(number) FROM bodies), 0)
"""


@final
class SequenceAllocator:
    """Allocates sequence numbers: each is higher than all before it, of any store, and none is allocated twice.

    A store reserves a block of them in the file, and allocates from it for as long as its block is the last one: then
    no store can have allocated a higher one, and nothing needs to be written. The rest of a block is never allocated.
    """

    __slots__ = ("_last", "_next", "_owner", "_seen")

    def __init__(self) -> None:
        # A name of its own, so that it takes no other store's block for its own: after a rollback, another store may
        # have reserved the very numbers that this one remembers.
        self._owner = secrets.randbits(63)
        self._last = 0
        self._next = 1
        self._seen = -1  # the highest that the file has had; -1 before the first look

    def allocate(self, database: sqlite3.Cursor, count: int) -> int:
        """Return the first of ``count`` places in a row; in a transaction that holds the file for writing.

        Raises:
            sqlite3.DatabaseError: if the file does not say which places are free.
        """
        row = database.execute("SELECT last, owner FROM line").fetchone()
        if row is None:
            raise sqlite3.DatabaseError("the table 'line' has lost its row; reopen the file to restore it")
        last, owner = row
        if owner != self._owner or last != self._last or self._next + count > last + 1:
            if self._seen < 0 or last < self._seen:
                # New here, or it was set back, as in a file that was mended by hand.
                last = max(last, *database.execute(_TAKEN).fetchone())
            until = last + max(count, BLOCK)
            if until > _HIGHEST:
                raise sqlite3.DatabaseError(f"no sequence numbers are left after {last}")
            database.execute("UPDATE line SET last = ?, owner = ?", (until, self._owner))
            self._next, self._last = last + 1, until
            self._seen = max(self._seen, until)
        first = self._next
        self._next += count
        return first

    def next_reserved(self) -> tuple[int, int, int] | None:
        """Return the next place of the block, with the `last` and `owner` that the file must have for it to be good.

        None if no place is left, or there is no block yet.
        """
        if self._next > self._last:
            return None
        place = self._next
        self._next += 1  # before it is used: an interrupt may hide that it was
        return place, self._last, self._owner
