"""Shutting down by message, without a thread of the test's own, and without sleeping."""

from __future__ import annotations

from loopwarden.actors import (
    LoopActor,
    ProcessRequest,
    ShutdownConfirmRequest,
    ShutdownRequest,
    ShutdownResult,
    Ticket,
)
from loopwarden.testing import ProbeLoop


def create_loop() -> ProbeLoop:
    return ProbeLoop()


def test_shutdown_during_processing() -> None:
    actor = LoopActor(create_loop(), "test")
    actor.send(ProcessRequest(body=...))
    actor.send(ShutdownRequest(timeout=60.0))

    ticket: Ticket[ShutdownResult] = Ticket()
    actor.send(ShutdownConfirmRequest(ticket=ticket))

    result = ticket.wait(timeout=60.0)
    assert result.clean_shutdown


def test_process_request_before_the_shutdown_is_processed() -> None:
    for number in range(100):
        actor = LoopActor(create_loop(), "test")
        processed = actor.send(ProcessRequest(body=number))

        stopped = actor.send(ShutdownRequest(timeout=60.0))

        assert processed.wait(timeout=60.0) == number
        assert stopped.wait(timeout=60.0).clean_shutdown
