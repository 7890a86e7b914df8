"""`send_within`, `delete_within`: what is done in a transaction of the user's, on whichever connection that has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import psycopg
from psycopg.rows import tuple_row

from loopwarden._log import describe
from loopwarden.errors import InvalidParameterError

if TYPE_CHECKING:
    from loopwarden.mailbox._message import Message
    from loopwarden.mailbox.postgres._queue import Row

__all__ = ["delete_within", "send_within"]

_SEND = (
    "SELECT loopwarden.send_within"
    "(%s::text, %s::int4, %s::int8, %s::bytea[], %s::text, %s::int8, %s::text, %s::int8, %s::int4)"
)
_DELETE = "SELECT loopwarden.delete_within(%s::int4, %s::int8, %s::int8, %s::int8, %s::int8)"


def _cursor_of(connection: Any, mailbox: str) -> Any:
    """Return a cursor of a connection of psycopg, SQLAlchemy or Django, in its transaction.

    Of psycopg it is always the usual one: a connection may make others, whose rows or parameters are of another kind.

    Raises:
        InvalidParameterError: if it is none of these.
    """
    given: Any = connection
    if callable(getattr(given, "connection", None)):  # a session of SQLAlchemy
        given = given.connection()
    if hasattr(given, "exec_driver_sql"):  # a connection of SQLAlchemy: what its pool has handed out
        if not given.in_transaction():  # or its commit would do nothing
            given.begin()
        given = given.connection
    given = getattr(given, "driver_connection", given)
    if isinstance(given, psycopg.Connection):
        make: Any = psycopg.Cursor  # whose types know of no connection with rows of any kind
        return make(given, row_factory=tuple_row)
    if isinstance(given, psycopg.AsyncConnection) or not callable(getattr(given, "cursor", None)):
        expected = "a connection of psycopg, SQLAlchemy or Django"
        raise InvalidParameterError(mailbox, "connection", describe(connection), expected)
    return given.cursor()


def send_within(connection: Any, mailbox: str, given: tuple[Any, ...]) -> list[int]:
    """Send; return the places. What the connection raises is raised as it is: the transaction is the caller's.

    Raises:
        InvalidParameterError: if it is no connection, or one to another database.
    """
    with _cursor_of(connection, mailbox) as cursor:
        cursor.execute(_SEND, given)
        places = cast("list[int] | None", _answer(cursor))
    if places is None:
        raise InvalidParameterError(mailbox, "connection", connection, "to the database that has the mailbox")
    return places


def delete_within(connection: Any, mailbox: str, where: tuple[Any, ...], message: Message[Any, Any]) -> bool:
    """Acknowledge a message; false if its delivery is over."""
    place = cast("Row", message.record).place
    with _cursor_of(connection, mailbox) as cursor:
        cursor.execute(_DELETE, (*where, place, message.receipt, round(message.due)))
        return bool(_answer(cursor))


def _answer(cursor: Any) -> Any:
    """Return the only value of an answer, also from a driver whose rows have names."""
    row = cursor.fetchone()
    return next(iter(cast("Mapping[str, Any]", row).values())) if isinstance(row, Mapping) else row[0]
