"""Simulations and clocks that end, are interrupted, or are left behind."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import TYPE_CHECKING

import pytest

from loopwarden import Ticket, open_mailbox
from loopwarden._blocking import SYSTEM
from loopwarden.actors import ControlActor
from loopwarden.actors.runtime._exit_hook import alive
from loopwarden.clock import SYSTEM_CLOCK, current_clock
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.testing import (
    DeadlockError,
    FakeClock,
    FaultyMailbox,
    HangError,
    HookedBlocking,
    Simulation,
    hang_guard,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("make", [Simulation, FakeClock])
def test_clock_of_a_test_goes_with_the_mailboxes_that_were_opened_in_it(make: Callable[[], Simulation]) -> None:
    def use() -> weakref.ref[Simulation]:
        with make() as clock:
            open_mailbox("memory://jobs").send("never received")
            return weakref.ref(clock)

    used = [use() for _ in range(3)]
    gc.collect()

    assert [each() for each in used] == [None] * 3


def test_fake_clock_that_is_entered_twice_is_current_until_it_is_left_twice() -> None:
    with FakeClock() as clock:
        with clock:
            pass

        assert current_clock() is clock
    assert current_clock() is SYSTEM_CLOCK


def test_actor_that_had_not_begun_when_its_simulation_ended_is_forgotten() -> None:
    with Simulation(strategy="first"):
        ref = ControlActor.start()

    assert ref not in alive()


def test_process_that_is_forked_in_a_simulation_lives_by_the_machines_clock() -> None:
    with Simulation() as simulation:
        ref = ControlActor.start()
        pid = os.fork()
        if not pid:
            try:
                ControlActor.start().stop(timeout=30)
                os._exit(0 if current_clock() is SYSTEM_CLOCK else 3)
            finally:
                os._exit(4)
        with simulation.outside():
            _, status = os.waitpid(pid, 0)
        ref.stop()

    assert os.waitstatus_to_exitcode(status) == 0


def test_thread_of_the_machine_that_is_started_in_a_simulation_is_not_of_it() -> None:
    seen: Ticket[object] = Ticket(SYSTEM)

    with Simulation() as simulation, simulation.outside():
        SYSTEM.start_thread(lambda: seen.complete(current_clock()), "of the machine")
        seen.wait(timeout=60)

    assert seen.wait() is SYSTEM_CLOCK


def test_simulation_that_has_no_end_is_given_up_even_if_the_test_is_never_chosen() -> None:
    def poll(done: Ticket[int]) -> None:
        while not done.is_ready():
            pass

    def wait_while_another_polls() -> None:
        with Simulation(strategy="first", max_steps=1_000) as simulation:
            done: Ticket[int] = Ticket()
            simulation.start_thread(lambda: poll(done), "poll")
            simulation.gate().wait(1)

    with pytest.raises(DeadlockError, match="no end after"):
        wait_while_another_polls()


def test_hang_guard_ends_a_test_that_waits_outside_while_a_thread_is_stuck() -> None:
    released, reached = threading.Event(), threading.Event()  # noqa: TID251  what is no part of a simulation

    def get_stuck() -> None:
        reached.set()
        released.wait()

    def wait_for_nothing() -> None:
        with hang_guard(0.5), Simulation() as simulation:
            simulation.start_thread(get_stuck, "stuck")
            with simulation.outside():
                reached.wait()
                threading.Event().wait()  # noqa: TID251  as above

    try:
        with pytest.raises(HangError):
            wait_for_nothing()
    finally:
        released.set()


def test_fake_clock_is_handed_on_to_threads_of_a_hooked_seam() -> None:
    with FakeClock(blocking=HookedBlocking(on_acquired=lambda _: None)) as clock:
        seen: Ticket[object] = Ticket()
        clock.blocking.start_thread(lambda: seen.complete(current_clock()), "of the clock")

        assert seen.wait(timeout=60) is clock


def test_faulty_mailbox_does_not_count_a_lease_that_is_over() -> None:
    with Simulation() as simulation:
        mailbox: FaultyMailbox[str, None] = FaultyMailbox(InMemoryMailbox("jobs"))
        mailbox.send_many(["a", "b"])
        [short] = mailbox.receive(visibility_timeout=1)
        [extended] = mailbox.receive(visibility_timeout=1)
        extended.extend_visibility(60)
        simulation.advance(5)

        assert [short.id in each or extended.id in each for each in mailbox.leases()] == [True]
        assert extended.id in mailbox.leases()[0]
