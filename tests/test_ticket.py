from __future__ import annotations

import asyncio
import copy
import gc
import logging
import queue
import random
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwarden import Ticket, wait_all
from loopwarden._blocking import SYSTEM
from loopwarden.errors import (
    TicketAlreadyCompletedError,
    TicketCancelledError,
    TicketError,
    TicketTimeoutError,
)
from loopwarden.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def race(threads: int, job: Any) -> list[Any]:
    """Run a job on several threads at once; return what each of them got."""
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    start: Ticket[None] = Ticket()

    def racer() -> None:
        start.wait()
        try:
            results.put(job())
        except TicketError as error:
            results.put(error)

    for number in range(threads):
        SYSTEM.start_thread(racer, f"racer-{number}")
    start.complete(None)
    return [results.get(timeout=60) for _ in range(threads)]


def test_a_completed_ticket_returns_its_result_to_every_reader() -> None:
    ticket: Ticket[str] = Ticket()

    ticket.complete("done")

    assert [ticket.wait(), ticket.wait(timeout=0), ticket.get()] == ["done"] * 3


def test_a_failed_ticket_raises_its_error_to_every_reader_without_growing_its_trace() -> None:
    ticket: Ticket[str] = Ticket()
    ticket.fail(KeyError("missing"))

    depths: list[int] = []
    for _ in range(3):
        with pytest.raises(KeyError) as caught:
            ticket.wait()
        depths.append(len(caught.traceback))

    assert len(set(depths)) == 1


def test_a_ticket_may_be_completed_with_none() -> None:
    ticket: Ticket[None] = Ticket()
    ticket.complete(None)

    with pytest.raises(TicketAlreadyCompletedError):
        ticket.complete(None)

    assert ticket.is_ready()


def test_second_writer_of_a_ticket_is_refused_and_changes_nothing() -> None:
    ticket: Ticket[int] = Ticket()
    ticket.complete(1)

    with pytest.raises(TicketAlreadyCompletedError):
        ticket.complete(2)
    with pytest.raises(TicketAlreadyCompletedError):
        ticket.fail(ValueError())

    assert ticket.wait() == 1
    assert not ticket.cancel()


def test_fail_takes_only_an_exception() -> None:
    ticket: Ticket[int] = Ticket()

    with pytest.raises(TypeError, match="'oops'"):
        ticket.fail("oops")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  the misuse under test

    assert not ticket.is_ready()


def test_a_writer_learns_that_the_reader_has_cancelled() -> None:
    ticket: Ticket[int] = Ticket()

    assert ticket.cancel()

    with pytest.raises(TicketCancelledError):
        ticket.complete(1)
    with pytest.raises(TicketCancelledError):
        ticket.wait()
    assert not ticket.cancel()


def test_a_time_out_is_a_timeout_error_and_a_pykka_timeout_and_leaves_the_ticket_good() -> None:
    ticket: Ticket[int] = Ticket()

    with pytest.raises(TicketTimeoutError) as caught:
        ticket.wait(timeout=0.001)
    ticket.complete(1)

    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, pykka.Timeout)
    assert caught.value.timeout == 0.001
    assert ticket.wait() == 1


@pytest.mark.parametrize("timeout", [0, -1, -1e9])
def test_a_time_out_of_zero_or_less_looks_without_blocking(timeout: float) -> None:
    ticket: Ticket[int] = Ticket()

    with pytest.raises(TicketTimeoutError):
        ticket.wait(timeout=timeout)


def test_a_time_out_beyond_what_the_system_can_wait_is_no_error() -> None:
    ticket: Ticket[int] = Ticket()
    waiting: Ticket[int] = Ticket()
    SYSTEM.start_thread(lambda: waiting.complete(ticket.wait(timeout=1e300)), "patient")

    ticket.complete(1)

    assert waiting.wait(timeout=60) == 1


def test_waits_that_time_out_leave_no_callback_behind() -> None:
    ticket: Ticket[int] = Ticket()

    for _ in range(3):
        with pytest.raises(TicketTimeoutError):
            ticket.wait(timeout=0)

    assert ticket._callbacks == []


@pytest.mark.parametrize("repeat", range(20))
def test_racing_writers_of_a_ticket_have_one_winner_and_no_reader_sleeps_on(repeat: int) -> None:
    for _ in range(100):
        ticket: Ticket[object] = Ticket()
        woken: Ticket[object] = Ticket()

        def read(ticket: Ticket[object] = ticket, woken: Ticket[object] = woken) -> None:
            woken.complete(ticket.wait())

        SYSTEM.start_thread(read, "reader")

        outcomes = race(8, lambda ticket=ticket: ticket.complete(object()))

        assert outcomes.count(None) == 1
        assert sum(isinstance(each, TicketAlreadyCompletedError) for each in outcomes) == 7
        assert woken.wait(timeout=60) is ticket.wait()


