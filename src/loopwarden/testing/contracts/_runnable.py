"""What a loop must do to be supervised, as a suite."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden._blocking import SYSTEM
from loopwarden._ticket import Ticket, wait_all
from loopwarden.actors import (
    HealthCheckRequest,
    Heartbeat,
    LoopActor,
    Runnable,
    ShutdownConfirmRequest,
    ShutdownRequest,
    SupportsProcess,
)
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RunnableContract"]


class RunnableContract(abc.ABC):
    """The rules that every loop keeps: subclass it in a test module, and pytest runs them all.

    Say how to make a loop with ``make_loop``. The rules run on real threads, in real time, because a loop of yours may
    block wherever it likes.
    """

    #: How long to wait, in real seconds, for what should happen at once; it only matters when a rule is broken.
    patience = 60.0

    @abc.abstractmethod
    def make_loop(self) -> Runnable:
        """Return a loop that has not run, and works until it is stopped."""

    def in_background(self, job: Callable[[], Any]) -> Ticket[Any]:
        """Run a job on a thread of its own; return the ticket of its result."""
        return run_in_background(job, SYSTEM)

    def test_loop_offers_what_is_asked_of_it(self) -> None:
        loop = self.make_loop()

        assert isinstance(loop, Runnable)
        assert not loop.running
        assert loop.heartbeat is None or isinstance(loop.heartbeat, Heartbeat)
        loop.shutdown(timeout=0.0)

    def test_loop_runs_as_an_actor_until_it_is_asked_to_stop(self) -> None:
        loop = self.make_loop()
        ref = LoopActor.start(loop, name="loop")
        ref.ready.wait(self.patience)

        health = ref.send(HealthCheckRequest()).wait(self.patience)
        result = ref.send(ShutdownRequest(timeout=self.patience)).wait(self.patience)

        assert health.running
        assert result.clean_shutdown
        assert not loop.running
        assert ref.ended.wait(self.patience).cause is None

    def test_shutdown_before_run_is_remembered(self) -> None:
        loop = self.make_loop()
        loop.shutdown(timeout=0.0)

        returned = self.in_background(loop.run)

        returned.wait(self.patience)
        assert not loop.running

    def test_shutdown_again_changes_nothing(self) -> None:
        loop = self.make_loop()
        returned = self.in_background(loop.run)

        stops = [self.in_background(lambda: loop.shutdown(timeout=self.patience)) for _ in range(8)]

        wait_all(stops, self.patience)
        returned.wait(self.patience)
        loop.shutdown(timeout=self.patience)
        assert not loop.running

    def test_shutdown_that_is_told_to_wait_says_that_it_has_ended(self) -> None:
        loop = self.make_loop()
        ref = LoopActor.start(loop, name="loop")
        ref.ready.wait(self.patience)

        has_ended = loop.shutdown(timeout=self.patience)

        assert has_ended
        ref.send(ShutdownConfirmRequest()).wait(self.patience)
        assert not loop.running

    def test_loop_is_stopped_at_the_end_of_its_block(self) -> None:
        with self.make_loop() as loop:
            returned = self.in_background(loop.run)

        returned.wait(self.patience)
        assert not loop.running

    def test_post_is_refused_from_the_stop_on_and_what_it_accepted_runs(self) -> None:
        loop = self.make_loop()
        if not isinstance(loop, SupportsProcess):
            pytest.skip("this loop takes no work from outside")
        ref = LoopActor.start(loop, name="loop")
        ref.ready.wait(self.patience)
        ran: Ticket[None] = Ticket()

        accepted = ref.post(lambda: ran.complete(None))
        ref.send(ShutdownRequest(timeout=self.patience)).wait(self.patience)

        assert accepted
        assert ran.is_ready()
        assert not loop.post(lambda: None)
