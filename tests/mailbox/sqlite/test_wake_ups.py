"""No wake-up is lost, in whatever order a look, a wait, a send and a stop come."""

from __future__ import annotations

import contextlib
import functools
import queue
import socket
import subprocess
import sys
from typing import IO, TYPE_CHECKING, Any

import pytest

from loopwarden import Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.mailbox import InMemoryMailbox, Mailbox, Message, SqliteMailbox, Token
from loopwarden.testing import FakeClock, SteppedBlocking, wait_no_threads

if TYPE_CHECKING:
    from pathlib import Path

#: On this clock time stands still: who is not woken waits for ever, and `run` raises DeadlockError.
WAIT = 20


def stepped() -> tuple[SteppedBlocking, InMemoryMailbox[int, None]]:
    steps = SteppedBlocking()
    return steps, InMemoryMailbox("jobs", clock=FakeClock(blocking=steps))


def test_a_stop_between_the_look_and_the_wait_is_not_lost() -> None:
    steps, mailbox = stepped()
    token = Token()
    received: list[list[Message[int, None]]] = []
    steps.start_thread(lambda: received.append(mailbox.receive(wait_time_seconds=WAIT, token=token)), "receiver")
    steps.start_thread(token.stop, "stopper")

    # The receiver starts, looks the short way, looks the long way and finds nothing; it is about to set its timer.
    steps.run(["receiver", "receiver", "receiver", "stopper", "stopper"])

    assert received == [[]]
    assert steps.trace[:5] == [
        ("receiver", "start"),
        ("receiver", "take lock"),
        ("receiver", "take lock"),
        ("stopper", "start"),
        ("stopper", "open gate"),
    ]
    assert ("receiver", "wait at gate") in steps.trace[5:]


