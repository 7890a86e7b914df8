"""A Ctrl-C at any instruction of a mailbox in memory: every message is in one place, and the mailbox goes on."""

from __future__ import annotations

import gc
import linecache
import sys
from collections import Counter
from contextlib import suppress
from functools import partial
from opcode import opmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import loopwarden.mailbox
from loopwarden.errors import MailboxError
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    Jobs = InMemoryMailbox[Any, Any]
    Step = Callable[[], object]
    Trace = Callable[[FrameType, str, Any], Any]

MAILBOX = str(Path(loopwarden.mailbox.__file__).parent)
LEASE = 300


class CtrlC:
    """Raises KeyboardInterrupt before the line or instruction with that number, of those that the mailbox executes.

    The instructions with which a ``with`` statement lets go of a lock are left out, and those that do nothing: the
    interpreter looks for signals behind a call, where the lock is free, and not before it.
    """

    def __init__(self, jobs: Jobs, number: int, every: str = "line") -> None:
        self._jobs = jobs
        self._number = number
        self._every = every
        self._seen = -1
        #: How often it has raised.
        self.raised = 0

    def during(self, step: Step) -> None:
        before = sys.gettrace()
        gc.disable()  # what other tests have left must not be collected now: its `__del__` would be interrupted
        sys.settrace(self._enter)
        try:
            step()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
            gc.enable()

    def _enter(self, frame: FrameType, event: str, _: object) -> Trace | None:
        if event != "call" or not frame.f_code.co_filename.startswith(MAILBOX):
            return None
        frame.f_trace_opcodes = self._every == "opcode"
        return self._execute

    def _execute(self, frame: FrameType, event: str, _: object) -> Trace:
        if event == self._every and not self._lets_go(frame):
            self._seen += 1
            if self._seen == self._number:
                self.raised += 1
                raise KeyboardInterrupt
        return self._execute

    def _lets_go(self, frame: FrameType) -> bool:
        if frame.f_code.co_code[frame.f_lasti] == opmap["NOP"]:
            return True
        lock: Any = self._jobs.store.lock
        lock = getattr(lock, "_inner", lock)  # where the order of locks is checked
        number: int | None = frame.f_lineno  # none for what stands in no line: jumps out of the block, for instance
        sequences = "with " if number is None else linecache.getline(frame.f_code.co_filename, number).strip(" ")
        # From 3.12 on, what a trace function raises inside a comprehension passes by the statements around it, unlike
        # what a signal does there.
        is_comprehension = sys.version_info >= (3, 12) and " for " in sequences
        return bool((sequences.startswith("with ") or is_comprehension) and lock.locked())


class Case:
    """A mailbox to which something is done, and the bodies that may be gone or new when it was interrupted."""

    def __init__(self, *, max_deliveries: int = 3, max_size: int | None = None, roundtrip: bool = False) -> None:
        self.clock = FakeClock()
        self.jobs: Jobs = InMemoryMailbox(
            "jobs", max_deliveries=max_deliveries, max_size=max_size, roundtrip=roundtrip, clock=self.clock
        )
        self.sent: list[str] = []
        #: What a test remembers of it.
        self.again: Step = list[object]
        self.gate = self.clock.blocking.gate()

    def send(self, *bodies: str, **options: Any) -> Case:
        for body in bodies:
            self.jobs.send(body, **options)
        self.sent += bodies
        return self

    def receive(self, number: int = 1, lease: float = LEASE) -> list[Any]:
        return [message for _ in range(number) for message in self.jobs.receive(visibility_timeout=lease)]

    def exhaust(self, *bodies: str) -> None:
        """Make dead letters of new messages."""
        self.send(*bodies)
        for message in self.jobs.receive(max_messages=len(bodies)):
            message.dead_letter("so")

    def left(self) -> Counter[str]:
        """Return the bodies of all messages and letters, by receiving and acknowledging them."""
        jobs, bodies = self.jobs, Counter[str]()
        dead = jobs.dead_letters.approximate_count()
        count = dead + jobs.approximate_count()
        assert len(jobs.dead_letters.peek()) == dead
        self.clock.advance(10 * LEASE)
        while messages := jobs.receive(max_messages=10):
            for message in messages:
                bodies[message.body] += 1
                message.acknowledge()
        bodies.update(str(letter.raw or letter.body) for letter in jobs.dead_letters.peek())
        assert bodies.total() == count
        assert jobs.approximate_count() == 0
        return bodies


