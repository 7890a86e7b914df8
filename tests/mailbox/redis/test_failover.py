"""A server that dies, and whose replica takes its place."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

import pytest
from private_server import SentinelServer, wait_until

from loopwarden import MailboxLoop
from loopwarden._blocking import SYSTEM
from loopwarden.errors import InvalidParameterError, MailboxConnectionError
from loopwarden.mailbox import RedisMailbox
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from redis_servers import Server

PATIENCE = 60.0
Jobs = RedisMailbox[Any, Any]


@pytest.fixture
def start(make_server: Callable[..., Server]) -> Callable[..., Server]:
    """Start a server, or a replica of another, which is up when it has all."""

    def start(of: Server | None = None) -> Server:
        follow = () if of is None else ("--replicaof", "127.0.0.1", str(of.port))
        made = make_server("--appendonly", "yes", "--repl-diskless-sync-delay", "0", *follow)
        wait_until(lambda: of is None or made.call("INFO", "replication")["master_link_status"] == "up")
        return made

    return start


@pytest.fixture
def primary(start: Callable[..., Server]) -> Server:
    return start()


@pytest.fixture
def replica(start: Callable[..., Server], primary: Server) -> Server:
    """The only one: of several, Sentinel may promote one that has less than another."""
    return start(of=primary)


@pytest.fixture
def sentinel(server_kind: str, tmp_path: Path, primary: Server, replica: Server) -> Iterator[SentinelServer]:
    with SentinelServer(server_kind, tmp_path / "sentinel", primary) as sentinel:
        # It hears of it from the primary, and can promote only what it has heard of.
        wait_until(lambda: str(replica.port) in str(sentinel.call("SENTINEL", "REPLICAS", sentinel.NAME)))
        yield sentinel


@pytest.mark.prove
def test_work_goes_on_when_a_replica_is_promoted_and_nothing_that_was_confirmed_is_lost(
    primary: Server, replica: Server, sentinel: SentinelServer, start: Callable[..., Server]
) -> None:
    jobs: Jobs = RedisMailbox(sentinel.url, "jobs", durability="replicated")
    handled: queue.SimpleQueue[int] = queue.SimpleQueue()
    loop: MailboxLoop[Any] = MailboxLoop(jobs, lambda message: handled.put(message.body))
    run = run_in_background(loop.run, SYSTEM)
    confirmed: set[int] = set()

    def send(number: int) -> bool:
        try:
            jobs.send(number)
        except MailboxConnectionError:  # it may be sent, or not
            return False
        confirmed.add(number)
        return True

    numbers = iter(range(1_000_000))
    assert all(send(next(numbers)) for _ in range(500))
    primary.kill()
    wait_until(lambda: replica.call("INFO", "replication")["role"] == "master")
    start(of=replica)  # or there would be none to confirm
    while not send(next(numbers)):
        pass
    for _ in range(500):
        send(next(numbers))

    seen: set[int] = set()
    while not confirmed <= seen:
        try:
            seen.add(handled.get(timeout=PATIENCE))
        except queue.Empty:
            pytest.fail(f"not handled: {sorted(confirmed - seen)}; {jobs.stats()}")
    assert len(confirmed) > 900
    assert loop.shutdown(timeout=PATIENCE)
    run.wait(PATIENCE)
    jobs.close()


def test_send_that_no_replica_has_confirmed_is_told(make_server: Callable[..., Server]) -> None:
    alone = make_server()
    jobs: Jobs = RedisMailbox(alone.url, "jobs", durability="replicated")

    with pytest.raises(MailboxConnectionError, match="it is done, but only 0 of 1 replicas confirmed it within 1 s"):
        jobs.send("a")

    assert [message.body for message in jobs.receive()] == ["a"]
    jobs.close()


@pytest.mark.parametrize("durability", ["", "fsync", None, 1])
def test_durability_that_there_is_not_is_refused(durability: Any) -> None:
    with pytest.raises(InvalidParameterError, match="durability must be 'server' or 'replicated'"):
        RedisMailbox("redis://127.0.0.1:1/0", "jobs", durability=durability)
