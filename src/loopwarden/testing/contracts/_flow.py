"""Delays, duplicates, bounds, waiting and replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from loopwarden.errors import (
    MailboxFullError,
    ReplyNotAvailableError,
)
from loopwarden.mailbox import Token
from loopwarden.testing.contracts._background import first_of
from loopwarden.testing.contracts._fixtures import MailboxFixtures, bodies

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.testing._fake_clock import FakeClock
    from loopwarden.testing.contracts._fixtures import Box

__all__ = ["Flow"]


def make_bounded(make: Callable[..., Box], max_size: int) -> Box:
    """Return a mailbox with a bound; a back end without bounds is not asked for one, because it has to refuse."""
    if not make("unbounded").capabilities.bounded:
        pytest.skip("this back end has no bound")
    return make(max_size=max_size)


class Flow(MailboxFixtures):
    """Delays, duplicates, bounds, waiting and replies."""

    # Flow.

    def test_a_delayed_message_becomes_visible_after_its_delay(self, mailbox: Box, clock: FakeClock) -> None:
        if not mailbox.capabilities.delay:
            pytest.skip("this back end cannot delay")
        mailbox.send("delayed", delay=10)
        mailbox.send("at once")

        assert bodies(mailbox.receive(max_messages=10)) == ["at once"]
        clock.advance(10)
        [message] = mailbox.receive(max_messages=10)
        assert (message.body, message.delivery_count) == ("delayed", 1)

    def test_a_second_message_with_the_same_dedup_id_is_not_sent(self, mailbox: Box, clock: FakeClock) -> None:
        if not mailbox.capabilities.dedup:
            pytest.skip("this back end cannot tell duplicates")
        first = mailbox.send("a", dedup_id="order-1")
        [message] = mailbox.receive()
        message.acknowledge()

        assert mailbox.send("a again", dedup_id="order-1") == first
        assert list(mailbox.receive()) == []
        assert mailbox.send("b", dedup_id="order-2") != first
        clock.advance(301)
        assert mailbox.send("a much later", dedup_id="order-1") != first

    def test_a_full_mailbox_refuses_and_says_how_much_it_holds(self, make: Callable[..., Box]) -> None:
        mailbox = make_bounded(make, 2)
        mailbox.send_many(["a", "b"])

        with pytest.raises(MailboxFullError) as caught:
            mailbox.send("c")
        with pytest.raises(MailboxFullError):
            mailbox.send_many(["c", "d"])

        assert caught.value.max_size == 2
        assert mailbox.approximate_count() == 2

    def test_a_send_that_waits_for_room_is_let_in_when_there_is_some(
        self, make: Callable[..., Box], clock: FakeClock
    ) -> None:
        mailbox = make_bounded(make, 1)
        mailbox.send("a")
        sent = self.in_background(clock, lambda: mailbox.send("b", timeout=60))
        clock.settle()

        [message] = mailbox.receive()
        message.acknowledge()

        sent.wait(self.patience)
        assert bodies(mailbox.receive()) == ["b"]

    def test_a_send_that_waits_too_long_for_room_is_refused(self, make: Callable[..., Box], clock: FakeClock) -> None:
        mailbox = make_bounded(make, 1)
        mailbox.send("a")
        sent = self.in_background(clock, lambda: mailbox.send("b", timeout=60))
        clock.advance(60)

        with pytest.raises(MailboxFullError):
            sent.wait(self.patience)

    # Waiting.

    def test_a_receive_that_waits_is_woken_by_a_send(self, mailbox: Box, clock: FakeClock) -> None:
        received = self.in_background(clock, lambda: mailbox.receive(wait_time_seconds=20))
        clock.settle()

        mailbox.send("at last")

        assert bodies(received.wait(self.patience)) == ["at last"]

    def test_a_receive_that_waits_returns_nothing_when_its_time_is_over(self, mailbox: Box, clock: FakeClock) -> None:
        received = self.in_background(clock, lambda: mailbox.receive(wait_time_seconds=20))
        clock.advance(20)

        assert list(received.wait(self.patience)) == []

    def test_a_receive_that_waits_gets_a_message_whose_lease_ends(self, mailbox: Box, clock: FakeClock) -> None:
        mailbox.send("expiring")
        mailbox.receive(visibility_timeout=5)
        received = self.in_background(clock, lambda: mailbox.receive(wait_time_seconds=20))
        clock.settle()

        clock.advance(5)

        assert bodies(received.wait(self.patience)) == ["expiring"]

    def test_a_receive_that_waits_gets_a_message_that_was_leased_while_it_waited(
        self, mailbox: Box, clock: FakeClock
    ) -> None:
        receives = [
            self.in_background(clock, lambda: mailbox.receive(wait_time_seconds=20, visibility_timeout=5))
            for _ in range(2)
        ]
        clock.settle()
        mailbox.send("leased to one of them")
        taken = first_of(receives).wait(self.patience)
        [waiting] = [each for each in receives if each is not taken]  # back ends need not be fair
        clock.settle()

        clock.advance(5)

        assert bodies(waiting.wait(self.patience)) == ["leased to one of them"]

    def test_a_stopped_token_wakes_its_receive_and_leaves_the_others_asleep(
        self, mailbox: Box, clock: FakeClock
    ) -> None:
        token, other = Token(), Token()
        stopped = self.in_background(clock, lambda: mailbox.receive(wait_time_seconds=20, token=token))
        clock.settle()
        asleep = self.in_background(clock, lambda: mailbox.receive(wait_time_seconds=20, token=other))
        clock.settle()

        token.stop()

        assert list(stopped.wait(self.patience)) == []
        assert not asleep.is_ready()
        mailbox.send("for the other")
        assert bodies(asleep.wait(self.patience)) == ["for the other"]

    def test_a_stopped_token_receives_nothing(self, mailbox: Box) -> None:
        mailbox.send("there")
        token = Token()
        token.stop()

        assert list(mailbox.receive(token=token, wait_time_seconds=20)) == []
        assert mailbox.approximate_count() == 1

    def test_a_nudge_lets_one_receive_return_early(self, mailbox: Box, clock: FakeClock) -> None:
        token = Token()
        token.nudge()

        early = mailbox.receive(token=token, wait_time_seconds=20)
        waiting = self.in_background(clock, lambda: mailbox.receive(token=token, wait_time_seconds=20))
        clock.settle()
        token.nudge()

        assert list(early) == list(waiting.wait(self.patience)) == []

    # Replies.

    def test_a_reply_goes_to_the_mailbox_that_the_sender_named(self, make: Callable[..., Box]) -> None:
        jobs, replies = make("jobs"), make("replies")
        jobs.send("question", reply_to=replies)
        jobs.send("other question", reply_to="replies")
        questions = list(jobs.receive(max_messages=2))

        for question in questions:
            question.reply(f"answer to {question.body}")

        assert [question.reply_to for question in questions] == ["replies", "replies"]
        answers = replies.receive(max_messages=10)
        assert bodies(answers) == ["answer to question", "answer to other question"]
        assert [answer.headers["in-reply-to"] for answer in answers] == [question.id for question in questions]

    def test_a_redriven_message_can_still_be_replied_to(self, make: Callable[..., Box]) -> None:
        jobs, replies = make("jobs"), make("replies")
        jobs.send("question", reply_to=replies)
        [message] = jobs.receive()
        message.dead_letter("for the test")
        jobs.dead_letters.redrive()

        [again] = jobs.receive()
        again.reply("answer")

        assert bodies(replies.receive()) == ["answer"]

    def test_a_message_without_a_way_back_cannot_be_replied_to(self, mailbox: Box) -> None:
        mailbox.send("statement")
        mailbox.send("lost", reply_to="nowhere")

        for message in mailbox.receive(max_messages=2):
            with pytest.raises(ReplyNotAvailableError) as caught:
                message.reply("answer")
            assert caught.value.message_id == message.id
