from __future__ import annotations

import logging

import pytest

from loopwarden import Ticket
from loopwarden._blocking import SYSTEM
from loopwarden._threads import SerialExecutor
from loopwarden.actors import Inlet
from loopwarden.testing import SteppedBlocking


def test_a_worker_that_waits_is_woken_by_work_and_by_the_close() -> None:
    inlet: Inlet[str] = Inlet()
    taken: Ticket[list[str | None]] = Ticket()
    SYSTEM.start_thread(lambda: taken.complete([inlet.take(), inlet.take()]), "worker")

    inlet.post("work")
    inlet.close()

    assert taken.wait(timeout=60) == ["work", None]
    assert repr(inlet) == "<Inlet, closed>"


def test_inlet_can_be_closed_twice() -> None:
    inlet: Inlet[str] = Inlet()

    inlet.close()
    inlet.close()

    assert inlet.closed
    assert [inlet.take(), inlet.take()] == [None, None]


@pytest.mark.parametrize("seed", range(50))
def test_inlet_hands_out_what_it_accepted_and_not_what_it_refused_in_every_order(seed: int) -> None:
    steps = SteppedBlocking()
    inlet: Inlet[int] = Inlet(steps)
    accepted: list[int] = []
    taken: list[int] = []

    def poster(first: int) -> None:
        accepted.extend(number for number in range(first, first + 3) if inlet.post(number))

    def worker() -> None:
        while (number := inlet.take()) is not None:
            taken.append(number)

    steps.start_thread(worker, "worker")
    steps.start_thread(lambda: poster(10), "poster")
    steps.start_thread(lambda: poster(20), "other poster")
    steps.start_thread(inlet.close, "closer")

    steps.run(seed=seed)

    assert sorted(taken) == sorted(accepted)


def test_a_helper_runs_its_jobs_in_order_and_survives_what_they_raise(caplog: pytest.LogCaptureFixture) -> None:
    helper = SerialExecutor("helper", SYSTEM)
    done: list[str] = []

    def broken() -> None:
        raise SystemExit("job")

    with caplog.at_level(logging.ERROR, logger="loopwarden"):
        helper.submit(lambda: done.append("first"))
        helper.submit(broken)
        last: Ticket[None] = Ticket()
        helper.submit(lambda: last.complete(None))
        last.wait(timeout=60)

    assert done == ["first"]
    assert "a job of helper raised" in caplog.text
    helper.close()


def test_inlet_takes_none_as_work_like_any_other() -> None:
    inlet: Inlet[str | None] = Inlet()
    inlet.post(None)
    inlet.post("behind it")

    assert [inlet.take(), inlet.take()] == [None, "behind it"]
