from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import threading
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from pydantic import BaseModel

from loopwarden import (
    Backoff,
    ChildSpec,
    HealthCheckRequest,
    LoopActor,
    LoopGroup,
    MailboxLoop,
    OffloadPool,
    Service,
    Session,
    ShutdownRequest,
    Slice,
    Supervisor,
    Ticket,
    WatchdogActor,
    daemon_scope,
    open_mailbox,
    wait_all,
)
from loopwarden._blocking import SYSTEM, SystemThread
from loopwarden.actors.runtime import _exit_hook
from loopwarden.clock import SYSTEM_CLOCK, current_clock
from loopwarden.errors import TicketTimeoutError
from loopwarden.mailbox import InMemoryMailbox, SqliteMailbox
from loopwarden.testing import (
    DeadlockError,
    FakeClock,
    Hold,
    Probe,
    ProbeLoop,
    SimulatedCrash,
    Simulation,
    _scheduler,
    crash_here,
    wait_no_threads,
)

if TYPE_CHECKING:
    from pathlib import Path

    from loopwarden import Message
    from loopwarden._blocking import Gate, ThreadHandle


def outside(simulation: Simulation, thread: ThreadHandle) -> None:
    """Wait for a thread that is not of the simulation."""
    with simulation.outside():
        thread.join(60)
    assert not thread.is_alive()


def count(simulation: Simulation, workers: int = 3, rounds: int = 4) -> list[str]:
    """Let some threads write down their turns, which they take at a lock."""
    seen: list[str] = []
    lock = simulation.lock()

    def work(name: str) -> None:
        for _ in range(rounds):
            with lock:
                seen.append(name)

    threads = [simulation.start_thread(partial(work, name), name) for name in "abcdef"[:workers]]
    for thread in threads:
        thread.join()
    return seen


def restless_system(simulation: Simulation) -> tuple[list[float], int]:
    """Run a loop that crashes on every third message for two hours, watched; return when it was started again."""
    jobs = open_mailbox("memory://jobs", body=int, max_deliveries=2)
    done: list[int] = []

    def handle(message: Message[int, Any]) -> None:
        if message.body % 3 == 0 and message.delivery_count == 1:
            raise SystemExit("crash")
        done.append(message.body)

    spec = ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, handle), backoff=Backoff(minimum=0.5, maximum=60))
    with Supervisor.open("media", children=[spec], intensity=None) as media, daemon_scope() as scope:
        scope.spawn(WatchdogActor([media], stall_threshold=720))
        for number in range(24):
            jobs.send(number, delay=number * 300.0)
        simulation.advance(7_200)
        starts = [event.at for event in media.events() if event.kind == "started"]
    return starts, len(done)


# The same again.


def test_simulation_of_the_same_seed_does_the_same_step_by_step() -> None:
    with Simulation(seed=7) as first:
        seen = count(first)
    with Simulation(seed=7) as second:
        again = count(second)

    assert again == seen
    assert second.tape == first.tape
    assert second.scheduler.digest == first.scheduler.digest


def test_simulation_of_another_seed_takes_another_order() -> None:
    orders: set[tuple[str, ...]] = set()
    for seed in range(10):
        with Simulation(seed) as simulation:
            orders.add(tuple(count(simulation)))

    assert len(orders) == 10


def test_simulation_that_is_given_a_tape_repeats_the_run_that_wrote_it() -> None:
    with Simulation(seed="any text") as first:
        seen = count(first)
    with Simulation(tape=first.tape) as second:
        again = count(second)

    assert again == seen
    assert second.scheduler.digest == first.scheduler.digest


def test_simulation_that_is_given_part_of_a_tape_goes_on_without_interruptions() -> None:
    with Simulation(seed=3) as first:
        count(first)
    with Simulation(tape=first.tape[:5]) as second:
        count(second)

    assert second.tape[:5] == first.tape[:5]
    assert not any(second.tape[5:])


@pytest.mark.parametrize("seed", range(3))
def test_simulation_repeats_a_whole_system_with_its_back_offs(seed: int) -> None:
    with Simulation(seed) as first:
        found = restless_system(first)
    with Simulation(seed) as second:
        again = restless_system(second)
    with Simulation(seed, tape=first.tape) as third:
        from_tape = restless_system(third)

    assert again == found
    assert from_tape == found
    assert second.tape == first.tape
    assert {second.scheduler.digest, third.scheduler.digest} == {first.scheduler.digest}


def test_simulation_spreads_back_offs_otherwise_for_another_seed() -> None:
    with Simulation(1, strategy="first") as first:
        one, _ = restless_system(first)
    with Simulation(2, strategy="first") as second:
        other, _ = restless_system(second)

    assert one != other


