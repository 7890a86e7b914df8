from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import pykka
import pytest

from loopwarden import ChildSpec, LoopActor, MailboxLoop, ShutdownRequest, Ticket
from loopwarden._blocking import SYSTEM, SystemThread
from loopwarden.errors import SupervisorGaveUp
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.testing import (
    FakeClock,
    FaultyMailbox,
    Hold,
    LeakError,
    Probe,
    ProbeLoop,
    Simulation,
    find_leaks,
    wait_no_threads,
)
from loopwarden.testing import _leaks as module
from loopwarden.testing._fixtures import (
    checked_fake_clock,
    checked_simulation,
    open_mailbox_for_test,
    open_warden,
)
from loopwarden.testing._leaks import standing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def leaks_without_tickets(before: Iterable[object] = ()) -> list[str]:
    """Leave out tickets by naming a seam that has none: those of other tests are theirs."""
    with FakeClock() as clock:
        return find_leaks(before=before, seam=clock.blocking)


def passed() -> bool:
    return False


def failed() -> bool:
    return True


def test_find_leaks_finds_nothing_where_nothing_is_left() -> None:
    before = standing()
    with Simulation() as simulation:
        with Probe() as probe:
            probe.ref.ask("something")
        simulation.advance(0)

        assert find_leaks(before=before, simulation=simulation) == []


def test_find_leaks_names_threads_and_actors_with_where_they_were_made() -> None:
    before = standing()
    with Simulation() as simulation:
        jobs: InMemoryMailbox[str, Any] = InMemoryMailbox("jobs")
        forgotten = LoopActor.start(MailboxLoop(jobs, lambda _: None), name="forgotten")
        simulation.advance(0)

        leaks = find_leaks(before=before, simulation=simulation)
        forgotten.stop()

    assert any(each.startswith("thread forgotten") and "test_leaks.py:" in each for each in leaks)
    assert any(each.startswith("actor forgotten") or "forgotten" in each for each in leaks if "actor " in each)


def test_find_leaks_names_threads_that_ours_have_started_with_where_they_are() -> None:
    with Hold() as hold, Simulation() as simulation:
        jobs: InMemoryMailbox[str, Any] = InMemoryMailbox("jobs")

        def handle(_: object) -> None:
            hold()

        forgotten = LoopActor.start(MailboxLoop(jobs, handle), name="forgotten")
        jobs.send("a body")
        hold.wait_reached()

        leaks = find_leaks(before=standing(), simulation=simulation)
        hold.release()
        forgotten.stop()

    [worker] = [each for each in leaks if each.startswith("thread forgotten-worker")]
    assert "started by a thread of ours, now at " in worker
    assert worker.endswith(".handle")


def test_find_leaks_names_threads_that_are_not_of_the_simulation() -> None:
    with Simulation() as simulation:
        never: Ticket[None] = Ticket()
        SYSTEM.start_thread(never.wait, "foreign")
        with simulation.outside():
            while not simulation.threads():
                pass

        leaks = find_leaks(before=standing(), simulation=simulation)
        never.complete(None)
        simulation.settle()

    [thread] = leaks
    assert thread.startswith("thread foreign, which is not of the simulation, ")


def test_find_leaks_names_leases_and_where_they_were_received() -> None:
    with Simulation() as simulation:
        inner: InMemoryMailbox[Any, Any] = InMemoryMailbox("jobs")
        mailbox = FaultyMailbox(inner)
        mailbox.send("a picture")
        [message] = mailbox.receive()

        [leak] = find_leaks(before=standing(), simulation=simulation, mailboxes=[mailbox])

    assert leak.startswith(f"lease of 'jobs': <Message {message.id}, delivery 1>, received at ")
    assert "test_leaks.py:" in leak


def test_find_leaks_names_requests_that_were_never_answered() -> None:
    with Simulation() as simulation, Hold() as hold:
        loop = ProbeLoop(hold)
        ref = LoopActor.start(loop, name="busy")
        loop.feed("a body")
        ticket = ref.send(ShutdownRequest(timeout=3_600))

        leaks = find_leaks(before=standing(), simulation=simulation)
        hold.release()
        ticket.wait()

    assert "ticket for ShutdownRequest to busy, which was never answered" in [
        each.replace(str(ref), "busy") for each in leaks
    ]


def test_find_leaks_leaves_alone_what_was_there_before(clock: FakeClock) -> None:
    class Plain(pykka.ThreadingActor):
        pass

    real = threading.Lock()
    real.acquire()
    plain = Plain.start()
    thread = SYSTEM.start_thread(lambda: real.acquire(timeout=60), "older")
    older = ProbeLoop(clock=clock)
    actor = LoopActor.start(older, clock=clock)
    ticket = actor.send(ShutdownRequest(timeout=3_600))
    before = standing()
    with Simulation() as simulation:
        in_simulation = find_leaks(before=before, simulation=simulation)
    elsewhere = find_leaks(before=before, seam=SYSTEM)
    real.release()
    plain.stop()
    ticket.wait(timeout=60)
    thread.join(60)

    assert in_simulation == []
    assert elsewhere == []


