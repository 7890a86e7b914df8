"""What is received first, if messages at the head were delivered as often as they may be since a deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.mailbox import RedisMailbox
from loopwarden.mailbox.redis._queue import CHUNK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis_servers import Server

Jobs = RedisMailbox[Any, Any]


@pytest.fixture
def before(server: Server) -> Iterator[Jobs]:
    """The mailbox as it was opened before the deployment."""
    before: Jobs = RedisMailbox(server.url, "jobs", max_deliveries=2)
    yield before
    before.close()


@pytest.fixture
def after(server: Server) -> Iterator[Jobs]:
    after: Jobs = RedisMailbox(server.url, "jobs", max_deliveries=1)
    yield after
    after.close()


def nack_all(jobs: Jobs, count: int) -> None:
    """Have the oldest messages delivered once."""
    held = [message for _ in range(0, count, CHUNK) for message in jobs.receive(max_messages=min(count, CHUNK))]
    for message in held[:count]:
        message.nack()
    for message in held[count:]:
        message.put_back()


@pytest.mark.parametrize("limit", [1, 2, 10])
def test_exhausted_messages_hide_none_behind_them_and_the_others_keep_their_order(
    before: Jobs, after: Jobs, limit: int
) -> None:
    before.send_many(["exhausted 1", "exhausted 2", "came back", "fresh 1", "fresh 2"])
    nack_all(before, 2)
    held = before.receive(), before.receive(), before.receive()
    held[2][0].put_back()
    held[0][0].put_back()
    held[1][0].put_back()

    found = [message.body for message in after.receive(max_messages=limit)]

    assert found == ["came back", "fresh 1", "fresh 2"][:limit]
    assert [letter.body for letter in after.dead_letters.peek()] == ["exhausted 1", "exhausted 2"]


def test_more_exhausted_messages_than_one_call_looks_at_hide_none_behind_them(before: Jobs, after: Jobs) -> None:
    before.send_many([*range(CHUNK + 1), "fresh"])
    nack_all(before, CHUNK + 1)

    found = [message.body for message in after.receive(max_messages=10)]

    assert (found, after.dead_letters.approximate_count()) == (["fresh"], CHUNK + 1)
