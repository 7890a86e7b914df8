from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden import ChildSpec, LoopActor, MailboxLoop, Supervisor
from loopwarden.errors import MailboxConnectionError, ReceiptHandleExpiredError, TicketTimeoutError
from loopwarden.mailbox import InMemoryMailbox, Mailbox
from loopwarden.testing import DeadlockError, FaultyMailbox, Simulation
from loopwarden.testing.contracts import MailboxContract

if TYPE_CHECKING:
    from loopwarden import Message
    from loopwarden.testing import FakeClock


class TestFaultyMailboxWithoutFaults(MailboxContract):
    @pytest.fixture(autouse=True)
    def registry(self) -> None:
        self.known: dict[str, Mailbox[Any, Any]] = {}

    def make_mailbox(self, clock: FakeClock, name: str = "jobs", **options: Any) -> Mailbox[Any, Any]:
        inner: InMemoryMailbox[Any, Any] = InMemoryMailbox(name, clock=clock, resolver=self.known.get, **options)
        self.known[name] = inner
        mailbox: FaultyMailbox[Any, Any] = FaultyMailbox(inner, clock=clock)
        return mailbox


@pytest.fixture
def faulty(jobs: InMemoryMailbox[Any, Any], clock: FakeClock) -> FaultyMailbox[Any, Any]:
    return FaultyMailbox(jobs, clock=clock)


def test_faulty_mailbox_fails_the_next_receives_as_it_is_told(faulty: FaultyMailbox[Any, Any]) -> None:
    faulty.send("a body")
    faulty.fail_next_receive(ZeroDivisionError(), times=2)
    faulty.fail_next_receive()

    for error in (ZeroDivisionError, ZeroDivisionError, MailboxConnectionError):
        with pytest.raises(error):
            faulty.receive()

    [message] = faulty.receive()
    message.acknowledge()


def test_faulty_mailbox_that_is_disconnected_refuses_everything_until_it_is_back(
    faulty: FaultyMailbox[Any, Any],
) -> None:
    faulty.send("in hand")
    [message] = faulty.receive()
    faulty.disconnect()

    for call in (
        lambda: faulty.send("a body"),
        lambda: faulty.send_many(["a body"]),
        faulty.receive,
        lambda: faulty.wait_visible(0),
        lambda: faulty.acknowledge_many([message]),
        faulty.reap,
        faulty.purge,
        faulty.approximate_count,
        message.acknowledge,
        message.nack,
        message.put_back,
        lambda: message.dead_letter("no use"),
        lambda: message.extend_visibility(10),
        lambda: message.reply("an answer"),
    ):
        with pytest.raises(MailboxConnectionError, match="for a test"):
            call()
    faulty.reconnect()

    assert faulty.approximate_count() == 1
    message.acknowledge()
    assert faulty.approximate_count() == 0


def test_faulty_mailbox_expires_a_lease_that_is_held(faulty: FaultyMailbox[Any, Any]) -> None:
    faulty.send("a body")
    [message] = faulty.receive()

    faulty.expire_lease(message)
    [again] = faulty.receive()

    assert again.delivery_count == 2
    with pytest.raises(ReceiptHandleExpiredError):
        message.acknowledge()
    again.acknowledge()
    with pytest.raises(LookupError, match=f"no receiver holds '{again.id}'.*sent, received 2 times, acknowledged"):
        faulty.expire_lease(again.id)


def test_faulty_mailbox_expires_leases_while_it_is_disconnected(faulty: FaultyMailbox[Any, Any]) -> None:
    faulty.send("a body")
    [message] = faulty.receive()
    faulty.disconnect()

    faulty.expire_lease(message.id)
    faulty.reconnect()

    [again] = faulty.receive()
    assert again.delivery_count == 2
    again.acknowledge()


def test_faulty_mailbox_tells_a_dead_letter_that_an_expired_lease_leaves(clock: FakeClock) -> None:
    inner: InMemoryMailbox[str, Any] = InMemoryMailbox("jobs", clock=clock, max_deliveries=1)
    faulty = FaultyMailbox(inner, clock=clock)
    dead = faulty.dead(faulty.send("a body"))
    [message] = faulty.receive()

    faulty.expire_lease(message)

    assert dead.wait(timeout=60).body == "a body"


def test_faulty_mailbox_tells_what_is_acknowledged_before_and_after(faulty: FaultyMailbox[Any, Any]) -> None:
    first, second, third = faulty.send_many([1, 2, 3])
    waiting = [faulty.acknowledged(each) for each in (first, second)]
    messages = faulty.receive(max_messages=3)
    before = [ticket.is_ready() for ticket in waiting]

    messages[0].acknowledge()
    late = faulty.acknowledge_many(messages[1:])

    assert before == [False, False]
    assert late == []
    for message_id in (first, second, third):
        faulty.acknowledged(message_id).wait(timeout=60)
    assert [ticket.is_ready() for ticket in waiting] == [True, True]


def test_faulty_mailbox_does_not_tell_what_came_too_late(faulty: FaultyMailbox[Any, Any]) -> None:
    message_id = faulty.send("a body")
    [message] = faulty.receive()
    faulty.expire_lease(message)

    late = faulty.acknowledge_many([message])

    assert late == [message]
    assert not faulty.acknowledged(message_id).is_ready()