def test_racing_cancel_and_complete_agree_on_who_was_first() -> None:
    for _ in range(200):
        ticket: Ticket[int] = Ticket()

        outcomes = race(2, lambda ticket=ticket: ticket.cancel())
        with pytest.raises(TicketCancelledError):
            ticket.complete(1)

        assert sorted(outcomes) == [False, True]


@given(st.lists(st.sampled_from(["complete", "fail", "cancel"]), min_size=1, max_size=6))
def test_first_write_of_a_ticket_stands_whatever_follows(writes: list[str]) -> None:
    ticket: Ticket[int] = Ticket()
    acts: dict[str, Callable[[], object]] = {
        "complete": lambda: ticket.complete(1),
        "fail": lambda: ticket.fail(ValueError()),
        "cancel": ticket.cancel,
    }

    acts[writes[0]]()
    for write in writes[1:]:
        with suppress(TicketError):
            acts[write]()

    expected = {"complete": "done", "fail": "ValueError", "cancel": "TicketCancelledError"}
    assert expected[writes[0]] in repr(ticket)


def test_on_ready_is_called_once_with_the_ticket_before_and_after_completion() -> None:
    ticket: Ticket[int] = Ticket()
    seen: list[int] = []

    ticket.on_ready(lambda done: seen.append(done.wait()))
    ticket.complete(7)
    ticket.on_ready(lambda done: seen.append(-done.wait()))

    assert seen == [7, -7]


def test_callback_that_raises_is_logged_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    ticket: Ticket[int] = Ticket()
    seen: list[int] = []

    def broken(_: object) -> None:
        raise SystemExit("callback")

    ticket.on_ready(broken)
    ticket.on_ready(lambda done: seen.append(done.wait()))
    with caplog.at_level(logging.ERROR, logger="loopwarden"):
        ticket.complete(1)

    assert seen == [1]
    assert "callback" in caplog.text


def test_callbacks_registered_while_the_ticket_is_completed_run_exactly_once() -> None:
    for _ in range(200):
        ticket: Ticket[None] = Ticket()
        calls: queue.SimpleQueue[int] = queue.SimpleQueue()

        outcomes = race(
            4,
            lambda ticket=ticket, calls=calls: (
                ticket.on_ready(lambda _: calls.put(1)),
                ticket.is_ready() or ticket.cancel(),
            ),
        )

        assert len(outcomes) == 4
        assert calls.qsize() == 4


def test_pykkas_names_work() -> None:
    ticket: Ticket[int] = Ticket()
    failed: Ticket[int] = Ticket()
    bare: Ticket[int] = Ticket()

    ticket.set(3)
    try:
        raise KeyError("handled")  # noqa: TRY301  set_exception() reads it
    except KeyError:
        failed.set_exception()
    bare.set_exception((ValueError, None, None))

    assert ticket.get(timeout=0) == 3
    with pytest.raises(KeyError):
        failed.get()
    with pytest.raises(ValueError, match=r"^$"):
        bare.get()
    assert pykka.get_all([ticket, ticket]) == [3, 3]


def test_set_exception_without_an_exception_is_refused() -> None:
    with pytest.raises(TypeError, match="exc_info"):
        Ticket[int]().set_exception()


def test_a_get_hook_is_refused_with_the_remedy() -> None:
    with pytest.raises(TypeError, match="on_ready"):
        Ticket[int]().set_get_hook(lambda _: 1)


def test_derived_tickets_resolve_without_a_reader() -> None:
    ticket: Ticket[Iterable[int]] = Ticket()

    mapped = ticket.map(lambda items: len(list(items)))
    filtered = ticket.filter(lambda item: item > 1)
    reduced = ticket.reduce(lambda total, item: total + item, 10)
    joined = ticket.join(mapped)
    ticket.complete([1, 2, 3])

    assert all(each.is_ready() for each in (mapped, filtered, reduced, joined))
    assert (mapped.wait(), filtered.wait(), reduced.wait(), joined.wait()) == (3, [2, 3], 16, [[1, 2, 3], 3])


