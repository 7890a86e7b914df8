"""Mailboxes in PostgreSQL as other processes have them."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from private_server import wait_until

from loopwarden.mailbox import PostgresMailbox

if TYPE_CHECKING:
    from collections.abc import Generator

    from private_postgres import PostgresServer

__all__ = ["elsewhere_of", "wait_for_waiting"]


@contextmanager
def elsewhere_of(server: PostgresServer, **options: Any) -> Generator[PostgresMailbox[Any, Any]]:
    """Open the mailbox of the tests once more, in another store, which knows nothing of the first."""
    elsewhere: PostgresMailbox[Any, Any] = PostgresMailbox(partial(psycopg.connect, server.url), "jobs", **options)
    try:
        yield elsewhere
    finally:
        elsewhere.close()


def wait_for_waiting(server: PostgresServer, count: int = 1) -> None:
    """Return when so many processes have told the server that they wait."""
    wait_until(lambda: server.execute("SELECT count(*) FROM loopwarden.waiting") == [(count,)])
