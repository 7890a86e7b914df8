"""Texts that a database takes otherwise than they are meant: none is cut short or changed on the way."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.errors import InvalidParameterError
from loopwarden.mailbox import PostgresMailbox, list_mailboxes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgres_servers import PostgresServer

Jobs = PostgresMailbox[Any, Any]


@pytest.fixture
def jobs(postgres: PostgresServer) -> Iterator[Jobs]:
    jobs: Jobs = PostgresMailbox(postgres.url, "jobs")
    yield jobs
    jobs.close()


@pytest.mark.parametrize("encoding", ["LATIN1", "EUC_JP", "SQL_ASCII"])
def test_message_is_settled_with_any_text_whatever_encoding_the_database_has(
    postgres: PostgresServer, encoding: str
) -> None:
    postgres.execute(f"CREATE DATABASE encoded ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'")
    try:
        with contextlib.closing(Jobs(postgres.url.removesuffix("postgres") + "encoded", "jobs")) as jobs:
            jobs.send("ä€𝄞", headers={"ä": "€𝄞"})
            [message] = jobs.receive()
            message.nack(error="ä€𝄞")
            [message] = jobs.receive()
            assert (message.body, message.headers) == ("ä€𝄞", {"ä": "€𝄞"})
            message.dead_letter("ä€𝄞")
            [letter] = jobs.dead_letters.peek()
            escaped = "ä€𝄞".encode("ascii", "backslashreplace").decode()
            assert letter.reason == letter.error == ("ä€𝄞" if encoding == "SQL_ASCII" else escaped)
    finally:
        postgres.execute("DROP DATABASE encoded WITH (FORCE)")


def test_name_is_the_same_whatever_encoding_the_client_is_told_to_use(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with contextlib.closing(Jobs(postgres.url, "größe")):
        monkeypatch.delenv("PGCLIENTENCODING")

        assert list_mailboxes(postgres.url) == ["größe"]


def test_dedup_id_with_a_nul_is_refused_and_not_cut_short(postgres: PostgresServer, jobs: Jobs) -> None:
    with pytest.raises(InvalidParameterError, match="without a NUL"):
        jobs.send("a", dedup_id="order\0a")
    with postgres.connect() as connection, pytest.raises(InvalidParameterError, match="without a NUL"):
        jobs.send("b", dedup_id="order\0b", connection=connection)

    assert jobs.approximate_count() == 0
