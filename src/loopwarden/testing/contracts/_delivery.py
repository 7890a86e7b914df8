"""Sending, receiving, acknowledging: the way of a message that nothing happens to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel

from loopwarden.errors import (
    MailboxClosedError,
    MessageFinalizedError,
    ReceiptHandleExpiredError,
    SerializationError,
)
from loopwarden.mailbox import DeadLetters, Mailbox
from loopwarden.testing.contracts._fixtures import MailboxFixtures, bodies

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.testing._fake_clock import FakeClock
    from loopwarden.testing.contracts._fixtures import Box

__all__ = ["Delivery"]


class Order(BaseModel):
    """A body of a type of its own."""

    number: int


class Delivery(MailboxFixtures):
    """Sending, receiving, acknowledging: the way of a message that nothing happens to."""

    # What it is.

    def test_it_is_a_mailbox(self, mailbox: Box) -> None:
        assert isinstance(mailbox, Mailbox)
        assert isinstance(mailbox.dead_letters, DeadLetters)
        assert mailbox.name == "jobs"
        assert not mailbox.closed

    # Sending and receiving.

    def test_messages_are_received_in_the_order_in_which_they_were_sent(self, mailbox: Box) -> None:
        ids = [mailbox.send(number) for number in range(5)]

        received = mailbox.receive(max_messages=10)

        assert bodies(received) == [0, 1, 2, 3, 4]
        assert [message.id for message in received] == ids
        assert len(set(ids)) == 5

    def test_a_received_message_tells_what_it_is(self, mailbox: Box, clock: FakeClock) -> None:
        mailbox.send({"a": [1, 2.5, None, "x"]}, headers={"trace": "abc"})

        [message] = mailbox.receive()

        assert message.body == {"a": [1, 2.5, None, "x"]}
        assert dict(message.headers) == {"trace": "abc"}
        assert message.delivery_count == 1
        assert message.sent_at == pytest.approx(clock.wall())
        assert message.reply_to is None
        assert not message.is_finalized

    def test_send_many_keeps_the_order_and_returns_the_ids(self, mailbox: Box) -> None:
        ids = mailbox.send_many(["a", "b", "c"], headers={"batch": "1"})

        received = mailbox.receive(max_messages=10)

        assert bodies(received) == ["a", "b", "c"]
        assert [message.id for message in received] == ids
        assert [dict(message.headers) for message in received] == [{"batch": "1"}] * 3
        assert mailbox.send_many([]) == []

    def test_a_batch_returns_what_is_there_without_waiting_for_more(self, mailbox: Box) -> None:
        mailbox.send("only")

        assert bodies(mailbox.receive(max_messages=10, wait_time_seconds=20)) == ["only"]

    def test_an_empty_mailbox_returns_nothing_at_once(self, mailbox: Box) -> None:
        assert list(mailbox.receive()) == []

    def test_a_received_message_is_invisible_until_its_lease_ends(self, mailbox: Box, clock: FakeClock) -> None:
        mailbox.send("leased")
        mailbox.receive(visibility_timeout=30)

        clock.advance(29.9)
        before = mailbox.receive()
        clock.advance(0.2)
        after = mailbox.receive()

        assert list(before) == []
        assert bodies(after) == ["leased"]
        assert after[0].delivery_count == 2

    def test_a_lease_of_zero_seconds_leaves_the_message_visible(self, mailbox: Box) -> None:
        mailbox.send("peeked")
        [first] = mailbox.receive(visibility_timeout=0)

        [second] = mailbox.receive()

        assert second.body == "peeked"
        with pytest.raises(ReceiptHandleExpiredError):
            first.acknowledge()

    # Acknowledging.

    def test_an_acknowledged_message_never_comes_back(self, mailbox: Box, clock: FakeClock) -> None:
        mailbox.send("done")
        [message] = mailbox.receive(visibility_timeout=30)

        message.acknowledge()
        clock.advance(100)

        assert list(mailbox.receive()) == []
        assert mailbox.approximate_count() == 0
        assert message.is_finalized

    def test_a_message_is_finalised_once(self, mailbox: Box) -> None:
        mailbox.send("once")
        [message] = mailbox.receive()
        message.acknowledge()

        for again in (
            message.acknowledge,
            message.nack,
            message.put_back,
            lambda: message.extend_visibility(5),
            lambda: message.reply("late"),
            lambda: message.dead_letter("late"),
        ):
            with pytest.raises(MessageFinalizedError) as caught:
                again()
            assert caught.value.message_id == message.id

    def test_many_are_acknowledged_in_one_step_and_those_that_are_over_are_returned(
        self, mailbox: Box, clock: FakeClock
    ) -> None:
        mailbox.send_many(["late", "a", "b"])
        late = list(mailbox.receive(visibility_timeout=5))
        clock.advance(6)
        others = list(mailbox.receive(max_messages=1)) and []
        rest = list(mailbox.receive(max_messages=10))

        refused = mailbox.acknowledge_many([*late, *rest])

        assert others == []
        assert refused == late
        assert all(message.is_finalized for message in rest)
        assert mailbox.approximate_count() == 1

    # Bodies.

    def test_a_body_of_another_type_is_refused_and_nothing_is_sent(self, make: Callable[..., Box]) -> None:
        numbers = make(body=int)

        with pytest.raises(SerializationError):
            numbers.send("text")
        with pytest.raises(SerializationError):
            numbers.send_many([1, "text"])

        assert numbers.approximate_count() == 0
        numbers.send(1)
        assert bodies(numbers.receive()) == [1]

    def test_a_body_that_fits_a_model_is_received_as_that_model(self, make: Callable[..., Box]) -> None:
        orders = make(body=Order)
        orders.send({"number": 1})
        orders.send(Order(number=2))

        assert bodies(orders.receive(max_messages=2)) == [Order(number=1), Order(number=2)]

    # Counting, purging, closing.

    def test_the_count_covers_visible_delayed_and_leased_messages(self, mailbox: Box) -> None:
        mailbox.send_many(["a", "b"])
        mailbox.receive()
        if mailbox.capabilities.delay:
            mailbox.send("c", delay=10)

        assert mailbox.approximate_count() == (3 if mailbox.capabilities.delay else 2)

    def test_a_purge_deletes_everything_and_ends_the_leases(self, mailbox: Box, clock: FakeClock) -> None:
        mailbox.send_many(["leased", "visible"])
        [message] = mailbox.receive()

        assert mailbox.purge() == 2

        with pytest.raises(ReceiptHandleExpiredError):
            message.acknowledge()
        clock.advance(1_000)
        assert list(mailbox.receive()) == []
        mailbox.send("afterwards")
        assert bodies(mailbox.receive()) == ["afterwards"]

    def test_a_closed_mailbox_refuses_and_wakes_who_waits(self, mailbox: Box, clock: FakeClock) -> None:
        waiting = self.in_background(clock, lambda: mailbox.receive(wait_time_seconds=20))
        clock.settle()

        mailbox.close()
        mailbox.close()

        assert mailbox.closed
        with pytest.raises(MailboxClosedError):
            waiting.wait(self.patience)
        for late in (lambda: mailbox.send("late"), mailbox.receive, lambda: mailbox.send_many(["late"])):
            with pytest.raises(MailboxClosedError):
                late()

    def test_what_is_leased_when_the_mailbox_is_closed_may_still_be_finalised(self, mailbox: Box) -> None:
        mailbox.send_many(["a", "b"])
        first, second = mailbox.receive(max_messages=2)

        mailbox.close()

        first.acknowledge()
        second.put_back()
