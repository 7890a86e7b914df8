"""The server has done what it was asked for, and the connection ends before it has said so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lossy_proxy import LossyProxy

from loopwarden.errors import MailboxConnectionError, ReceiptHandleExpiredError
from loopwarden.mailbox import RedisMailbox
from loopwarden.mailbox.redis._scripts import PREFIX, SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis_servers import Server

    from loopwarden.mailbox import Message

Jobs = RedisMailbox[Any, Any]


@pytest.fixture
def proxy(server: Server) -> Iterator[LossyProxy]:
    for script in SCRIPTS.values():
        server.call("SCRIPT", "LOAD", script.text)
    with LossyProxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def jobs(proxy: LossyProxy) -> Iterator[Jobs]:
    jobs: Jobs = RedisMailbox(proxy.url, "jobs", max_deliveries=3)
    yield jobs
    jobs.close()


@pytest.mark.parametrize("times", [1, 3])
def test_send_is_done_once_though_its_answer_is_lost(jobs: Jobs, proxy: LossyProxy, times: int) -> None:
    proxy.lose_answers("send", times)
    one = jobs.send("one")
    proxy.lose_answers("send", times)
    more = jobs.send_many(["two", "three"])

    found = jobs.receive(max_messages=10)

    assert [(each.id, each.body) for each in found] == list(zip([one, *more], ["one", "two", "three"], strict=True))
    assert proxy.lost == 2 * times


def acknowledge(message: Message[Any, Any]) -> None:
    message.acknowledge()


def nack(message: Message[Any, Any]) -> None:
    message.nack(error="broken")


def put_back(message: Message[Any, Any]) -> None:
    message.put_back()


def dead_letter(message: Message[Any, Any]) -> None:
    message.dead_letter("broken")


def extend(message: Message[Any, Any]) -> None:
    message.extend_visibility(600)


@pytest.mark.parametrize(
    ("script", "settle", "left"),
    [
        ("acknowledge", acknowledge, (0, 0, 0)),
        ("give_back", nack, (1, 0, 0)),
        ("give_back", put_back, (1, 0, 0)),
        ("bury", dead_letter, (0, 0, 1)),
        ("extend", extend, (0, 1, 0)),
    ],
    ids=["acknowledge", "nack", "put_back", "dead_letter", "extend"],
)
def test_settlement_is_done_once_though_its_answer_is_lost(
    jobs: Jobs, proxy: LossyProxy, script: str, settle: Callable[..., None], left: tuple[int, int, int]
) -> None:
    jobs.send("a")
    [message] = jobs.receive()

    proxy.lose_answers(script)
    settle(message)

    stats = jobs.stats()
    assert ((stats.ready, stats.leased, stats.dead), proxy.lost) == (left, 1)


def test_nack_whose_answer_is_lost_counts_one_delivery(jobs: Jobs, proxy: LossyProxy) -> None:
    jobs.send("a")
    proxy.lose_answers("give_back")
    jobs.receive()[0].nack()

    [message] = jobs.receive()

    assert message.delivery_count == 2


def test_settlement_after_a_lost_answer_is_refused_if_the_delivery_was_over_before(
    jobs: Jobs, proxy: LossyProxy
) -> None:
    jobs.send("a")
    [late] = jobs.receive(visibility_timeout=0.001)
    [message] = jobs.receive(wait_time_seconds=20)

    proxy.lose_answers("acknowledge")
    with pytest.raises(ReceiptHandleExpiredError):
        late.acknowledge()

    message.acknowledge()


def test_receive_whose_answer_is_lost_gives_the_messages_in_their_order_and_uncounted(
    jobs: Jobs, proxy: LossyProxy
) -> None:
    jobs.send_many(range(5))
    proxy.lose_answers("receive")

    found = jobs.receive(max_messages=10)

    assert [(each.body, each.delivery_count) for each in found] == [(number, 1) for number in range(5)]
    assert proxy.lost == 1


def test_receive_whose_answer_is_lost_keeps_what_it_got_over_the_next_sign_of_life(
    jobs: Jobs, proxy: LossyProxy
) -> None:
    jobs.send("a")
    proxy.lose_answers("receive")
    [message] = jobs.receive()
    store = jobs._store
    line = store.link.line(PREFIX, 60)

    store.beat(line, PREFIX.rstrip(":"))  # puts back what the lost call has leased

    line.close()
    message.acknowledge()
    assert jobs.approximate_count() == 0


def test_receive_whose_answers_are_all_lost_is_told_and_leaves_the_messages_in_the_mailbox(
    jobs: Jobs, proxy: LossyProxy
) -> None:
    jobs.send_many(range(5))
    proxy.lose_answers("receive", 2)

    with pytest.raises(MailboxConnectionError):
        jobs.receive(max_messages=10)

    found = jobs.receive(max_messages=10)
    assert [(each.body, each.delivery_count) for each in found] == [(number, 1) for number in range(5)]


def test_redrive_whose_answer_is_lost_sends_the_letter_once(jobs: Jobs, proxy: LossyProxy) -> None:
    jobs.send("a")
    jobs.receive()[0].dead_letter("broken")
    proxy.lose_answers("redrive")

    jobs.dead_letters.redrive()

    stats = jobs.stats()
    assert (stats.ready, stats.dead) == (1, 0)


def test_receive_that_waits_hears_of_a_send_though_its_notifier_has_lost_its_connection(
    jobs: Jobs, proxy: LossyProxy, server: Server
) -> None:
    for number in range(20):
        proxy.cut()
        with server.client() as client:
            elsewhere: Jobs = RedisMailbox(client, "jobs")
            elsewhere.send(number)
            elsewhere.close()
        [message] = jobs.receive(wait_time_seconds=20)

        assert message.body == number
        message.acknowledge()
