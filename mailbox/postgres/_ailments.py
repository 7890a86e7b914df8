"""`Ailments`: what slows the mailboxes of a database down, as far as it can be seen from here."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from loopwarden.mailbox.postgres._connection import to_integer

if TYPE_CHECKING:
    from loopwarden.mailbox.postgres._connection import Line

__all__ = ["Ailments"]

#: Dead rows that are worth a word: a receive goes over them again and again as long as a transaction may see them.
_MANY_DEAD = 2_000
#: Seconds for which one transaction must have been the oldest, and how many must have begun since then: in a database
#: that is used there is always an oldest one, but it is soon another.
_LONG, _MANY_BEGUN = 0.4, 500

_QUERY = b"SELECT * FROM loopwarden.ailments()"


@final
class Ailments:
    """Looks from time to time which transaction is the oldest; that one and the same stays it is what does harm."""

    def __init__(self) -> None:
        #: What is wrong now, each in a sentence.
        self.told: tuple[str, ...] = ()
        self._oldest = b""
        self._since = 0.0

    def look(self, line: Line, now: float) -> None:
        """Ask the server, and judge."""
        [(dead_rows, oldest, begun_since, held_by)] = line.call(_QUERY, ())
        if oldest != self._oldest or oldest is None:
            self._oldest, self._since = oldest or b"", now
        held_for = now - self._since
        dead = to_integer(dead_rows)
        if dead < _MANY_DEAD or held_for < _LONG or to_integer(begun_since) < _MANY_BEGUN:
            self.told = ()
            return
        holder = (held_by or b"something").decode(errors="replace")
        harm = f"{dead} dead rows of mailboxes cannot be removed, so receives become slower"
        cause = f"{holder} has kept a transaction open for {held_for:.0f} s or longer"
        self.told = (f"{harm}: {cause}; end it, or set idle_in_transaction_session_timeout",)
