"""Who waits in several processes: each wake-up comes to one who can use it, or is made good."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from postgres_elsewhere import elsewhere_of, wait_for_waiting

from loopwarden import Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.errors import MailboxClosedError
from loopwarden.mailbox import PostgresMailbox, Token, _waiters
from loopwarden.mailbox.postgres import _store
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postgres_servers import PostgresServer

    from loopwarden._blocking import WorkQueue

PATIENCE = 60.0
Jobs = PostgresMailbox[Any, Any]


def do_nothing(*_: object) -> None: ...


@pytest.fixture
def processes(postgres: PostgresServer) -> Iterator[list[Jobs]]:
    """Have three stores, which know nothing of each other, as those of three processes."""
    with ExitStack() as stack:
        yield [stack.enter_context(elsewhere_of(postgres, max_size=50)) for _ in range(3)]


def take_all(box: Jobs, taken: WorkQueue[Any], done: Token) -> None:
    while not done.stopped:
        for message in box.receive(wait_time_seconds=20, token=done):
            message.acknowledge()
            taken.put(message.body)


def test_message_wakes_a_receive_whichever_process_it_is_in(processes: list[Jobs]) -> None:
    taken, done = SYSTEM.queue(), Token()
    takers = [run_in_background(partial(take_all, box, taken, done), SYSTEM) for box in processes * 2]

    for number in range(60):
        processes[number % 3].send(number)
        assert taken.get() == number

    done.stop()
    for taker in takers:
        taker.wait(PATIENCE)


def test_burst_of_messages_wakes_receives_until_nothing_is_left(processes: list[Jobs]) -> None:
    taken, done = SYSTEM.queue(), Token()
    takers = [run_in_background(partial(take_all, box, taken, done), SYSTEM) for box in processes * 2]

    for burst in range(5):
        sent = {f"{burst}-{number}" for number in range(50)}
        processes[burst % 3].send_many(sorted(sent), timeout=PATIENCE)
        assert {taken.get() for _ in sent} == sent

    done.stop()
    for taker in takers:
        taker.wait(PATIENCE)


def test_send_wakes_one_of_the_processes_that_wait(postgres: PostgresServer, processes: list[Jobs]) -> None:
    received = [run_in_background(partial(box.receive, wait_time_seconds=20), SYSTEM) for box in processes]
    wait_for_waiting(postgres, 3)

    processes[0].send("a")

    # In this order: who is woken takes the only message, and then there is none that others could be woken for.
    wait_for_waiting(postgres, 2)
    processes[0].send("b")
    wait_for_waiting(postgres, 1)
    processes[0].send("c")
    found = [message.body for each in received for message in each.wait(PATIENCE)]
    assert sorted(found) == ["a", "b", "c"]


def test_delayed_message_of_another_process_wakes_at_its_time(
    postgres: PostgresServer, processes: list[Jobs], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, elsewhere, _ = processes
    monkeypatch.setattr(jobs._store, "look", do_nothing)  # which the notifier does every few seconds
    monkeypatch.setattr(_waiters, "LONGEST_WAIT", 600.0)  # so that none looks without being told
    is_visible = run_in_background(lambda: jobs.wait_visible(600), SYSTEM)
    wait_for_waiting(postgres)

    elsewhere.send("a", delay=0.3)

    assert is_visible.wait(PATIENCE)


def test_wait_that_is_stopped_leaves_to_another_process_when_to_look_again(
    postgres: PostgresServer, processes: list[Jobs], monkeypatch: pytest.MonkeyPatch
) -> None:
    *waiting, third = processes
    tokens = [Token(), Token()]
    knows: Ticket[int] = Ticket()

    def hear(number: int, store: Any) -> None:
        ask: Callable[..., Any] = store.once

        def asked(mailbox: str, query: bytes, *given: Any, **options: Any) -> Any:
            answer = ask(mailbox, query, *given, **options)
            if b"loopwarden.look(" in query and answer[0][2] is not None and not knows.is_ready():
                knows.complete(number)
            return answer

        monkeypatch.setattr(store, "once", asked)
        monkeypatch.setattr(store, "look", do_nothing)  # which the notifier does every few seconds

    for number, box in enumerate(waiting):
        hear(number, box._store)
    visible = [
        run_in_background(partial(box.wait_visible, 600, token), SYSTEM)
        for box, token in zip(waiting, tokens, strict=True)
    ]
    wait_for_waiting(postgres, 2)

    third.send("a", delay=1)
    first = knows.wait(PATIENCE)  # the one that was woken
    tokens[first].stop()
    visible[first].wait(PATIENCE)

    assert visible[1 - first].wait(PATIENCE)


@pytest.mark.parametrize("what", ["bell", "room"])
def test_ring_that_a_dead_process_has_taken_is_made_good_with_the_next_sign_of_life(
    postgres: PostgresServer, processes: list[Jobs], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(_store, "BEAT_SECONDS", 0.2)
    jobs, elsewhere, _ = processes
    if what == "room":
        elsewhere.send_many(range(50))
        used = run_in_background(lambda: jobs.send("late", timeout=600), SYSTEM)
    else:
        used = run_in_background(lambda: str(jobs.wait_visible(600)), SYSTEM)
    wait_for_waiting(postgres)
    postgres.execute("UPDATE loopwarden.waiting SET holder = 'dead'")

    if what == "room":
        elsewhere.receive()[0].acknowledge()
    else:
        elsewhere.send("a")

    assert used.wait(PATIENCE)


def test_batch_that_waits_and_does_not_fit_wakes_a_send_that_does_in_another_process(
    postgres: PostgresServer, processes: list[Jobs], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = processes
    for box in (first, second):
        monkeypatch.setattr(box._store, "look", do_nothing)  # which the notifier does every few seconds
    third.send_many(range(50))
    batch = run_in_background(lambda: first.send_many(["d", "e", "f"], timeout=600), SYSTEM)
    wait_for_waiting(postgres, 1)
    single = run_in_background(lambda: second.send("g", timeout=600), SYSTEM)
    wait_for_waiting(postgres, 2)

    third.receive()[0].acknowledge()

    single.wait(PATIENCE)
    assert third.approximate_count() == 50
    first.close()
    with pytest.raises(MailboxClosedError):
        batch.wait(PATIENCE)


def test_dead_letters_of_a_postgres_mailbox_are_woken_by_a_letter(
    postgres: PostgresServer, processes: list[Jobs]
) -> None:
    jobs, elsewhere, _ = processes
    received = run_in_background(lambda: jobs.dead_letters.receive(wait_time_seconds=20), SYSTEM)
    wait_for_waiting(postgres)
    elsewhere.send("a")

    elsewhere.receive()[0].dead_letter("broken")

    [message] = received.wait(PATIENCE)
    assert message.body.reason == "broken"


def test_those_who_wait_on_hear_when_what_one_of_them_has_taken_comes_back(postgres: PostgresServer) -> None:
    jobs: PostgresMailbox[Any, Any] = PostgresMailbox(postgres.url, "jobs")
    jobs.send("leased meanwhile")
    jobs.receive(visibility_timeout=300)
    store, box = jobs._store, jobs._queue._box
    woken, waiting = SYSTEM.gate(), SYSTEM.gate()
    with store.lock:
        for gate in (woken, waiting):
            store.waiters((box, False)).park(gate)
    line = store.connections.line()

    store.told(line, f"{box} bell")

    assert (woken.wait(0), waiting.wait(0)) == (True, True)
    line.close()
    jobs.close()
