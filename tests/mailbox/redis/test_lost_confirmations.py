"""The primary has done what it was asked for, the answer was lost, and no replica has heard of it."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from lossy_proxy import LossyProxy
from private_server import wait_until

from loopwarden.errors import MailboxConnectionError
from loopwarden.mailbox import RedisMailbox
from loopwarden.mailbox.redis import _store
from loopwarden.mailbox.redis._scripts import SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis_servers import Server

Jobs = RedisMailbox[Any, Any]
#: A replica that is there has all the time it needs to confirm.
PATIENT = "?socket_timeout=60"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_store, "CONFIRM_MILLISECONDS", 50_000)


def test_what_is_repeated_is_confirmed_only_if_a_replica_has_it(
    make_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    primary = make_server("--repl-diskless-sync-delay", "0")
    replica = make_server("--replicaof", "127.0.0.1", str(primary.port))
    wait_until(lambda: replica.call("INFO", "replication")["master_link_status"] == "up")
    for script in SCRIPTS.values():
        primary.call("SCRIPT", "LOAD", script.text)
    with LossyProxy(primary.port) as proxy:
        jobs: Jobs = RedisMailbox(proxy.url + PATIENT, "jobs", durability="replicated")
        jobs.send_many(range(4))
        jobs.send("known", dedup_id="known")
        first, second, third, fourth = jobs.receive(max_messages=4)
        third.dead_letter("broken")
        fourth.dead_letter("broken")
        [letter, other] = jobs.dead_letters.receive(max_messages=2)
        replica.send(signal.SIGSTOP)
        monkeypatch.setattr(_store, "CONFIRM_MILLISECONDS", 20)
        acts: list[tuple[str, Callable[[], object]]] = [
            ("send", partial(jobs.send, "new")),
            ("send", partial(jobs.send_many, ["new", "newer"])),
            ("send", partial(jobs.send, "known", dedup_id="known")),
            ("acknowledge", first.acknowledge),
            ("bury", partial(second.dead_letter, "broken")),
            ("acknowledge", other.acknowledge),
            ("redrive", partial(jobs.dead_letters.redrive, [letter.id])),
        ]

        for name, act in acts:
            proxy.lose_answers(name)
            with pytest.raises(MailboxConnectionError, match="it is done, but only 0 of 1 replicas confirmed it"):
                act()

        assert proxy.lost == len(acts)
        replica.send(signal.SIGCONT)
        jobs.close()


def test_message_that_was_sent_before_is_confirmed_only_if_a_replica_has_it(
    make_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    primary = make_server("--repl-diskless-sync-delay", "0")
    replica = make_server("--replicaof", "127.0.0.1", str(primary.port))
    wait_until(lambda: replica.call("INFO", "replication")["master_link_status"] == "up")
    jobs: Jobs = RedisMailbox(primary.url + PATIENT, "jobs", durability="replicated")
    jobs.send("warm-up")
    replica.send(signal.SIGSTOP)
    monkeypatch.setattr(_store, "CONFIRM_MILLISECONDS", 20)
    other: Jobs = RedisMailbox(primary.url, "jobs")
    other.send("a", dedup_id="a")

    with pytest.raises(MailboxConnectionError, match="only 0 of 1 replicas"):
        jobs.send("a", dedup_id="a")

    replica.send(signal.SIGCONT)
    for box in (jobs, other):
        box.close()
