"""Texts that a database takes otherwise than they are meant: none is cut short or changed on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.errors import InvalidParameterError
from loopwarden.mailbox import PostgresMailbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgres_servers import PostgresServer

Jobs = PostgresMailbox[Any, Any]


@pytest.fixture
def jobs(postgres: PostgresServer) -> Iterator[Jobs]:
    jobs: Jobs = PostgresMailbox(postgres.url, "jobs")
    yield jobs
    jobs.close()


def test_dedup_id_with_a_nul_is_refused_and_not_cut_short(postgres: PostgresServer, jobs: Jobs) -> None:
    with pytest.raises(InvalidParameterError, match="without a NUL"):
        jobs.send("a", dedup_id="order\0a")
    with postgres.connect() as connection, pytest.raises(InvalidParameterError, match="without a NUL"):
        jobs.send("b", dedup_id="order\0b", connection=connection)

    assert jobs.approximate_count() == 0
