from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.mailbox import Mailbox, SqliteMailbox
from loopwarden.testing.contracts import MailboxContract

if TYPE_CHECKING:
    from pathlib import Path

    from loopwarden.testing import FakeClock


class TestSqliteMailbox(MailboxContract):
    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path) -> None:
        self.path = tmp_path / "mail.db"

    def make_mailbox(self, clock: FakeClock, name: str = "jobs", **options: Any) -> Mailbox[Any, Any]:
        return SqliteMailbox(self.path, name, clock=clock, **options)

    def test_its_capabilities_are_pinned(self, mailbox: Mailbox[Any, Any]) -> None:
        missing = {name for name in mailbox.capabilities.__slots__ if not getattr(mailbox.capabilities, name)}

        assert missing == set()