def test_derived_tickets_fail_with_the_source_and_with_their_function() -> None:
    source: Ticket[int] = Ticket()
    mapped, other = source.map(lambda number: number + 1), Ticket[int]()
    joined = other.join(source)
    source.fail(KeyError("source"))
    good: Ticket[int] = Ticket()
    broken = good.map(lambda number: number // 0)
    good.complete(1)

    with pytest.raises(KeyError):
        mapped.wait(0)
    with pytest.raises(KeyError):
        joined.wait(0)
    with pytest.raises(ZeroDivisionError):
        broken.wait(0)


def test_a_cancelled_derived_ticket_does_not_disturb_its_source() -> None:
    source: Ticket[int] = Ticket()
    derived = source.map(lambda number: number)

    derived.cancel()
    source.complete(1)

    assert source.wait() == 1


def test_join_refuses_a_future_that_can_only_be_blocked_on() -> None:
    with pytest.raises(TypeError, match="Future"):
        Ticket[int]().join(pykka.ThreadingFuture())


def test_await_does_not_block_the_event_loop() -> None:
    ticket: Ticket[str] = Ticket()
    turns: list[int] = []

    async def others() -> None:
        for turn in range(3):
            turns.append(turn)
            await asyncio.sleep(0)
        SYSTEM.start_thread(lambda: ticket.complete("done"), "writer")

    async def main() -> str:
        background = asyncio.ensure_future(others())
        answer = await ticket
        await background
        return answer

    assert asyncio.run(main()) == "done"
    assert turns == [0, 1, 2]


def test_await_of_a_ready_or_failed_ticket_answers_at_once() -> None:
    ready: Ticket[int] = Ticket()
    ready.complete(1)
    failed: Ticket[int] = Ticket()
    failed.fail(KeyError("failed"))

    async def main() -> int:
        with pytest.raises(KeyError):
            await failed
        return await ready

    assert asyncio.run(main()) == 1


def test_an_awaiting_task_that_is_cancelled_leaves_the_ticket_good() -> None:
    ticket: Ticket[int] = Ticket()

    async def main() -> None:
        task = asyncio.ensure_future(_await(ticket))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    ticket.complete(1)

    assert ticket.wait() == 1
    assert ticket._callbacks == []


async def _await(ticket: Ticket[int]) -> int:
    return await ticket


def test_a_ticket_completed_after_its_event_loop_was_closed_is_completed_all_the_same() -> None:
    ticket: Ticket[int] = Ticket()
    loop = asyncio.new_event_loop()
    task = loop.create_task(_await(ticket))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()

    ticket.complete(1)

    assert ticket.wait() == 1
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  it cannot be awaited any more


def test_wait_all_returns_the_answers_in_order() -> None:
    tickets = [Ticket[int]() for _ in range(3)]
    for number in (2, 0, 1):
        tickets[number].complete(number)

    assert wait_all(tickets, timeout=0) == [0, 1, 2]
    assert wait_all([]) == []


def test_wait_all_has_one_deadline_and_says_how_many_are_missing() -> None:
    tickets = [Ticket[int]() for _ in range(3)]
    tickets[0].complete(0)

    with pytest.raises(TicketTimeoutError, match="2 of 3") as caught:
        wait_all(tickets, timeout=0.001)

    assert caught.value.pending == 2


def test_ticket_refuses_a_bad_time_out_or_callback_by_name() -> None:
    ticket: Ticket[int] = Ticket()
    bad: Any = "1"

    for timeout in (bad, float("nan"), True):
        with pytest.raises(TypeError, match="timeout must be"):
            ticket.wait(timeout)
    with pytest.raises(TypeError, match="callback must be callable"):
        ticket.on_ready(bad)
    with pytest.raises(TypeError, match="list of tickets"):
        wait_all(ticket)
    with pytest.raises(TypeError, match="list of tickets"):
        wait_all([bad])


def test_wait_all_raises_the_first_error_in_order() -> None:
    tickets = [Ticket[int]() for _ in range(2)]
    tickets[1].fail(KeyError("second"))
    tickets[0].fail(ValueError("first"))

    with pytest.raises(ValueError, match="first"):
        wait_all(tickets)


def test_wait_ready_waits_for_the_seconds_of_its_clock() -> None:
    clock = FakeClock()
    ticket: Ticket[int] = Ticket(clock.blocking)
    answer: Ticket[bool] = Ticket()
    clock.blocking.start_thread(lambda: answer.complete(ticket.wait_ready(5.0, clock)), "waiter")

    clock.advance(4.9)
    assert not answer.is_ready()
    clock.advance(0.1)

    assert answer.wait(timeout=0) is False


def test_a_ticket_prints_its_state() -> None:
    pending, done, failed = Ticket[int](), Ticket[int](), Ticket[int]()
    done.complete(1)
    failed.cancel()

    assert repr(pending) == "<Ticket, pending>"
    assert repr(done) == "<Ticket, done: 1>"
    assert repr(failed).startswith("<Ticket, failed: TicketCancelledError")


def test_a_chain_of_a_thousand_maps_resolves() -> None:
    first: Ticket[int] = Ticket()
    last = first
    for _ in range(1_000):
        last = last.map(lambda number: number + 1)

    first.complete(0)

    assert last.wait(0) == 1_000


def test_a_callback_that_claims_to_equal_everything_is_not_forgotten_for_another() -> None:
    class Equal:
        called = False

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]  # Python's way to say that there is none

        def __call__(self, _: object) -> None:
            self.called = True

    ticket: Ticket[int] = Ticket()
    equal = Equal()
    ticket.on_ready(equal)
    with pytest.raises(TicketTimeoutError):
        ticket.wait(timeout=0)

    ticket.complete(1)

    assert equal.called