PROGRAM = """
from loopwarden import *
from loopwarden.testing import Simulation
with Simulation(seed=5) as simulation:
    jobs = open_mailbox("memory://jobs", body=str)
    done = []
    with Supervisor.open("media", children=[
        ChildSpec(id=f"loop-{n}", start=lambda: MailboxLoop(jobs, lambda message: done.append(message.body)))
        for n in range(3)
    ]) as media:
        jobs.send_many([str(n) for n in range(20)])
        simulation.advance(100)
print(done, simulation.steps, simulation.tape)
"""


def test_simulation_of_the_same_seed_does_the_same_in_another_process() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]

    assert outputs[0] == outputs[1]
    assert "'19'" in outputs[0]


# Whose turn it is while the test waits.


def test_simulation_lets_the_others_run_while_the_test_waits_for_a_ticket() -> None:
    with Simulation() as simulation:
        ticket: Ticket[str] = Ticket()
        simulation.start_thread(lambda: ticket.complete("written"), "writer")

        assert ticket.wait() == "written"


def test_simulation_lets_the_others_run_while_the_test_waits_for_an_event() -> None:
    with Simulation(), Supervisor.open("media") as media:
        events = media.subscribe()
        media.spawn(ChildSpec(id="late", start=ProbeLoop))

        assert events.wait_for("started", "late").attempt == 0


def test_simulation_lets_the_others_run_while_the_test_waits_for_a_message() -> None:
    with Simulation() as simulation:
        jobs = open_mailbox("memory://jobs", body=str)
        simulation.call_later(15, lambda: jobs.send("later"))
        began = simulation.now

        [message] = jobs.receive(wait_time_seconds=20)

        assert (message.body, simulation.now - began) == ("later", 15.0)
        message.acknowledge()


def test_simulation_ends_a_wait_for_nothing_at_its_simulated_time() -> None:
    with Simulation() as simulation:
        jobs = open_mailbox("memory://jobs", body=str)
        ticket: Ticket[None] = Ticket()

        assert not jobs.receive(wait_time_seconds=20)
        with pytest.raises(TicketTimeoutError):
            ticket.wait(timeout=3_600)

        assert simulation.now == 1_000.0 + 20 + 3_600


def test_simulation_gives_one_deadline_to_all_tickets_that_are_waited_for() -> None:
    with Simulation() as simulation:
        tickets: list[Ticket[None]] = [Ticket(), Ticket()]
        simulation.call_later(40, lambda: tickets[0].complete(None))

        with pytest.raises(TicketTimeoutError, match="1 of 2"):
            wait_all(tickets, timeout=60)

        assert simulation.now == 1_060.0


# Time.


def test_simulation_jumps_to_the_next_timer_once_all_are_at_rest() -> None:
    with Simulation(start=0.0) as simulation:
        seen: list[tuple[str, float]] = []
        done: Ticket[None] = Ticket()
        lock = simulation.lock()

        def work() -> None:
            for _ in range(20):
                with lock:
                    seen.append(("work", simulation.now))

        def ring() -> None:
            seen.append(("timer", simulation.now))
            done.complete(None)

        simulation.call_later(0.001, ring)
        threads = [simulation.start_thread(work, f"worker-{number}") for number in range(3)]
        done.wait()

        assert seen == [*[("work", 0.0)] * 60, ("timer", 0.001)]
        assert [thread.is_alive() for thread in threads] == [False] * 3


def test_simulation_passes_two_hours_with_crashes_in_a_moment() -> None:
    with Simulation(seed=11) as simulation:
        starts, done = restless_system(simulation)

    assert len(starts) == 1 + 8
    assert done == 24
    assert simulation.now >= 1_000.0 + 7_200


def test_simulation_finds_a_stalled_worker_in_a_moment() -> None:
    with Simulation() as simulation:
        jobs = open_mailbox("memory://jobs", body=str)
        done: Ticket[str] = Ticket()
        hold = Hold()

        def handle(message: Message[str, Any]) -> None:
            if message.delivery_count == 1:
                hold()
            done.complete(message.body)

        with (
            hold,
            Supervisor.open("media", children=[ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, handle))]) as media,
            daemon_scope() as scope,
        ):
            events = media.subscribe()
            scope.spawn(WatchdogActor([media], stall_threshold=720))
            jobs.send("a picture")

            assert events.wait_for("stalled", timeout=None).child == "loop"
            assert done.wait() == "a picture"
            assert 720 <= simulation.now - 1_000 < 1_000
            hold.release()
            simulation.settle()


