"""The mailbox in PostgreSQL, in the database that people already have; it needs ``loopwarden[postgres]``.

What may change here is how the server is reached, and how waiting processes are notified. What stands in the database
may change only together with the version in `schema.sql`: processes of two versions share a mailbox during a
deployment.
"""

try:
    import psycopg as _psycopg
except ImportError:
    raise ImportError(
        "PostgresMailbox needs the package psycopg and its library: pip install 'loopwarden[postgres]'"
    ) from None

del _psycopg

from loopwarden.mailbox.postgres._schema import schema  # noqa: E402  which says first what is missing

__all__ = ["schema"]