def test_a_second_writer_of_a_ticket_derived_from_a_cancelled_one_is_told_so() -> None:
    source: Ticket[int] = Ticket()
    derived = source.map(lambda number: number)
    source.cancel()

    with pytest.raises(TicketAlreadyCompletedError):
        derived.complete(1)
    with pytest.raises(TicketCancelledError):
        derived.wait(0)


def test_a_copy_of_a_ticket_is_the_ticket() -> None:
    ticket: Ticket[int] = Ticket()

    assert copy.copy(ticket) is copy.deepcopy(ticket) is ticket


def test_a_ctrl_c_in_a_callback_on_the_main_thread_is_raised_after_the_others_ran() -> None:
    ticket: Ticket[int] = Ticket()
    seen: list[int] = []

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    ticket.on_ready(interrupted)
    ticket.on_ready(lambda done: seen.append(done.wait(0)))

    with pytest.raises(KeyboardInterrupt):
        ticket.complete(1)

    assert seen == [1]


def test_ticket_with_a_result_that_cannot_be_printed_can_be_printed() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise SystemExit

    ticket: Ticket[Silent] = Ticket()
    ticket.complete(Silent())

    assert repr(ticket) == "<Ticket, done: <Silent without a repr>>"


def test_ticket_forgets_a_callback_that_is_taken_back() -> None:
    ticket: Ticket[str] = Ticket()
    called: list[str] = []

    def first(_: Ticket[str]) -> None:
        called.append("first")

    def second(_: Ticket[str]) -> None:
        called.append("second")

    ticket.on_ready(first)
    ticket.on_ready(second)
    ticket.forget_ready(first)
    ticket.forget_ready(first)
    ticket.complete("answer")

    assert called == ["second"]


def test_ticket_keeps_no_callback_of_threads_that_have_waited_in_vain() -> None:
    ticket: Ticket[str] = Ticket()

    def wait() -> None:
        for _ in range(500):
            ticket.wait_ready(0.000001)

    threads = [SYSTEM.start_thread(wait, f"waiter-{number}") for number in range(8)]
    for thread in threads:
        thread.join()

    assert ticket._callbacks == []


def test_forget_ready_takes_back_its_own_callback_while_another_thread_pops() -> None:
    class Raced(list[Any]):
        """A list from which another thread pops just before an index is used that was found before."""

        def __delitem__(self, index: Any) -> None:
            self.pop(0)
            super().__delitem__(index)

    def first(_: object) -> None: ...
    def second(_: object) -> None: ...
    def third(_: object) -> None: ...

    ticket: Ticket[None] = Ticket()
    ticket._callbacks = callbacks = Raced()
    for callback in (first, second, third):
        ticket.on_ready(callback)

    ticket.forget_ready(second)

    assert list(callbacks) == [first, third]


def test_forget_ready_compares_by_identity_and_runs_no_code_of_a_callback() -> None:
    class Twin:
        def __call__(self, _: object) -> None: ...

        def __eq__(self, other: object) -> bool:
            raise LookupError("other people's code")

        __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  it is never hashed

    ticket: Ticket[None] = Ticket()
    twins = [Twin(), Twin(), Twin()]
    for twin in twins:
        ticket.on_ready(twin)

    ticket.forget_ready(twins[1])
    ticket.forget_ready(twins[2])

    assert len(ticket._callbacks) == 1


@pytest.mark.prove
@pytest.mark.timeout(120)
def test_ticket_that_is_completed_wakes_who_waits_whenever_a_ctrl_c_comes() -> None:
    is_armed = False
    interrupts = 0

    def raise_if_armed(_number: int, _frame: object) -> None:
        nonlocal is_armed, interrupts
        if is_armed:
            is_armed = False
            interrupts += 1
            raise KeyboardInterrupt

    dice = random.Random(0)
    before = signal.signal(signal.SIGALRM, raise_if_armed)
    try:
        while interrupts < 2_000:
            ticket: Ticket[int] = Ticket()
            derived, gate = ticket.map(lambda number: number + 1), SYSTEM.gate()
            ticket._call_back(gate.open)  # as a thread that waits for it does
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, 3e-5))
            gc.disable()  # others have callbacks in it, which would be interrupted, and swallow that
            try:
                is_armed = True
                ticket.complete(1)
                is_armed = False
            except KeyboardInterrupt:
                pass
            gc.enable()
            if not ticket.is_ready():
                ticket.complete(1)

            assert gate.wait(0)
            assert derived.is_ready()  # to the interrupt, if that came while it was computed
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
