"""Mailboxes that are not closed, or not wholly: they keep nothing for ever, and hold up no thread."""

from __future__ import annotations

import gc
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.mailbox import RedisMailbox
from loopwarden.mailbox.redis import _store
from loopwarden.testing import wait_no_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis_servers import Server

Jobs = RedisMailbox[Any, Any]


def test_mailbox_that_is_collected_while_another_is_opened_blocks_nobody(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = _store.RedisStore

    def collecting(*arguments: Any, **options: Any) -> _store.RedisStore:
        gc.collect()  # as any allocation may, in the middle of an open
        return make(*arguments, **options)

    monkeypatch.setattr("loopwarden.mailbox.redis._mailbox.RedisStore", collecting)
    monkeypatch.setattr(_store, "BEAT_SECONDS", 0.05)
    forgotten: Jobs = RedisMailbox(server.url, "forgotten")
    forgotten.receive()
    gc.disable()
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            del forgotten
            jobs: Jobs = RedisMailbox(server.url.replace("/0", "/1"), "jobs")
    finally:
        gc.enable()

    jobs.close()

    assert [str(each.message) for each in told if each.category is ResourceWarning] != []
    assert wait_no_threads() == []


@pytest.mark.parametrize("where", ["wake_all", "leave", "_leave_server"])
def test_close_that_is_interrupted_can_be_called_again(
    server: Server, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    jobs: Jobs = RedisMailbox(server.url, "jobs")
    jobs.receive()
    owner: Any = jobs._queue if where == "wake_all" else jobs._store
    kind: Any = owner.__class__
    done: Callable[..., None] = getattr(owner, where)

    def interrupted(_: Any, *arguments: Any) -> None:
        monkeypatch.undo()
        if where != "leave":
            done(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(kind, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        jobs.close()

    jobs.close()

    assert wait_no_threads() == []
    assert server.call("KEYS", "*member*") == []


def test_store_knows_nothing_more_of_mailboxes_that_are_closed(server: Server) -> None:
    jobs: Jobs = RedisMailbox(server.url, "jobs")
    for number in range(3):
        RedisMailbox[Any, Any](server.url, f"reply-{number}").close()

    assert len(jobs._store._waiters) <= 4
    jobs.close()
