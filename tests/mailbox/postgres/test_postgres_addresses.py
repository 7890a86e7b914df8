"""URLs that lead nowhere, schemas that are not there, and who may do what; passwords are seen nowhere."""

from __future__ import annotations

import re
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from postgres_elsewhere import use_all

from loopwarden.errors import InvalidParameterError, MailboxConnectionError
from loopwarden.mailbox import PostgresMailbox, fleet, list_mailboxes, open_mailbox
from loopwarden.mailbox.postgres import schema
from loopwarden.mailbox.postgres._schema import VERSION
from loopwarden.mailbox.postgres._store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postgres_servers import PostgresServer

Jobs = PostgresMailbox[Any, Any]
DOCS = Path(__file__).resolve().parents[3] / "docs"
#: Where no server listens; with a user, and with a password of which no part is to be seen.
NO_SERVER = "127.0.0.1:1"
PARTS = ("s3cret", "p4ss", "tail")
URLS = {
    "one slash": f"postgresql:/u:s3cret@{NO_SERVER}/db#jobs",
    "other scheme": f"http://u:s3cret@{NO_SERVER}/db#jobs",
    "other driver": f"postgresql+asyncpg://u:s3cret@{NO_SERVER}/db#jobs",
    "no scheme": f":s3cret@{NO_SERVER}/db#jobs",
    "hash": f"postgresql://u:p4ss#tail@{NO_SERVER}/db#jobs",
    "slash": f"postgresql://u:p4ss/tail@{NO_SERVER}/db#jobs",
    "question mark": f"postgresql://u:p4ss?tail@{NO_SERVER}/db#jobs",
    "bracket": f"postgresql://u:p4ss[tail@{NO_SERVER}/db#jobs",
    "at": f"postgresql://u:p4ss@tail@{NO_SERVER}/db#jobs",
    "half a surrogate": f"postgresql://u:s3cret\udcff@{NO_SERVER}/db#jobs",
    "percent": f"postgresql://u:s3cret%@{NO_SERVER}/db#jobs",
    "query": f"postgresql://{NO_SERVER}/db?user=u&password=s3cret#jobs",
    "query and no name": f"postgresql://{NO_SERVER}/db?password=s3cret",
    "unknown option": f"postgresql://u:s3cret@{NO_SERVER}/db?foo=1#jobs",
    "no number for an option": f"postgresql://u:s3cret@{NO_SERVER}/db?connect_timeout=abc#jobs",
    "no such mode": f"postgresql://u:s3cret@{NO_SERVER}/db?sslmode=foo#jobs",
    "port too high": "postgresql://u:s3cret@127.0.0.1:99999/db#jobs",
    "port is no number": "postgresql://u:s3cret@127.0.0.1:x/db#jobs",
    "NUL in the host": "postgresql://u:s3cret@a b\x00:1/db#jobs",
    "host too long": f"postgresql://u:s3cret@{'a' * 70}.invalid:1/db#jobs",
    "no server": f"postgresql://u:s3cret@{NO_SERVER}/db#jobs",
    "several": f"postgresql://u:s3cret@{NO_SERVER},127.0.0.1:2/db#jobs",
    "no TLS": f"postgresql://u:s3cret@{NO_SERVER}/db?sslmode=require#jobs",
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing be tried again for long."""
    again: Any = PostgresStore.again
    monkeypatch.setitem(again.__kwdefaults__, "tries", 0.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("use", [PostgresMailbox, open_mailbox, list_mailboxes, fleet])
@pytest.mark.parametrize("url", URLS.values(), ids=URLS)
def test_url_that_leads_nowhere_is_refused_without_any_part_of_its_password(
    use: Callable[[str], object], url: str
) -> None:
    with pytest.raises((InvalidParameterError, MailboxConnectionError)) as caught:
        use(url)

    told = f"{caught.value!r} {caught.value} {caught.value.__cause__!r} {caught.value.__cause__}"
    logged = "".join(traceback.format_exception(caught.value))
    assert not [part for part in PARTS if part in told or part in logged]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "server",
    [
        partial(psycopg.connect, f"postgresql://u:s3cret@{NO_SERVER}/db"),
        partial(partial(psycopg.connect, password="s3cret"), host="127.0.0.1", port=1),  # noqa: S106  none
        {"host": "127.0.0.1", "password": "s3cret"},
    ],
    ids=["a URL", "an argument", "no function"],
)
def test_password_that_a_function_has_is_seen_nowhere(server: Any) -> None:
    with pytest.raises((InvalidParameterError, MailboxConnectionError)) as caught:
        PostgresMailbox(server, "jobs")

    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a database with nothing in it."""
    postgres.execute("CREATE DATABASE empty")
    yield postgres.url.removesuffix("postgres") + "empty"
    postgres.execute("DROP DATABASE empty WITH (FORCE)")


def run(url: str, text: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(text.encode())


def test_database_without_the_schema_is_refused_if_it_is_not_to_be_made(database: str) -> None:
    with pytest.raises(MailboxConnectionError, match=r"it has no mailboxes: open a mailbox with create=True"):
        PostgresMailbox(database, "jobs", create=False)
    with pytest.raises(MailboxConnectionError, match=r"create=True"):
        list_mailboxes(database)


def test_schema_that_was_run_by_hand_is_enough(database: str) -> None:
    run(database, schema())

    jobs: Jobs = PostgresMailbox(database, "jobs", create=False)

    jobs.send("a")
    assert [message.body for message in jobs.receive()] == ["a"]
    jobs.close()


def test_schema_of_another_version_is_refused(database: str) -> None:
    run(database, schema())
    run(database, "UPDATE loopwarden.about SET version = version + 1")

    with pytest.raises(
        MailboxConnectionError, match=f"have version {VERSION + 1}, and this Loopwarden knows {VERSION}"
    ):
        PostgresMailbox(database, "jobs")


def test_rights_of_the_documents_suffice_and_fewer_are_told(postgres: PostgresServer, database: str) -> None:
    found = re.search(r"## Rights.*?```sql\n(.*?)```", (DOCS / "postgres.md").read_text("utf-8"), re.DOTALL)
    assert found is not None
    run(database, schema())
    postgres.execute("CREATE ROLE worker LOGIN")
    url = database.replace("loopwarden@", "worker@")
    try:
        with pytest.raises(MailboxConnectionError, match=r"42501.*: grant what docs/postgres.md names"):
            PostgresMailbox(url, "jobs")
        run(database, found[1])

        jobs: Jobs = PostgresMailbox(url, "jobs", max_size=100)

        use_all(jobs)
        jobs.close()
    finally:
        run(database, "DROP OWNED BY worker")
        postgres.execute("DROP ROLE worker")
