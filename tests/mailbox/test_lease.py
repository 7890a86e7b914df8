from __future__ import annotations

from typing import Any, cast

import pytest

from loopwarden import Heartbeat
from loopwarden._backoff import Backoff
from loopwarden.mailbox import InMemoryMailbox, LeaseExtender, Message
from loopwarden.testing import FakeClock


def leased(clock: FakeClock, seconds: float) -> tuple[InMemoryMailbox[str, None], Message[str, None], Heartbeat]:
    jobs: InMemoryMailbox[str, None] = InMemoryMailbox("jobs", clock=clock)
    jobs.send("long")
    [message] = jobs.receive(visibility_timeout=seconds)
    return jobs, message, Heartbeat(clock)


def test_a_beat_in_the_second_half_of_the_lease_extends_it_and_an_earlier_one_does_not() -> None:
    clock = FakeClock()
    jobs, message, heartbeat = leased(clock, 10)
    with LeaseExtender(message, heartbeat, lease=10, clock=clock) as extender:
        clock.advance(4)
        heartbeat.beat()
        early = extender.extensions
        clock.advance(2)
        heartbeat.beat()

    clock.advance(9)
    assert (early, extender.extensions) == (0, 1)
    assert jobs.receive() == []
    message.acknowledge()


def test_lease_ends_without_beats() -> None:
    clock = FakeClock()
    jobs, message, heartbeat = leased(clock, 10)

    with LeaseExtender(message, heartbeat, lease=10, clock=clock):
        clock.advance(10)

    assert len(jobs.receive()) == 1


def test_lease_extender_extends_nothing_after_its_context() -> None:
    clock = FakeClock()
    _, message, heartbeat = leased(clock, 10)
    with LeaseExtender(message, heartbeat, lease=10, clock=clock) as extender:
        pass

    clock.advance(9)
    heartbeat.beat()

    assert extender.extensions == 0


def test_lease_extender_extends_no_longer_than_the_longest() -> None:
    clock = FakeClock()
    jobs, message, heartbeat = leased(clock, 10)
    with LeaseExtender(message, heartbeat, lease=10, longest=15, clock=clock):
        for _ in range(5):
            clock.advance(6)
            heartbeat.beat()

    assert len(jobs.receive()) == 1


def test_a_lost_lease_is_logged_once_and_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    _, message, heartbeat = leased(clock, 10)
    with LeaseExtender(message, heartbeat, lease=10, clock=clock) as extender:
        for _ in range(3):
            clock.advance(11)
            heartbeat.beat()

    assert extender.extensions == 0
    assert caplog.text.count("lost the lease of message") == 1


@pytest.mark.parametrize(
    ("attempt", "roll", "expected"), [(1, 0.5, 0.5), (1, 0, 0.4), (1, 1, 0.6), (8, 0.5, 60), (10**6, 1, 72)]
)
def test_a_back_off_doubles_up_to_its_maximum_and_is_spread_by_chance(
    attempt: int, roll: float, expected: float
) -> None:
    assert Backoff().delay(attempt, roll) == pytest.approx(expected)


def test_a_back_off_is_a_value() -> None:
    values: set[Any] = {Backoff(), Backoff(), Backoff(jitter=0)}

    assert len(values) == 2


class Foreign:
    """The back end of a third party, which raises errors of its own when a lease is to be extended."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.is_broken = True

    def settle_extend(self, message: Any, timeout: float) -> None:
        if self.is_broken:
            raise OSError("the broker's own library raised")
        self._inner.settle_extend(message, timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_beat_raises_nothing_of_a_foreign_back_end_and_extends_the_lease_with_the_next_one() -> None:
    clock = FakeClock()
    _, message, heartbeat = leased(clock, 10)
    foreign = Foreign(message.settler)
    message.settler = cast("Any", foreign)

    with LeaseExtender(message, heartbeat, lease=10, clock=clock) as extender:
        clock.advance(6)
        heartbeat.beat()
        failed = extender.extensions
        foreign.is_broken = False
        heartbeat.beat()

    assert (failed, extender.extensions) == (0, 1)
    message.acknowledge()


def test_extend_until_raises_nothing_of_a_foreign_back_end() -> None:
    clock = FakeClock()
    _, message, heartbeat = leased(clock, 10)
    message.settler = cast("Any", Foreign(message.settler))

    with LeaseExtender(message, heartbeat, lease=10, clock=clock) as extender:
        extender.extend_until(clock.monotonic() + 30)

    assert extender.extensions == 0
