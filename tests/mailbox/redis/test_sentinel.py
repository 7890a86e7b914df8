"""What a mailbox leaves at Sentinel, which only says where the primary is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from private_server import SentinelServer, wait_until

from loopwarden.mailbox import RedisMailbox

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from redis_servers import Server

Jobs = RedisMailbox[Any, Any]


def test_no_connection_to_sentinel_is_kept(
    make_server: Callable[..., Server], server_kind: str, tmp_path: Path
) -> None:
    with SentinelServer(server_kind, tmp_path / "sentinel", make_server()) as sentinel:

        def mine() -> list[str]:
            with sentinel.client() as client:
                own = str(client.client_id())
                ours = [each["cmd"] for each in client.client_list() if each["id"] != own]
            return [command for command in ours if "sentinel" in command]

        jobs: Jobs = RedisMailbox(sentinel.url, "jobs")
        jobs.send("a")
        [message] = jobs.receive(wait_time_seconds=1)
        wait_until(lambda: not mine())

        jobs.close()
        message.acknowledge()
        wait_until(lambda: not mine())
