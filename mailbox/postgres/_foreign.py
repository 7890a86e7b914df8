"""`send_within`, `delete_within`: what is done in a transaction of the user's, on whichever connection that has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from loopwarden._log import describe
from loopwarden.errors import InvalidParameterError

if TYPE_CHECKING:
    from loopwarden.mailbox._message import Message
    from loopwarden.mailbox.postgres._queue import Row

__all__ = ["delete_within", "send_within"]

_SEND = (
    "SELECT loopwarden.send_within(%s::int4, %s::int8, %s::bytea[], %s::text, %s::int8, %s::text, %s::int8, %s::int4)"
)
_DELETE = (
    "SELECT loopwarden.delete(%s::int4, %s::int8, false, ARRAY[%s::int8], ARRAY[%s::int8], ARRAY[%s::int8])"
    " = ARRAY[%s::int8]"
)


def _cursor_of(connection: Any, mailbox: str) -> Any:
    """Return a cursor of a connection of psycopg, SQLAlchemy or Django, in its transaction.

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
    if not callable(getattr(given, "cursor", None)):
        expected = "a connection of psycopg, SQLAlchemy or Django"
        raise InvalidParameterError(mailbox, "connection", describe(connection), expected)
    return given.cursor()


def send_within(connection: Any, mailbox: str, given: tuple[Any, ...]) -> list[int]:
    """Send; return the places. What the connection raises is raised as it is: the transaction is the caller's.

    Raises:
        InvalidParameterError: if it is no connection.
    """
    with _cursor_of(connection, mailbox) as cursor:
        cursor.execute(_SEND, given)
        return cast("list[int]", cursor.fetchone()[0])


def delete_within(connection: Any, mailbox: str, where: tuple[Any, ...], message: Message[Any, Any]) -> bool:
    """Acknowledge a message; false if its delivery is over."""
    place = cast("Row", message.record).place
    with _cursor_of(connection, mailbox) as cursor:
        cursor.execute(_DELETE, (*where, place, message.receipt, round(message.due), place))
        return bool(cursor.fetchone()[0])
