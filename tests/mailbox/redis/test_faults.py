"""The server goes away and comes back, forgets its scripts, or never comes back: work goes on, and every call ends."""

from __future__ import annotations

import logging
import signal
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from heard import Heard

from loopwarden import ChildSpec, HealthCheckRequest, MailboxLoop, Supervisor, Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.errors import MailboxConnectionError, MailboxFullError
from loopwarden.mailbox import RedisMailbox, Token
from loopwarden.testing import wait_no_threads
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis_servers import Server

    from loopwarden._blocking import WorkQueue
    from loopwarden.mailbox import Message

PATIENCE = 60.0
Jobs = RedisMailbox[Any, Any]
#: What a server keeps over a crash.
KEPT = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def own(make_server: Callable[..., Server]) -> Server:
    return make_server(*KEPT)


@pytest.fixture
def jobs(own: Server) -> Iterator[Jobs]:
    jobs: Jobs = RedisMailbox(own.url, "jobs")
    yield jobs
    jobs.close()


@pytest.fixture
def hear(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], Ticket[None]]]:
    caplog.set_level(logging.INFO, "loopwarden")

    def hear(text: str) -> Ticket[None]:
        return heard.enter_context(Heard(text)).ticket

    with ExitStack() as heard:
        yield hear


def test_loop_is_degraded_while_the_server_is_away_and_goes_on_when_it_is_back(
    own: Server, jobs: Jobs, hear: Callable[[str], Ticket[None]]
) -> None:
    handled = SYSTEM.queue()
    is_away, is_back = hear("mailbox unavailable, retrying"), hear("mailbox available again")

    with Supervisor.open("media") as media:
        loop = media.spawn(ChildSpec(id="resize", start=lambda: MailboxLoop(jobs, lambda m: handled.put(m.body))))
        own.kill()
        is_away.wait(PATIENCE)
        status = loop.send(HealthCheckRequest()).wait(PATIENCE)
        assert (status.activity, status.running) == ("degraded", True)

        own.start()
        jobs.send("after")
        assert handled.get() == "after"
        is_back.wait(PATIENCE)


def test_everything_is_still_there_when_the_server_has_crashed(own: Server, jobs: Jobs) -> None:
    jobs.send_many(["in hand", "ready"])
    jobs.send("delayed", delay=3_000)
    [message] = jobs.receive()
    own.kill()
    own.start()

    stats = jobs.stats()
    assert (stats.ready, stats.leased, stats.delayed) == (1, 1, 1)
    message.acknowledge()
    [other] = jobs.receive(max_messages=10)
    assert other.body == "ready"


def test_receive_that_waits_is_told_that_the_server_is_away(own: Server, jobs: Jobs) -> None:
    received = run_in_background(lambda: jobs.receive(wait_time_seconds=20), SYSTEM)
    own.kill()

    with pytest.raises(MailboxConnectionError, match=r"127\.0\.0\.1"):
        received.wait(PATIENCE)


@pytest.mark.parametrize("when", ["before the call", "while it waits"])
def test_mailbox_goes_on_when_the_server_has_forgotten_its_scripts(jobs: Jobs, own: Server, when: str) -> None:
    jobs.send("known")
    jobs.receive()[0].acknowledge()

    if when == "before the call":
        own.call("SCRIPT", "FLUSH")
        jobs.send("again")
        received = jobs.receive()
    else:
        waiting = run_in_background(lambda: jobs.receive(wait_time_seconds=20), SYSTEM)
        own.call("SCRIPT", "FLUSH")
        jobs.send("again")
        received = waiting.wait(PATIENCE)

    received[0].acknowledge()
    assert jobs.approximate_count() == 0


@pytest.mark.parametrize("uses", ["nothing", "a receive that waits", "a message in hand"])
def test_close_ends_though_the_server_is_away(own: Server, uses: str) -> None:
    jobs: Jobs = RedisMailbox(own.url, "jobs")
    jobs.send("a")
    received: Ticket[Any] = Ticket()
    if uses != "nothing":
        jobs.receive()
    if uses == "a receive that waits":
        received = run_in_background(lambda: jobs.receive(wait_time_seconds=20), SYSTEM)
    own.kill()

    run_in_background(jobs.close, SYSTEM).wait(PATIENCE)

    if uses == "a receive that waits":
        with pytest.raises(Exception, match=r"closed|127\.0\.0\.1"):
            received.wait(PATIENCE)