def fast() -> tuple[Case, Step]:
    case = Case().send("a")
    return case, lambda: case.jobs.send("new")


def with_headers() -> tuple[Case, Step]:
    case = Case().send("a")
    return case, lambda: case.jobs.send("new", headers={"h": "v"})


def delayed() -> tuple[Case, Step]:
    case = Case().send("a")
    case.receive()
    return case, lambda: case.jobs.send("new", delay=5)


def many() -> tuple[Case, Step]:
    case = Case(max_size=9).send("a")
    return case, lambda: case.jobs.send_many(["new", "new"])


def receive_fresh() -> tuple[Case, Step]:
    case = Case().send("a", "b")
    return case, lambda: case.jobs.receive(max_messages=3)


def receive_with_headers() -> tuple[Case, Step]:
    case = Case().send("a", "b", headers={"h": "v"})
    return case, lambda: case.jobs.receive(max_messages=3)


def receive_returned() -> tuple[Case, Step]:
    case = Case().send("a", "b", "c")
    case.receive(2)[0].put_back()
    return case, lambda: case.jobs.receive(max_messages=3)


def receive_ended() -> tuple[Case, Step]:
    case = Case(max_deliveries=1).send("a", "b", "c")
    case.receive(2, lease=1)[1].extend_visibility(LEASE)
    case.clock.advance(2)
    return case, lambda: case.jobs.receive(max_messages=3)


def receive_unreadable() -> tuple[Case, Step]:
    case = Case(roundtrip=True).send("a", "b")
    case.jobs.store.queue.fresh[0].body = b"{"
    case.sent[0] = str(b"{")
    return case, lambda: case.jobs.receive(max_messages=3)


def acknowledge() -> tuple[Case, Step]:
    case = Case().send("done", "a")
    [message] = case.receive()
    return case, message.acknowledge


def acknowledge_out_of_turn() -> tuple[Case, Step]:
    case = Case().send("a", "done")
    message = case.receive(2)[1]
    message.extend_visibility(5)
    return case, message.acknowledge


def nack() -> tuple[Case, Step]:
    case = Case().send("a", "b")
    [message] = case.receive()
    return case, lambda: message.nack(error="so")


def nack_out_of_turn() -> tuple[Case, Step]:
    case = Case().send("a", "b")
    message = case.receive(2)[1]
    message.extend_visibility(5)
    return case, message.nack


def nack_delayed() -> tuple[Case, Step]:
    case = Case().send("a", "b")
    message = case.receive(2)[1]
    return case, lambda: message.nack(5)


def nack_last() -> tuple[Case, Step]:
    case = Case(max_deliveries=1).send("a", "b", headers={"h": "v"})
    [message] = case.receive()
    return case, message.nack


def put_back() -> tuple[Case, Step]:
    case = Case().send("a", "b")
    [message] = case.receive()
    return case, message.put_back


def dead_letter() -> tuple[Case, Step]:
    case = Case().send("a", "b")
    [message] = case.receive()
    return case, lambda: message.dead_letter("so")


def extend() -> tuple[Case, Step]:
    case = Case().send("a", "b")
    message = case.receive(2)[0]
    return case, lambda: message.extend_visibility(2 * LEASE)


def shorten() -> tuple[Case, Step]:
    case = Case().send("a", "b")
    message = case.receive(2)[0]
    return case, lambda: message.extend_visibility(5)


def lengthen_again() -> tuple[Case, Step]:
    case = Case().send("a", "b")
    message = case.receive(2)[0]
    message.extend_visibility(5)
    return case, lambda: message.extend_visibility(2 * LEASE)


def reap() -> tuple[Case, Step]:
    case = Case(max_deliveries=2).send("a", "b", "c", "d")
    case.receive()[0].nack()
    case.receive(3, lease=1)[1].extend_visibility(0.5)
    case.clock.advance(1)
    return case, case.jobs.reap


def wait_visible() -> tuple[Case, Step]:
    case = Case(max_deliveries=1).send("a")
    case.receive(lease=1)
    case.clock.advance(1)
    return case, lambda: case.jobs.wait_visible(0)


def redrive() -> tuple[Case, Step]:
    case = Case()
    case.exhaust("a", "b", "c")
    case.jobs.dead_letters.receive()
    return case, case.jobs.dead_letters.redrive


def nack_letter() -> tuple[Case, Step]:
    case = Case()
    case.exhaust("a", "b")
    [message] = case.jobs.dead_letters.receive()
    return case, message.nack


