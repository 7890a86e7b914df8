"""Work beside the loops: accepted work runs once, refused work never, and every ticket resolves."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import threading
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden import ChildSpec, MailboxLoop, Supervisor, Ticket, wait_all
from loopwarden._blocking import SYSTEM
from loopwarden._ticket import write
from loopwarden.actors import ZOMBIES, OffloadPool
from loopwarden.actors.offload._thread_workers import ThreadWorkers
from loopwarden.clock import SystemClock
from loopwarden.errors import ActorDeadError, TicketTimeoutError
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.supervision import ExitCode, Service, ShutdownReport
from loopwarden.testing import FakeClock, FaultyBlocking, Hold, Simulation, SteppedBlocking, wait_no_threads

if TYPE_CHECKING:
    from pathlib import Path

    from loopwarden.clock import Timer


def test_the_ticket_resolves_to_what_the_function_returns() -> None:
    with OffloadPool() as pool:
        assert pool.submit(pow, 2, 10).wait(60) == 1024
        assert (pool.in_flight, pool.late, pool.refused) == (0, 0, 0)


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_submit_answers_with_what_the_function_raises_and_ends_no_worker(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with OffloadPool(workers=1) as pool:
        failed = pool.submit(fail)
        failed.wait_ready(60)

        assert failed.has_failed()
        assert pool.submit(pow, 2, 2).wait(60) == 4


def test_pool_runs_as_many_functions_at_once_as_it_has_workers() -> None:
    with Hold() as first, Hold() as second, OffloadPool(workers=2) as pool:
        pool.submit(first)
        pool.submit(second)
        third = pool.submit(pow, 2, 2)
        first.wait_reached()
        second.wait_reached()

        assert (pool.in_flight, third.is_ready()) == (3, False)
        first.release()
        assert third.wait(60) == 4
        second.release()


def test_submit_that_times_out_drops_the_late_completion(clock: FakeClock) -> None:
    pool = OffloadPool(clock=clock)
    with Hold() as hold:
        ticket = pool.submit(hold, timeout=5)
        hold.wait_reached()
        clock.advance(5)

        with pytest.raises(TicketTimeoutError, match="no answer from Hold in pool 'offload' after 5 s"):
            ticket.wait(60)
        assert (pool.in_flight, pool.wait_idle(0)) == (1, False)
    assert pool.wait_idle(60)
    assert pool.late == 1
    pool.close()


def test_a_completion_after_the_time_out_is_late_even_if_the_timers_are_later() -> None:
    clock = SystemClock()
    with Hold() as others:
        clock.call_later(0, others)
        others.wait_reached()  # the thread of all timers is kept busy
        with OffloadPool(clock=clock) as pool:
            ticket = pool.submit(pow, 2, 2, timeout=0)
            pool.wait_idle(60)

            with pytest.raises(TicketTimeoutError, match="no answer from pow in pool 'offload' after 0 s"):
                ticket.wait(0)
            assert pool.late == 1


def test_a_completion_in_time_leaves_no_timer_behind(clock: FakeClock) -> None:
    pool = OffloadPool(clock=clock)
    pool.submit(pow, 2, 2, timeout=5).wait(60)
    pool.wait_idle(60)

    assert "0 timers" in repr(clock)
    pool.close()


def test_submit_to_a_closed_pool_never_runs_and_its_ticket_says_so() -> None:
    ran: list[int] = []
    pool = OffloadPool("renders")
    pool.close()

    with pytest.raises(ActorDeadError, match="OffloadPool 'renders' not found: it has ended"):
        pool.submit(ran.append, 1).wait(60)
    assert (ran, pool.refused) == ([], 1)


def test_offload_pool_that_is_closed_waits_for_what_was_accepted(clock: FakeClock) -> None:
    closed: Ticket[bool] = Ticket()
    with Hold() as hold:
        pool = OffloadPool(workers=1)
        held, queued = pool.submit(hold), pool.submit(pow, 2, 2)
        clock.blocking.start_thread(lambda: closed.complete(pool.close()), "closes")
        clock.advance(1)

        assert not closed.is_ready()
    assert closed.wait(60)
    assert (held.is_ready(), queued.wait(0)) == (True, 4)


def test_a_close_that_times_out_fails_the_tickets_and_counts_the_threads() -> None:
    ran: list[int] = []
    with Hold() as hold:
        pool = OffloadPool("stuck", workers=1)
        held, queued = pool.submit(hold), pool.submit(ran.append, 1)
        hold.wait_reached()

        assert not pool.close(0)
        assert held.has_failed()
        assert queued.has_failed()
        assert "stuck-offload" in ZOMBIES.names
        assert pool.in_flight == 1  # the other one will not be begun
    assert pool.wait_idle(60)
    assert pool.late == 2
    assert wait_no_threads() == []
    assert ran == []
    assert not pool.close(0)  # closing again changes nothing


def test_wait_idle_that_times_out_leaves_nothing_behind() -> None:
    with Hold() as hold, OffloadPool() as pool:
        pool.submit(hold)

        assert not pool.wait_idle(0)
        assert len(pool._idle) == 0
        hold.release()


@pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
def test_submit_just_before_the_pool_is_abandoned_never_runs(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, *, processes: bool
) -> None:
    pool = OffloadPool("late", processes=processes, clock=clock)
    call_later = clock.call_later

    def close_meanwhile(delay: float, callback: Any) -> Timer:
        assert not pool.close(0)
        return call_later(delay, callback)

    monkeypatch.setattr(clock, "call_later", close_meanwhile)
    ran: list[int] = []
    ticket = pool.submit(ran.append, 1, timeout=5)

    with pytest.raises(ActorDeadError, match="OffloadPool 'late' not found: it has ended"):
        ticket.wait(60)
    assert (pool.in_flight, wait_no_threads(), ran) == (0, [], [])


def test_a_pool_that_is_given_up_while_a_thread_is_started_leaves_no_thread() -> None:
    def close_meanwhile(_name: str) -> None:
        assert not pool.close(0)

    pool = OffloadPool("late", clock=FakeClock(blocking=FaultyBlocking(before_start=close_meanwhile)))
    ran: list[int] = []
    ticket = pool.submit(ran.append, 1)

    with pytest.raises(ActorDeadError, match="OffloadPool 'late' not found: it has ended"):
        ticket.wait(60)
    assert (pool.in_flight, wait_no_threads(), ran) == (0, [], [])


def test_a_job_whose_thread_has_just_been_started_is_not_begun_after_the_pool_is_given_up() -> None:
    hold = Hold()
    pool = OffloadPool("late", clock=FakeClock(blocking=FaultyBlocking(on_entry=hold)))
    ran: list[int] = []
    with hold:
        ticket = pool.submit(ran.append, 1)
        hold.wait_reached()

        assert not pool.close(0)
    assert ticket.has_failed()
    assert pool.wait_idle(60)
    assert (wait_no_threads(), ran) == ([], [])


@pytest.mark.parametrize("seed", range(100))
def test_submit_that_races_with_a_close_runs_its_job_once_or_never_and_the_threads_end(seed: int) -> None:
    steps = SteppedBlocking()
    workers = ThreadWorkers("raced", 2, steps)
    ran: list[int] = []
    told: list[int] = []

    def submit(number: int) -> None:
        try:
            workers.run(ran.append, (number,), lambda _, error: told.append(number if error is None else -number))
        except ActorDeadError:
            told.append(-number)

    def close() -> None:
        for dropped in workers.close():
            dropped(None, ActorDeadError("raced"))

    for number in (1, 2, 3):
        steps.start_thread(partial(submit, number), f"submits-{number}")
    steps.start_thread(close, "closes")
    steps.run(seed=seed)  # raises if one of the threads waits for ever

    assert sorted(abs(number) for number in told) == [1, 2, 3]
    assert sorted(number for number in told if number > 0) == sorted(ran)


def test_a_pool_that_is_dropped_ends_its_threads_and_is_complained_about() -> None:
    with pytest.warns(ResourceWarning, match="dropped without being closed: OffloadPool 'dropped'"):
        assert (OffloadPool("dropped", workers=1).submit(pow, 2, 2).wait(60), wait_no_threads()) == (4, [])


def test_submit_without_a_thread_fails_its_ticket_with_the_reason() -> None:
    starts = iter([RuntimeError("can't start new thread"), None])

    def before_start(_name: str) -> None:
        if (error := next(starts)) is not None:
            raise error

    pool = OffloadPool(clock=FakeClock(blocking=FaultyBlocking(before_start=before_start)))
    refused = pool.submit(pow, 2, 2)

    with pytest.raises(RuntimeError, match="can't start new thread"):
        refused.wait(60)
    assert pool.in_flight == 0
    assert pool.submit(pow, 2, 2).wait(60) == 4
    pool.close()


@pytest.mark.parametrize(("function", "timeout"), [(None, None), (print, -1), (print, True), (print, float("nan"))])
def test_submit_refuses_a_bad_argument_by_name(function: Any, timeout: Any) -> None:
    with OffloadPool() as pool, pytest.raises(TypeError, match=r"a callable|number of seconds"):
        pool.submit(function, timeout=timeout)


@pytest.mark.parametrize("workers", [0, -1, 1.5, True], ids=repr)
def test_pool_refuses_a_bad_number_of_workers(workers: Any) -> None:
    with pytest.raises(ValueError, match="workers of 'p' must be a whole number from 1 to 10000"):
        OffloadPool("p", workers=workers)


def test_a_pool_is_closed_after_the_drain_and_before_the_loops_are_stopped() -> None:
    jobs: InMemoryMailbox[str, None] = InMemoryMailbox("jobs")
    jobs.send("a page")
    rendered: list[str] = []
    with Hold() as hold:
        pool = OffloadPool()

        def handle(message: Any) -> None:
            rendered.append(pool.submit(hold, message.body, timeout=60).wait())

        tree = Supervisor("app", children=[ChildSpec(id="loop", start=lambda: MailboxLoop(jobs, handle))])
        service = Service(tree, signals=(), stall_threshold=None, pools=[pool])
        returned: Ticket[ShutdownReport] = Ticket()
        SYSTEM.start_thread(lambda: returned.complete(service.run()), "service")
        hold.wait_reached()
        service.shut_down()
        service.intake_closed.wait(60)

        assert pool.in_flight == 1  # what is in hand may still need it
    report = returned.wait(60)
    assert ([phase.name for phase in report.phases], report.exit_code) == (
        ["not ready", "drain", "offload", "loops", "close"],
        ExitCode.OK,
    )
    assert len(rendered) == 1
    assert pool.submit(print).has_failed()


class Books:
    """What was submitted while a tree was being shut down, and what ran."""

    def __init__(self, middle: int) -> None:
        self.ran: list[int] = []
        self.tickets: dict[int, Ticket[int]] = {}
        self._middle = middle
        self.in_the_middle: Ticket[None] = Ticket()

    def work(self, number: int) -> int:
        self.ran.append(number)
        return number

    def submit(self, pool: OffloadPool, numbers: range, seed: int) -> None:
        dice = random.Random(seed)
        for number in numbers:
            timeout = dice.choice((None, 0, 0.0001, 0.001, 5))
            self.tickets[number] = pool.submit(self.work, number, timeout=timeout)
            if len(self.tickets) > self._middle and not self.in_the_middle.is_ready():
                write(self.in_the_middle)


def check_books(submits: int) -> None:
    """Submit from four threads while the tree that the pool belongs to is shut down, and count."""
    jobs: InMemoryMailbox[int, None] = InMemoryMailbox("jobs")
    jobs.send_many(list(range(50)))
    pool, books = OffloadPool(workers=4), Books(submits // 3)
    children = [ChildSpec(id=f"loop-{number}", start=partial(MailboxLoop[int], jobs, print)) for number in range(5)]
    service = Service(Supervisor("app", children=children), signals=(), stall_threshold=None, pools=[pool])
    returned: Ticket[ShutdownReport] = Ticket()
    SYSTEM.start_thread(lambda: returned.complete(service.run()), "service")
    each = submits // 4
    threads = [
        SYSTEM.start_thread(partial(books.submit, pool, range(index * each, (index + 1) * each), index), "submits")
        for index in range(4)
    ]
    books.in_the_middle.wait(60)
    service.shut_down()
    for thread in threads:
        thread.join(60)
    report = returned.wait(60)
    accepted = {number for number, ticket in books.tickets.items() if not _is_refused(ticket)}

    assert report.exit_code is ExitCode.OK
    assert all(ticket.wait_ready(60) for ticket in books.tickets.values())
    assert len(books.tickets) == submits
    assert sorted(books.ran) == sorted(accepted)
    assert pool.refused == submits - len(accepted)
    assert pool.in_flight == 0


def _is_refused(ticket: Ticket[int]) -> bool:
    ticket.wait_ready(60)
    try:
        ticket.wait(0)
    except ActorDeadError:
        return True
    except TicketTimeoutError:
        return False
    return False


def test_shutdown_of_a_tree_resolves_every_ticket_and_runs_accepted_work_once() -> None:
    check_books(10_000)


@pytest.mark.prove
def test_a_hundred_thousand_submits_while_a_tree_is_shut_down() -> None:
    check_books(100_000)


# Processes


def test_a_process_runs_the_function_elsewhere() -> None:
    with OffloadPool(processes=True, workers=1) as pool:
        there = pool.submit(os.getpid).wait(60)

        assert there != os.getpid()
        failed = pool.submit(pow, 0, -1)
        failed.wait_ready(60)
        with pytest.raises(ZeroDivisionError):
            failed.wait(0)


def begin(pool: OffloadPool, fifo: Path, program: str = "signal.pause()") -> tuple[Ticket[None], int]:
    """Run a program in a process of the pool; return its ticket and that process's number when it has begun."""
    os.mkfifo(fifo)
    tell = f"import os, signal\nopen({str(fifo)!r}, 'w').write(str(os.getpid()))\n"
    ticket = pool.submit(exec, tell + program, {})
    return ticket, int(fifo.read_text(encoding="utf-8"))


