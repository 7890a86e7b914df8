"""Signals are heard at once, and what was there before is put back."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from background import in_background
from processes import Program

from loopwarden._blocking import SYSTEM
from loopwarden._ticket import Ticket, write
from loopwarden.supervision import ShutdownCoordinator, SignalRelay
from loopwarden.testing import FakeClock, FaultyBlocking, Hold, wait_no_threads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


@pytest.fixture(autouse=True)
def no_coordinator_is_left() -> Iterator[None]:
    yield
    ShutdownCoordinator.reset()


def start(how: str) -> Program:
    program = Program("hears_signals", how)
    assert program.line() == "ready"
    return program


class Heard:
    """Remembers the signals, and lets a test wait for one."""

    def __init__(self, count: int = 1) -> None:
        self.numbers: list[int] = []
        self._count = count
        self.all: Ticket[None] = Ticket()

    def __call__(self, number: int) -> None:
        self.numbers.append(number)
        if len(self.numbers) == self._count:
            self.all.complete(None)


@pytest.mark.parametrize(("how", "then"), [("c", "back from C"), ("wait", "back from a wait")], ids=["c", "wait"])
def test_signal_relay_hears_while_the_main_thread_is_busy(how: str, then: str) -> None:
    with start(how) as program:
        program.send()

        assert program.line() == "heard SIGTERM"
        program.let_go()
        assert program.lines() == [then]
        assert program.exit_code() == 0, program.errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_coordinator_ends_a_loop_that_is_registered_at_a_signal_with_code_0(number: signal.Signals) -> None:
    with start("loop") as program:
        program.send(number)

        assert program.lines() == ["told", "ended"]
        assert program.exit_code() == 0, program.errors


def test_signal_relay_ends_a_process_at_the_third_signal_that_does_not_end_otherwise() -> None:
    with start("for ever") as program:
        for _ in range(2):
            program.send()
            assert program.line() == "heard SIGTERM"
        program.send()

        assert program.exit_code() == 128 + signal.SIGTERM


def test_signals_are_heard_in_order_on_a_thread_of_their_own() -> None:
    heard, threads = Heard(2), set[int]()

    def note(number: int) -> None:
        threads.add(threading.get_ident())
        heard(number)

    with SignalRelay(note, [signal.SIGUSR1, signal.SIGUSR2]):
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGUSR1)
        heard.all.wait(timeout=60)

    assert heard.numbers == [signal.SIGUSR2, signal.SIGUSR1]
    assert threading.get_ident() not in threads


def test_close_of_a_relay_puts_handlers_and_descriptor_back() -> None:
    seen: list[int] = []

    def mine(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    near, far = socket.socketpair()
    far.settimeout(0)
    handler = signal.signal(signal.SIGUSR1, mine)
    fd = signal.set_wakeup_fd(far.fileno())
    try:
        heard = Heard()
        with SignalRelay(heard, [signal.SIGUSR1]):
            os.kill(os.getpid(), signal.SIGUSR1)
            heard.all.wait(timeout=60)
            passed_on = near.recv(8)
        os.kill(os.getpid(), signal.SIGUSR1)

        assert passed_on == bytes([signal.SIGUSR1])  # the descriptor of others is still written meanwhile
        assert seen == [signal.SIGUSR1]
        assert near.recv(8) == bytes([signal.SIGUSR1])
        assert signal.getsignal(signal.SIGUSR1) is mine
        assert signal.set_wakeup_fd(far.fileno()) == far.fileno()
    finally:
        signal.signal(signal.SIGUSR1, handler)
        signal.set_wakeup_fd(fd)
        near.close()
        far.close()
    assert wait_no_threads() == []


def test_a_callback_that_raises_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard(2)

    def fail(number: int) -> None:
        heard(number)
        raise ValueError("told to")

    with SignalRelay(fail, [signal.SIGUSR1]):
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        heard.all.wait(timeout=60)

    assert "told to" in caplog.text


def test_relay_off_the_main_thread_warns_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    opened: Ticket[bool] = Ticket()

    def elsewhere() -> None:
        with SignalRelay(lambda _: None, [signal.SIGUSR1]) as relay:
            opened.complete(relay.is_open)

    SYSTEM.start_thread(elsewhere, "elsewhere")

    assert opened.wait(timeout=60) is False
    assert "main thread" in caplog.text
    assert signal.getsignal(signal.SIGUSR1) is before


def test_relay_without_a_thread_changes_nothing() -> None:
    def refuse(name: str) -> None:
        raise RuntimeError("can't start new thread")

    before = signal.getsignal(signal.SIGUSR1)
    clock = FakeClock(blocking=FaultyBlocking(before_start=refuse))

    with pytest.raises(RuntimeError):
        SignalRelay(lambda _: None, [signal.SIGUSR1], clock=clock).open()

    assert signal.getsignal(signal.SIGUSR1) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_relay_can_be_opened_and_closed_twice() -> None:
    relay = SignalRelay(lambda _: None, [signal.SIGUSR1])

    relay.close()
    assert relay.open() is relay.open()
    relay.close()
    relay.close()

    assert not relay.is_open


def test_callbacks_are_called_in_the_order_of_their_registration() -> None:
    coordinator = ShutdownCoordinator.install()
    called: list[str] = []
    for name in ("first", "second", "third"):
        coordinator.register(partial(called.append, name))

    coordinator.trigger()

    assert called == ["first", "second", "third"]
    assert coordinator.triggered


def test_a_callback_that_blocks_keeps_the_next_waiting_only_for_a_moment() -> None:
    coordinator = ShutdownCoordinator.install(signals=(signal.SIGUSR1,))
    told: Ticket[None] = Ticket()
    with Hold() as hold:
        coordinator.register(hold)
        coordinator.register(lambda: write(told))

        os.kill(os.getpid(), signal.SIGUSR1)

        told.wait(timeout=60)
        assert not hold.is_released


def test_a_callback_that_is_registered_after_the_trigger_is_called_at_once() -> None:
    coordinator = ShutdownCoordinator.install()
    coordinator.trigger()
    called: list[str] = []

    coordinator.register(lambda: called.append("late"))

    assert called == ["late"]


def test_a_callback_that_registers_another_does_not_deadlock() -> None:
    coordinator = ShutdownCoordinator.install()
    called: list[str] = []
    coordinator.register(lambda: coordinator.register(lambda: called.append("inner")))

    coordinator.trigger()

    assert called == ["inner"]


def test_a_callback_is_called_once_and_not_if_it_was_unregistered() -> None:
    coordinator = ShutdownCoordinator.install()
    called: list[str] = []

    def gone() -> None:
        called.append("gone")

    coordinator.register(gone)
    coordinator.register(lambda: called.append("kept"))
    coordinator.unregister(gone)
    coordinator.unregister(gone)

    coordinator.trigger()
    coordinator.trigger()

    assert called == ["kept"]


def test_a_callback_that_raises_does_not_keep_the_others_from_being_called(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise SystemExit("told to")

    coordinator = ShutdownCoordinator.install()
    called: list[str] = []
    coordinator.register(fail)
    coordinator.register(lambda: called.append("second"))

    coordinator.trigger()

    assert called == ["second"]
    assert "told to" in caplog.text


def test_coordinator_is_the_same_until_it_is_reset() -> None:
    assert ShutdownCoordinator.get() is None
    before = signal.getsignal(signal.SIGTERM)

    first = ShutdownCoordinator.install()
    assert ShutdownCoordinator.install() is first
    assert ShutdownCoordinator.get() is first
    ShutdownCoordinator.reset()

    assert ShutdownCoordinator.get() is None
    assert signal.getsignal(signal.SIGTERM) is before
    assert ShutdownCoordinator.install() is not first


@pytest.mark.parametrize("bad", ["SIGTERM", 0, signal.SIGKILL, signal.SIGSTOP], ids=repr)
def test_relay_refuses_a_signal_that_no_process_can_handle_by_name(bad: Any) -> None:
    with pytest.raises(ValueError, match=rf"signals must .* such as signal\.SIGTERM, got {bad!r} among them"):
        SignalRelay(print, [signal.SIGTERM, bad])


def test_register_refuses_what_is_not_callable() -> None:
    coordinator = ShutdownCoordinator()

    with pytest.raises(TypeError, match=r"register\(\) takes a callable, got 3"):
        coordinator.register(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  a caller without types


def test_a_forked_child_hears_its_own_signals_and_the_parent_none_of_them() -> None:
    program = (
        "import os, signal\n"
        "from loopwarden.supervision import SignalRelay\n"
        "heard = []\n"
        "with SignalRelay(heard.append):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        signal.pause()\n"
        "    os.kill(child, signal.SIGTERM)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "print(heard)\n"
    )
    command = [sys.executable, "-P", "-W", "ignore", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    assert ended.stdout.split("\n") == [str(-signal.SIGTERM), "[]", ""]


def test_handler_and_descriptor_of_other_code_stay_when_a_relay_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    near, far = socket.socketpair()
    far.settimeout(0)
    handler = signal.getsignal(signal.SIGUSR1)

    def theirs(_number: int, _frame: FrameType | None) -> None:
        pass

    try:
        with SignalRelay(print, [signal.SIGUSR1]):
            signal.signal(signal.SIGUSR1, theirs)
            signal.set_wakeup_fd(far.fileno())

        assert signal.getsignal(signal.SIGUSR1) is theirs
        assert signal.set_wakeup_fd(-1) == far.fileno()
        assert "other code has replaced" in caplog.text
    finally:
        signal.signal(signal.SIGUSR1, handler)
        signal.set_wakeup_fd(-1)
        near.close()
        far.close()


def test_a_descriptor_that_was_closed_meanwhile_is_not_put_back() -> None:
    near, far = socket.socketpair()
    far.settimeout(0)
    signal.set_wakeup_fd(far.fileno())
    with SignalRelay(print, [signal.SIGUSR1]):
        near.close()
        far.close()

    assert signal.set_wakeup_fd(-1) == -1


def test_signals_count_anew_each_time_it_is_opened() -> None:
    left: list[int] = []
    heard: list[Ticket[None]] = []
    relay = SignalRelay(lambda _: heard[-1].complete(None), [signal.SIGUSR1], leave=left.append)
    for _ in range(3):
        heard.append(Ticket())
        with relay:
            os.kill(os.getpid(), signal.SIGUSR1)
            heard[-1].wait(timeout=60)

    assert left == []


def test_shutdown_coordinator_cannot_be_reset_off_the_main_thread_and_stays_open() -> None:
    ShutdownCoordinator.install(signals=(signal.SIGUSR1,))
    refused = in_background(ShutdownCoordinator.reset)

    with pytest.raises(RuntimeError, match="only on the main thread"):
        refused.wait(timeout=60)
    coordinator = ShutdownCoordinator.get()
    assert coordinator is not None
    assert coordinator.relay.is_open


@pytest.mark.parametrize("who", ["the handler", "the relay"])
def test_the_third_signal_is_acted_on_by_handler_or_relay_whichever_is_first(who: str) -> None:
    left: Ticket[int] = Ticket()
    relay = SignalRelay(print, [signal.SIGUSR1], leave=lambda code: write(left, code))
    act = partial(relay._handle, signal.SIGUSR1, None) if who == "the handler" else partial(relay._hear, signal.SIGUSR1)
    act()
    act()
    was_left = left.is_ready()
    act()

    assert (was_left, left.wait(0)) == (False, 128 + signal.SIGUSR1)


def test_relay_calls_others_for_signals_of_other_handlers() -> None:
    told: Ticket[None] = Ticket()

    def theirs(_number: int, _frame: FrameType | None) -> None:
        pass

    handler = signal.signal(signal.SIGUSR2, theirs)
    try:
        with SignalRelay(print, [signal.SIGUSR1], others=lambda: write(told)):
            os.kill(os.getpid(), signal.SIGUSR2)
            told.wait(timeout=60)
    finally:
        signal.signal(signal.SIGUSR2, handler)
