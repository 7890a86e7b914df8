"""What becomes of messages when a worker dies, hangs, or is stopped: every row of the recovery table, and worse."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

from loopwarden import LoopActor, ShutdownRequest, Ticket
from loopwarden.actors import MailboxLoop
from loopwarden.mailbox import InMemoryMailbox, Message, SqliteMailbox
from loopwarden.testing import FakeClock, Hold

if TYPE_CHECKING:
    from pathlib import Path

# Its time stands still, so that no lease ends while it lives, and is later than all leases of the lives before.
EXITING_WORKER = """
import os, sys
from loopwarden.actors import MailboxLoop
from loopwarden.mailbox import SqliteMailbox
from loopwarden.testing import FakeClock

clock = FakeClock()
clock.advance(1000 * int(sys.argv[2]))
jobs = SqliteMailbox(sys.argv[1], "jobs", max_deliveries=3, clock=clock)

def handle(message):
    print(message.body, flush=True)
    if message.body == "poison":
        os._exit(9)

MailboxLoop(jobs, handle, prefetch=10, clock=clock).run(max_iterations=8, visibility_timeout=300, wait_time_seconds=0)
jobs.close()
"""


def test_message_that_kills_the_process_is_a_dead_letter_and_its_batch_mates_are_not(tmp_path: Path) -> None:
    path = tmp_path / "mail.db"
    jobs: SqliteMailbox[str, None] = SqliteMailbox(path, "jobs", max_deliveries=3, clock=FakeClock())
    jobs.send_many(["a", "b", "poison", "c", "d"])

    worked_on: list[str] = []
    exits: list[int] = []
    while jobs.approximate_count():
        ended = subprocess.run(
            [sys.executable, "-P", "-c", EXITING_WORKER, str(path), str(len(exits))],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        worked_on += ended.stdout.split()
        exits.append(ended.returncode)

    assert [letter.body for letter in jobs.dead_letters.peek()] == ["poison"]
    assert [letter.delivery_count for letter in jobs.dead_letters.peek()] == [3]
    assert exits.count(9) == 3
    assert worked_on.count("poison") == 3
    assert {"a", "b", "c", "d"} <= set(worked_on)
    jobs.close()


def test_shutdown_completes_the_message_in_hand_returns_the_unstarted_and_leaves_the_rest() -> None:
    clock = FakeClock()
    jobs: InMemoryMailbox[str, None] = InMemoryMailbox("jobs", clock=clock)
    jobs.send_many(["in flight", "not started"])
    with Hold() as hold:
        ref = LoopActor.start(MailboxLoop(jobs, hold, prefetch=2, clock=clock), name="one", clock=clock)
        hold.wait_reached()
        stopped = ref.send(ShutdownRequest(timeout=10.0))
        [back] = jobs.receive(wait_time_seconds=20)  # waits until the stop has given it back
        assert not hold.is_released
    assert stopped.wait(timeout=60).clean_shutdown
    back.put_back()
    jobs.send("never received")

    others: list[str] = []
    MailboxLoop(jobs, lambda message: others.append(message.body), clock=clock).run(max_iterations=2)

    assert others == ["not started", "never received"]
    assert jobs.approximate_count() == 0


def test_a_lease_that_ends_during_a_long_shutdown_is_redelivered_elsewhere_and_the_late_acknowledge_refused() -> None:
    clock = FakeClock()
    jobs: InMemoryMailbox[str, None] = InMemoryMailbox("jobs", clock=clock)
    jobs.send("slow")
    late: Ticket[bool] = Ticket()
    elsewhere: list[Message[Any, Any]] = []
    with Hold() as hold:

        def handle(message: Message[Any, Any]) -> None:
            hold()
            late.complete(message.is_finalized)

        loop = MailboxLoop(jobs, handle, visibility_timeout=300, longest_handler=30, clock=clock)
        ref = LoopActor.start(loop, name="slow", clock=clock)
        hold.wait_reached()
        stopped = ref.send(ShutdownRequest(timeout=100.0))  # the lease lasts longer, so it is not extended
        clock.advance(300)  # and is not renewed, because the handler has been silent for too long

        elsewhere += jobs.receive()

    assert not stopped.wait(timeout=60).clean_shutdown
    ref.ended.wait(timeout=60)
    assert late.wait(timeout=60) is False
    assert [message.delivery_count for message in elsewhere] == [2]
    assert jobs.approximate_count() == 1  # the late acknowledge has not touched it
    elsewhere[0].acknowledge()
    assert jobs.approximate_count() == 0
