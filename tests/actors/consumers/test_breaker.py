"""A loop for which nothing succeeds stops taking messages, and goes on when one does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden import Backoff, ChildSpec, HealthCheckRequest, MailboxLoop, Supervisor, Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.actors import Activity
from loopwarden.actors.consumers._breaker import Breaker
from loopwarden.mailbox import InMemoryMailbox

if TYPE_CHECKING:
    from loopwarden.mailbox import Message
    from loopwarden.testing import Simulation

pytestmark = pytest.mark.usefixtures("loop_kind")

BACKOFF = Backoff(minimum=1, maximum=8, jitter=0)


def breaker(limit: int | None = 3) -> Breaker:
    return Breaker(limit, BACKOFF, SYSTEM)


class TestBreaker:
    def test_opens_with_the_last_of_so_many_failures_in_a_row(self) -> None:
        its = breaker(3)

        opened = [its.failed("broken", 0.0, 0.5) for _ in range(4)]

        assert opened == [False, False, True, False]
        assert its.is_open
        assert its.reason == "4 failures in a row and no success, the last one: broken"

    def test_never_opens_without_a_limit(self) -> None:
        its = breaker(None)

        assert not any(its.failed("broken", 0.0, 0.5) for _ in range(1_000))
        assert not its.is_open

    def test_closes_with_one_success(self) -> None:
        its = breaker(1)
        its.failed("broken", 0.0, 0.5)

        assert its.succeeded()
        assert not its.is_open
        assert not its.succeeded()

    def test_success_in_between_begins_the_count_of_failures_anew(self) -> None:
        its = breaker(2)
        its.failed("broken", 0.0, 0.5)
        its.succeeded()

        assert not its.failed("broken", 0.0, 0.5)

    def test_lets_one_worker_at_a_time_try_after_a_delay_that_doubles(self) -> None:
        its = breaker(1)
        its.failed("broken", 0.0, 0.5)

        waits = [its.wait("one", 0.0, 0.5), its.wait("one", 1.0, 0.5), its.wait("two", 1.0, 0.5)]
        its.has_tried("one")
        its.failed("broken", 1.0, 0.5)
        again = [its.wait("two", 1.0, 0.5), its.wait("two", 3.0, 0.5)]

        assert waits == [1.0, 0.0, 1.0]
        assert again == [2.0, 0.0]

    def test_is_idle_from_a_try_that_found_nothing_until_the_next_failure(self) -> None:
        its = breaker(1)
        idle = [its.is_idle]
        its.found_nothing(0)  # it is closed
        idle.append(its.is_idle)
        its.failed("broken", 0.0, 0.5)
        its.found_nothing(0)  # one has failed meanwhile
        idle.append(its.is_idle)
        its.found_nothing(1)
        idle.append(its.is_idle)
        its.failed("broken", 0.0, 0.5)
        idle.append(its.is_idle)

        assert idle == [False, False, False, True, False]

    def test_prints_its_state(self) -> None:
        assert repr(breaker()) == "<Breaker, closed, 0 failures>"


@pytest.mark.parametrize("concurrency", [1, 3])
def test_loop_for_which_nothing_succeeds_leaves_the_rest_in_the_mailbox(
    simulation: Simulation, caplog: pytest.LogCaptureFixture, concurrency: int
) -> None:
    jobs: InMemoryMailbox[Any, None] = InMemoryMailbox("jobs", max_deliveries=1)
    jobs.send_many(list(range(500)))

    def handle(message: Message[Any, Any]) -> None:
        raise ValueError("a required field is missing")

    start = lambda: MailboxLoop(jobs, handle, breaker=10, concurrency=concurrency)  # noqa: E731  as a user writes it
    with Supervisor.open("root", children=[ChildSpec(id="loop", start=start)]) as root:
        simulation.advance(60.0)
        status = root.child("loop").send(HealthCheckRequest()).wait(60)
        dead = jobs.dead_letters.approximate_count()

    assert 9 <= dead < 10 + concurrency  # the tenth opens the breaker, and goes back
    assert jobs.approximate_count() == 500 - dead
    assert status.activity is Activity.DEGRADED
    assert status.failures_in_a_row > dead
    assert "a required field is missing" in str(status.degraded_by)
    assert caplog.text.count("takes no more messages, but tries one now and then") == 1


def test_loop_whose_breaker_is_open_goes_on_when_a_message_succeeds(simulation: Simulation) -> None:
    jobs: InMemoryMailbox[Any, None] = InMemoryMailbox("jobs")
    is_broken, done = [True], Ticket[int](simulation)
    seen: list[int] = []

    def handle(message: Message[Any, Any]) -> None:
        if is_broken:
            raise ConnectionError("the database is away")
        seen.append(message.body)
        if len(seen) == 30:
            done.complete(30)

    jobs.send_many(list(range(30)))
    with Supervisor.open("root", children=[ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, handle))]) as root:
        simulation.advance(30.0)
        before = root.child("loop").send(HealthCheckRequest()).wait(60)
        is_broken.clear()
        done.wait()
        after = root.child("loop").send(HealthCheckRequest()).wait(60)

    assert before.activity is Activity.DEGRADED
    assert (after.failures_in_a_row, after.degraded_by) == (0, None)
    assert sorted(seen) == list(range(30))
    assert jobs.dead_letters.approximate_count() == 0


@pytest.mark.parametrize("value", [0, -1, 1.5, "10", True])
def test_breaker_that_is_no_number_of_failures_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="breaker must be a whole number of failures from 1 on, or None"):
        MailboxLoop(InMemoryMailbox[Any, Any]("jobs"), print, breaker=value)


def test_body_that_does_not_fit_opens_the_breaker_and_is_told(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    jobs: InMemoryMailbox[Any, None] = InMemoryMailbox("jobs", roundtrip=True)
    jobs.send_many(list(range(500)))
    for entry in jobs.store.queue.entries():
        entry.body = b"{not json"

    with Supervisor.open(
        "root", children=[ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, lambda message: None))]
    ) as root:
        events = root.subscribe()
        simulation.advance(30.0)
        status = root.child("loop").send(HealthCheckRequest()).wait(60)
        event = events.wait_for("dead_lettered")

    assert 10 <= status.dead_letters <= 20
    assert jobs.approximate_count() == 500 - jobs.dead_letters.approximate_count() >= 480
    assert status.activity is Activity.DEGRADED
    assert "its body cannot be read" in str(status.degraded_by)
    assert (event.child, event.reason, event.message_id is None) == ("loop", "its body cannot be read", False)


@pytest.mark.parametrize("what", ["cannot be read", "fails for ever"])
def test_loop_whose_breaker_is_open_is_willing_again_once_its_mailbox_is_empty(
    simulation: Simulation, what: str
) -> None:
    jobs: InMemoryMailbox[Any, None] = InMemoryMailbox("jobs", roundtrip=True)
    jobs.send_many(list(range(10)))
    if what == "cannot be read":
        for entry in jobs.store.queue.entries():
            entry.body = b"{not json"

    def handle(message: Message[Any, Any]) -> None:
        raise ValueError(what)

    start = lambda: MailboxLoop(jobs, handle, concurrency=2)  # noqa: E731  as a user writes it
    with Supervisor.open("root", children=[ChildSpec(id="loop", start=start)]) as root:
        loop, seen = root.child("loop"), list[Activity | None]()
        simulation.advance(0.1)
        if what == "fails for ever":
            simulation.advance(30.0)
            seen.append(loop.send(HealthCheckRequest()).wait(60).activity)
            jobs.purge()
        simulation.advance(120.0)
        seen.append(loop.send(HealthCheckRequest()).wait(60).activity)
        jobs.send_many(list(range(10)))
        simulation.advance(60.0)
        seen.append(loop.send(HealthCheckRequest()).wait(60).activity)

    assert seen[-2:] == [Activity.POLLING, Activity.DEGRADED]
    assert seen[:-2] in ([], [Activity.DEGRADED])


def test_loop_whose_breaker_is_open_has_one_try_in_hand_however_many_workers_it_has(simulation: Simulation) -> None:
    jobs: InMemoryMailbox[Any, None] = InMemoryMailbox("jobs")
    jobs.send_many(list(range(100)))
    in_hand, most = [0], [0]
    is_slow: list[bool] = []

    def handle(message: Message[Any, Any]) -> None:
        in_hand[0] += 1
        if is_slow:
            most[0] = max(most[0], in_hand[0])
            simulation.wait(simulation.gate(), 30.0)  # longer than the back-offs between the tries
        in_hand[0] -= 1
        raise ConnectionError("the database is away")

    start = lambda: MailboxLoop(jobs, handle, concurrency=5, backoff=BACKOFF)  # noqa: E731  as a user writes it
    with Supervisor.open("root", children=[ChildSpec(id="loop", start=start)]):
        simulation.advance(10.0)
        is_slow.append(True)
        simulation.advance(300.0)

    assert most == [1]


@pytest.mark.parametrize(("concurrency", "prefetch"), [(8, 1), (8, 10)])
@pytest.mark.threads
def test_loop_whose_breaker_opens_begins_nothing_that_it_has_received_before(
    simulation: Simulation, concurrency: int, prefetch: int
) -> None:
    jobs: InMemoryMailbox[Any, None] = InMemoryMailbox("jobs")
    in_hand, tries, most = [0], [0], [0]

    def handle(message: Message[Any, Any]) -> None:
        tries[0] += 1
        in_hand[0] += 1
        most[0] = max(most[0], in_hand[0])
        simulation.wait(simulation.gate(), 0.5)
        in_hand[0] -= 1
        raise ConnectionError("the database is away")

    def start() -> MailboxLoop[Any]:
        return MailboxLoop(
            jobs, handle, concurrency=concurrency, prefetch=prefetch, breaker=3, backoff=BACKOFF, longest_handler=600
        )

    with Supervisor.open("root", children=[ChildSpec(id="loop", start=start)]):
        simulation.advance(1.0)  # every worker polls
        for _ in range(3):
            jobs.send("bad")
            simulation.advance(0.6)
        most[0] = 0
        jobs.send_many(list(range(100)))
        simulation.advance(10.0)

    assert most == [1]
    assert tries[0] <= 8
    assert jobs.approximate_count() == 103
    simulation.advance(60.0)
    again = [message for _ in range(103) for message in jobs.receive()]
    assert [message.body for message in again if message.delivery_count > 1 and message.body != "bad"] == []


@pytest.mark.threads
def test_loop_whose_breaker_opens_gives_back_what_it_has_prefetched(simulation: Simulation) -> None:
    jobs: InMemoryMailbox[Any, None] = InMemoryMailbox("jobs")
    tries: list[int] = []

    def handle(message: Message[Any, Any]) -> None:
        tries.append(message.body)
        raise ConnectionError("the database is away")

    jobs.send_many(list(range(100)))
    with Supervisor.open(
        "root",
        children=[
            ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, handle, prefetch=100, breaker=3, backoff=BACKOFF))
        ],
    ):
        simulation.advance(1.0)
        stats = jobs.stats()

    assert tries[:3] == [0, 1, 2]
    assert len(tries) <= 5
    assert (stats.ready + stats.delayed, stats.leased) == (100, 0)
