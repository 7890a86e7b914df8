"""Calls that begin to wait in the moment in which their mailbox is closed: they end, and start nothing that stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.errors import MailboxClosedError
from loopwarden.mailbox import RedisMailbox
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

    held = jobs.receive()

    assert [message.body for message in held] == ["a"]
    assert wait_no_threads() == []
    assert server.call("KEYS", "*member*") == []
