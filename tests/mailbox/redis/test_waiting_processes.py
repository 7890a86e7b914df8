"""Who waits in several processes: each wake-up comes to one who can use it, and none asks again and again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from private_server import wait_until

from loopwarden import Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.errors import MailboxClosedError
from loopwarden.mailbox import RedisMailbox, Token
from loopwarden.mailbox.redis._scripts import base_of
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis_servers import Server

PATIENCE = 60.0
Jobs = RedisMailbox[Any, Any]


@pytest.fixture
def processes(server: Server) -> Iterator[list[Jobs]]:
    """Have three stores, which know nothing of each other, as those of three processes."""
    with server.client() as one, server.client() as two:
        boxes: list[Jobs] = [RedisMailbox(each, "jobs", max_size=3) for each in (one, two, server.url)]
        yield boxes
        for box in boxes:
            box.close()


def wait_blocked(server: Server, count: int) -> None:
    """Return when so many connections wait in the server; of those it wakes the one that has waited for longest."""
    wait_until(lambda: server.call("INFO", "clients")["blocked_clients"] >= count)


def calls_of_scripts(server: Server) -> int:
    calls: int = server.call("INFO", "commandstats")["cmdstat_evalsha"]["calls"]
    return calls


def test_wait_at_a_paused_mailbox_does_not_ask_again_and_again_because_a_lease_is_over(
    server: Server, processes: list[Jobs]
) -> None:
    jobs, elsewhere, _ = processes
    elsewhere.send("a")
    elsewhere.receive(visibility_timeout=0.001)
    assert elsewhere.wait_visible(20)  # it is over
    elsewhere.pause()
    before = calls_of_scripts(server)

    is_visible = jobs.wait_visible(0.2)

    assert (is_visible, calls_of_scripts(server) - before < 20) == (False, True)


def test_batch_that_waits_and_does_not_fit_wakes_a_send_that_does_in_another_process(
    server: Server, processes: list[Jobs]
) -> None:
    first, second, third = processes
    third.send_many(["a", "b", "c"])
    batch = run_in_background(lambda: first.send_many(["d", "e", "f"], timeout=600), SYSTEM)
    wait_blocked(server, 1)
    single = run_in_background(lambda: second.send("g", timeout=600), SYSTEM)
    wait_blocked(server, 2)

    third.receive()[0].acknowledge()

    single.wait(PATIENCE)
    assert third.approximate_count() == 3
    first.close()
    with pytest.raises(MailboxClosedError):
        batch.wait(PATIENCE)


def test_room_that_was_told_to_a_process_which_died_is_told_again_with_the_next_message_that_goes(
    server: Server, processes: list[Jobs]
) -> None:
    jobs, elsewhere, _ = processes
    jobs.send_many(["a", "b", "c"])
    [first, second] = jobs.receive(max_messages=2)
    wait_blocked(server, 1)  # the notifier of who receives
    with server.client() as dying:
        told = run_in_background(lambda: dying.blpop([f"{base_of('jobs')}:room"], PATIENCE), SYSTEM)
        wait_blocked(server, 2)
        sent = run_in_background(lambda: elsewhere.send("d", timeout=600), SYSTEM)
        wait_blocked(server, 3)
        first.acknowledge()
        assert told.wait(PATIENCE)

    second.acknowledge()

    sent.wait(PATIENCE)
    assert jobs.approximate_count() == 2


def test_wait_that_is_stopped_leaves_to_another_process_when_to_look_again(
    server: Server, processes: list[Jobs], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = processes
    ask: Callable[..., Any] = first._store.run_script
    knows: Ticket[None] = Ticket()
    token = Token()

    def asked(script: str, *arguments: Any) -> Any:
        answer = ask(script, *arguments)
        if script == "look" and answer[2] >= 0 and not knows.is_ready():
            knows.complete(None)
        return answer

    monkeypatch.setattr(first._store, "run_script", asked)
    stopped = run_in_background(partial(first.wait_visible, 600, token), SYSTEM)
    wait_blocked(server, 1)
    is_visible = run_in_background(partial(second.wait_visible, 600), SYSTEM)
    wait_blocked(server, 2)

    third.send("a", delay=0.3)
    knows.wait(PATIENCE)
    token.stop()
    stopped.wait(PATIENCE)

    assert is_visible.wait(PATIENCE)