def test_simulation_settles_without_letting_time_pass() -> None:
    with Simulation() as simulation:
        seen: list[str] = []
        gate = simulation.gate()

        def wait() -> None:
            seen.append("begun")
            gate.wait()
            seen.append("opened")

        simulation.start_thread(wait, "waiter")
        simulation.call_later(1, lambda: seen.append("timer"))

        simulation.settle()
        at_rest = list(seen)
        gate.open()
        simulation.settle()

        assert at_rest == ["begun"]
        assert seen == ["begun", "opened"]
        assert simulation.now == simulation.monotonic() == 1_000.0
        simulation.advance(1)


def test_simulation_advances_through_all_that_falls_due() -> None:
    with Simulation(start=0.0) as simulation:
        seen: list[tuple[str, float]] = []
        simulation.call_later(1, lambda: simulation.call_later(1, lambda: seen.append(("chained", simulation.now))))
        simulation.call_later(3, lambda: seen.append(("at the end", simulation.now)))
        simulation.call_later(3.5, lambda: seen.append(("late", simulation.now)))

        simulation.advance(3)

        assert seen == [("chained", 2.0), ("at the end", 3.0)]
        assert simulation.now == 3.0
        simulation.advance(0.5)


def test_simulation_refuses_to_turn_time_back() -> None:
    with Simulation() as simulation, pytest.raises(ValueError, match="-1"):
        simulation.advance(-1)


def test_simulation_moves_wall_time_with_its_own() -> None:
    with Simulation(start=0.0) as simulation:
        before = simulation.wall()

        simulation.advance(90)

        assert simulation.wall() - before == 90


def test_simulation_waits_for_ever_for_an_infinite_time() -> None:
    with Simulation() as simulation:
        gate = simulation.gate()
        simulation.call_later(5, gate.open)

        assert gate.wait(math.inf)
        assert simulation.now == 1_005.0


def test_simulation_takes_an_infinite_wait_for_nothing_as_a_deadlock() -> None:
    with Simulation() as simulation, pytest.raises(DeadlockError):
        simulation.gate().wait(math.inf)


# What can be met at.


def open_after(timer: Gate, gate: Gate) -> None:
    timer.wait(5)
    gate.open()


def test_simulation_lets_a_gate_that_is_opened_after_the_time_of_its_waiter_stay_open() -> None:
    for seed in range(50):
        with Simulation(seed) as simulation:
            gate = simulation.gate()
            other = simulation.gate()
            opener = simulation.start_thread(partial(open_after, other, gate), "opener")

            was_in_time = gate.wait(5)
            opener.join()

            assert gate.wait(0) is not was_in_time
            assert not simulation.gate().wait(7)
            assert simulation.now == 1_012.0


def test_simulation_forgets_who_waited_for_the_end_of_a_thread_in_vain() -> None:
    with Simulation() as simulation:
        gate, other = simulation.gate(), simulation.gate()
        thread = simulation.start_thread(gate.wait, "waiter")

        thread.join(timeout=1)
        still_alive = thread.is_alive()
        simulation.call_later(1, gate.open)
        was_opened = other.wait(10)

        assert still_alive
        assert not thread.is_alive()
        assert not was_opened
        assert simulation.now == 1_011.0


def test_simulation_tells_a_thread_by_its_name_and_number() -> None:
    with Simulation() as simulation:
        gate = simulation.gate()
        thread = simulation.start_thread(gate.wait, "waiter")
        simulation.settle()

        [line] = simulation.threads()

        assert thread.name == "waiter"
        assert thread.ident is not None
        assert line.startswith("waiter, started at ")
        assert "test_simulation.py" in line
        gate.open()
        thread.join()
        assert simulation.threads() == []


def test_simulation_keeps_the_order_of_a_queue() -> None:
    with Simulation(seed=4) as simulation:
        queue = simulation.queue()
        taken: list[int] = []
        thread = simulation.start_thread(lambda: taken.extend(queue.get() for _ in range(10)), "taker")
        for number in range(10):
            queue.put(number)
        thread.join()

        assert taken == list(range(10))
        assert queue.empty()


def test_simulation_refuses_a_thread_after_its_end() -> None:
    with Simulation() as simulation:
        pass

    with pytest.raises(RuntimeError, match="the simulation is over"):
        simulation.start_thread(lambda: None, "late")


