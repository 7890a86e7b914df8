"""`transaction`: what a handler writes, and the end of its message, in one commit."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg

from loopwarden.errors import MailboxConnectionError, MessageFinalizedError
from loopwarden.mailbox.postgres._connection import LostError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from loopwarden.mailbox._message import Message
    from loopwarden.mailbox.postgres._connection import Connections, Line

__all__ = ["transaction"]


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
    is_good = False
    try:
        connection.autocommit = False
        message.connection = connection
        yield connection
        if not message.is_finalized:
            message.acknowledge()
        try:
            connection.commit()
        except BaseException:
            # Whether it is done is not known; the message is delivered again if, and only if, it is not.
            message.is_finalized = False
            raise
        is_good = True
    finally:
        message.connection = None
        _give_back(connections, line, is_good=is_good)


def _give_back(connections: Connections, line: Line, *, is_good: bool) -> None:
    connection = line.connection
    try:
        if not is_good:
            connection.rollback()
        connection.autocommit = True
    except psycopg.Error:  # it is broken, or in use on another thread: the server rolls back when it ends
        line.close()
    except BaseException:
        line.close()
        raise
    else:
        connections.give(line)
