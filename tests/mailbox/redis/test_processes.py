"""Processes that die with messages in hand, that fork, or that close."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
from heard import Heard
from processes import Program

from loopwarden.mailbox import RedisMailbox, _suspects
from loopwarden.mailbox.redis._scripts import PREFIX, base_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis_servers import Server

Jobs = RedisMailbox[Any, Any]


@pytest.fixture
def jobs(server: Server) -> Iterator[Jobs]:
    jobs: Jobs = RedisMailbox(server.url, "jobs")
    yield jobs
    jobs.close()


def lease_and_die(server: Server, count: int) -> None:
    with Program("server_holder", server.url, count) as holder:
        assert holder.line() == f"holds {count}"
        holder.send(signal.SIGKILL)
        assert holder.exit_code() == -signal.SIGKILL


def test_messages_of_a_process_that_was_killed_come_back_when_it_has_been_silent_for_long_enough(
    server: Server, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.send_many(range(10))
    lease_and_die(server, 10)
    assert jobs.receive() == []
    members = f"{base_of('jobs')}:members"
    [dead] = {member.decode() for member in server.call("ZRANGE", members, 0, -1)} - {jobs._store.holder}
    server.call("ZINCRBY", members, -16_000, dead)  # as if its last sign of life had come before
    monkeypatch.setattr(_suspects, "BEAT_SECONDS", 0.0)  # and this process had watched it since

    with Heard("a process has died, and 10 messages that it had in hand can be received again") as heard:
        found = [jobs.receive(wait_time_seconds=20)[0] for _ in range(10)]
        heard.ticket.wait(60)

    assert [(each.body, each.delivery_count) for each in found] == [(number, 2) for number in range(10)]
    assert [member.id for member in jobs.fleet().members] == [jobs._store.holder]


@pytest.mark.prove
def test_messages_of_a_process_that_was_killed_come_back_within_20_seconds(server: Server, jobs: Jobs) -> None:
    jobs.send_many(range(10))
    lease_and_die(server, 10)  # for 300 s

    found = jobs.receive(wait_time_seconds=20)

    assert [(each.body, each.delivery_count) for each in found] == [(0, 2)]


def test_forked_process_is_refused_what_it_inherited_and_its_parent_goes_on(server: Server, jobs: Jobs) -> None:
    jobs.send_many(range(3))

    with Program("server_holder", server.url, 3, "and forks") as holder:
        assert [holder.line(), holder.line(), holder.exit_code()] == ["holds 3", "child 0", 0]

    assert [message.body for message in jobs.receive(max_messages=10)] == ["of the child"]


def test_wait_without_a_receive_sees_to_what_a_process_had_in_hand_that_was_killed(
    server: Server, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.send("a")
    lease_and_die(server, 1)
    members = f"{base_of('jobs')}:members"
    [dead] = server.call("ZRANGE", members, 0, -1)
    server.call("ZINCRBY", members, -16_000, dead)  # as if its last sign of life had come before
    monkeypatch.setattr(_suspects, "BEAT_SECONDS", 0.0)  # and this process had watched it since

    assert jobs.wait_visible(20)

    assert [message.body for message in jobs.receive()] == ["a"]


def test_signs_of_life_come_before_what_is_put_back_and_many_lost_receives_are_one_step(
    server: Server, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.send_many(range(3))
    held = jobs.receive(max_messages=3)
    store, base = jobs._store, base_of("jobs")
    scripts: list[str] = []
    ask: Callable[..., Any] = store._on

    line = store.link.line(PREFIX, 60)

    def asked(on: Any, script: str, *arguments: Any) -> Any:
        if on is line:  # and not that of the notifier
            scripts.append(script)
        return ask(on, script, *arguments)

    monkeypatch.setattr(store, "_on", asked)
    for receipt in (*range(100), *range(100), held[0].receipt):
        store.put_back_lost(base, str(receipt), is_away=True)

    store.beat(line, PREFIX.rstrip(":"))

    line.close()
    assert scripts == ["beat", "sweep"]
    assert [(each.body, each.delivery_count) for each in jobs.receive(max_messages=5)] == [(n, 1) for n in range(3)]
