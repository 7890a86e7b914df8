from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.errors import InvalidParameterError, SerializationError
from loopwarden.mailbox import Message, Moved, Token, _move, move, open_mailbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from postgres_servers import PostgresServer
    from redis_servers import Server

    from loopwarden.mailbox import Mailbox


@pytest.fixture
def old_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/old.db#jobs"


@pytest.fixture
def new_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/new.db#jobs"


@pytest.fixture
def old(old_url: str) -> Iterator[Mailbox[Any, Any]]:
    with_old = open_mailbox(old_url)
    yield with_old
    with_old.close()


def bodies_in(url: str) -> list[Any]:
    mailbox = open_mailbox(url)
    found = [message.body for message in mailbox.receive(max_messages=1_000)]
    mailbox.close()
    return found


def test_move_keeps_order_headers_and_where_replies_go(old: Mailbox[Any, Any], old_url: str, new_url: str) -> None:
    for number in range(250):
        old.send({"number": number}, headers={"trace": str(number)}, reply_to="answers")

    assert move(old_url, new_url) == Moved(250, 0)

    new = open_mailbox(new_url)
    found = new.receive(max_messages=1_000)
    assert [(each.body, each.headers, each.reply_to, each.delivery_count) for each in found] == [
        ({"number": number}, {"trace": str(number)}, "answers", 1) for number in range(250)
    ]
    new.close()


def test_move_leaves_what_is_leased_or_delayed(old: Mailbox[Any, Any], old_url: str, new_url: str) -> None:
    old.send_many(["leased", "ready"])
    old.send("delayed", delay=600)
    [leased] = old.receive()

    assert move(old_url, new_url) == Moved(1, 2)

    leased.acknowledge()
    assert (bodies_in(new_url), old.approximate_count()) == (["ready"], 1)


def test_move_that_is_repeated_sends_nothing_twice(
    old: Mailbox[Any, Any], old_url: str, new_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old.send_many(["a", "b"])
    kind: Any = old.__class__

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:  # as if it was killed between the two
        patched.setattr(_move, "_LEASE", 0.001)
        patched.setattr(kind, "acknowledge_many", die)
        patched.setattr(Message, "put_back", die)
        with pytest.raises(KeyboardInterrupt):
            move(old_url, new_url)
    waiting: Any = old
    assert waiting.wait_visible(60)  # all leases have ended at the same time

    moved = move(old_url, new_url)

    assert (moved, bodies_in(new_url)) == (Moved(2, 0), ["a", "b"])


def test_move_gives_back_what_the_target_does_not_take(
    old: Mailbox[Any, Any], old_url: str, new_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old.send_many(["a", "b", "c"])
    kind: Any = old.__class__
    send: Any = kind.send

    def refuse(self: Any, body: Any, **options: Any) -> str:
        if body == "b":
            raise SerializationError("jobs", "not this one")
        sent: str = send(self, body, **options)
        return sent

    with monkeypatch.context() as patched:
        patched.setattr(kind, "send", refuse)
        with pytest.raises(SerializationError):
            move(old_url, new_url)

    assert bodies_in(new_url) == ["a"]
    assert [(each.body, each.delivery_count) for each in old.receive(max_messages=5)] == [("b", 1), ("c", 1)]


def test_move_ends_early_when_its_token_is_stopped(old: Mailbox[Any, Any], old_url: str, new_url: str) -> None:
    old.send_many(range(300))
    token = Token()

    def stop(_moved: int, _total: int) -> None:
        token.stop()

    moved = move(old_url, new_url, token=token, progress=stop)

    assert moved == Moved(100, 200)


def test_move_draws_how_far_it_is(
    old: Mailbox[Any, Any], old_url: str, new_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old.send_many(range(150))

    move(old_url, new_url, progress=True)

    drawn = capsys.readouterr().err
    assert "100 of 150" in drawn
    assert drawn.endswith("150 of 150\n")


def test_move_refuses_a_source_that_is_not_there_and_a_target_that_is_the_source(old_url: str, new_url: str) -> None:
    with pytest.raises(InvalidParameterError, match="there is no file"):
        move(old_url, new_url)
    with pytest.raises(InvalidParameterError, match="target must be another mailbox"):
        move(old_url, old_url)


def test_move_goes_from_one_engine_to_another(
    postgres: PostgresServer, server: Server, old: Mailbox[Any, Any], old_url: str
) -> None:
    old.send_many(range(5))

    moved = [
        move(old_url, f"{postgres.url}#jobs"),
        move(f"{postgres.url}#jobs", f"{server.url}#jobs"),
        move(f"{server.url}#jobs", old_url),
    ]

    assert moved == [Moved(5, 0)] * 3
    assert [message.body for message in old.receive(max_messages=10)] == list(range(5))