def test_find_leaks_waits_for_threads_that_are_about_to_end() -> None:
    real = threading.Lock()
    real.acquire()
    SYSTEM.start_thread(lambda: real.acquire(timeout=60), "older")
    before = standing()
    ticket = threading.Lock()
    ticket.acquire()
    SYSTEM.start_thread(lambda: ticket.acquire(timeout=60), "ending")
    ticket.release()

    leaks = leaks_without_tickets(before)
    real.release()

    assert leaks == []


def test_find_leaks_names_a_ticket_that_is_referred_to_and_none_that_is_garbage() -> None:
    with FakeClock() as clock:
        kept, garbage = (Ticket[None](clock.blocking) for _ in range(2))
        for ticket, name in ((kept, "kept"), (garbage, "garbage")):
            ticket.about = (ShutdownRequest(), name)
        cycle: list[object] = [garbage]
        cycle.append(cycle)
        gc.disable()  # or it may be gone before the look
        try:
            del garbage, ticket, cycle
            leaks = find_leaks(before=standing(), seam=clock.blocking)
        finally:
            gc.enable()
        kept.cancel()

    assert leaks == ["ticket for ShutdownRequest to kept, which was never answered"]


def test_find_leaks_names_threads_that_do_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAST_GRACE", 0.01)
    before = standing()
    real = threading.Lock()
    real.acquire()
    SYSTEM.start_thread(lambda: real.acquire(timeout=60), "stays")

    leaks = leaks_without_tickets(before)
    real.release()

    assert leaks == ["thread stays"]


@pytest.mark.parametrize("look", [leaks_without_tickets, lambda: [f"thread {wait_no_threads(0.01)[0].name}"]])
def test_find_leaks_bears_a_thread_that_is_just_being_started(
    look: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_GRACE", 0.01)
    thread = SystemThread(name="beginning", daemon=True)

    with monkeypatch.context() as patched:
        patched.setitem(vars(threading)["_limbo"], thread, thread)  # as Thread.start does at first
        leaks = look()

    assert leaks == ["thread beginning"]


def test_leak_error_tells_all_that_a_test_in_a_simulation_has_left_behind() -> None:
    with pytest.raises(LeakError) as raised, checked_simulation(0, passed):  # noqa: PT012  it is what is tested
        mailbox = open_mailbox_for_test()
        mailbox.send("a picture")
        mailbox.receive()
        LoopActor.start(ProbeLoop(), name="forgotten")
    pykka.ActorRegistry.stop_all(block=False)

    told = str(raised.value)
    assert told.startswith("the test has left behind:\n- thread forgotten")
    assert "- actor " in told
    assert "- lease of 'mailbox'" in told


def test_leak_error_is_not_raised_for_a_test_that_has_failed_anyway() -> None:
    with checked_simulation(0, failed), open_warden(failed):
        mailbox = open_mailbox_for_test()
        mailbox.send("a picture")
        mailbox.receive()
    with checked_simulation(0, passed):
        pass
    with checked_fake_clock(failed), open_warden(failed):
        mailbox = open_mailbox_for_test()
        mailbox.send("a picture")
        mailbox.receive()
    with checked_fake_clock(passed):
        pass


def test_leak_error_is_raised_for_threads_that_truly_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAST_GRACE", 0.01)

    with pytest.raises(LeakError, match="thread forgotten"), checked_fake_clock(passed):
        LoopActor.start(ProbeLoop(), name="forgotten")
    pykka.ActorRegistry.stop_all()


def test_warden_that_the_test_has_ended_is_left_alone() -> None:
    with checked_simulation(0, passed), open_warden(passed) as warden:
        warden.stop()


def kill(_: object) -> None:
    raise SystemExit("crash")


class Broken:
    """A loop that dies as soon as it runs."""

    def run(self) -> None:
        raise SystemExit("crash")

    def shutdown(self, timeout: float = 30.0) -> bool:
        del timeout
        return True


def test_warden_that_gave_up_unheard_fails_the_test() -> None:
    with (  # noqa: PT012  it is what is tested
        pytest.raises(SupervisorGaveUp),
        checked_simulation(0, passed) as simulation,
        open_warden(passed) as warden,
    ):
        warden.spawn(ChildSpec(id="loop", start=Broken))
        simulation.advance(600)


def test_warden_that_gave_up_and_was_heard_is_left_alone() -> None:
    with checked_simulation(0, passed), open_warden(passed) as warden:
        warden.spawn(ChildSpec(id="loop", start=Broken))
        with pytest.raises(SupervisorGaveUp):
            warden.wait()


def test_warden_allows_a_message_that_kills_its_loop_to_become_a_dead_letter() -> None:
    with checked_simulation(0, passed), open_warden(passed) as warden:
        mailbox = open_mailbox_for_test()
        warden.spawn(ChildSpec(id="loop", start=lambda: MailboxLoop(mailbox, kill)))

        letter = mailbox.dead(mailbox.send("poison")).wait()

        assert letter.delivery_count == 5


def test_warden_that_does_not_stop_cleanly_fails_the_test() -> None:
    with (  # noqa: PT012  it is what is tested
        pytest.raises(AssertionError, match="did not stop cleanly"),
        checked_simulation(0, failed),
        Hold() as hold,
        open_warden(passed) as warden,
    ):
        loop = ProbeLoop(hold)
        warden.spawn(ChildSpec(id="loop", start=lambda: loop))
        loop.feed("a body")
        hold.wait_reached()
