"""The same promises as in the tests beside, for longer and with more at once."""

from __future__ import annotations

import functools
import queue
import random
from contextlib import suppress
from typing import Any

import pytest

from loopwarden import HealthCheckRequest, LoopActor, ProcessRequest, ShutdownRequest, Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.actors import ControlActor
from loopwarden.errors import ActorDeadError, TicketAlreadyCompletedError
from loopwarden.testing import FakeClock, ProbeLoop, SteppedBlocking

pytestmark = pytest.mark.prove


def test_64_threads_race_to_complete_one_ticket_10_000_times() -> None:
    rounds = 10_000
    writers = 64
    turns: list[queue.SimpleQueue[Ticket[int] | None]] = [queue.SimpleQueue() for _ in range(writers)]
    outcomes: queue.SimpleQueue[bool] = queue.SimpleQueue()
    reads: queue.SimpleQueue[int] = queue.SimpleQueue()
    readings: queue.SimpleQueue[Ticket[int] | None] = queue.SimpleQueue()

    def writer(number: int) -> None:
        while (ticket := turns[number].get()) is not None:
            try:
                ticket.complete(number)
                outcomes.put(True)
            except TicketAlreadyCompletedError:
                outcomes.put(False)

    def reader() -> None:
        while (ticket := readings.get()) is not None:
            reads.put(ticket.wait())

    for number in range(writers):
        SYSTEM.start_thread(functools.partial(writer, number), f"writer-{number}")
    SYSTEM.start_thread(reader, "reader")
    for _ in range(rounds):
        ticket: Ticket[int] = Ticket()
        readings.put(ticket)
        for turn in turns:
            turn.put(ticket)

        assert sum(outcomes.get(timeout=60) for _ in range(writers)) == 1
        assert reads.get(timeout=60) == ticket.wait()

    for turn in [*turns, readings]:
        turn.put(None)


class Fragile(ControlActor):
    """Dies of what it is told."""

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, BaseException):
            raise message
        return message


@pytest.mark.parametrize("seed", range(10))
def test_200_actors_die_at_random_moments_while_8_threads_ask_without_a_time_out(seed: int) -> None:
    dice = random.Random(seed)
    refs = [Fragile.start() for _ in range(200)]
    done: queue.SimpleQueue[int] = queue.SimpleQueue()

    def asker(number: int) -> None:
        order = refs * 5
        random.Random(number).shuffle(order)
        for ref in order:
            with suppress(ActorDeadError):
                ref.ask("hello")
        done.put(number)

    for number in range(8):
        SYSTEM.start_thread(functools.partial(asker, number), f"asker-{number}")
    for ref in dice.sample(refs, len(refs)):
        match dice.randrange(3):
            case 0:
                ref.stop(block=False)
            case 1:
                ref.tell(KeyError("told"))
            case _:
                ref.tell(SystemExit("told"))

    assert sorted(done.get(timeout=60) for _ in range(8)) == list(range(8))
    for ref in refs:
        ref.ended.wait(timeout=60)


@pytest.mark.parametrize("block", range(20))
def test_ask_resolves_in_every_order_with_the_end(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        steps = SteppedBlocking()
        ref = Fragile.start(clock=FakeClock(blocking=steps))

        def ask(ref: Any = ref) -> None:
            with suppress(ActorDeadError):
                ref.ask("hello")

        for number in range(3):
            steps.start_thread(ask, f"asker-{number}")
        steps.start_thread(ref.stop, "stopper")
        steps.start_thread(ref.stop, "other stopper")

        steps.run(seed=seed)


@pytest.mark.parametrize("seed", range(20))
def test_loops_that_are_started_asked_and_stopped_at_random_always_answer(seed: int) -> None:
    dice = random.Random(seed)

    def handle(body: object) -> object:
        if body == "crash":
            raise SystemExit
        if body == "fail":
            raise ValueError
        return body

    loops = [ProbeLoop(handle) for _ in range(50)]
    refs = [LoopActor.start(loop, name=f"loop-{number}") for number, loop in enumerate(loops)]
    tickets: list[Ticket[Any]] = []
    for _ in range(5_000):
        which = dice.randrange(len(refs))
        act = dice.random()
        if act < 0.4:
            tickets.append(refs[which].send(HealthCheckRequest()))
        elif act < 0.7:
            tickets.append(refs[which].send(ProcessRequest(body=dice.choice(["ok", "fail"]))))
        elif act < 0.9:
            loops[which].feed(dice.choice(["ok", "fail"]))
        elif act < 0.99:
            refs[which].post(lambda: None)
        else:
            tickets.append(refs[which].send(ProcessRequest(body="crash")))
    tickets.extend(ref.send(ShutdownRequest(timeout=60.0)) for ref in refs)

    assert all(ticket.wait_ready(timeout=60) for ticket in tickets)
    for ref in refs:
        ref.ended.wait(timeout=60)
