"""Connections that the server has ended, or that lead to one which is gone, cost one call at the most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lossy_proxy import LossyProxy
from private_server import wait_until

from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.mailbox import RedisMailbox
from loopwarden.mailbox.redis import _link
from loopwarden.mailbox.redis._address import parse
from loopwarden.mailbox.redis._link import FAULTS, UNUSED_SECONDS, link_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis_servers import Server

Jobs = RedisMailbox[Any, Any]
PING = [("PING",)]


def fill(link: Any, count: int = 5) -> list[Any]:
    """Have so many free connections, as after that many calls at the same moment."""
    connections = [link._connect(None) for _ in range(count)]
    for connection in connections:
        link._release(connection)
    return connections


def test_connections_that_are_as_old_as_one_that_was_lost_fail_no_call(server: Server) -> None:
    with LossyProxy(server.port) as proxy:
        link: Any = link_to(parse(proxy.url)[0])
        connections = fill(link)
        proxy.cut()

        with pytest.raises(FAULTS):  # it was used a moment ago, and is not looked at
            link.run("jobs", PING)

        assert [connection.is_connected for connection in connections] == [False] * 5
        assert link.run("jobs", PING) == [b"PONG"]
        link.close()


def test_connections_that_the_server_has_ended_since_fail_no_call(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_link, "RESTED_SECONDS", 0.0)
    link: Any = link_to(parse(server.url)[0])
    connections = fill(link)
    with server.client() as client:
        for connection in connections:
            client.client_kill("{}:{}".format(*connection._sock.getsockname()))
    wait_until(lambda: all(_link._is_ended(connection) for connection in connections))

    assert link.run("jobs", PING) == [b"PONG"]

    assert [connection.is_connected for connection in connections] == [False] * 5
    link.close()


def test_connection_that_has_rested_is_used_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_link, "RESTED_SECONDS", 0.0)
    link: Any = link_to(parse(server.url)[0])

    ids = [link.run("jobs", [("CLIENT", "ID")])[0] for _ in range(3)]

    assert len(set(ids)) == 1
    link.close()


def test_connections_to_a_server_that_is_no_primary_any_more_are_not_used_again(
    make_server: Callable[..., Server],
) -> None:
    server = make_server()
    link: Any = link_to(parse(server.url)[0])
    connections = fill(link)
    server.call("REPLICAOF", "127.0.0.1", 1)

    with pytest.raises(FAULTS):
        link.run("jobs", [("SET", "loopwarden:a", "b")])

    assert [connection.is_connected for connection in connections] == [False] * 5
    link.close()


class Later:
    """The machine's clock, so many seconds ahead."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic() + self.ahead


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    later = Later()
    monkeypatch.setattr(_link, "SYSTEM_CLOCK", later)
    return later


def test_process_that_only_sends_closes_what_it_has_not_needed_for_a_while(server: Server, later: Later) -> None:
    jobs: Jobs = RedisMailbox(server.url, "jobs")
    connections = fill(jobs._store.link)
    jobs.send("a")

    later.ahead += UNUSED_SECONDS
    jobs.send("b")
    later.ahead += UNUSED_SECONDS
    jobs.send("c")

    assert [connection.is_connected for connection in connections] == [False, False, False, False, True]
    jobs.close()


def test_connections_to_a_server_of_a_cluster_of_which_nothing_is_asked_any_more_are_closed(
    cluster: list[Server], later: Later
) -> None:
    link: Any = link_to(parse(f"redis+cluster://127.0.0.1:{cluster[0].port}")[0])
    names = [f"jobs-{number}" for number in range(8)]
    for name in names:
        link.run(name, PING)
    free = [connection for each in link._links.values() for connection, _ in each._free]
    assert len(free) == len(link._links) == 3

    for _ in range(3):
        later.ahead += UNUSED_SECONDS
        link.run(names[0], PING)

    assert [connection.is_connected for connection in free].count(True) == 1
    link.close()