@pytest.mark.parametrize("block", range(4))
def test_token_stop_is_lost_in_no_order_with_a_receive(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        steps, mailbox = stepped()
        token = Token()
        received: list[list[Message[int, None]]] = []

        def receive(
            mailbox: InMemoryMailbox[int, None] = mailbox,
            token: Token = token,
            received: list[list[Message[int, None]]] = received,
        ) -> None:
            received.append(mailbox.receive(wait_time_seconds=WAIT, token=token))

        steps.start_thread(receive, "receiver")
        steps.start_thread(token.stop, "stopper")

        steps.run(seed=seed)

        assert received == [[]], f"seed {seed}"


def test_a_send_between_the_look_and_the_wait_is_not_lost() -> None:
    steps, mailbox = stepped()
    received: list[int] = []
    steps.start_thread(
        lambda: received.extend(message.body for message in mailbox.receive(wait_time_seconds=WAIT)), "receiver"
    )
    steps.start_thread(lambda: mailbox.send(1), "sender")

    steps.run(["receiver", "receiver", "receiver", "sender", "sender", "sender"])

    assert received == [1]
    assert ("sender", "open gate") in steps.trace[:6]
    assert ("receiver", "wait at gate") in steps.trace[6:]


class Relay:
    """Receivers that go on until everything has come, and then stop each other."""

    def __init__(self, mailbox: InMemoryMailbox[int, None], total: int, receivers: int) -> None:
        self.mailbox = mailbox
        self.total = total
        self.tokens = [Token() for _ in range(receivers)]
        self.received: list[int] = []

    def receive(self, number: int, batch: int) -> None:
        token = self.tokens[number]
        while not token.stopped:
            for message in self.mailbox.receive(max_messages=batch, wait_time_seconds=WAIT, token=token):
                self.received.append(message.body)
                message.acknowledge()
            if len(self.received) >= self.total:
                for each in self.tokens:
                    each.stop()

    def send(self, first: int, count: int) -> None:
        self.mailbox.send(first)
        self.mailbox.send_many(range(first + 1, first + count))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("block", range(4))
def test_messages_are_lost_in_no_order_of_two_receivers_and_two_senders(block: int, batch: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        steps, mailbox = stepped()
        relay = Relay(mailbox, 6, receivers=2)
        for number in range(2):
            steps.start_thread(functools.partial(relay.receive, number, batch), f"receiver-{number}")
            steps.start_thread(functools.partial(relay.send, number * 3, 3), f"sender-{number}")

        steps.run(seed=seed)

        assert sorted(relay.received) == list(range(6)), f"seed {seed}"
        assert mailbox.approximate_count() == 0


@pytest.mark.parametrize("block", range(4))
def test_a_receiver_that_is_stopped_passes_on_what_it_was_woken_for(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        steps, mailbox = stepped()
        relay = Relay(mailbox, 1, receivers=2)
        for number in range(2):
            steps.start_thread(functools.partial(relay.receive, number, 1), f"receiver-{number}")
        steps.start_thread(relay.tokens[0].stop, "stopper")
        steps.start_thread(functools.partial(mailbox.send, 1), "sender")

        steps.run(seed=seed)

        assert relay.received == [1], f"seed {seed}"


def test_a_stop_of_one_receiver_leaves_the_other_asleep() -> None:
    steps, mailbox = stepped()
    stopped, other = Token(), Token()
    ended: Ticket[list[Message[int, None]]] = Ticket(steps)
    asleep: list[Message[int, None]] = []
    steps.start_thread(
        lambda: ended.complete(mailbox.receive(wait_time_seconds=WAIT, token=stopped)),
        "stopped",
    )
    steps.start_thread(lambda: asleep.extend(mailbox.receive(wait_time_seconds=WAIT, token=other)), "asleep")
    seen: list[int] = []

    def stop_then_send() -> None:
        stopped.stop()
        assert ended.wait() == []
        seen.append(len(steps.trace))
        mailbox.send(1)

    steps.start_thread(stop_then_send, "stopper")

    # Five steps bring a receive to its gate: start, two looks, and its timer's two locks.
    steps.run(["stopped"] * 5 + ["asleep"] * 5)

    assert [message.body for message in asleep] == [1]
    assert {name for name, _ in steps.trace[10 : seen[0]]} == {"stopped", "stopper"}


@pytest.mark.parametrize("block", range(4))
def test_token_stop_of_one_receiver_ends_the_other_in_no_order(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        steps, mailbox = stepped()
        stopped, other = Token(), Token()
        ended: Ticket[list[Message[int, None]]] = Ticket(steps)
        awake: Ticket[list[Message[int, None]]] = Ticket(steps)

        def receive(
            token: Token,
            ticket: Ticket[list[Message[int, None]]],
            mailbox: InMemoryMailbox[int, None] = mailbox,
        ) -> None:
            ticket.complete(mailbox.receive(wait_time_seconds=WAIT, token=token))

        def stop_then_send(
            mailbox: InMemoryMailbox[int, None] = mailbox,
            stopped: Token = stopped,
            ended: Ticket[list[Message[int, None]]] = ended,
            awake: Ticket[list[Message[int, None]]] = awake,
        ) -> None:
            stopped.stop()
            assert ended.wait() == []
            assert not awake.is_ready()
            mailbox.send(1)

        steps.start_thread(functools.partial(receive, stopped, ended), "stopped")
        steps.start_thread(functools.partial(receive, other, awake), "asleep")
        steps.start_thread(stop_then_send, "stopper")

        steps.run(seed=seed)

        assert [message.body for message in awake.wait(0)] == [1], f"seed {seed}"


@pytest.mark.parametrize("kind", ["in memory", "in sqlite"])
def test_receive_that_waits_for_dead_letters_is_woken_by_one(clock: FakeClock, tmp_path: Path, kind: str) -> None:
    mailbox: Mailbox[int, Any] = (
        InMemoryMailbox("jobs", clock=clock)
        if kind == "in memory"
        else SqliteMailbox(tmp_path / "mail.db", "jobs", clock=clock)
    )
    mailbox.send(1)
    [message] = mailbox.receive()
    token = Token()
    received: Ticket[Any] = Ticket()
    clock.blocking.start_thread(
        lambda: received.complete(mailbox.dead_letters.receive(wait_time_seconds=WAIT, token=token)), "receiver"
    )
    clock.advance(0.5)

    message.dead_letter("for the test")

    received.wait_ready(60)
    token.stop()
    letters = received.wait(60)
    mailbox.close()
    assert [letter.body.body for letter in letters] == [1]


def test_a_mailbox_that_is_rung_without_end_while_it_is_closed_leaves_no_thread_behind(tmp_path: Path) -> None:
    path, clock = tmp_path / "mail.db", FakeClock()
    closing: SqliteMailbox[int, Any] = SqliteMailbox(path, "jobs", clock=clock)
    ringing: SqliteMailbox[int, Any] = SqliteMailbox(path, "jobs", clock=clock)
    with closing._store.lock:
        closing._store.notifier.listen()
    notifier = closing._store.notifier._socket
    assert notifier is not None

    # As in close(), with the lock held: the bell's thread waits for the lock, so what is rung piles up.
    with closing._store.lock:
        for _ in range(2_000):
            ringing._store.notifier.notify("jobs")
        closing._store.notifier.close()
    closing.close()
    ringing.close()

    left = wait_no_threads()
    if left:
        notifier.shutdown(socket.SHUT_RDWR)  # so that the tests after this one do not suffer
    assert left == []


# Its clock stands still, so it does not look again by itself: only the bell can wake it.
CHILD = """
import sys
from loopwarden.mailbox import SqliteMailbox
from loopwarden.testing import FakeClock

def receive():
    [message] = mailbox.receive(wait_time_seconds=20)
    print(message.body, flush=True)
    message.acknowledge()

clock = FakeClock()
mailbox = SqliteMailbox(sys.argv[1], "jobs", clock=clock)
receiver = clock.blocking.start_thread(receive, "receiver")
clock.advance(0)
print("waiting", flush=True)
receiver.join()
mailbox.close()
"""


def test_receive_that_waits_in_another_process_is_woken_by_a_send(tmp_path: Path) -> None:
    path = tmp_path / "mail.db"
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read(output: IO[str]) -> None:
        for sequences in output:
            lines.put(sequences.strip())

    with (
        contextlib.closing(SqliteMailbox[Any, Any](path, "jobs", clock=FakeClock())) as mailbox,
        subprocess.Popen([sys.executable, "-P", "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True) as child,
    ):
        assert child.stdout is not None
        SYSTEM.start_thread(functools.partial(read, child.stdout), "reader")
        try:
            assert lines.get(timeout=60) == "waiting"
            mailbox.send("from the parent")

            assert lines.get(timeout=60) == "from the parent"
            assert child.wait(timeout=60) == 0
        finally:
            child.kill()
        assert mailbox.approximate_count() == 0
