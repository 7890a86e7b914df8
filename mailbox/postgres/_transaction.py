"""`transaction`: what a handler writes, and the end of its message, in one commit."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast

import psycopg
from psycopg.errors import InFailedSqlTransaction
from psycopg.pq import TransactionStatus

from loopwarden.errors import MailboxConnectionError, MessageFinalizedError, ReceiptHandleExpiredError
from loopwarden.mailbox.postgres._connection import LostError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from loopwarden.mailbox._message import Message
    from loopwarden.mailbox.postgres._connection import Connections, Line
    from loopwarden.mailbox.postgres._queue import Row

__all__ = ["transaction"]

#: Makes a session as it was, for the next one who gets it; what psycopg has prepared stays.
_ANEW = (
    "SET SESSION AUTHORIZATION DEFAULT; RESET ALL; SELECT pg_catalog.pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *;"
    " DISCARD TEMP"
)
#: What a connection has of settings that are not the server's.
_OWN_SETTINGS = ("row_factory", "cursor_factory", "isolation_level", "read_only", "deferrable", "prepare_threshold")


@contextlib.contextmanager
def transaction(
    connections: Connections, message: Message[Any, Any], refuse: Callable[[Exception], MailboxConnectionError]
) -> Generator[psycopg.Connection[Any]]:
    """Do what `SupportsTransactions.transaction` says, on a connection for this alone.

    It begins with the first statement, so a handler that writes nothing for a while costs the database nothing.

    Args:
        connections: Where the connection comes from.
        message: What is acknowledged.
        refuse: Makes the error of a server that cannot be reached, or refuses.
    """
    if message.is_finalized:
        raise MessageFinalizedError(message.settler.name, message.id)
    try:
        line = connections.take()
    except (LostError, RefusedError) as error:
        raise refuse(error) from error
    connection = line.connection
    before = {name: getattr(connection, name) for name in _OWN_SETTINGS}
    is_good = False
    try:
        connection.autocommit = False
        message.connection = connection
        yield connection
        _refuse_failed(connection)
        if not message.is_finalized:
            message.acknowledge()
        elif _is_deleted(message):  # a rollback of the handler's, or of a part, may have undone it
            with contextlib.suppress(ReceiptHandleExpiredError):
                message.settler.settle_acknowledge(message)
        connection.commit()
        is_good = True
    except BaseException:
        # If that was the commit, it is not known whether it is done; the message is delivered again if, and only if, it
        # is not. What has settled it otherwise holds.
        if _is_deleted(message):
            message.is_finalized = cast("Row", message.record).is_deleted = False
        raise
    finally:
        message.connection = None
        _give_back(connections, line, before, is_good=is_good)


def _refuse_failed(connection: psycopg.Connection[Any]) -> None:
    if connection.info.transaction_status == TransactionStatus.INERROR:  # a commit would roll back, and say nothing
        raise InFailedSqlTransaction("a statement has failed, so nothing of the transaction can be committed")


def _is_deleted(message: Message[Any, Any]) -> bool:
    return getattr(message.record, "is_deleted", False)  # of another back end, if that is what was given


def _give_back(connections: Connections, line: Line, before: Mapping[str, Any], *, is_good: bool) -> None:
    connection = line.connection
    try:
        if not is_good:
            connection.rollback()
        connection.autocommit = True
        for name, value in before.items():
            setattr(connection, name, value)
        line.execute(_ANEW)
    except (psycopg.Error, LostError, RefusedError):
        # It is broken, or in use on another thread: the server rolls back when it ends.
        line.close()
    except BaseException:
        line.close()
        raise
    else:
        connections.give(line)
