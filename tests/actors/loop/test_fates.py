"""What became of messages is told of the end of a loop, not of its life."""

from __future__ import annotations

from typing import Any

import pytest

from loopwarden import HealthCheckRequest, LoopActor, ShutdownRequest
from loopwarden.actors import AbandonRequest, MailboxLoop, MessageFate, RecallRequest
from loopwarden.actors.loop._health import Fate, merged_fates
from loopwarden.mailbox import InMemoryMailbox, Message
from loopwarden.testing import FakeClock, Hold

Box = InMemoryMailbox[Any, Any]


def test_a_worker_that_was_replaced_long_before_the_end_is_no_fate(jobs: Box, clock: FakeClock) -> None:
    jobs.send("hangs")
    with Hold() as hold:
        loop = MailboxLoop(jobs, lambda m: hold(m) if m.delivery_count == 1 else None, concurrency=2, clock=clock)
        ref = LoopActor.start(loop, clock=clock)
        hold.wait_reached()
        busy = next(each for each in ref.send(HealthCheckRequest()).wait(60).workers if each.in_hand)
        ref.send(AbandonRequest(worker=busy.worker)).wait(60)
        result = ref.send(ShutdownRequest(timeout=60)).wait(60)

    assert (result.fates, result.clean_shutdown) == ((), True)


def test_messages_of_a_recalled_worker_have_no_fate(jobs: Box, clock: FakeClock) -> None:
    first, _ = jobs.send_many(["first", "second"])
    second = Hold()
    with Hold() as hold, second:
        loop = MailboxLoop(jobs, lambda m: hold(m) if m.id == first else second(m), prefetch=2, clock=clock)
        ref = LoopActor.start(loop, clock=clock)
        hold.wait_reached()
        [worker] = ref.send(HealthCheckRequest()).wait(60).workers
        assert ref.send(RecallRequest(worker=worker.worker)).wait(60)
        hold.release()
        second.wait_reached()  # it was given back, and received again
        ended = ref.send(ShutdownRequest(timeout=60))
        ref.send(HealthCheckRequest()).wait(60)

    assert [fate.fate for fate in ended.wait(60).fates] == ["done"]


def test_messages_of_an_abandoned_loop_have_a_fate(jobs: Box, clock: FakeClock) -> None:
    jobs.send_many(["first", "second"])
    with Hold() as hold:
        ref = LoopActor.start(MailboxLoop(jobs, hold, prefetch=2, clock=clock), clock=clock)
        hold.wait_reached()
        ref.send(AbandonRequest(reason="hangs")).wait(60)
        result = ref.send(ShutdownRequest(timeout=60)).wait(60)

        assert [fate.fate for fate in result.fates] == ["abandoned", "returned"]
        assert (result.abandoned, result.stack is not None) == (True, True)


@pytest.mark.parametrize("how", ["nack", "put_back"])
def test_message_that_its_handler_returns_has_the_fate_returned_and_not_done(
    jobs: Box, clock: FakeClock, how: str
) -> None:
    jobs.send("no")

    def handle(message: Message[Any, Any]) -> None:
        hold(message)
        getattr(message, how)()

    with Hold() as hold:
        ref = LoopActor.start(MailboxLoop(jobs, handle, clock=clock), clock=clock)
        hold.wait_reached()
        ended = ref.send(ShutdownRequest(timeout=60))
        ref.send(HealthCheckRequest()).wait(60)

    assert [fate.fate for fate in ended.wait(60).fates] == ["returned"]
    assert jobs.approximate_count() == 1


def test_message_that_was_returned_and_then_done_by_another_worker_has_one_fate() -> None:
    told: list[tuple[str, Fate]] = [
        ("a", "returned"),
        ("b", "extended"),
        ("a", "done"),
        ("b", "returned"),
        ("c", "abandoned"),
    ]
    fates = [MessageFate(message_id=each, fate=fate) for each, fate in told]

    merged = merged_fates(fates)

    assert [(each.message_id, each.fate) for each in merged] == [("a", "done"), ("b", "extended"), ("c", "abandoned")]
