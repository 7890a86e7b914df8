"""The server has done what it was asked for, and the connection ends before it has said so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import pytest
from postgres_elsewhere import elsewhere_of

from loopwarden.errors import MailboxConnectionError, ReceiptHandleExpiredError
from loopwarden.mailbox import PostgresMailbox
from loopwarden.mailbox.postgres._connection import ANSWER_SECONDS, Line, LostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from postgres_servers import PostgresServer

    from loopwarden.mailbox import Message

Jobs = PostgresMailbox[Any, Any]


@final
class LosingAnswers:
    """Ends a connection when the server has done what a test names, and before anybody has heard of it."""

    def __init__(self) -> None:
        self._losing: dict[bytes, int] = {}
        #: How many answers are lost.
        self.lost = 0

    def lose(self, procedure: str, times: int = 1) -> None:
        self._losing[f"loopwarden.{procedure}(".encode()] = times

    def call(self, line: Line, query: bytes, given: Sequence[Any], patience: float = ANSWER_SECONDS) -> Any:
        answer = _call(line, query, given, patience)
        for procedure, times in self._losing.items():
            if times and procedure in query:
                self._losing[procedure] = times - 1
                self.lost += 1
                line.close()
                raise LostError("the connection ended")
        return answer


_call = Line.call


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> LosingAnswers:
    answers = LosingAnswers()

    def call(line: Line, query: bytes, given: Sequence[Any], patience: float = ANSWER_SECONDS) -> Any:
        return answers.call(line, query, given, patience)

    monkeypatch.setattr(Line, "call", call)
    return answers


@pytest.fixture
def jobs(postgres: PostgresServer) -> Iterator[Jobs]:
    jobs: Jobs = PostgresMailbox(postgres.url, "jobs", max_deliveries=3)
    yield jobs
    jobs.close()


@pytest.mark.parametrize("count", [1, 2])
def test_send_whose_answer_is_lost_is_told_and_done_once(jobs: Jobs, answers: LosingAnswers, count: int) -> None:
    answers.lose("put")
    with pytest.raises(MailboxConnectionError, match=r"127\.0\.0\.1"):
        jobs.send_many(["a", "b"][:count])

    assert [message.body for message in jobs.receive(max_messages=10)] == ["a", "b"][:count]


@pytest.mark.parametrize("times", [1, 3])
def test_send_with_a_dedup_id_is_tried_again_and_done_once_though_its_answer_is_lost(
    jobs: Jobs, answers: LosingAnswers, times: int
) -> None:
    answers.lose("put", times)

    sent = jobs.send("a", dedup_id="a")

    assert [message.id for message in jobs.receive(max_messages=10)] == [sent]
    assert answers.lost == times


def test_send_that_was_told_as_lost_can_be_made_again_with_the_same_dedup_id(
    jobs: Jobs, answers: LosingAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    again: Any = jobs._store.again
    monkeypatch.setitem(again.__kwdefaults__, "tries", 0)
    answers.lose("put", 2)
    with pytest.raises(MailboxConnectionError):
        jobs.send("a", dedup_id="a")

    sent = jobs.send("a", dedup_id="a")

    assert [message.id for message in jobs.receive(max_messages=10)] == [sent]


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
    ("procedure", "settle", "left"),
    [
        ("acknowledge", acknowledge, (0, 0, 0)),
        ("give_back", nack, (1, 0, 0)),
        ("give_back", put_back, (1, 0, 0)),
        ("dead_letter", dead_letter, (0, 0, 1)),
        ("extend", extend, (0, 1, 0)),
    ],
    ids=["acknowledge", "nack", "put_back", "dead_letter", "extend"],
)
def test_settlement_is_done_once_though_its_answer_is_lost(
    jobs: Jobs, answers: LosingAnswers, procedure: str, settle: Callable[..., None], left: tuple[int, int, int]
) -> None:
    jobs.send("a")
    [message] = jobs.receive()

    answers.lose(procedure)
    settle(message)

    stats = jobs.stats()
    assert ((stats.ready, stats.leased, stats.dead), answers.lost) == (left, 1)


def test_nack_whose_answer_is_lost_counts_one_delivery(jobs: Jobs, answers: LosingAnswers) -> None:
    jobs.send("a")
    answers.lose("give_back")
    jobs.receive()[0].nack()

    [message] = jobs.receive()

    assert message.delivery_count == 2


def test_many_acknowledgements_are_done_once_though_their_answer_is_lost(jobs: Jobs, answers: LosingAnswers) -> None:
    jobs.send_many(range(10))
    held = jobs.receive(max_messages=10)
    answers.lose("acknowledge")

    assert jobs.acknowledge_many(held) == []

    assert jobs.approximate_count() == 0


def test_settlement_after_a_lost_answer_is_refused_if_the_delivery_was_over_before(
    jobs: Jobs, answers: LosingAnswers
) -> None:
    jobs.send("a")
    [late] = jobs.receive(visibility_timeout=0.001)
    [message] = jobs.receive(wait_time_seconds=20)

    answers.lose("acknowledge")
    with pytest.raises(ReceiptHandleExpiredError):
        late.acknowledge()

    message.acknowledge()


def test_receive_whose_answer_is_lost_gives_the_messages_in_their_order_and_uncounted(
    jobs: Jobs, answers: LosingAnswers
) -> None:
    jobs.send_many(range(5))
    answers.lose("receive")

    found = jobs.receive(max_messages=10)

    assert [(each.body, each.delivery_count) for each in found] == [(number, 1) for number in range(5)]
    assert answers.lost == 1


def test_receive_whose_answer_was_lost_keeps_what_it_got_then_over_the_next_sign_of_life(
    jobs: Jobs, answers: LosingAnswers
) -> None:
    jobs.send_many(range(5))
    answers.lose("receive")
    found = jobs.receive(max_messages=10)
    line = jobs._store.connections.line()

    jobs._store.beat(line)

    line.close()
    assert jobs.receive() == []
    assert jobs.acknowledge_many(found) == []


def test_receive_whose_answers_are_all_lost_is_told_and_leaves_the_messages_in_the_mailbox(
    jobs: Jobs, answers: LosingAnswers
) -> None:
    jobs.send_many(range(5))
    answers.lose("receive", 2)

    with pytest.raises(MailboxConnectionError):
        jobs.receive(max_messages=10)

    found = jobs.receive(max_messages=10)
    assert [(each.body, each.delivery_count) for each in found] == [(number, 1) for number in range(5)]


def test_receive_that_comes_after_its_messages_were_looked_for_is_undone_with_the_next_sign_of_life(
    jobs: Jobs, postgres: PostgresServer
) -> None:
    jobs.send("a")
    store, box, receipt = jobs._store, jobs._queue._box, 4711
    line = store.connections.line()
    store.put_back_lost(box, receipt)
    store.beat(line)
    query = "SELECT kind FROM loopwarden.receive(%s, NULL, 1, 300000, %s, %s, 5, '')"
    assert postgres.execute(query, box, receipt, store.holder) == [("message",)]  # which no process knows of

    store.beat(line)

    line.close()
    with elsewhere_of(postgres) as elsewhere:
        assert [(message.body, message.delivery_count) for message in elsewhere.receive()] == [("a", 1)]


def test_redrive_whose_answer_is_lost_sends_the_letter_once(jobs: Jobs, answers: LosingAnswers) -> None:
    jobs.send("a")
    jobs.receive()[0].dead_letter("broken")
    answers.lose("redrive")

    jobs.dead_letters.redrive()

    stats = jobs.stats()
    assert (stats.ready, stats.dead) == (1, 0)


def test_letters_whose_receive_was_lost_can_be_received_by_others_at_once(
    jobs: Jobs, answers: LosingAnswers, postgres: PostgresServer
) -> None:
    jobs.send("a")
    jobs.receive()[0].dead_letter("broken")
    answers.lose("receive", 2)
    with pytest.raises(MailboxConnectionError):
        jobs.dead_letters.receive(visibility_timeout=300)

    with elsewhere_of(postgres) as elsewhere:
        found = elsewhere.dead_letters.receive()

    assert [(letter.body.body, letter.delivery_count) for letter in found] == [("a", 1)]
