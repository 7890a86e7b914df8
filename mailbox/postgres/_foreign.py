"""`send_within`: sends in a transaction of somebody else, on whichever kind of connection that is."""

from __future__ import annotations

from typing import Any, cast

from loopwarden._log import describe
from loopwarden.errors import InvalidParameterError

__all__ = ["cursor_of", "send_within"]

_SEND = (
    "SELECT loopwarden.send_within(%s::int4, %s::int8, %s::bytea[], %s::text, %s::int8, %s::text, %s::int8, %s::int4)"
)


def cursor_of(connection: Any, mailbox: str) -> Any:
    """Return a cursor of a connection of psycopg, SQLAlchemy or Django, in its transaction.

    Raises:
        InvalidParameterError: if it is none of these.
    """
    given: Any = connection
    if callable(getattr(given, "connection", None)):  # a session of SQLAlchemy
        given = given.connection()
    if hasattr(given, "exec_driver_sql"):  # a connection of SQLAlchemy: what its pool has handed out
        given = given.connection
    given = getattr(given, "driver_connection", given)
    if not callable(getattr(given, "cursor", None)):
        expected = "a connection of psycopg, SQLAlchemy or Django"
        raise InvalidParameterError(mailbox, "connection", describe(connection), expected)
    return given.cursor()


def send_within(connection: Any, mailbox: str, given: tuple[Any, ...]) -> list[int]:
    """Send; return the places. What the connection raises is raised as it is: the transaction is the caller's.

    Raises:
        InvalidParameterError: if it is no connection.
    """
    with cursor_of(connection, mailbox) as cursor:
        cursor.execute(_SEND, given)
        return cast("list[int]", cursor.fetchone()[0])