@pytest.mark.parametrize("how", ["dead_letter", "nack"])
def test_faulty_mailbox_tells_what_is_dead(how: str, clock: FakeClock) -> None:
    inner: InMemoryMailbox[str, Any] = InMemoryMailbox("jobs", clock=clock, max_deliveries=1)
    faulty = FaultyMailbox(inner, clock=clock)
    dead = faulty.dead(faulty.send("a body"))
    [message] = faulty.receive()
    before = dead.is_ready()

    if how == "nack":
        message.nack(error="no use")
    else:
        message.dead_letter("no use", error="no use")

    assert not before
    assert dead.wait(timeout=60).body == "a body"
    assert faulty.dead(message.id) is dead


def test_faulty_mailbox_says_at_once_that_no_acknowledgement_comes_of_a_dead_letter(clock: FakeClock) -> None:
    inner: InMemoryMailbox[str, Any] = InMemoryMailbox("jobs", clock=clock, max_deliveries=1)
    faulty = FaultyMailbox(inner, clock=clock)
    before = faulty.acknowledged(faulty.send("a body"))
    [message] = faulty.receive()

    message.nack(error="no use")

    for ticket in (before, faulty.acknowledged(message.id)):
        with pytest.raises(AssertionError, match=r"sent, received 1 time, a dead letter because: .*no use"):
            ticket.wait(timeout=60)
    assert faulty.dead(message.id).wait(timeout=60).body == "a body"


def test_faulty_mailbox_says_at_once_that_no_dead_letter_comes_of_what_is_acknowledged(
    faulty: FaultyMailbox[Any, Any],
) -> None:
    before = faulty.dead(faulty.send("a body"))
    [message] = faulty.receive()

    message.acknowledge()

    for ticket in (before, faulty.dead(message.id)):
        with pytest.raises(AssertionError, match=r"no dead letter comes of .*: sent, received 1 time, acknowledged"):
            ticket.wait(timeout=60)


def test_faulty_mailbox_says_what_was_waited_for_in_vain(faulty: FaultyMailbox[Any, Any]) -> None:
    message_id = faulty.send("a body")

    with pytest.raises(
        TicketTimeoutError, match=f"acknowledgement of '{message_id}', of which is known: sent, after 0 s"
    ):
        faulty.acknowledged(message_id).wait(timeout=0)
    with pytest.raises(TicketTimeoutError, match="dead letter of 'a body', of which is known: never sent"):
        faulty.dead("a body").wait(timeout=0)


def test_faulty_mailbox_says_in_a_deadlock_what_was_waited_for() -> None:
    with Simulation():
        faulty: FaultyMailbox[Any, Any] = FaultyMailbox(InMemoryMailbox("jobs"))
        message_id = faulty.send("a body")

        with pytest.raises(DeadlockError) as raised:
            faulty.acknowledged(message_id).wait()

    assert raised.value.__notes__ == [
        f"what was waited for is the acknowledgement of '{message_id}', of which is known: sent"
    ]


def test_faulty_mailbox_knows_who_holds_what(faulty: FaultyMailbox[Any, Any]) -> None:
    faulty.send_many([1, 2, 3, 4])
    messages = faulty.receive(max_messages=4)
    messages[0].acknowledge()
    messages[1].nack()
    messages[2].put_back()

    [lease] = faulty.leases()

    assert messages[3].id in lease
    assert "received at " in lease
    assert "test_faulty_mailbox.py" in lease
    messages[3].acknowledge()
    assert faulty.leases() == []


def test_faulty_mailbox_is_the_mailbox_in_all_other_things(
    faulty: FaultyMailbox[Any, Any], jobs: InMemoryMailbox[Any, Any]
) -> None:
    faulty.send("a body", headers={"a": "b"}, dedup_id="once")
    faulty.send("a body", dedup_id="once")

    assert (faulty.name, faulty.capabilities, faulty.closed) == ("jobs", jobs.capabilities, False)
    assert faulty.dead_letters is jobs.dead_letters
    assert faulty.purge() == 1
    assert repr(faulty) == f"<FaultyMailbox around {jobs!r}>"
    faulty.close()
    assert jobs.closed


@pytest.mark.parametrize("seed", range(5))
def test_faulty_mailbox_that_is_away_for_an_hour_loses_nothing_of_a_loop(seed: int) -> None:
    with Simulation(seed) as simulation:
        inner: InMemoryMailbox[str, Any] = InMemoryMailbox("jobs")
        faulty = FaultyMailbox(inner)
        done: list[str] = []
        loop = LoopActor.start(MailboxLoop(faulty, lambda message: done.append(message.body)))
        simulation.advance(1)
        faulty.disconnect()
        simulation.advance(3_600)
        faulty.reconnect()

        faulty.acknowledged(faulty.send("a picture")).wait()

        assert done == ["a picture"]
        loop.stop()


def test_faulty_mailbox_shows_that_a_lease_that_ends_early_is_worked_on_twice() -> None:
    with Simulation():
        inner: InMemoryMailbox[str, Any] = InMemoryMailbox("jobs")
        faulty = FaultyMailbox(inner)
        deliveries: list[int] = []

        def handle(message: Message[str, Any]) -> None:
            deliveries.append(message.delivery_count)
            if message.delivery_count == 1:
                faulty.expire_lease(message)

        with Supervisor.open("media", children=[ChildSpec(id="loop", start=lambda: MailboxLoop(faulty, handle))]):
            faulty.acknowledged(faulty.send("a picture")).wait()

        assert deliveries == [1, 2]
        assert faulty.leases() == []