@pytest.mark.usefixtures("impatient")
def test_call_to_a_server_that_says_nothing_ends(own: Server) -> None:
    jobs: Jobs = RedisMailbox(f"{own.url}?socket_timeout=0.1&socket_connect_timeout=0.1", "jobs")
    own.send(signal.SIGSTOP)
    try:
        for use in (lambda: jobs.send("a"), jobs.receive, jobs.stats, jobs.reap, jobs.fleet, jobs.pause):
            with pytest.raises(MailboxConnectionError):
                run_in_background(use, SYSTEM).wait(PATIENCE)
        run_in_background(jobs.close, SYSTEM).wait(PATIENCE)
    finally:
        own.send(signal.SIGCONT)


def test_loop_ends_though_its_server_is_away(own: Server, jobs: Jobs, hear: Callable[[str], Ticket[None]]) -> None:
    loop: MailboxLoop[Any] = MailboxLoop(jobs, print)
    is_away = hear("mailbox unavailable, retrying")
    run = run_in_background(loop.run, SYSTEM)
    own.kill()
    is_away.wait(PATIENCE)

    assert loop.shutdown(timeout=PATIENCE)

    run.wait(PATIENCE)


def test_all_receives_of_a_process_share_one_connection_that_waits(own: Server) -> None:
    boxes: list[Jobs] = [RedisMailbox(own.url, f"jobs-{number}") for number in range(5)]
    received = [run_in_background(partial(box.receive, wait_time_seconds=20), SYSTEM) for box in boxes * 3]

    for box in boxes:
        box.send_many(range(3))
    assert all(each.wait(PATIENCE) for each in received)
    with own.client() as client:
        waiting = [each for each in client.client_list() if each["cmd"] == "blpop"]
    for box in boxes:
        box.close()

    assert len(waiting) <= 1


def test_mailbox_leaves_no_connection_when_it_is_closed(own: Server) -> None:
    jobs: Jobs = RedisMailbox(own.url, "jobs")
    jobs.receive(wait_time_seconds=0.01)

    jobs.close()

    assert wait_no_threads() == []
    with own.client() as client:
        assert [each["id"] for each in client.client_list()] == [str(client.client_id())]
        # One that came when the notifier was about to end anyway stays for a while.
        assert [key for key in client.keys("*wake*") if client.ttl(key) < 0] == []


def test_full_mailbox_takes_a_send_that_waited_when_another_process_makes_room(own: Server) -> None:
    with own.client() as client:
        here: Jobs = RedisMailbox(own.url, "jobs", max_size=1)
        there: Jobs = RedisMailbox(client, "jobs", max_size=1)
        here.send("first")
        with pytest.raises(MailboxFullError):
            there.send("second")
        sent = run_in_background(lambda: there.send("second", timeout=600), SYSTEM)

        here.receive()[0].acknowledge()

        sent.wait(PATIENCE)
        here.close()
        there.close()


@pytest.fixture
def processes(own: Server) -> Iterator[list[Jobs]]:
    """Have three stores, which know nothing of each other, as those of three processes."""
    with own.client() as one, own.client() as two:
        boxes: list[Jobs] = [RedisMailbox(each, "jobs") for each in (one, two, own.url)]
        yield boxes
        for box in boxes:
            box.close()


def take_all(box: Jobs, taken: WorkQueue[Any], done: Token) -> None:
    while not done.stopped:
        for message in box.receive(wait_time_seconds=20, token=done):
            message.acknowledge()
            taken.put(message.body)


def test_message_wakes_a_receive_whichever_process_it_is_in(processes: list[Jobs]) -> None:
    taken, done = SYSTEM.queue(), Token()
    takers = [run_in_background(partial(take_all, box, taken, done), SYSTEM) for box in processes * 2]

    for number in range(150):
        processes[number % 3].send(number)
        assert taken.get() == number

    done.stop()
    for taker in takers:
        taker.wait(PATIENCE)


def test_burst_of_messages_wakes_receives_until_nothing_is_left(processes: list[Jobs]) -> None:
    taken, done = SYSTEM.queue(), Token()
    takers = [run_in_background(partial(take_all, box, taken, done), SYSTEM) for box in processes * 2]

    for burst in range(10):
        sent = {f"{burst}-{number}" for number in range(50)}
        processes[burst % 3].send_many(sorted(sent))
        assert {taken.get() for _ in sent} == sent

    done.stop()
    for taker in takers:
        taker.wait(PATIENCE)


def test_dead_letters_of_a_redis_mailbox_are_woken_by_a_letter(jobs: Jobs) -> None:
    received = run_in_background(lambda: jobs.dead_letters.receive(wait_time_seconds=20), SYSTEM)
    jobs.send("a")

    jobs.receive()[0].dead_letter("broken")

    message: Message[Any, Any]
    [message] = received.wait(PATIENCE)
    assert message.body.reason == "broken"