def purge() -> tuple[Case, Step]:
    case = Case().send("done", "done", "done", "done")
    case.receive(2)[1].put_back()
    return case, case.jobs.purge


CASES = [
    fast, with_headers, delayed, many, receive_fresh, receive_with_headers, receive_returned, receive_ended,
    receive_unreadable, acknowledge, acknowledge_out_of_turn, nack, nack_out_of_turn, nack_delayed, nack_last, put_back,
    dead_letter, extend, shorten, lengthen_again, reap, wait_visible, redrive, nack_letter, purge,
]  # fmt: skip


def interrupted(make: Callable[[], tuple[Case, Step]], every: str = "line") -> Iterator[Case]:
    """Give what is left of a case, interrupted at each line or instruction in turn."""
    number = 0
    while True:
        case, step = make()
        ctrl_c = CtrlC(case.jobs, number, every)
        ctrl_c.during(step)
        if not ctrl_c.raised:
            return
        yield case
        number += 1


def check(case: Case) -> None:
    left = case.left()
    sure = Counter(body for body in case.sent if body != "done")
    assert left - Counter(new=left["new"], done=left["done"]) == sure
    assert left["done"] <= case.sent.count("done")


@pytest.mark.parametrize("every", ["line", pytest.param("opcode", marks=pytest.mark.prove)])
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_an_in_memory_mailbox_has_every_message_once_wherever_it_is_interrupted(
    make: Callable[[], tuple[Case, Step]], every: str
) -> None:
    for case in interrupted(make, every):
        check(case)


def test_send_many_that_is_interrupted_sends_all_or_none() -> None:
    sent = [case.left()["new"] for case in interrupted(many)]

    assert set(sent) == {0, 2}


def test_a_send_that_is_interrupted_can_be_repeated_with_its_dedup_id() -> None:
    def deduped() -> tuple[Case, Step]:
        case = Case()
        return case, lambda: case.jobs.send("new", dedup_id="d")

    for case in interrupted(deduped):
        case.jobs.send("new", dedup_id="d")
        assert case.left() == {"new": 1}


@pytest.mark.parametrize(
    "make", [receive_fresh, receive_with_headers, receive_returned], ids=lambda make: make.__name__
)
def test_a_receive_that_is_interrupted_counts_no_delivery_that_was_not_made(
    make: Callable[[], tuple[Case, Step]],
) -> None:
    for case in interrupted(make):
        visible = [message.delivery_count for message in case.jobs.receive(max_messages=3)]
        assert set(visible) <= {1}


@pytest.mark.parametrize("make", [acknowledge, nack, nack_last, put_back, dead_letter], ids=lambda make: make.__name__)
def test_call_that_was_interrupted_can_be_made_again(make: Callable[[], tuple[Case, Step]]) -> None:
    def twice() -> tuple[Case, Step]:
        case, step = make()
        case.again = step
        return case, step

    for case in interrupted(twice):
        with suppress(MailboxError):  # it was done
            case.again()
        check(case)


@pytest.mark.parametrize(
    "make", [fast, with_headers, many, nack, put_back, reap, redrive], ids=lambda make: make.__name__
)
def test_a_receive_that_waits_is_woken_for_what_became_visible_although_that_was_interrupted(
    make: Callable[[], tuple[Case, Step]],
) -> None:
    def waiting() -> tuple[Case, Step]:
        case, step = make()
        while case.jobs.store.queue.has_visible:
            case.jobs.receive(visibility_timeout=2 * LEASE)
        case.jobs.store.waiters.park(case.gate)
        return case, step

    for case in interrupted(waiting):
        assert not case.jobs.store.queue.has_visible or case.gate.wait(0)


@pytest.mark.prove
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_interrupt_while_another_is_dealt_with_loses_nothing_either(
    make: Callable[[], tuple[Case, Step]],
) -> None:
    first, was_interrupted = 0, True
    while was_interrupted:
        second = 1  # the first line notes that there is something to mend
        while True:
            case, step = make()
            mend, again = case.jobs.store.mend, CtrlC(case.jobs, second)
            vars(case.jobs.store)["mend"] = partial(again.during, mend)
            ctrl_c = CtrlC(case.jobs, first)
            ctrl_c.during(step)
            was_interrupted = ctrl_c.raised > 0
            if not again.raised:
                break
            del vars(case.jobs.store)["mend"]
            case.jobs.reap()  # the next call does the rest
            check(case)
            second += 1
        first += 1
