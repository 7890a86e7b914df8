"""Calls that reach the server when their answer is no longer waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lossy_proxy import LossyProxy

from loopwarden.errors import MailboxConnectionError
from loopwarden.mailbox import RedisMailbox
from loopwarden.mailbox.redis._scripts import PREFIX, SCRIPTS, base_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis_servers import Server

PATIENCE = 60.0
Jobs = RedisMailbox[Any, Any]


@pytest.fixture
def jobs(server: Server) -> Iterator[Jobs]:
    jobs: Jobs = RedisMailbox(server.url, "jobs")
    yield jobs
    jobs.close()


@pytest.fixture
def elsewhere(server: Server) -> Iterator[Jobs]:
    """The same mailbox as another process has it, which is another store."""
    with server.client() as client:
        elsewhere: Jobs = RedisMailbox(client, "jobs")
        yield elsewhere
        elsewhere.close()


@pytest.mark.parametrize("later", [0, 1, 2])
def test_send_whose_first_try_comes_after_the_second_or_after_later_sends_is_done_once(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, later: int
) -> None:
    ask: Callable[..., Any] = jobs._store.run_script
    tries: list[tuple[Any, ...]] = []

    def asked(*arguments: Any) -> Any:
        tries.append(arguments)
        return ask(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(jobs._store, "run_script", asked)
        sent = [jobs.send(number) for number in range(1 + later)]

    ask(*tries[0])

    assert [message.id for message in jobs.receive(max_messages=10)] == sent


def test_receive_that_comes_after_its_messages_were_looked_for_is_undone_with_the_next_sign_of_life(
    jobs: Jobs, elsewhere: Jobs
) -> None:
    elsewhere.send("a")
    store, base, receipt = jobs._store, base_of("jobs"), "4711"
    line = store.link.line(PREFIX, PATIENCE)
    store.put_back_lost(base, receipt)
    store.beat(line, PREFIX)
    answer = store.run_script("receive", base, (1, 300_000, receipt, store.holder, ""))
    assert b"1" in answer[6]  # which no process knows of

    store.beat(line, PREFIX)

    assert [(message.body, message.delivery_count) for message in elsewhere.receive()] == [("a", 1)]
    line.close()


@pytest.mark.usefixtures("impatient")
def test_letters_that_were_leased_and_cannot_be_read_can_be_received_by_others_at_once(
    server: Server, elsewhere: Jobs
) -> None:
    server.call("SCRIPT", "LOAD", SCRIPTS["about"].text)
    elsewhere.send("a")
    elsewhere.receive()[0].dead_letter("broken")
    with LossyProxy(server.port) as proxy:
        jobs: Jobs = RedisMailbox(proxy.url, "jobs")
        proxy.lose_answers("about", 1_000)
        with pytest.raises(MailboxConnectionError):
            jobs.dead_letters.receive(visibility_timeout=300)

        found = elsewhere.dead_letters.receive()

        assert [(letter.body.body, letter.delivery_count) for letter in found] == [("a", 1)]
        jobs.close()
