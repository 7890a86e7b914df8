"""Mailboxes on three servers: each on one of them, which it may leave for another."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import redis
from private_server import move_slot

from loopwarden._blocking import SYSTEM
from loopwarden.errors import MailboxConnectionError
from loopwarden.mailbox import RedisMailbox, fleet, list_mailboxes
from loopwarden.mailbox.redis._scripts import base_of
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from redis_servers import Server

PATIENCE = 60.0
Jobs = RedisMailbox[Any, Any]


def url_of(cluster: list[Server]) -> str:
    return f"redis+cluster://{','.join(f'127.0.0.1:{server.port}' for server in cluster)}"


def owner_of(cluster: list[Server], key: str) -> Server:
    slot = cluster[0].call("CLUSTER", "KEYSLOT", key)
    ranges = cluster[0].call("CLUSTER", "SLOTS")
    [port] = [primary[1] for first, last, primary, *_ in ranges if first <= slot <= last]
    [owner] = [server for server in cluster if server.port == port]
    return owner


def test_mailboxes_of_a_cluster_are_on_all_its_servers(cluster: list[Server]) -> None:
    names = [f"jobs-{number}" for number in range(8)]
    boxes: list[Jobs] = [RedisMailbox(url_of(cluster), name) for name in names]
    assert len({owner_of(cluster, base_of(name)).port for name in names}) == 3

    for box in boxes:
        received = run_in_background(partial(box.receive, wait_time_seconds=20), SYSTEM)
        box.send(box.name, reply_to="jobs-0", delay=0.01)
        [message] = received.wait(PATIENCE)
        message.reply("done")
        message.dead_letter("broken")
        assert (box.dead_letters.redrive(), len(fleet(f"{url_of(cluster)}#{box.name}").members)) == (1, 1)

    assert boxes[0].approximate_count() == 1 + len(boxes)
    assert list_mailboxes(url_of(cluster)) == names
    for box in boxes:
        box.close()


def test_client_of_a_cluster_may_be_handed_in(cluster: list[Server]) -> None:
    with redis.RedisCluster(host="127.0.0.1", port=cluster[0].port) as client:
        jobs: Jobs = RedisMailbox(client, "jobs")
        jobs.send("a")
        assert [message.body for message in jobs.receive()] == ["a"]
        jobs.close()


@pytest.mark.usefixtures("impatient")
def test_mailbox_is_left_alone_while_it_is_moved_and_is_whole_when_it_has(cluster: list[Server]) -> None:
    jobs: Jobs = RedisMailbox(url_of(cluster), "jobs", max_size=100)
    ids = jobs.send_many(range(50))
    [message, *_] = jobs.receive(max_messages=5)
    source = owner_of(cluster, base_of("jobs"))
    target, third = (server for server in cluster if server is not source)
    refused: list[str] = []

    def use() -> None:
        for act in (jobs.receive, message.acknowledge, lambda: jobs.send("late")):
            with pytest.raises(MailboxConnectionError) as caught:
                act()
            refused.append(str(caught.value))

    move_slot(base_of("jobs"), source, target, [third], use)

    message.acknowledge()
    left = [each.body for _ in range(2) for each in jobs.receive(max_messages=100)]
    assert left == list(range(5, 50))
    assert jobs.approximate_count() == 49
    assert jobs.send("after") == f"{ids[0].partition('-')[0]}-51"
    assert len(refused) > 15
    jobs.close()


def test_receive_that_waits_is_woken_after_its_mailbox_was_moved(cluster: list[Server]) -> None:
    jobs: Jobs = RedisMailbox(url_of(cluster), "jobs")
    jobs.send("before")
    jobs.receive()[0].acknowledge()
    source = owner_of(cluster, base_of("jobs"))
    target, third = (server for server in cluster if server is not source)
    received: list[Any] = []

    def receive() -> None:
        while not received:
            try:
                received.extend(jobs.receive(wait_time_seconds=20))
            except MailboxConnectionError:  # as a loop does, which waits longer
                continue

    done = run_in_background(receive, SYSTEM)
    move_slot(base_of("jobs"), source, target, [third], lambda: None)
    other: Jobs = RedisMailbox(url_of(cluster), "jobs")
    other.send("after")

    done.wait(PATIENCE)

    assert [message.body for message in received] == ["after"]
    for box in (jobs, other):
        box.close()