def test_simulation_goes_on_after_a_thread_could_not_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with Simulation() as simulation:
        with monkeypatch.context() as patched:
            patched.setattr(SystemThread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start"):
                simulation.start_thread(lambda: None, "refused")

        assert len(count(simulation)) == 12
        assert simulation.threads() == []


# What goes wrong.


def test_simulation_says_which_thread_waits_for_what_when_none_can_go_on() -> None:
    with Simulation() as simulation:
        ticket: Ticket[None] = Ticket()
        first, second = simulation.lock(), simulation.lock()
        meeting = simulation.gate()

        def take_both() -> None:
            with first:
                meeting.wait()
                with second:
                    pass

        simulation.start_thread(take_both, "one side")
        simulation.settle()
        with second, first_of_all(simulation, meeting):
            with pytest.raises(DeadlockError) as raised, first:
                pass
            told = str(raised.value)
        with pytest.raises(DeadlockError, match="the test waits at gate"):
            ticket.wait()

    assert "no thread can go on" in told
    assert "- the test waits for lock" in told
    assert "- one side waits for lock" in told
    assert "take_both" in told
    assert "simulation.outside()" in told


class first_of_all:  # noqa: N801  it reads like a word of the test
    """Open a gate, and let the threads that come through it come to rest."""

    def __init__(self, simulation: Simulation, gate: Any) -> None:
        self._simulation = simulation
        self._gate = gate

    def __enter__(self) -> None:
        self._gate.open()
        self._simulation.settle()

    def __exit__(self, *_: object) -> None: ...


def test_simulation_goes_on_in_order_after_a_deadlock_that_the_test_has_caught() -> None:
    with Simulation() as simulation:
        lock, gate = simulation.lock(), simulation.gate()

        def hold() -> None:
            with lock:
                gate.wait()

        holder = simulation.start_thread(hold, "holder")
        simulation.settle()
        with pytest.raises(DeadlockError), lock:
            pass
        simulation.call_later(3, gate.open)

        assert not simulation.gate().wait(9)
        assert simulation.now == 1_009.0
        holder.join()


def test_simulation_tells_a_test_that_waits_for_a_week_while_others_poll() -> None:
    with Simulation() as simulation:
        ticket: Ticket[None] = Ticket()
        gate = simulation.gate()
        poller = simulation.start_thread(lambda: all(not gate.wait(3_600) for _ in range(10_000)), "poller")

        with pytest.raises(DeadlockError, match="waited for a simulated week") as raised:
            ticket.wait()

        assert "- poller " in str(raised.value)
        assert simulation.now > 1_000 + 604_800
        gate.open()
        poller.join()


def test_simulation_tells_a_test_that_steps_have_no_end() -> None:
    with Simulation(max_steps=1_000) as simulation:
        is_over: list[bool] = []
        lock = simulation.lock()

        def spin() -> None:
            while not is_over:
                with lock:
                    pass

        spinner = simulation.start_thread(spin, "spinner")
        with pytest.raises(DeadlockError, match="no end after 1001 steps"):
            simulation.settle()
        is_over.append(True)

        assert not simulation.gate().wait(5)
        assert simulation.now == 1_005.0
        spinner.join()


def test_simulation_waits_for_a_handler_that_blocks_outside_and_names_it(caplog: pytest.LogCaptureFixture) -> None:
    real = threading.Lock()
    real.acquire()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            real.release()

    watch = Watch()
    logging.getLogger("loopwarden").addHandler(watch)

    def block_outside() -> None:
        real.acquire(timeout=60)

    try:
        with Simulation() as simulation:
            handle = simulation.start_thread(block_outside, "blocked")
            handle.join()
    finally:
        logging.getLogger("loopwarden").removeHandler(watch)

    [record] = caplog.records
    assert "blocked blocks outside of the simulation" in record.getMessage()
    assert "block_outside" in record.getMessage()
    assert "use current_clock().blocking (lock, gate, queue), or wait in `with" in record.getMessage()


def test_simulation_names_no_thread_that_only_takes_many_steps(caplog: pytest.LogCaptureFixture) -> None:
    enough = SYSTEM_CLOCK.monotonic() + _scheduler.STUCK * 1.5

    with Simulation(max_steps=sys.maxsize) as simulation:  # how many steps fit in there depends on the machine
        lock = simulation.lock()

        def work() -> None:
            while SYSTEM_CLOCK.monotonic() < enough:
                with lock:
                    pass

        simulation.start_thread(work, "worker").join()

    assert "blocks outside of the simulation" not in caplog.text


def test_simulation_names_the_test_if_that_keeps_a_thread_that_is_not_of_it_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    real = threading.Lock()
    real.acquire()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            real.release()

    watch = Watch()
    logging.getLogger("loopwarden").addHandler(watch)
    try:
        with Simulation() as simulation:
            ticket: Ticket[None] = Ticket()
            plain = SYSTEM.start_thread(lambda: ticket.complete(None), "plain")
            real.acquire(timeout=60)

            outside(simulation, plain)
    finally:
        logging.getLogger("loopwarden").removeHandler(watch)

    assert "the test blocks outside of the simulation" in caplog.text


# Clocks.


def test_simulation_is_the_clock_of_all_that_is_made_without_one() -> None:
    clocks: list[object] = []

    def make() -> ProbeLoop:
        clocks.append(current_clock())
        return ProbeLoop(lambda _: clocks.append(current_clock()))

    with Simulation() as simulation:
        with Supervisor.open("media", children=[ChildSpec(id="loop", start=make)]) as media:
            ref = media.spawn(ChildSpec(id="other", start=make))
            loop = ProbeLoop(lambda _: clocks.append(current_clock()))
            actor = LoopActor.start(loop)
            loop.feed("a body")
            simulation.settle()
            actor.stop()
            ref.send(ShutdownRequest()).wait()
        clocks.append(current_clock())

        assert clocks == [simulation] * 4
    assert current_clock() is SYSTEM_CLOCK


def test_simulation_leaves_an_explicit_clock_alone() -> None:
    clock = FakeClock()

    with Simulation() as simulation:
        jobs: InMemoryMailbox[str, None] = InMemoryMailbox("jobs", clock=clock)
        same: InMemoryMailbox[str, None] = InMemoryMailbox("jobs", clock=simulation)
        for mailbox in (jobs, same):
            mailbox.send("later", delay=10)
        simulation.advance(10)
        found = [len(mailbox.receive()) for mailbox in (jobs, same)]
        clock.advance(10)

        assert found == [0, 1]
        assert len(jobs.receive()) == 1


def test_simulation_has_names_of_mailboxes_of_its_own() -> None:
    with Simulation():
        first = open_mailbox("memory://jobs", body=str)
        first.send("left behind")
        assert open_mailbox("memory://jobs") is first
    with Simulation():
        second = open_mailbox("memory://jobs")

        assert second is not first
        assert second.approximate_count() == 0


# Threads that are not of the simulation.


def test_simulation_lets_a_thread_that_is_not_of_it_send_and_wait() -> None:
    with Simulation() as simulation:
        jobs = open_mailbox("memory://jobs", body=str)
        done: Ticket[str] = Ticket()
        answers: list[object] = []
        with Supervisor.open("media") as media:
            loop = media.spawn(
                ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, lambda message: done.complete(message.body)))
            )

            def work() -> None:
                jobs.send("from outside")
                answers.extend([done.wait(), loop.send(HealthCheckRequest()).wait(timeout=60).restarts])

            outside(simulation, SYSTEM.start_thread(work, "plain"))

        assert answers == ["from outside", 0]


