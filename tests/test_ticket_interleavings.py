"""Races of a ticket, each replayed in one chosen order on the stepped seam."""

from __future__ import annotations

import pytest

from loopwarden import Ticket
from loopwarden.errors import TicketAlreadyCompletedError
from loopwarden.testing import SteppedBlocking


def test_a_writer_between_the_readers_look_and_its_wait_still_wakes_it() -> None:
    steps = SteppedBlocking()
    ticket: Ticket[str] = Ticket(steps)
    read: list[str] = []
    steps.start_thread(lambda: read.append(ticket.wait()), "reader")
    steps.start_thread(lambda: ticket.complete("written"), "writer")

    # start, first look, look after registering; then the writer does all of its steps; then the reader waits.
    steps.run(["reader", "reader", "reader", "writer", "writer", "writer"])

    assert read == ["written"]
    assert steps.trace[:6] == [
        ("reader", "start"),
        ("reader", "read slot"),
        ("reader", "read slot"),
        ("writer", "start"),
        ("writer", "write slot"),
        ("writer", "open gate"),
    ]
    assert ("reader", "wait at gate") in steps.trace[6:]


def test_writers_of_a_ticket_at_the_same_step_have_one_winner() -> None:
    steps = SteppedBlocking()
    ticket: Ticket[str] = Ticket(steps)
    refused: list[str] = []

    def write(name: str) -> None:
        try:
            ticket.complete(name)
        except TicketAlreadyCompletedError:
            refused.append(name)

    steps.start_thread(lambda: write("first"), "first")
    steps.start_thread(lambda: write("second"), "second")

    steps.run(["first", "second", "second", "first"])

    assert refused == ["first"]
    assert ticket.wait() == "second"


class CheckThenSetTicket:
    """The ticket that the project started from: it checks, then sets, so two writers can both win."""

    def __init__(self, steps: SteppedBlocking) -> None:
        self._slot = steps.slot()
        self._gate = steps.gate()

    def complete(self, result: str) -> None:
        if self._slot.get(0) is not None:
            raise TicketAlreadyCompletedError
        self._slot.setdefault(0, result)
        self._gate.open()


def test_the_seam_finds_the_race_that_check_then_set_loses() -> None:
    steps = SteppedBlocking()
    ticket = CheckThenSetTicket(steps)
    winners: list[str] = []

    def write(name: str) -> None:
        ticket.complete(name)
        winners.append(name)

    steps.start_thread(lambda: write("first"), "first")
    steps.start_thread(lambda: write("second"), "second")

    steps.run(["first", "first", "second", "second"])

    assert sorted(winners) == ["first", "second"]


@pytest.mark.parametrize("writer_steps", range(4))
@pytest.mark.parametrize("reader_steps", range(5))
def test_wake_up_of_a_reader_is_lost_in_no_interleaving_with_a_writer(reader_steps: int, writer_steps: int) -> None:
    steps = SteppedBlocking()
    ticket: Ticket[int] = Ticket(steps)
    read: list[int] = []
    steps.start_thread(lambda: read.append(ticket.wait()), "reader")
    steps.start_thread(lambda: ticket.complete(1), "writer")
    schedule = ["reader"] * min(reader_steps, 3) + ["writer"] * min(writer_steps, 2)

    steps.run(schedule)

    assert read == [1]
