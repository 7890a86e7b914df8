"""Dead letters: the way of a message that is given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from loopwarden.errors import InvalidParameterError, MailboxClosedError
from loopwarden.mailbox import Token
from loopwarden.testing.contracts._fixtures import MailboxFixtures, bodies

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.testing._fake_clock import FakeClock
    from loopwarden.testing.contracts._fixtures import Box

__all__ = ["DeadLetterRules"]


class DeadLetterRules(MailboxFixtures):
    """Dead letters: the way of a message that is given up."""

    # Dead letters.

    def test_a_message_is_a_dead_letter_when_it_would_be_delivered_once_too_often(
        self, make: Callable[..., Box], clock: FakeClock
    ) -> None:
        mailbox = make(max_deliveries=3)
        sent = mailbox.send({"poison": True}, headers={"trace": "abc"})
        counts: list[int] = []
        for _ in range(3):  # it is never settled: as if the process had died each time
            [message] = mailbox.receive(visibility_timeout=10)
            counts.append(message.delivery_count)
            clock.advance(10)

        assert list(mailbox.receive()) == []
        [letter] = mailbox.dead_letters.peek()
        assert counts == [1, 2, 3]
        assert (letter.message_id, letter.mailbox, letter.body) == (sent, "jobs", {"poison": True})
        assert (letter.delivery_count, letter.raw) == (3, None)
        assert letter.error is None or letter.error.startswith("none was told")  # there was none to tell
        assert letter.headers == {"trace": "abc"}
        assert letter.sent_at < letter.dead_at
        assert mailbox.approximate_count() == 0

    def test_a_dead_letter_has_the_last_error_that_was_told(self, make: Callable[..., Box]) -> None:
        mailbox = make(max_deliveries=2)
        mailbox.send("failing")
        for error in ("first", "second"):
            [message] = mailbox.receive()
            message.nack(error=error)

        [letter] = mailbox.dead_letters.peek()

        assert (letter.error, letter.delivery_count) == ("second", 2)
        assert list(mailbox.receive()) == []

    def test_a_message_may_be_given_up_at_once(self, mailbox: Box) -> None:
        mailbox.send("hopeless")
        [message] = mailbox.receive()

        message.dead_letter("it is hopeless", error="ValueError()")

        [letter] = mailbox.dead_letters.peek()
        assert (letter.body, letter.reason, letter.error) == ("hopeless", "it is hopeless", "ValueError()")
        assert mailbox.approximate_count() == 0

    def test_a_message_that_was_delivered_before_is_received_alone(self, mailbox: Box, clock: FakeClock) -> None:
        mailbox.send_many(["a", "suspect", "b", "c"])
        batch = list(mailbox.receive(max_messages=2, visibility_timeout=10))
        batch[0].acknowledge()
        clock.advance(10)

        assert bodies(mailbox.receive(max_messages=10)) == ["suspect"]
        assert bodies(mailbox.receive(max_messages=10)) == ["b", "c"]

    def test_letters_can_be_looked_at_and_found(self, make: Callable[..., Box]) -> None:
        mailbox = make()
        ids = mailbox.send_many(["a", "b", "c"])
        for message in mailbox.receive(max_messages=3):
            message.dead_letter("for the test")
        letters = mailbox.dead_letters

        found = letters.get(ids[1])

        assert [letter.body for letter in letters.peek()] == ["a", "b", "c"]
        assert [letter.body for letter in letters.peek(2)] == ["a", "b"]
        assert found is not None
        assert found.body == "b"
        assert letters.get("unknown") is None
        assert letters.approximate_count() == 3
        assert letters.purge() == 3
        assert letters.peek() == []

    def test_letters_are_received_like_messages_and_for_ever(self, mailbox: Box) -> None:
        mailbox.send("dead")
        [message] = mailbox.receive()
        message.dead_letter("for the test")
        for _ in range(20):
            [letter] = mailbox.dead_letters.receive()
            letter.nack()

        [letter] = mailbox.dead_letters.receive()
        letter.acknowledge()

        assert letter.body.body == "dead"
        assert mailbox.dead_letters.approximate_count() == 0

    def test_a_letter_cannot_be_given_up_and_stays_what_it_is(self, mailbox: Box) -> None:
        mailbox.send("dead")
        [message] = mailbox.receive()
        message.dead_letter("for the test")
        [letter] = mailbox.dead_letters.receive()

        with pytest.raises(InvalidParameterError, match="not yet a dead letter"):
            letter.dead_letter("again")

        assert [each.reason for each in mailbox.dead_letters.peek()] == ["for the test"]
        letter.acknowledge()

    def test_letters_of_a_closed_mailbox_are_not_redriven(self, mailbox: Box) -> None:
        mailbox.send("dead")
        [message] = mailbox.receive()
        message.dead_letter("for the test")
        mailbox.close()

        with pytest.raises(MailboxClosedError):
            mailbox.dead_letters.redrive()
        with pytest.raises(MailboxClosedError):
            mailbox.dead_letters.redrive([message.id])

        assert mailbox.dead_letters.approximate_count() == 1
        assert mailbox.approximate_count() == 0

    def test_a_redriven_letter_is_a_new_message_with_its_old_id_in_a_header(self, mailbox: Box) -> None:
        old = mailbox.send("again", headers={"trace": "abc"})
        [message] = mailbox.receive()
        message.dead_letter("for the test")

        assert mailbox.dead_letters.redrive() == 1

        [again] = mailbox.receive()
        assert (again.body, again.delivery_count) == ("again", 1)
        assert again.id != old
        assert dict(again.headers) == {"trace": "abc", "redriven-from": old}
        assert mailbox.dead_letters.peek() == []

    def test_only_the_letters_that_are_named_are_redriven(self, mailbox: Box) -> None:
        ids = mailbox.send_many(["a", "b"])
        for message in mailbox.receive(max_messages=2):
            message.dead_letter("for the test")

        assert mailbox.dead_letters.redrive([ids[1], "unknown"]) == 1

        assert bodies(mailbox.receive(max_messages=10)) == ["b"]
        assert [letter.body for letter in mailbox.dead_letters.peek()] == ["a"]

    def test_letters_are_redriven_at_a_rate_and_stop_with_the_token(self, mailbox: Box, clock: FakeClock) -> None:
        mailbox.send_many(range(4))
        for message in mailbox.receive(max_messages=4):
            message.dead_letter("for the test")
        token = Token()
        redriven = self.in_background(clock, lambda: mailbox.dead_letters.redrive(rate=2, token=token))

        clock.settle()
        first = mailbox.approximate_count()
        clock.advance(0.5)
        second = mailbox.approximate_count()
        token.stop()

        assert redriven.wait(self.patience) == 2
        assert (first, second) == (1, 2)

    def test_a_single_id_is_no_list_of_ids(self, mailbox: Box) -> None:
        with pytest.raises(InvalidParameterError, match="message_ids"):
            mailbox.dead_letters.redrive("an-id")

    @pytest.mark.parametrize("rate", [0, -1, float("inf"), float("nan"), True])
    def test_a_bad_rate_is_refused(self, mailbox: Box, rate: float) -> None:
        with pytest.raises(InvalidParameterError, match="rate"):
            mailbox.dead_letters.redrive(rate=rate)
