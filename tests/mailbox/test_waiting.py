"""Every call that waits for a message waits alike: receive and wait_visible, in memory and in SQLite."""

from __future__ import annotations

import linecache
import sys
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden.errors import MailboxClosedError
from loopwarden.mailbox import InMemoryMailbox, SqliteMailbox, Token, _token, _waiters
from loopwarden.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType

    from loopwarden._blocking import Blocking, Gate
    from loopwarden.clock import Timer

    Box = InMemoryMailbox[int, Any] | SqliteMailbox[int, Any]
    Step = Callable[[], object]
    Trace = Callable[[FrameType, str, Any], Any]

WAIT = 20


class ScriptedClock:
    """A clock on which a wait does not block: it does what the test wants to happen there, and is over."""

    def __init__(self) -> None:
        self._inner = FakeClock()
        #: What happens in the next waits, one of them in each.
        self.script: list[Step] = []
        #: How many waits there were.
        self.waits = 0

    @property
    def blocking(self) -> Blocking:
        return self._inner.blocking

    def monotonic(self) -> float:
        return self._inner.monotonic()

    def wall(self) -> float:
        return self._inner.wall()

    def wait(self, gate: Gate, timeout: float | None) -> bool:
        self.waits += 1
        if self.script:
            self.script.pop(0)()
        is_open = gate.wait(0)
        if not is_open:
            assert timeout is not None
            self._inner.advance(timeout)
        return is_open

    def call_later(self, delay: float, callback: Step) -> Timer:
        return self._inner.call_later(delay, callback)


class Waiting:
    """One call that waits at a mailbox, and a gate that is parked behind it when the test says so."""

    def __init__(self, kind: str, call: str, path: Path) -> None:
        self.clock = ScriptedClock()
        self.box: Box = (
            InMemoryMailbox("jobs", clock=self.clock)
            if kind == "memory"
            else SqliteMailbox(path, "jobs", clock=self.clock)
        )
        self.call = call
        self.token = Token()
        self.other = self.clock.blocking.gate()

    def run(self) -> object:
        """Make the call; return the bodies that it has received, or whether it has seen something."""
        if self.call == "wait_visible":
            return self.box.wait_visible(WAIT, self.token)
        return [each.body for each in self.box.receive(max_messages=1, wait_time_seconds=WAIT, token=self.token)]

    @property
    def found(self) -> object:
        """What the call returns when 1 was sent."""
        return True if self.call == "wait_visible" else [1]

    @property
    def nothing(self) -> object:
        """What it returns when it has found nothing."""
        return False if self.call == "wait_visible" else []

    @property
    def waiters(self) -> _waiters.Waiters:
        return self.box.store.waiters if isinstance(self.box, InMemoryMailbox) else self.box._queue.waiters

    @property
    def parked(self) -> list[Gate]:
        """Who waits, but the other."""
        return [gate for gate in self.waiters.gates if gate is not self.other]

    def during_wait(self, *steps: Step) -> None:
        """Do all of it while the call waits."""
        self.clock.script.append(lambda: [step() for step in steps])

    def park_other(self) -> None:
        self.waiters.park(self.other)

    def send(self) -> None:
        self.box.send(1)

    def is_other_woken(self) -> bool:
        return self.other.wait(0)


KINDS = [(kind, call) for kind in ("memory", "sqlite") for call in ("receive", "wait_visible")]


@pytest.fixture(params=KINDS, ids="-".join)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Waiting]]:
    made: list[Waiting] = []

    def make_one() -> Waiting:
        if made:
            made[-1].box.close()
        kind, call = request.param
        made.append(Waiting(kind, call, tmp_path / f"{len(made)}.db"))
        return made[-1]

    yield make_one
    for each in made:
        each.box.close()


@pytest.fixture
def waiting(make: Callable[[], Waiting]) -> Waiting:
    return make()


def interrupt() -> None:
    raise KeyboardInterrupt


def test_waiter_that_is_woken_returns_what_it_was_woken_for(waiting: Waiting) -> None:
    waiting.during_wait(waiting.send)

    assert waiting.run() == waiting.found
    assert waiting.clock.waits == 1
    assert waiting.parked == []


def test_waiter_that_was_woken_and_is_stopped_passes_the_wake_up_on(waiting: Waiting) -> None:
    waiting.during_wait(waiting.park_other, waiting.send, waiting.token.stop)

    assert waiting.run() == waiting.nothing
    assert waiting.is_other_woken()
    assert waiting.parked == []


def test_waiter_that_was_woken_and_is_interrupted_passes_the_wake_up_on(waiting: Waiting) -> None:
    waiting.during_wait(waiting.park_other, waiting.send, interrupt)

    with pytest.raises(KeyboardInterrupt):
        waiting.run()

    assert waiting.is_other_woken()
    assert waiting.parked == []


def test_waiter_that_has_found_something_wakes_the_next_for_what_is_left(waiting: Waiting) -> None:
    waiting.during_wait(waiting.send, waiting.send, waiting.park_other)

    assert waiting.run() == waiting.found
    assert waiting.is_other_woken()
    assert waiting.parked == []


def test_call_that_finds_something_at_once_wakes_the_next_for_what_is_left(waiting: Waiting) -> None:
    waiting.send()
    waiting.send()
    waiting.park_other()

    assert waiting.run() == waiting.found
    assert waiting.clock.waits == 0
    assert waiting.is_other_woken()


