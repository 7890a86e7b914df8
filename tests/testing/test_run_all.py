from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.mailbox import InMemoryMailbox
from loopwarden.testing import run_all

if TYPE_CHECKING:
    from collections.abc import Generator

    from loopwarden import Message
    from loopwarden.testing import FakeClock


def give_back(message: Message[Any, Any]) -> None:
    message.nack()


def divide(message: Message[int, Any]) -> float:
    return 1 / message.body


def fates(mailbox: Any, handler: Any, **options: Any) -> list[tuple[Any, str, int]]:
    return [(each.body, each.fate, each.calls) for each in run_all(mailbox, handler, **options)]


def test_run_all_tells_what_became_of_each_message(clock: FakeClock) -> None:
    jobs: InMemoryMailbox[int, Any] = InMemoryMailbox("jobs", clock=clock, max_deliveries=3)
    sent = jobs.send_many([1, 0, 2])

    def handle(message: Message[int, Any]) -> None:
        if message.body == 2 and message.delivery_count == 1:
            raise ValueError("not yet")
        _ = 1 / message.body

    outcomes = run_all(jobs, handle)

    assert [(each.id, each.body, each.fate, each.calls) for each in outcomes] == [
        (sent[0], 1, "done", 1),
        (sent[1], 0, "dead", 3),
        (sent[2], 2, "done", 2),
    ]
    assert [type(each.error) for each in outcomes] == [type(None), ZeroDivisionError, type(None)]
    assert jobs.approximate_count() == 0
    assert jobs.dead_letters.get(sent[1]) is not None


def test_run_all_works_off_what_the_handler_sends(jobs: InMemoryMailbox[Any, Any]) -> None:
    jobs.send(3)

    def handle(message: Message[int, Any]) -> None:
        if message.body:
            jobs.send(message.body - 1)

    assert fates(jobs, handle) == [(3, "done", 1), (2, "done", 1), (1, "done", 1), (0, "done", 1)]


def test_run_all_respects_what_the_handler_has_done_with_the_message(jobs: InMemoryMailbox[Any, Any]) -> None:
    jobs.send_many(["ack", "dead"])

    def handle(message: Message[str, Any]) -> None:
        if message.body == "ack":
            message.acknowledge()
        else:
            message.dead_letter("no use")

    assert fates(jobs, handle) == [("ack", "done", 1), ("dead", "dead", 1)]


def test_run_all_leaves_what_it_has_tried_often_enough_where_it_was(jobs: InMemoryMailbox[Any, Any]) -> None:
    jobs.send_many([0, 1])

    found = fates(jobs, divide, attempts=2)
    [message] = jobs.receive()

    assert found == [(0, "failed", 2), (1, "done", 1)]
    assert (message.body, message.delivery_count) == (0, 3)
    message.acknowledge()


@pytest.mark.parametrize("max_deliveries", [None, 5])
def test_run_all_leaves_what_the_handler_puts_back_where_it_was(max_deliveries: int | None, clock: FakeClock) -> None:
    jobs: InMemoryMailbox[str, Any] = InMemoryMailbox("jobs", clock=clock, max_deliveries=max_deliveries)
    jobs.send_many(["not mine", "mine"])

    def handle(message: Message[str, Any]) -> None:
        if message.body == "not mine":
            message.put_back()

    assert fates(jobs, handle) == [("not mine", "failed", 1), ("mine", "done", 1)]
    [message] = jobs.receive()
    assert message.delivery_count == 1
    message.acknowledge()


def test_run_all_tries_what_the_handler_gives_back_until_it_is_a_dead_letter(jobs: InMemoryMailbox[Any, Any]) -> None:
    jobs.send("again")

    assert fates(jobs, give_back) == [("again", "dead", 5)]


def test_run_all_does_not_wait_for_what_is_delayed(jobs: InMemoryMailbox[Any, Any]) -> None:
    jobs.send("later", delay=60)

    assert run_all(jobs, lambda _: None) == []
    assert jobs.approximate_count() == 1


def test_run_all_tries_again_what_its_handler_was_too_slow_for(
    jobs: InMemoryMailbox[Any, Any], clock: FakeClock
) -> None:
    jobs.send("slow")

    def handle(message: Message[str, Any]) -> None:
        if message.delivery_count == 1:
            clock.advance(301)
        if message.delivery_count == 2:
            clock.advance(301)
            raise ValueError("too late anyway")

    assert fates(jobs, handle) == [("slow", "done", 3)]


def test_run_all_raises_what_ends_a_loop_and_gives_everything_back(jobs: InMemoryMailbox[Any, Any]) -> None:
    jobs.send_many(["not mine", "deadly"])

    def handle(message: Message[str, Any]) -> None:
        if message.body == "deadly":
            raise SystemExit("crash")
        message.put_back()

    with pytest.raises(SystemExit):
        run_all(jobs, handle)

    left = [*jobs.receive(), *jobs.receive()]
    assert [(each.body, each.delivery_count) for each in left] == [("not mine", 1), ("deadly", 2)]


def test_run_all_of_an_empty_mailbox_is_nothing(jobs: InMemoryMailbox[Any, Any]) -> None:
    assert run_all(jobs, lambda _: None) == []


def test_run_all_refuses_a_handler_that_would_do_nothing(jobs: InMemoryMailbox[Any, Any]) -> None:
    def generator(message: object) -> Generator[None, None, None]:
        yield

    jobs.send("a body")

    with pytest.raises(TypeError, match="plain function"):
        run_all(jobs, generator)


def test_run_all_runs_coroutines(jobs: InMemoryMailbox[Any, Any]) -> None:
    seen: list[Any] = []

    async def handle(message: Any) -> None:
        await asyncio.sleep(0)
        seen.append(message.body)
        if message.body == "bad":
            raise ValueError

    jobs.send_many(["good", "bad"])

    assert [outcome.fate for outcome in run_all(jobs, handle, attempts=1)] == ["done", "failed"]
    assert seen == ["good", "bad"]


def test_run_all_takes_a_handler_that_returns_a_coroutine_as_failing(jobs: InMemoryMailbox[Any, Any]) -> None:
    async def coroutine() -> None: ...

    jobs.send("a body")

    [outcome] = run_all(jobs, lambda _: coroutine(), attempts=1)

    assert outcome.fate == "failed"
    assert isinstance(outcome.error, TypeError)
