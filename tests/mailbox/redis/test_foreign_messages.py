"""Messages that another program has written into the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.mailbox import RedisMailbox
from loopwarden.mailbox.redis._scripts import base_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis_servers import Server

Jobs = RedisMailbox[Any, Any]


@pytest.fixture
def jobs(server: Server) -> Iterator[Jobs]:
    jobs: Jobs = RedisMailbox(server.url, "jobs")
    yield jobs
    jobs.close()


@pytest.mark.parametrize("reply_to", ["5", "1.5", "true", "[]", '{"name": "done"}'])
def test_message_with_a_reply_to_that_is_no_string_is_a_dead_letter(server: Server, jobs: Jobs, reply_to: str) -> None:
    jobs.send_many(["foreign", "ours"])
    server.call("HSET", f"{base_of('jobs')}:body", 1, f'1700000000000 {{"reply_to": {reply_to}}}\n"foreign"')

    found = jobs.receive(max_messages=10)

    assert [message.body for message in found] == ["ours"]
    assert [letter.delivery_count for letter in jobs.dead_letters.peek()] == [0]
