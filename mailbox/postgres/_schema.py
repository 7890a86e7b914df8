"""`schema`: what the mailboxes have in a database, as SQL; and whether it is there."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from loopwarden.mailbox.postgres._connection import LostError, RefusedError, to_integer

if TYPE_CHECKING:
    from loopwarden.mailbox.postgres._connection import Connections

__all__ = ["VERSION", "check_schema", "hint_for", "schema"]

_PACKAGE = __name__.rpartition(".")[0]
#: What stands in `schema.sql`; processes of other versions are refused, which need a migration.
VERSION = 1
#: Seconds that it may take to make it, and to wait for another who does.
_MAKING_SECONDS = 60.0
#: What is told of what cannot be seen, and of what may not be used.
_MISSING = {"42P01", "3F000", "42883", "42704"}
_FORBIDDEN = {"42501"}
_EXISTS = {"42P06", "23505"}
_ABOUT = b"SELECT version, birth, current_setting('server_encoding') FROM loopwarden.about"
#: The encodings of databases that take all characters there are; the second, because it knows of none.
_TAKE_ALL = (b"UTF8", b"SQL_ASCII")


def schema() -> str:
    """Return the SQL that makes what the mailboxes need, in a schema of its own, for migrations of one's own.

    It is to be run once, as a whole, by the owner of the database. ``docs/postgres.md`` has the rights that are needed
    by who only sends and receives.
    """
    folder = files(_PACKAGE)
    return "\n".join((folder / name).read_text("utf-8") for name in ("schema.sql", "functions.sql"))


def check_schema(connections: Connections, *, create: bool) -> tuple[str, bool]:
    """Return what the ids of all messages begin with, and whether the database takes all characters there are.

    Raises:
        LookupError: if there is another version of the schema, or none and it is not to be made.
        RefusedError: if the server refuses.
        LostError: if it cannot be reached.
    """
    for is_last in (False, True):
        try:
            [(version, birth, encoding)] = connections.call(_ABOUT, ())
        except RefusedError as error:
            if error.sqlstate not in _MISSING or is_last:
                raise
            if not create:
                raise LookupError(f"it has no mailboxes{hint_for(error.sqlstate)}") from error
            _make(connections)
        else:
            if to_integer(version) != VERSION:
                raise LookupError(
                    f"its mailboxes have version {to_integer(version)}, and this Loopwarden knows {VERSION}"
                )
            return (birth or b"").decode(), encoding in _TAKE_ALL
    raise AssertionError("the last try returns or raises")


def _make(connections: Connections) -> None:
    line = connections.take()
    try:
        line.execute(f"SELECT pg_advisory_xact_lock(1819242357);\n{schema()}", _MAKING_SECONDS)
    except RefusedError as error:
        connections.give(line)
        if error.sqlstate not in _EXISTS:  # another has made it meanwhile
            raise
    except LostError:
        line.close()
        raise
    except BaseException:
        line.close()
        raise
    else:
        connections.give(line)


def hint_for(sqlstate: str) -> str:
    """Return what to do about what a server refuses, if anything is known."""
    if sqlstate in _MISSING:
        return ": open a mailbox with create=True, or run the SQL that loopwarden.mailbox.postgres.schema() returns"
    if sqlstate in _FORBIDDEN:
        return ": grant what docs/postgres.md names"
    return ""
