from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.mailbox.redis._mailbox import RedisMailbox
from loopwarden.testing.contracts import MailboxContract

if TYPE_CHECKING:
    from redis_servers import Server

    from loopwarden.mailbox import Mailbox
    from loopwarden.testing import FakeClock


class TestRedisMailbox(MailboxContract):
    @pytest.fixture(autouse=True)
    def empty_server(self, server: Server) -> None:
        self.server = server

    def make_mailbox(self, clock: FakeClock, name: str = "jobs", **options: Any) -> Mailbox[Any, Any]:
        return RedisMailbox(self.server.url, name, clock=clock, **options)

    def test_a_redis_mailbox_has_all_capabilities(self, mailbox: Mailbox[Any, Any]) -> None:
        missing = {name for name in mailbox.capabilities.__slots__ if not getattr(mailbox.capabilities, name)}

        assert missing == set()