def test_simulation_lets_a_thread_that_is_not_of_it_complete_what_the_test_waits_for() -> None:
    with Simulation() as simulation:
        ticket: Ticket[str] = Ticket()
        real = threading.Lock()
        real.acquire()

        def work() -> None:
            real.acquire(timeout=60)
            ticket.complete("from outside")

        plain = SYSTEM.start_thread(work, "plain")

        def release_and_wait() -> None:
            with simulation.outside():
                real.release()
                plain.join(60)

        simulation.start_thread(release_and_wait, "goes out")

        assert ticket.wait() == "from outside"


def test_simulation_in_which_no_thread_can_go_on_still_lets_the_test_out() -> None:
    with Simulation() as simulation:
        real = threading.Lock()
        real.acquire()
        ticket: Ticket[int] = Ticket()

        def work() -> None:
            real.acquire(timeout=60)
            ticket.complete(1)

        plain = SYSTEM.start_thread(work, "plain")
        with simulation.outside():
            real.release()
            plain.join(60)
            answer = ticket.wait()

        assert answer == 1
        assert not simulation.gate().wait(5)
        assert simulation.now == 1_005.0


def test_simulation_counts_a_deadlock_although_a_thread_is_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_scheduler, "STUCK", 0.001)
    monkeypatch.setattr(_scheduler, "LAST_ARRIVAL", 0.01)
    real = threading.Lock()
    real.acquire()

    with Simulation() as simulation:

        def wait_outside() -> None:
            with simulation.outside():
                real.acquire(timeout=60)

        thread = simulation.start_thread(wait_outside, "listener")
        with pytest.raises(DeadlockError, match=r"time \(listener did not come back(?s:.)*- listener waits outside"):
            Ticket[None]().wait()
        real.release()
        thread.join()

        assert simulation.threads() == []


