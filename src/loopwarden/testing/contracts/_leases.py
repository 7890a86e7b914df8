"""Receipts, giving back, extending, reaping: the way of a message that comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from loopwarden.errors import (
    ReceiptHandleExpiredError,
)
from loopwarden.mailbox import SupportsExtendMany, Token
from loopwarden.testing.contracts._fixtures import MailboxFixtures, bodies

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.testing._fake_clock import FakeClock
    from loopwarden.testing.contracts._fixtures import Box

__all__ = ["Leases"]


class Leases(MailboxFixtures):
    """Receipts, giving back, extending, reaping: the way of a message that comes back."""

    # Receipts.

    def test_the_receipt_of_an_ended_lease_is_refused_and_the_new_delivery_is_untouched(
        self, mailbox: Box, clock: FakeClock
    ) -> None:
        mailbox.send("twice")
        [old] = mailbox.receive(visibility_timeout=10)
        clock.advance(11)
        [new] = mailbox.receive(visibility_timeout=10)

        for late in (
            old.acknowledge,
            old.nack,
            old.put_back,
            lambda: old.extend_visibility(5),
            lambda: old.dead_letter("late"),
        ):
            with pytest.raises(ReceiptHandleExpiredError) as caught:
                late()
            assert caught.value.receipt_handle == old.receipt_handle
        assert old.receipt_handle != new.receipt_handle
        assert list(mailbox.receive()) == []
        new.acknowledge()
        assert mailbox.approximate_count() == 0

    def test_an_ended_lease_is_refused_even_if_nobody_has_received_the_message_again(
        self, mailbox: Box, clock: FakeClock
    ) -> None:
        mailbox.send("late")
        [message] = mailbox.receive(visibility_timeout=10)

        clock.advance(10)

        with pytest.raises(ReceiptHandleExpiredError):
            message.acknowledge()
        assert bodies(mailbox.receive()) == ["late"]

    def test_a_fenced_token_refuses_what_was_taken_with_it_and_nothing_else(self, mailbox: Box) -> None:
        mailbox.send_many(["zombie", "other"])
        token, other = Token(), Token()
        [zombie] = mailbox.receive(token=token)
        [alive] = mailbox.receive(token=other)

        token.fence()

        for late in (
            zombie.acknowledge,
            zombie.nack,
            lambda: zombie.extend_visibility(5),
            lambda: zombie.reply("late"),
        ):
            with pytest.raises(ReceiptHandleExpiredError):
                late()
        alive.acknowledge()
        assert mailbox.approximate_count() == 1

    def test_a_fenced_message_comes_back_when_its_lease_ends(self, mailbox: Box, clock: FakeClock) -> None:
        mailbox.send("abandoned")
        token = Token()
        mailbox.receive(token=token, visibility_timeout=10)
        token.fence()

        clock.advance(10)

        assert bodies(mailbox.receive()) == ["abandoned"]

    def test_a_fenced_worker_can_put_back_what_it_has_not_begun_while_its_lease_lasts(
        self, mailbox: Box, clock: FakeClock
    ) -> None:
        mailbox.send("not begun")
        token = Token()
        [message] = mailbox.receive(token=token, visibility_timeout=10)
        token.fence()

        message.put_back()

        [again] = mailbox.receive(token=Token(), visibility_timeout=10)
        assert (again.body, again.delivery_count) == ("not begun", 1)
        clock.advance(10)
        with pytest.raises(ReceiptHandleExpiredError):
            again.put_back()

    # Giving back.

    def test_a_nacked_message_comes_back_in_its_old_place_and_is_counted(self, mailbox: Box) -> None:
        mailbox.send_many(["first", "second"])
        [message] = mailbox.receive()

        message.nack()

        [again] = mailbox.receive()
        assert (again.body, again.delivery_count) == ("first", 2)

    def test_a_nack_with_a_time_out_comes_back_after_it(self, mailbox: Box, clock: FakeClock) -> None:
        mailbox.send("later")
        [message] = mailbox.receive()

        message.nack(visibility_timeout=60)

        clock.advance(59)
        assert list(mailbox.receive()) == []
        clock.advance(1)
        assert bodies(mailbox.receive()) == ["later"]

    def test_unstarted_messages_go_back_to_the_head_in_their_order_and_are_not_counted(self, mailbox: Box) -> None:
        if not mailbox.capabilities.uncounted_return:
            pytest.skip("this back end counts every delivery")
        mailbox.send_many(range(10))
        batch = list(mailbox.receive(max_messages=5))

        for message in reversed(batch[1:]):
            message.put_back()

        again = list(mailbox.receive(max_messages=10))
        assert bodies(again) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
        assert {message.delivery_count for message in again} == {1}

    def test_putting_back_ten_times_over_makes_no_dead_letter(self, make: Callable[..., Box]) -> None:
        mailbox = make(max_deliveries=3)
        if not mailbox.capabilities.uncounted_return:
            pytest.skip("this back end counts every delivery")
        mailbox.send_many(range(9))

        for _ in range(10):
            for message in mailbox.receive(max_messages=9):
                message.put_back()

        assert bodies(mailbox.receive(max_messages=9)) == list(range(9))
        assert mailbox.dead_letters.approximate_count() == 0

    # Extending.

    def test_an_extension_counts_from_the_call(self, mailbox: Box, clock: FakeClock) -> None:
        mailbox.send("long")
        [message] = mailbox.receive(visibility_timeout=10)
        clock.advance(9)

        message.extend_visibility(10)

        clock.advance(9)
        assert list(mailbox.receive()) == []
        message.acknowledge()
        assert mailbox.approximate_count() == 0

    def test_an_extension_may_shorten_the_lease(self, mailbox: Box, clock: FakeClock) -> None:
        mailbox.send("short")
        [message] = mailbox.receive(visibility_timeout=100)

        message.extend_visibility(1)
        clock.advance(1)

        assert bodies(mailbox.receive()) == ["short"]

    # Two deliveries of one message in a call.

    @pytest.mark.parametrize("is_reversed", [False, True])
    def test_of_two_deliveries_of_a_message_the_one_that_is_over_is_not_acknowledged_with_the_other(
        self, mailbox: Box, clock: FakeClock, is_reversed: bool
    ) -> None:
        mailbox.send("twice")
        [old] = mailbox.receive(visibility_timeout=10)
        clock.advance(11)
        [new] = mailbox.receive(visibility_timeout=10)

        refused = mailbox.acknowledge_many([new, old] if is_reversed else [old, new])

        assert refused == [old]
        assert (old.is_finalized, new.is_finalized) == (False, True)
        assert mailbox.approximate_count() == 0

    @pytest.mark.parametrize("is_reversed", [False, True])
    def test_of_two_deliveries_of_a_message_the_one_that_is_over_is_not_extended_with_the_other(
        self, mailbox: Box, clock: FakeClock, is_reversed: bool
    ) -> None:
        if not isinstance(mailbox, SupportsExtendMany):
            pytest.skip("this back end extends one lease at a time")
        mailbox.send("twice")
        [old] = mailbox.receive(visibility_timeout=10)
        clock.advance(11)
        [new] = mailbox.receive(visibility_timeout=10)

        over = mailbox.extend_many([new, old] if is_reversed else [old, new], 100)

        assert over == [old]
        clock.advance(99)
        new.acknowledge()
        assert mailbox.approximate_count() == 0

    # Reaping.

    def test_reap_brings_back_what_is_due_and_says_when_to_come_again(
        self, make: Callable[..., Box], clock: FakeClock
    ) -> None:
        mailbox = make(max_deliveries=2)
        ids = mailbox.send_many(["a", "b"])
        mailbox.receive(visibility_timeout=10)
        mailbox.receive(visibility_timeout=30)

        early = mailbox.reap()
        clock.advance(10)
        reaped = mailbox.reap()

        assert (early.returned, early.dead) == ((), ())
        assert early.next_due == pytest.approx(10)
        assert (reaped.returned, reaped.dead) == ((ids[0],), ())
        assert reaped.next_due == pytest.approx(20)

    def test_reap_moves_the_exhausted_to_the_dead_letters(self, make: Callable[..., Box], clock: FakeClock) -> None:
        mailbox = make(max_deliveries=1)
        sent = mailbox.send("exhausted")
        mailbox.receive(visibility_timeout=10)
        clock.advance(10)

        reaped = mailbox.reap()

        assert (reaped.returned, reaped.dead, reaped.next_due) == ((), (sent,), None)
        assert mailbox.dead_letters.approximate_count() == 1
