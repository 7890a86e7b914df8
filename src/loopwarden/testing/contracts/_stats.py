"""What a mailbox that counts its messages says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from loopwarden.mailbox import MailboxStats, SupportsStats
from loopwarden.testing.contracts._fixtures import MailboxFixtures

if TYPE_CHECKING:
    from loopwarden.testing._fake_clock import FakeClock
    from loopwarden.testing.contracts._fixtures import Box

__all__ = ["Stats"]


def stats_of(mailbox: Box) -> MailboxStats:
    """Return the stats of a mailbox that has them."""
    if not isinstance(mailbox, SupportsStats):
        pytest.skip("this back end has no stats")
    return mailbox.stats()


def counts(mailbox: Box) -> tuple[int, int, int, int]:
    """Return how many messages are ready, leased, delayed and dead."""
    stats = stats_of(mailbox)
    return stats.ready, stats.leased, stats.delayed, stats.dead


class Stats(MailboxFixtures):
    """Counts and ages of back ends that support them (see `SupportsStats`); others skip these rules."""

    def test_stats_of_an_empty_mailbox_are_zero(self, mailbox: Box) -> None:
        assert stats_of(mailbox) == MailboxStats(ready=0, leased=0, delayed=0, dead=0, oldest_age=None)

    def test_stats_count_each_message_where_it_is(self, mailbox: Box) -> None:
        if not mailbox.capabilities.delay:
            pytest.skip("this back end cannot delay")
        mailbox.send_many(["leased", "nacked", "nacked for later", "put back", "dead", "acknowledged", "fresh"])
        mailbox.send("delayed", delay=60)
        assert counts(mailbox) == (7, 0, 1, 0)

        _, nacked, later, back, dead, acknowledged = mailbox.receive(max_messages=6)
        assert counts(mailbox) == (1, 6, 1, 0)
        nacked.nack()
        later.nack(visibility_timeout=60)
        back.put_back()
        dead.dead_letter("it is enough")
        acknowledged.acknowledge()

        assert counts(mailbox) == (3, 1, 2, 1)
        assert sum(counts(mailbox)[:3]) == mailbox.approximate_count()

    def test_stats_count_a_message_again_as_leased_when_it_is_received_again(
        self, mailbox: Box, clock: FakeClock
    ) -> None:
        mailbox.send("body")
        [message] = mailbox.receive()
        message.nack(visibility_timeout=10)
        clock.advance(10)

        [message] = mailbox.receive()
        message.extend_visibility(60)

        assert counts(mailbox) == (0, 1, 0, 0)

    def test_stats_count_what_is_due_as_ready_before_anyone_has_looked(self, mailbox: Box, clock: FakeClock) -> None:
        if not mailbox.capabilities.delay:
            pytest.skip("this back end cannot delay")
        mailbox.send_many(["short", "long"])
        mailbox.receive(visibility_timeout=10)
        mailbox.receive(visibility_timeout=60)
        mailbox.send("delayed", delay=10)
        clock.advance(9)
        assert counts(mailbox) == (0, 2, 1, 0)

        clock.advance(1)

        assert counts(mailbox) == (2, 1, 0, 0)

    def test_stats_have_the_age_of_the_oldest_ready_message(self, mailbox: Box, clock: FakeClock) -> None:
        mailbox.send("first")
        clock.advance(5)
        mailbox.send("second")
        clock.advance(2)
        ages = [stats_of(mailbox).oldest_age]
        [first] = mailbox.receive()
        ages.append(stats_of(mailbox).oldest_age)
        [second] = mailbox.receive()
        ages.append(stats_of(mailbox).oldest_age)
        first.nack()
        second.acknowledge()
        ages.append(stats_of(mailbox).oldest_age)

        assert ages == [pytest.approx(7), pytest.approx(2), None, pytest.approx(7)]

    def test_stats_count_letters_that_are_in_hand_until_they_are_redriven(self, mailbox: Box) -> None:
        mailbox.send_many(["a", "b"])
        for message in mailbox.receive(max_messages=2):
            message.dead_letter("why not")
        mailbox.dead_letters.receive()
        assert counts(mailbox) == (0, 0, 0, 2)

        mailbox.dead_letters.redrive()

        assert counts(mailbox) == (2, 0, 0, 0)

    def test_stats_of_a_closed_mailbox_are_what_it_was_left_with(self, mailbox: Box) -> None:
        mailbox.send_many(["a", "b"])
        mailbox.receive()

        mailbox.close()

        assert counts(mailbox) == (1, 1, 0, 0)
