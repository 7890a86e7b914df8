"""What became of messages is told of the end of a loop, not of its life."""

from __future__ import annotations

from typing import Any

from loopwarden import HealthCheckRequest, LoopActor, ShutdownRequest
from loopwarden.actors import AbandonRequest, MailboxLoop, RecallRequest
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.testing import FakeClock, Hold

Box = InMemoryMailbox[Any, Any]


def test_a_worker_that_was_replaced_long_before_the_end_is_no_fate(jobs: Box, clock: FakeClock) -> None:
    jobs.send("hangs")
    with Hold() as hold:
        loop = MailboxLoop(jobs, lambda m: hold(m) if m.delivery_count == 1 else None, concurrency=2, clock=clock)
        ref = LoopActor.start(loop, clock=clock)
        hold.wait_reached()
        busy = next(each for each in ref.send(HealthCheckRequest()).wait(5).workers if each.in_hand)
        ref.send(AbandonRequest(worker=busy.worker)).wait(5)
        result = ref.send(ShutdownRequest(timeout=60)).wait(5)

    assert (result.fates, result.clean_shutdown) == ((), True)


def test_what_a_recalled_worker_had_is_no_fate(jobs: Box, clock: FakeClock) -> None:
    first, _ = jobs.send_many(["first", "second"])
    second = Hold()
    with Hold() as hold, second:
        loop = MailboxLoop(jobs, lambda m: hold(m) if m.id == first else second(m), prefetch=2, clock=clock)
        ref = LoopActor.start(loop, clock=clock)
        hold.wait_reached()
        [worker] = ref.send(HealthCheckRequest()).wait(5).workers
        assert ref.send(RecallRequest(worker=worker.worker)).wait(5)
        hold.release()
        second.wait_reached()  # it was given back, and received again
        ended = ref.send(ShutdownRequest(timeout=60))
        ref.send(HealthCheckRequest()).wait(5)

    assert [fate.fate for fate in ended.wait(5).fates] == ["done"]


def test_what_is_given_up_with_the_loop_is(jobs: Box, clock: FakeClock) -> None:
    jobs.send_many(["first", "second"])
    with Hold() as hold:
        ref = LoopActor.start(MailboxLoop(jobs, hold, prefetch=2, clock=clock), clock=clock)
        hold.wait_reached()
        ref.send(AbandonRequest(reason="hangs")).wait(5)
        result = ref.send(ShutdownRequest(timeout=60)).wait(5)

        assert [fate.fate for fate in result.fates] == ["abandoned", "returned"]
        assert (result.abandoned, result.stack is not None) == (True, True)
