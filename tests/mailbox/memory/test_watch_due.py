from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.mailbox import InMemoryMailbox, Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.testing import FakeClock

Box = InMemoryMailbox[Any, Any]
Mail = Message[Any, Any]


class Bell:
    """A watcher that counts."""

    def __init__(self) -> None:
        self.rings = 0

    def __call__(self) -> None:
        self.rings += 1


@pytest.fixture
def jobs(jobs: Box) -> Box:
    jobs.send_many(range(5))
    return jobs


def test_watch_due_tells_of_the_first_lease(jobs: Box) -> None:
    notifier = Bell()
    jobs.watch_due(notifier)

    jobs.receive(visibility_timeout=30)

    assert notifier.rings == 1


def test_watch_due_does_not_tell_of_sends_acknowledgements_and_later_leases(jobs: Box) -> None:
    [message] = jobs.receive(visibility_timeout=30)
    notifier = Bell()
    jobs.watch_due(notifier)

    jobs.send("more")
    jobs.receive(visibility_timeout=30)
    jobs.receive(visibility_timeout=60)
    jobs.send("delayed", delay=40)
    message.acknowledge()

    assert notifier.rings == 0


def lease(jobs: Box, _held: Mail) -> None:
    jobs.receive(visibility_timeout=10)


def delay(jobs: Box, _held: Mail) -> None:
    jobs.send("soon", delay=10)


def nack(_jobs: Box, held: Mail) -> None:
    held.nack(10)


def shorten(_jobs: Box, held: Mail) -> None:
    held.extend_visibility(10)


@pytest.mark.parametrize("act", [lease, delay, nack, shorten])
def test_watch_due_tells_of_anything_that_is_due_sooner(jobs: Box, act: Callable[[Box, Mail], None]) -> None:
    [held] = jobs.receive(visibility_timeout=30)
    notifier = Bell()
    jobs.watch_due(notifier)

    act(jobs, held)

    assert notifier.rings == 1


def test_watch_due_tells_of_the_first_lease_after_a_reap(jobs: Box, clock: FakeClock) -> None:
    jobs.receive(visibility_timeout=10)
    notifier = Bell()
    jobs.watch_due(notifier)
    clock.advance(10)

    assert jobs.reap().next_due is None
    jobs.receive(visibility_timeout=30)

    assert notifier.rings == 1


def test_every_watcher_is_told_until_it_wants_no_more(jobs: Box) -> None:
    first, second = Bell(), Bell()
    unwatch = jobs.watch_due(first)
    jobs.watch_due(second)
    jobs.receive(visibility_timeout=30)

    unwatch()
    unwatch()
    jobs.receive(visibility_timeout=10)

    assert (first.rings, second.rings) == (1, 2)