def is_running(process: int) -> bool:
    """Say whether there is such a process, even one that was not reaped."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_that_dies_fails_its_own_ticket_at_once_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = OffloadPool("render", processes=True, workers=2)
    busy, survivor = begin(pool, tmp_path / "busy")
    lost, victim = begin(pool, tmp_path / "lost")
    again: Ticket[Ticket[int]] = Ticket()
    lost.on_ready(lambda _: again.complete(pool.submit(pow, 2, 2)))
    os.kill(victim, signal.SIGKILL)

    with pytest.raises(BrokenProcessPool, match="a process of OffloadPool 'render' died with exit code -9 in exec"):
        lost.wait(60)
    assert again.wait(60).wait(60) == 4
    assert (busy.is_ready(), is_running(survivor), is_running(victim)) == (False, True, False)
    assert not pool.close(0)
    assert busy.has_failed()
    assert pool.wait_idle(60)
    assert wait_no_threads() == []
    assert not is_running(survivor)
    assert caplog.messages == ["a process of OffloadPool 'render' died with exit code -9 in exec"]


def test_an_idle_process_that_dies_is_replaced_and_nothing_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    with OffloadPool("render", processes=True, workers=1) as pool:
        victim = pool.submit(os.getpid).wait(60)
        os.kill(victim, signal.SIGKILL)
        os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)

        assert pool.submit(os.getpid).wait(60) != victim
        assert caplog.messages == ["an idle process of OffloadPool 'render' died with exit code -9"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no pidfd")
def test_a_process_that_is_killed_fails_its_ticket_even_if_a_child_of_its_own_lives_on(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "child")
    with OffloadPool(processes=True, workers=1) as pool:
        fork = f"if os.fork() == 0: open({str(tmp_path / 'child')!r}).read(); os._exit(0)\nsignal.pause()"
        lost, victim = begin(pool, tmp_path / "lost", fork)
        with (tmp_path / "child").open("w", encoding="utf-8"):  # it is there, and ends with this block
            os.kill(victim, signal.SIGKILL)

            with pytest.raises(BrokenProcessPool):
                lost.wait(60)


def test_submit_that_cannot_be_pickled_fails_alone_and_the_process_goes_on() -> None:
    keywords = "import subprocess\nraise subprocess.CalledProcessError(returncode=1, cmd='ls')"
    with OffloadPool(processes=True, workers=1) as pool:
        process = pool.submit(os.getpid)
        tickets: list[Ticket[Any]] = [
            pool.submit(exec, keywords),  # can be pickled, but not unpickled
            pool.submit(exec, "class Own(Exception): pass\nraise Own(1)", {"__name__": "nowhere"}),
            pool.submit(eval, "lambda: 0"),
            pool.submit(eval, "type('Odd', (), {'__reduce__': lambda self: (int, ('x',))})()"),
            pool.submit(print, lambda: 0),
            pool.submit(sys.exit, 3),
            pool.submit(exec, "raise KeyboardInterrupt"),
        ]
        after = pool.submit(os.getpid)

        assert after.wait(60) == process.wait(60)
        assert [_kind(ticket) for ticket in tickets] == [
            "RuntimeError: CalledProcessError()",
            "RuntimeError: Own(1)",
            "PicklingError",
            "ValueError: invalid literal for int() with base 10: 'x'",
            "PicklingError",
            "SystemExit: 3",
            "KeyboardInterrupt: ",
        ]


def _kind(ticket: Ticket[Any]) -> str:
    try:
        ticket.wait(0)
    except BaseException as error:  # noqa: BLE001  whatever it is, it is told
        kind = type(error).__name__
        # Which of the two it is that refuses a local function, and its text, depend on Python's version.
        return "PicklingError" if kind in {"AttributeError", "PicklingError"} else f"{kind}: {error}"
    return "nothing"


def test_an_error_from_a_process_notes_where_it_was_raised() -> None:
    with OffloadPool(processes=True, workers=1) as pool, pytest.raises(ZeroDivisionError) as raised:
        pool.submit(exec, "def inner(): 1 / 0\ninner()", {}).wait(60)

    assert "in another process:" in raised.value.__notes__[0]
    assert "in inner" in raised.value.__notes__[0]


def test_a_process_that_hangs_is_killed_at_the_close(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pool = OffloadPool(processes=True, workers=1)
    hangs, process = begin(pool, tmp_path / "hangs")
    queued = pool.submit(os.mkdir, tmp_path / "made")

    assert not pool.close(0)
    with pytest.raises(ActorDeadError):
        hangs.wait(0)
    assert queued.has_failed()
    assert pool.wait_idle(60)
    assert wait_no_threads() == []
    assert not is_running(process)
    assert not (tmp_path / "made").exists()
    assert caplog.messages == []  # it was we who killed it


def run_to_exit(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-W", "default::ResourceWarning", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_a_forgotten_pool_completes_what_it_has_accepted() -> None:
    ended = run_to_exit(
        "from loopwarden import OffloadPool\n"
        "from loopwarden.actors.runtime import _exit_hook\n"
        "_exit_hook.EXIT_TIMEOUT = 60\n"
        "if __name__ == '__main__':\n"
        "    threads, processes = OffloadPool('t', workers=1), OffloadPool('p', processes=True, workers=1)\n"
        "    tickets = [processes.submit(print, each) for each in 'ab']\n"
        "    failed = processes.submit(pow, 0, -1)\n"
        "    tickets[1].on_ready(lambda _: print('done', flush=True))\n"
    )

    assert (ended.returncode, sorted(ended.stdout.split())) == (0, ["a", "b", "done"]), ended.stderr
    assert "ResourceWarning: not stopped before exit: OffloadPool 't', OffloadPool 'p'" in ended.stderr
    assert "ignored" not in ended.stderr  # as the complaints of an interpreter that ends are


def test_a_forgotten_pool_that_hangs_does_not_hang_the_interpreter() -> None:
    ended = run_to_exit(
        "import signal\n"
        "from loopwarden import OffloadPool\n"
        "from loopwarden.actors.runtime import _exit_hook\n"
        "from loopwarden.testing import FakeClock, Hold\n"
        "_exit_hook.EXIT_TIMEOUT = 0.1\n"
        "if __name__ == '__main__':\n"
        "    threads, processes = OffloadPool('t', clock=FakeClock()), OffloadPool('p', processes=True, workers=1)\n"
        "    processes.submit(pow, 2, 2).wait(60)\n"
        "    jobs = [processes.submit(signal.pause), threads.submit(Hold())]\n"
    )

    assert ended.returncode == 0
    assert "cut off after 0.1 s: OffloadPool 't', OffloadPool 'p'" in ended.stderr


def test_a_signal_to_the_whole_group_does_not_reach_the_work_in_processes() -> None:
    with OffloadPool(processes=True, workers=1) as pool:
        worker = pool.submit(os.getpid).wait(60)
        for each in (signal.SIGINT, signal.SIGTERM):
            os.kill(worker, each)

        assert pool.submit(os.getpid).wait(60) == worker


def test_a_signal_to_the_whole_group_does_not_reach_processes_that_are_just_being_started() -> None:
    program = (
        "import os, signal\n"
        "from loopwarden import OffloadPool, wait_all\n"
        "if __name__ == '__main__':\n"
        "    for each in (signal.SIGINT, signal.SIGTERM):\n"
        "        signal.signal(each, lambda *_: None)\n"
        "    with OffloadPool(processes=True, workers=2) as pool:\n"
        "        tickets = [pool.submit(pow, 2, power) for power in (3, 4)]\n"
        "        for each in (signal.SIGINT, signal.SIGTERM):\n"
        "            os.killpg(0, each)\n"
        "        print(wait_all(tickets, 60))\n"
    )
    command = [sys.executable, "-P", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)

    assert ended.stdout == "[8, 16]\n", ended.stderr
    assert ended.stderr == ""


def test_offload_pool_that_loses_work_while_it_is_closed_was_not_done(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = OffloadPool("render", processes=True, workers=1, clock=clock)
    lost, victim = begin(pool, tmp_path / "lost")
    queued = pool.submit(pow, 2, 2)
    call_later = clock.call_later

    def kill_meanwhile(delay: float, callback: Any) -> Timer:
        os.kill(victim, signal.SIGKILL)
        return call_later(delay, callback)

    monkeypatch.setattr(clock, "call_later", kill_meanwhile)  # it is called when the close begins to wait

    assert pool.close(30) is False
    assert (lost.has_failed(), queued.wait(0)) == (True, 4)
    assert caplog.messages == ["a process of OffloadPool 'render' died with exit code -9 in exec"]


def test_processes_end_with_the_one_that_has_started_them() -> None:
    program = (
        "import os, sys\n"
        "from loopwarden import OffloadPool\n"
        "if __name__ == '__main__':\n"
        "    pool = OffloadPool(processes=True, workers=1)\n"
        "    print(pool.submit(os.getpid).wait(60), flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-P", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()

        assert process.stdout.read() == ""  # it returns when the worker, which has the other end too, is gone


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no signal can be had from a pipe")
def test_process_of_a_pool_that_holds_the_interpreter_ends_with_the_one_that_has_started_it(tmp_path: Path) -> None:
    fifo = tmp_path / "begun"
    os.mkfifo(fifo)
    # A pattern that backtracks for hours; from the moment it is told of, no other thread runs.
    work = (
        "import os, re, sys; sys.setswitchinterval(1_000); "
        f"open({str(fifo)!r}, 'w').write(str(os.getpid())); re.match('(a+)+$', 'a' * 64 + 'b')"
    )
    program = (
        "import sys\n"
        "from loopwarden import OffloadPool\n"
        "if __name__ == '__main__':\n"
        "    pool = OffloadPool(processes=True, workers=1)\n"
        f"    pool.submit(exec, {work!r}, {{}})\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-P", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        worker = os.pidfd_open(int(fifo.read_text(encoding="utf-8")))
        process.kill()
        process.wait()

        try:
            has_ended, _, _ = select.select([worker], [], [], 20)  # the seconds only matter when it fails
            assert has_ended
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(worker, signal.SIGKILL)
            os.close(worker)


def test_offload_pool_whose_work_is_not_done_in_time_is_told_in_the_report() -> None:
    with Simulation(seed=7), Hold() as hold:
        pool = OffloadPool("stuck")
        pool.submit(hold)
        hold.wait_reached()
        service = Service(Supervisor("app"), signals=(), stall_threshold=None, pools=[pool], shutdown_timeout=0.1)
        service.shut_down()
        report = service.run()

        assert report.exit_code is ExitCode.DRAIN_TIMED_OUT
        assert "phase 'offload' was not completed" in str(report)


def test_a_pool_is_used_by_many_threads_at_once() -> None:
    with OffloadPool(workers=8) as pool:
        gathered: list[list[int]] = []

        def use() -> None:
            gathered.append(wait_all([pool.submit(abs, -number) for number in range(200)], timeout=60))

        threads = [SYSTEM.start_thread(use, "uses") for _ in range(4)]
        for thread in threads:
            thread.join(60)

        assert gathered == [list(range(200))] * 4
        assert threading.active_count() > 0