def test_simulation_ends_the_wait_of_a_thread_that_is_not_of_it() -> None:
    errors: list[BaseException] = []

    with Simulation() as simulation:
        ticket: Ticket[None] = Ticket()
        gate = simulation.gate()

        def wait() -> None:
            gate.open()
            try:
                ticket.wait()
            except DeadlockError as error:
                errors.append(error)

        plain = SYSTEM.start_thread(wait, "plain")
        with simulation.outside():
            gate.wait()
        while not simulation.threads():
            with simulation.outside():
                simulation.gate().wait(0)
    plain.join(60)

    assert not plain.is_alive()
    assert "the simulation is over" in str(errors[0])


@pytest.mark.parametrize("seed", range(5))
def test_simulation_survives_a_storm_of_threads_that_are_not_of_it(seed: int) -> None:
    with Simulation(seed) as simulation:
        queue = simulation.queue()
        taken: list[int] = []
        lock = simulation.lock()

        def take() -> None:
            for _ in range(100):
                item = queue.get()
                with lock:
                    taken.append(item)

        def put(number: int) -> None:
            for item in range(50):
                queue.put(number * 50 + item)

        takers = [simulation.start_thread(take, f"taker-{number}") for number in range(2)]
        plain = [SYSTEM.start_thread(partial(put, number), f"plain-{number}") for number in range(4)]
        for thread in plain:
            outside(simulation, thread)
        for taker in takers:
            taker.join()

        assert sorted(taken) == list(range(200))
        assert simulation.threads() == []


# The end.


def test_simulation_ends_threads_that_were_left_behind_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    with Simulation() as simulation:
        jobs = open_mailbox("memory://jobs", body=str)
        hold = Hold()
        Supervisor.start(
            "media", children=[ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, lambda _: hold(), concurrency=3))]
        )
        LoopActor.start(ProbeLoop())
        simulation.call_later(1_000, lambda: None)
        jobs.send_many(["a", "b", "c"])
        simulation.advance(1)
        were_there = len(simulation.threads())
    pykka.ActorRegistry.stop_all(block=False)

    assert were_there > 6
    assert not wait_no_threads()
    assert caplog.records == []
    assert simulation.scheduler.deaf == []


@pytest.mark.parametrize("seed", range(20))
def test_simulation_forgets_the_actors_that_were_left_behind(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    with Simulation(seed) as simulation:
        jobs = open_mailbox("memory://jobs", body=str)
        ref = LoopActor.start(MailboxLoop(jobs, lambda _: None))
        known = ref in _exit_hook.alive()

    assert known
    assert simulation.is_over
    assert _exit_hook.alive() == []
    assert pykka.ActorRegistry.get_all() == []
    assert caplog.text == ""


def test_simulation_that_is_over_is_not_asked_to_stop_its_actors_at_exit() -> None:
    with Simulation():
        ref = LoopActor.start(ProbeLoop())
    _exit_hook.remember(ref)
    try:
        _exit_hook.stop_forgotten()  # it would warn, and a warning is an error here
    finally:
        _exit_hook.forget(ref)


def test_simulation_ends_a_thread_that_makes_something_else_of_its_end() -> None:
    with Simulation() as simulation:
        gate = simulation.gate()

        def hide() -> None:
            try:
                gate.wait()
            finally:
                raise ValueError("instead")

        simulation.start_thread(hide, "hider")
        simulation.settle()

    assert not wait_no_threads()


def test_simulation_whose_test_fails_ends_all_threads_and_raises_what_the_test_did() -> None:
    with pytest.raises(ZeroDivisionError), Simulation(), Probe() as probe:  # noqa: PT012  it is what is tested
        probe.ref.tell("hello")
        raise ZeroDivisionError

    assert not wait_no_threads()


def test_simulation_is_used_once() -> None:
    simulation = Simulation()
    with simulation:
        pass

    with pytest.raises(RuntimeError, match="entered once"), simulation:
        pass


def test_simulation_inside_of_another_is_refused() -> None:
    with Simulation(seed=5), pytest.raises(RuntimeError, match=r"simulation around this one.*seed 5"), Simulation():
        pass


def test_simulation_is_only_let_go_on_by_its_own_threads() -> None:
    simulation = Simulation()

    with pytest.raises(RuntimeError, match="only a thread of the simulation"):
        simulation.settle()


def test_simulation_refuses_a_strategy_that_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="'random', 'pct' or 'first'"):
        Simulation(strategy="fair")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  it is what is tested


