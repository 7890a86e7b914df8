from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from loopwarden import ChildSpec, LoopActor, MailboxLoop, Supervisor, Ticket, open_mailbox
from loopwarden._blocking import SYSTEM
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.testing import HangError, Hold, ProbeLoop, Simulation, _hang_guard, hang_guard, wait_no_threads


def hang() -> None:
    threading.Semaphore(0).acquire(timeout=60)


def test_hang_guard_ends_a_block_that_hangs() -> None:
    with pytest.raises(HangError, match=r"not ended after 0.05 real seconds") as raised, hang_guard(0.05):
        hang()

    assert "threads:" in str(raised.value)
    assert "in hang" in str(raised.value)


def test_hang_guard_ends_what_hangs_at_the_end_of_a_block_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_hang_guard, "AGAIN", 0.05)
    ends: list[str] = []

    with pytest.raises(HangError, match="at its end hangs too") as raised, hang_guard(0.05):  # noqa: PT012  it is what is tested
        try:
            try:
                hang()
            finally:
                ends.append("first")
                hang()
        finally:
            ends.append("second")
            hang()

    told = capsys.readouterr().err
    assert ends == ["first", "second"]
    assert told.count("the test has not ended after 0.05 real seconds") == 1
    assert "in hang" in told
    assert "at its end" in str(raised.value.__context__)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_hang_guard_lets_threads_pass_that_are_not_of_the_simulation_in_which_it_ends_the_test() -> None:
    lock = threading.Lock()
    has_turn: Ticket[None] = Ticket(SYSTEM)
    passed: list[bool] = []

    with pytest.raises(HangError), Simulation() as simulation:  # noqa: PT012  it is what is tested
        never: Ticket[None] = Ticket()
        answer: Ticket[str] = Ticket()
        lock.acquire()

        def take() -> None:
            has_turn.complete(None)
            lock.acquire(timeout=60)

        def come_in() -> None:
            has_turn.wait(60)
            answer.complete("done")

        simulation.start_thread(take, "with the turn")
        foreign = SYSTEM.start_thread(come_in, "foreign")
        try:
            with hang_guard(0.2):
                never.wait()
        finally:
            foreign.join(30)
            passed.append(not foreign.is_alive())
            lock.release()

    assert passed == [True]


def test_hang_guard_leaves_a_block_that_ends_alone() -> None:
    with hang_guard(60):
        pass

    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_hang_guard_leaves_the_alarm_to_who_has_it() -> None:
    heard: list[int] = []
    kept = signal.signal(signal.SIGALRM, lambda number, _: heard.append(number))
    try:
        with hang_guard(0.01):
            mine = signal.getsignal(signal.SIGALRM)
            signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, kept)

    assert heard == [signal.SIGALRM]
    assert callable(mine)


def test_hang_guard_does_nothing_on_other_threads() -> None:
    done: Ticket[Any] = Ticket()

    def work() -> None:
        with hang_guard(60):
            done.complete(signal.getsignal(signal.SIGALRM))

    SYSTEM.start_thread(work, "worker")

    assert done.wait(timeout=60) == signal.SIG_DFL


def test_hang_guard_tells_the_tree_the_loops_and_the_stacks() -> None:
    jobs: InMemoryMailbox[str, Any] = InMemoryMailbox("jobs")
    with Hold() as hold:
        spec = ChildSpec(id="resize", start=lambda: MailboxLoop(jobs, lambda _: hold()))
        with Supervisor.open("media", children=[spec]) as media:
            alone = LoopActor.start(ProbeLoop(), name="alone")
            message_id = jobs.send("a picture")
            hold.wait_reached()
            with pytest.raises(HangError) as raised, hang_guard(0.05):
                hang()
            hold.release()
            alone.stop()
            del media

    told = str(raised.value)
    assert f"the tree:\nmedia\n  resize: up, running, with {message_id} (delivery 1) in hand\n" in told
    assert "loops without a supervisor:\nalone: running\n" in told
    assert "loops without a supervisor:\nalone: running\nthreads:" in told
    assert "_hold.py" in told


def test_hang_guard_ends_a_simulation_in_which_a_handler_blocks_outside() -> None:
    real = threading.Lock()
    real.acquire()

    def block_outside(_: object) -> None:
        real.acquire(timeout=60)

    with pytest.raises(HangError) as raised, Simulation():  # noqa: PT012  it is what is tested
        jobs = open_mailbox("memory://jobs", body=str)
        with Supervisor.open(
            "media", children=[ChildSpec(id="resize", start=lambda: MailboxLoop(jobs, block_outside))]
        ):
            jobs.send("a picture")
            with hang_guard(0.2):
                Ticket[None]().wait()
    real.release()

    told = str(raised.value)
    assert "the tree:\nmedia\n  resize: up, running" in told
    assert "block_outside" in told
    assert "- the test " in told
    assert "- resize-worker runs" in told
    assert "or wait in `with current_clock().blocking.outside():`" in told
    assert not wait_no_threads()


def test_hang_guard_ends_the_block_even_if_it_cannot_tell_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise RuntimeError("not now")

    monkeypatch.setattr(_hang_guard, "describe_everything", fail)

    with pytest.raises(HangError, match="RuntimeError"), hang_guard(0.05):
        hang()
