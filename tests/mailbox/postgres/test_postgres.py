from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.mailbox.postgres._mailbox import PostgresMailbox
from loopwarden.testing.contracts import MailboxContract

if TYPE_CHECKING:
    from postgres_servers import PostgresServer

    from loopwarden.mailbox import Mailbox
    from loopwarden.testing import FakeClock


class TestPostgresMailbox(MailboxContract):
    @pytest.fixture(autouse=True)
    def empty_server(self, postgres: PostgresServer) -> None:
        self.server = postgres

    def make_mailbox(self, clock: FakeClock, name: str = "jobs", **options: Any) -> Mailbox[Any, Any]:
        return PostgresMailbox(self.server.url, name, clock=clock, **options)

    def test_a_postgres_mailbox_has_all_capabilities(self, mailbox: Mailbox[Any, Any]) -> None:
        missing = {name for name in mailbox.capabilities.__slots__ if not getattr(mailbox.capabilities, name)}

        assert missing == set()