@pytest.mark.parametrize("end", ["stopped", "nudged", "late", "interrupted", "closed"])
def test_waiter_that_was_not_woken_leaves_the_others_asleep_however_it_ends(waiting: Waiting, end: str) -> None:
    steps: dict[str, Step] = {
        "stopped": waiting.token.stop,
        "nudged": waiting.token.nudge,
        "late": lambda: waiting.clock._inner.advance(WAIT),
        "interrupted": interrupt,
        "closed": waiting.box.close,
    }
    ends: dict[str, type[BaseException]] = {"interrupted": KeyboardInterrupt, "closed": MailboxClosedError}
    waiting.during_wait(waiting.park_other, steps[end])

    if end in ends:
        with pytest.raises(ends[end]):
            waiting.run()
    else:
        assert waiting.run() == waiting.nothing

    assert waiting.is_other_woken() == (end == "closed")
    assert waiting.parked == []
    assert not waiting.token.take_nudge()


def test_youngest_waiter_that_leaves_lets_the_next_youngest_look_how_long_it_may_sleep(waiting: Waiting) -> None:
    waiting.park_other()
    waiting.during_wait(waiting.token.stop)

    assert waiting.run() == waiting.nothing
    assert waiting.is_other_woken()
    assert list(waiting.waiters.gates) == [waiting.other]


def test_nudge_is_left_for_the_next_wait_if_something_is_there(waiting: Waiting) -> None:
    waiting.send()
    waiting.token.nudge()

    assert waiting.run() == waiting.found
    assert waiting.token.take_nudge()


class CtrlC:
    """Raises KeyboardInterrupt before the line with that number, of those in which a call waits.

    Lines with which a ``with`` statement lets go of a lock are left out: the interpreter looks for signals behind the
    call that does it. So are those with which it takes one, which are the same lines.
    """

    FILES = (_waiters.__file__, _token.__file__)

    def __init__(self, number: int) -> None:
        self._left = number
        self.has_raised = False

    def during(self, step: Step) -> None:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            step()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, _: object) -> Trace | None:
        return self._execute if event == "call" and frame.f_code.co_filename in self.FILES else None

    def _execute(self, frame: FrameType, event: str, _: object) -> Trace:
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not self.has_raised and not line.startswith("with "):
            self.has_raised = self._left == 0
            self._left -= 1
            if self.has_raised:
                raise KeyboardInterrupt
        return self._execute


def interrupted(make: Callable[[], Waiting], prepare: Callable[[Waiting], object]) -> Iterator[Waiting]:
    """Give what is left of a call, interrupted at each line in turn."""
    number = 0
    while True:
        waiting = make()
        prepare(waiting)
        ctrl_c = CtrlC(number)
        ctrl_c.during(waiting.run)
        if not ctrl_c.has_raised:
            break
        yield waiting
        number += 1
    assert number > 20


@pytest.mark.parametrize("is_stopped", [False, True], ids=["woken", "stopped"])
def test_waiter_interrupted_at_any_line_is_parked_no_longer_and_loses_no_wake_up(
    make: Callable[[], Waiting], is_stopped: bool
) -> None:
    def wake(waiting: Waiting) -> None:
        waiting.during_wait(waiting.park_other, waiting.send, *[waiting.token.stop] * is_stopped)

    for waiting in interrupted(make, wake):
        is_woken, parked = waiting.is_other_woken(), waiting.parked
        is_left = bool(waiting.box.receive())
        assert is_woken or not is_left
        assert parked == waiting.token._gates == []


def test_youngest_waiter_interrupted_at_any_line_lets_the_next_youngest_look(make: Callable[[], Waiting]) -> None:
    def stop_the_youngest(waiting: Waiting) -> None:
        waiting.park_other()
        waiting.during_wait(waiting.token.stop)

    for waiting in interrupted(make, stop_the_youngest):
        assert waiting.parked == waiting.token._gates == []
        assert waiting.is_other_woken() or not waiting.clock.waits


class Server:
    """A back end whose messages are elsewhere: it asks for them without a lock, and hears of new ones."""

    def __init__(self) -> None:
        self.clock = ScriptedClock()
        self.name = "remote"
        self.lock = self.clock.blocking.lock()
        self.waiters = _waiters.Waiters()
        self._messages: list[int] = []
        self._wake_ups = 0
        self._asked_at = 0
        #: What happens after the server was asked, before its answer is looked at.
        self.after_asking: list[Step] = []

    def put(self) -> None:
        self._messages.append(1)
        with self.lock:
            self._wake_ups += 1
            self.waiters.wake_one()

    def receive(self, token: Token) -> list[int]:
        deadline, is_over = self.clock.monotonic() + WAIT, False
        while True:
            self._asked_at = self._wake_ups
            taken, self._messages = self._messages, []
            if self.after_asking:
                self.after_asking.pop(0)()
            if taken or is_over:
                return taken
            left = max(0.0, deadline - self.clock.monotonic())
            is_over = not _waiters.wait_for(self, self.poll, self.clock, left, token)

    def poll(self) -> bool:
        return self._wake_ups > self._asked_at

    def until_due(self) -> float:
        return WAIT

    def pass_on(self) -> None:
        self.waiters.wake_one()


def test_wait_for_loses_no_wake_up_of_a_back_end_that_asks_its_server_without_the_lock() -> None:
    server = Server()
    server.after_asking.append(server.put)

    assert server.receive(Token()) == [1]
    assert server.clock.waits == 0


def test_wait_for_wakes_a_back_end_that_waits_for_its_server() -> None:
    server = Server()
    server.clock.script.append(server.put)

    assert server.receive(Token()) == [1]
    assert server.clock.waits == 1
    assert not server.waiters.gates