# Chance.


def test_simulation_draws_choices_from_its_tape() -> None:
    with Simulation(seed=9) as first:
        drawn = [first.choose(6) for _ in range(100)]
    with Simulation(tape=first.tape) as second:
        again = [second.choose(6) for _ in range(100)]
    with Simulation(strategy="first") as third:
        first_ones = [third.choose(6) for _ in range(100)]

    assert again == drawn
    assert set(drawn) == set(range(6))
    assert first_ones == [0] * 100


def test_crash_here_crashes_as_the_tape_of_its_simulation_has_it() -> None:
    def crashes(simulation: Simulation) -> list[bool]:
        found: list[bool] = []
        with simulation:
            for _ in range(50):
                try:
                    crash_here(odds=3)
                except SimulatedCrash:
                    found.append(True)
                else:
                    found.append(False)
        return found

    first = Simulation(seed=1)
    found = crashes(first)

    assert 5 < sum(found) < 30
    assert crashes(Simulation(tape=first.tape)) == found
    assert not any(crashes(Simulation(strategy="first")))


def test_crash_here_does_nothing_outside_of_a_simulation() -> None:
    for _ in range(100):
        crash_here(odds=1)


@pytest.mark.parametrize("seed", range(20))
def test_simulation_with_crashes_anywhere_loses_no_message(seed: int) -> None:
    with Simulation(seed) as simulation:
        jobs = open_mailbox("memory://jobs", body=int, max_deliveries=None)
        done: set[int] = set()

        def handle(message: Message[int, Any]) -> None:
            crash_here(odds=4)
            done.add(message.body)
            crash_here(odds=4)

        spec = ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, handle, concurrency=2))
        with Supervisor.open("media", children=[spec], intensity=None):
            jobs.send_many(range(5))
            simulation.advance(3_600)

        assert done == set(range(5))
        assert jobs.approximate_count() == 0


@pytest.mark.parametrize("strategy", ["random", "pct", "first"])
def test_simulation_of_each_strategy_runs_a_system_to_its_end(strategy: Any) -> None:
    with Simulation(seed=2, strategy=strategy) as simulation:
        _, done = restless_system(simulation)

    assert done == 24


def test_simulation_by_pct_prefers_long_stretches() -> None:
    def switches(strategy: Any) -> int:
        total = 0
        for seed in range(10):
            with Simulation(seed, strategy=strategy) as simulation:
                seen = count(simulation, rounds=10)
            total += sum(one != other for one, other in pairwise(seen))
        return total

    assert switches("pct") * 2 < switches("random")


# All that there is to run.


class Adder(pykka.ThreadingActor):
    def __init__(self) -> None:
        super().__init__()
        self._sum = 0

    def on_receive(self, message: Any) -> int:
        self._sum += message
        if message < 0:
            raise ValueError(message)
        return self._sum


@pytest.mark.parametrize("seed", range(5))
def test_simulation_runs_plain_pykka_actors_that_are_supervised(seed: int) -> None:
    with Simulation(seed) as simulation, Supervisor.open("media") as media:
        events = media.subscribe()
        adder = media.spawn(ChildSpec(id="adder", actor=Adder))
        adder.tell(2)
        answer = adder.ask(3)
        adder.tell(-1)
        started = events.wait_for("restarting")
        simulation.advance(120)

        assert answer == 5
        assert started.delay > 0
        assert adder.ask(1) == 1


@pytest.mark.parametrize("seed", range(8))
def test_simulation_runs_two_sqlite_mailboxes_on_one_file(seed: int, tmp_path: Path) -> None:
    with Simulation(seed) as simulation:
        first: SqliteMailbox[int, Any] = SqliteMailbox(str(tmp_path / "mail.db"), "jobs", body=int)
        second: SqliteMailbox[int, Any] = SqliteMailbox(str(tmp_path / "mail.db"), "jobs", body=int)
        done: list[int] = []

        def handle(message: Message[int, Any]) -> None:
            if message.body == 7 and message.delivery_count == 1:
                raise SystemExit("crash")
            done.append(message.body)

        children = [
            ChildSpec(id=f"loop-{number}", start=partial(MailboxLoop, box, handle, concurrency=2))
            for number, box in enumerate([first, second, second])
        ]
        with Supervisor.open("media", children=children, intensity=None):
            first.send_many(range(10))
            second.send_many(range(10, 20))
            simulation.advance(600)
        left = first.approximate_count()
        first.close()
        second.close()

        assert sorted(done) == list(range(20))
        assert left == 0


