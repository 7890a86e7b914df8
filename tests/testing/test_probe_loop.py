from __future__ import annotations

from contextlib import nullcontext

import pytest

from loopwarden import Ticket
from loopwarden._blocking import SYSTEM
from loopwarden._running import running
from loopwarden.actors import Runnable, SupportsProcess
from loopwarden.testing import Hold, ProbeLoop, _hold


def run_in_background(loop: ProbeLoop) -> Ticket[None]:
    ended: Ticket[None] = Ticket()

    def run() -> None:
        loop.run()
        ended.complete(None)

    SYSTEM.start_thread(run, "probe")
    loop.entered.wait(timeout=60)
    return ended


def test_a_probe_loop_is_a_runnable_that_supports_process() -> None:
    loop = ProbeLoop()

    assert isinstance(loop, Runnable)
    assert isinstance(loop, SupportsProcess)


def test_probe_loop_handles_what_it_is_fed_and_ends_at_the_stop() -> None:
    handled: list[object] = []
    loop = ProbeLoop(handled.append)
    ended = run_in_background(loop)

    loop.feed("a")
    loop.feed("b")

    assert loop.running
    assert loop.shutdown(timeout=60)
    ended.wait(timeout=60)
    assert handled == ["a", "b"]
    assert not loop.feed("c")
    assert not loop.running
    assert repr(loop) == "<ProbeLoop, not running, <Progress, polling, 2 processed, 0 failed>>"


def test_probe_loop_stops_after_max_iterations_and_can_run_again() -> None:
    handled: list[object] = []
    loop = ProbeLoop(handled.append)
    for body in "abc":
        loop.feed(body)

    loop.run(max_iterations=1)
    loop.run(max_iterations=2)

    assert handled == ["a", "b", "c"]


def test_a_stop_before_run_is_remembered_after_what_was_accepted() -> None:
    handled: list[object] = []
    loop = ProbeLoop(handled.append)
    loop.feed("accepted")
    loop.shutdown()

    loop.run()

    assert handled == ["accepted"]


def test_a_handler_that_raises_is_counted_and_the_loop_goes_on() -> None:
    loop = ProbeLoop(lambda body: 1 // int(str(body)))
    loop.feed(0)
    loop.feed(1)

    loop.run(max_iterations=2)

    assert (loop.progress.failed, loop.progress.processed) == (1, 1)


@pytest.mark.parametrize("error", [None, ValueError("no"), SystemExit("no")], ids=["done", "failed", "ended"])
def test_probe_loop_leaves_no_message_behind_in_the_log_of_its_thread(error: BaseException | None) -> None:
    def handle(body: object) -> object:
        if error is not None:
            raise error
        return body

    with pytest.raises(type(error)) if error is not None else nullcontext():
        ProbeLoop(handle).process("body")

    assert (running.message_id, running.delivery) == (None, None)


def test_a_stop_from_inside_the_handler_does_not_wait_for_itself() -> None:
    answers: list[bool] = []
    loop = ProbeLoop(lambda _: answers.append(loop.shutdown(timeout=30)))
    loop.feed("stop")

    loop.run()

    assert answers == [False]


def test_probe_loop_stops_at_the_end_of_its_context() -> None:
    with ProbeLoop() as loop:
        ended = run_in_background(loop)

    ended.wait(timeout=60)
    assert loop.stop_asked.wait() == 30.0


def test_a_shutdown_that_takes_too_long_says_so() -> None:
    with Hold() as hold:
        loop = ProbeLoop(hold)
        ended = run_in_background(loop)
        loop.feed("held")
        hold.wait_reached()

        assert not loop.shutdown(timeout=0.001)
    ended.wait(timeout=60)


def test_a_hold_that_is_not_reached_or_released_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hold, "_HOLD_TIMEOUT", 0.001)
    hold = Hold()

    with pytest.raises(TimeoutError, match="no thread reached"):
        hold.wait_reached()
    with pytest.raises(TimeoutError, match="was not released"):
        hold()

    assert repr(hold) == "<Hold, holding>"
