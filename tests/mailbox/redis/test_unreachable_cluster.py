"""A cluster of which no server can be reached is away like any other server, and comes back like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from heard import Heard
from lossy_proxy import LossyProxy
from private_server import wait_until
from redis import RedisCluster
from redis.backoff import NoBackoff
from redis.retry import Retry

from loopwarden import MailboxLoop
from loopwarden._blocking import SYSTEM
from loopwarden.errors import MailboxConnectionError
from loopwarden.mailbox import RedisMailbox, fleet, list_mailboxes, open_mailbox
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis_servers import Server

PATIENCE = 60.0
Jobs = RedisMailbox[Any, Any]


@pytest.mark.parametrize("use", [open_mailbox, list_mailboxes, fleet])
def test_cluster_of_which_no_server_is_there_cannot_be_asked(use: Callable[[str], object]) -> None:
    with pytest.raises(MailboxConnectionError, match=r"redis\+cluster://127\.0\.0\.1:1,127\.0\.0\.1:2"):
        use("redis+cluster://127.0.0.1:1,127.0.0.1:2#jobs")


@pytest.mark.usefixtures("impatient")
def test_cluster_of_which_no_server_can_be_reached_any_more_is_told_by_each_call_and_lets_a_mailbox_close(
    cluster: list[Server],
) -> None:
    with LossyProxy(cluster[0].port) as one, LossyProxy(cluster[1].port) as two, LossyProxy(cluster[2].port) as three:
        ports = {
            server.port: int(proxy.url.rpartition(":")[2].partition("/")[0])
            for server, proxy in zip(cluster, (one, two, three), strict=True)
        }
        client: Any = RedisCluster(
            host="127.0.0.1",
            port=ports[cluster[0].port],
            address_remap=lambda address: (address[0], ports.get(address[1], address[1])),
            retry=Retry(NoBackoff(), 0),
        )
        jobs: Jobs = RedisMailbox(client, "jobs")
        jobs.send_many(["a", "b"])
        [message] = jobs.receive()

    for use in (lambda: jobs.send("c"), jobs.receive, message.acknowledge, jobs.stats, jobs.fleet, jobs.pause):
        with pytest.raises(MailboxConnectionError):
            run_in_background(use, SYSTEM).wait(PATIENCE)
    run_in_background(jobs.close, SYSTEM).wait(PATIENCE)
    client.close()


@pytest.mark.prove
def test_loop_goes_on_when_its_cluster_was_away_and_is_back(make_server: Callable[..., Server]) -> None:
    only = make_server("--cluster-enabled", "yes", "--appendonly", "yes", "--appendfsync", "always")
    only.call("CLUSTER", "ADDSLOTS", *range(16_384))
    wait_until(lambda: "cluster_state:ok" in str(only.call("CLUSTER", "INFO")))
    jobs: Jobs = RedisMailbox(f"redis+cluster://127.0.0.1:{only.port}", "jobs")
    handled = SYSTEM.queue()
    loop: MailboxLoop[Any] = MailboxLoop(jobs, lambda message: handled.put(message.body))
    run = run_in_background(loop.run, SYSTEM)
    jobs.send("before")
    assert handled.get() == "before"

    with Heard("mailbox unavailable, retrying") as away:
        only.kill()
        away.ticket.wait(PATIENCE)
    only.start()
    wait_until(lambda: "cluster_state:ok" in str(only.call("CLUSTER", "INFO")))
    jobs.send("after")

    assert handled.get() == "after"
    assert loop.shutdown(timeout=PATIENCE)
    run.wait(PATIENCE)
    jobs.close()