def test_simulation_runs_a_pool_whose_time_outs_are_simulated() -> None:
    with Simulation() as simulation, Hold() as hold, OffloadPool(workers=2) as pool:
        slow = pool.submit(hold, timeout=3_600)
        quick = pool.submit(pow, 2, 10, timeout=5)

        assert quick.wait() == 1024
        with pytest.raises(TicketTimeoutError):
            slow.wait()
        assert simulation.now == 1_000 + 3_600
        hold.release()


class Till(BaseModel, frozen=True):
    total: int = 0


class Sold(BaseModel, frozen=True):
    price: int


TILL = Slice(Till()).on(Sold, lambda till, sold: Till(total=till.total + sold.price))


@pytest.mark.parametrize("seed", range(5))
def test_simulation_runs_a_session_with_its_journal(seed: int, tmp_path: Path) -> None:
    journal = tmp_path / "bakery.db"

    with Simulation(seed) as simulation:
        session = Session.open("bakery", [TILL], journal=journal)
        threads = [
            simulation.start_thread(lambda: [session.dispatch(Sold(price=1)) for _ in range(5)], f"seller-{number}")
            for number in range(3)
        ]
        for thread in threads:
            thread.join()
        session.dispatch(Sold(price=100)).wait()
        session.stop()
    with Simulation(seed):
        again = Session.open("bakery", [TILL], journal=journal)
        total = again.state[Till].total
        again.stop()

    assert total == 115


@pytest.mark.parametrize("seed", range(5))
def test_simulation_runs_a_service_on_a_thread_of_its_own(seed: int) -> None:
    with Simulation(seed) as simulation:
        jobs = open_mailbox("memory://jobs", body=str)
        done: list[str] = []
        spec = ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, lambda message: done.append(message.body)))
        service = Service(Supervisor("app", children=[spec]), mailboxes=[jobs], signals=())
        simulation.start_thread(service.run, "service")
        jobs.send("a picture")
        simulation.advance(3_600)
        service.shut_down("the day is over")
        report = service.finished.wait()
        simulation.settle()

        assert done == ["a picture"]
        assert (report.exit_code, report.reason) == (0, "the day is over")
        assert simulation.threads() == []


@pytest.mark.parametrize("seed", range(5))
def test_simulation_runs_a_group_of_loops_on_the_tests_own_thread(seed: int) -> None:
    with Simulation(seed) as simulation:
        jobs = open_mailbox("memory://jobs", body=str)
        done: list[str] = []
        loops = [MailboxLoop(jobs, lambda message: done.append(message.body)) for _ in range(3)]
        group = LoopGroup(loops=loops, shutdown_timeout=30)
        simulation.call_later(7_200, lambda: simulation.start_thread(group.shutdown, "stopper"))
        jobs.send_many(["a", "b", "c"], timeout=1)

        group.run(install_signals=False)
        simulation.settle()

        assert sorted(done) == ["a", "b", "c"]
        assert group.report is not None
        assert group.report.exit_code == 0
        assert simulation.now >= 1_000 + 7_200


def test_simulation_answers_a_ticket_that_is_awaited_outside() -> None:
    import asyncio  # noqa: PLC0415  only this test needs it here

    with Simulation() as simulation:
        jobs = open_mailbox("memory://jobs", body=str)
        done: Ticket[str] = Ticket()
        loop = LoopActor.start(MailboxLoop(jobs, lambda message: done.complete(message.body)))

        async def send_and_wait() -> str:
            jobs.send("a picture")
            return await done

        with simulation.outside():
            answer = asyncio.run(send_and_wait())
        loop.stop()

        assert answer == "a picture"


# What it tells.


def test_simulation_tells_who_was_interrupted_and_the_last_steps() -> None:
    with Simulation(seed=1) as simulation:
        count(simulation)
        story = simulation.story(last=3)

    assert "was interrupted before it takes lock 1 of" in story
    assert f"the last 3 of {len(simulation.scheduler.trace)} steps:" in story
    assert repr(simulation).startswith("<Simulation of seed 1 at 1000.000 s, ")


def test_simulation_counts_the_steps_that_it_tells() -> None:
    with Simulation() as simulation:
        nothing = simulation.story()
        simulation.start_thread(lambda: None, "short").join()
        told = simulation.story()

    assert nothing == ""
    heading, *steps = told[told.index("the last") :].splitlines()
    assert heading == f"the last {len(steps)} of {len(steps)} steps:"


def test_simulation_tells_the_last_interruptions_of_a_long_run() -> None:
    with Simulation(seed=1) as simulation:
        count(simulation, rounds=200)

    assert "interruptions before)" in simulation.story()
