"""What senders have sent last is known for as long as a send may be repeated, however many they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.mailbox import RedisMailbox
from loopwarden.mailbox.redis._scripts import base_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis_servers import Server

Jobs = RedisMailbox[Any, Any]
BASE = base_of("jobs")
MANY = 1_500


@pytest.fixture
def jobs(server: Server) -> Iterator[Jobs]:
    jobs: Jobs = RedisMailbox(server.url, "jobs")
    yield jobs
    jobs.close()


def send(jobs: Jobs, sender: str, request: int = 1) -> int:
    """Do what one call to the server does for a send; return the place in line."""
    answer = jobs._store.run_script("send", BASE, (sender, request, "birth", "", "", "", "", "", 0, 0, "", sender))
    return int(answer[1])


def test_send_is_done_once_though_many_others_send_before_it_is_repeated(jobs: Jobs) -> None:
    place = send(jobs, "mine")
    for number in range(MANY):
        send(jobs, f"other-{number}")

    assert send(jobs, "mine") == place
    assert send(jobs, "mine", 2) == MANY + 2


def test_senders_that_are_gone_are_forgotten_when_others_come_and_those_that_send_are_not(
    jobs: Jobs, server: Server
) -> None:
    seconds, _ = server.call("TIME")
    now = seconds * 1000
    gone, busy = (f"gone-{number}" for number in range(MANY)), [f"busy-{number}" for number in range(5)]
    with server.client() as client:
        for name in gone:
            client.hset(f"{BASE}:sent", name, f"1:1:{now - 120_000}")
            client.zadd(f"{BASE}:senders", {name: now - 120_000})
        for name in busy:  # for long, and a moment ago
            client.hset(f"{BASE}:sent", name, f"7:2:{now}")
            client.zadd(f"{BASE}:senders", {name: now - 240_000})

        for number in range(MANY // 10):
            send(jobs, f"new-{number}")

        left = {name.decode() for name in client.hkeys(f"{BASE}:sent")}
        assert {name.decode() for name in client.zrange(f"{BASE}:senders", 0, -1)} == left
    assert len(left) <= 1_000
    assert {name for name in left if not name.startswith("gone")} == {
        *busy, *(f"new-{number}" for number in range(MANY // 10)),
    }  # fmt: skip
    assert send(jobs, "busy-0", 7) == 2
