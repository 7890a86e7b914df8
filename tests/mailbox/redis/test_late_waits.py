"""Calls that begin to wait in the moment in which their mailbox is closed: they end, and start nothing that stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.errors import MailboxClosedError
from loopwarden.mailbox import RedisMailbox, _waiters
from loopwarden.mailbox.redis._scripts import base_of
from loopwarden.testing import wait_no_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis_servers import Server

Jobs = RedisMailbox[Any, Any]


@pytest.mark.parametrize("script", ["send", "receive"])
def test_call_whose_mailbox_is_closed_before_it_waits_leaves_no_thread(
    server: Server, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    jobs: Jobs = RedisMailbox(server.url, "jobs", max_size=1)
    ask: Callable[..., Any] = jobs._store.run_script

    def asked(asked_for: str, *arguments: Any) -> Any:
        answer = ask(asked_for, *arguments)
        if asked_for == script:
            jobs.close()
        return answer

    use: Callable[[], object] = lambda: jobs.receive(wait_time_seconds=20)  # noqa: E731  one of two
    if script == "send":
        jobs.send("fills it")
        use = lambda: jobs.send("waits", timeout=600)  # noqa: E731  as above
    monkeypatch.setattr(jobs._store, "run_script", asked)

    with pytest.raises(MailboxClosedError):
        use()

    assert wait_no_threads() == []


def test_receive_whose_mailbox_is_closed_before_it_takes_part_leaves_no_thread(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: Jobs = RedisMailbox(server.url, "jobs")
    jobs.send("a")
    take_part: Callable[..., None] = jobs._store.take_part

    def late(*arguments: Any) -> None:
        jobs.close()
        take_part(*arguments)

    monkeypatch.setattr(jobs._store, "take_part", late)

    with pytest.raises(MailboxClosedError):
        jobs.receive()

    assert wait_no_threads() == []
    assert server.call("KEYS", "*member*") == []
    elsewhere: Jobs = RedisMailbox(server.url, "jobs")
    assert [(message.body, message.delivery_count) for message in elsewhere.receive()] == [("a", 1)]
    elsewhere.close()


def test_wait_whose_ring_a_dying_process_has_taken_ends_all_the_same(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_waiters, "LONGEST_WAIT", 0.05)
    jobs: Jobs = RedisMailbox(server.url, "jobs")
    ask: Callable[..., Any] = jobs._store.run_script
    rings: list[bytes] = []

    def asked(script: str, *arguments: Any) -> Any:
        answer = ask(script, *arguments)
        if script == "look" and not rings:
            with server.client() as elsewhere:
                box: Jobs = RedisMailbox(elsewhere, "jobs")
                box.send("a")
                box.close()
            rings.append(server.call("LPOP", f"{base_of('jobs')}:bell"))
        return answer

    monkeypatch.setattr(jobs._store, "run_script", asked)

    assert jobs.wait_visible(600)

    assert rings != [None]
    jobs.close()
