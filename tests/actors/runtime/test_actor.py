from __future__ import annotations

import functools
import gc
import logging
from typing import Any

import pykka
import pytest

from loopwarden import HealthCheckRequest, Ticket
from loopwarden._blocking import SYSTEM
from loopwarden.actors import ControlActor, Deferred, Request
from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.errors import ActorDeadError, UnsupportedRequestError
from loopwarden.testing import FakeClock, FaultyBlocking, Hold, SteppedBlocking


class Ping(Request[str]):
    """A request that an `Echo` answers."""


class Echo(ControlActor):
    """Does what it is told: calls what can be called, raises what can be raised, returns the rest."""

    def on_receive(self, message: Any) -> Any:
        if isinstance(message, BaseException):
            raise message
        return message() if callable(message) else message


def test_an_ask_is_answered_by_a_ticket() -> None:
    ref = Echo.start()

    ticket = ref.ask("hello", block=False)

    assert isinstance(ticket, Ticket)
    assert ticket.wait(timeout=60) == "hello"
    assert ref.ask("again", timeout=60) == "again"
    ref.stop()


def test_messages_are_handled_in_the_order_in_which_they_were_sent() -> None:
    ref = Echo.start()
    seen: list[int] = []

    for number in range(100):
        ref.tell(lambda number=number: seen.append(number))
    ref.stop()

    assert seen == list(range(100))


def test_an_exception_goes_to_the_asker_and_the_actor_lives_on() -> None:
    ref = Echo.start()

    with pytest.raises(KeyError):
        ref.ask(KeyError("asked"))

    assert ref.ask("alive") == "alive"
    ref.stop()


def test_an_exception_in_a_tell_ends_the_actor_with_that_cause() -> None:
    ref = Echo.start()
    error = KeyError("told")

    ref.tell(error)

    assert ref.ended.wait(timeout=60).cause is error
    assert not ref.is_alive()


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=lambda error: type(error).__name__
)
def test_a_base_exception_ends_this_actor_alone_and_reaches_the_asker_as_its_death(error: BaseException) -> None:
    ref, other = Echo.start(), Echo.start()

    with pytest.raises(ActorDeadError) as caught:
        ref.ask(error, timeout=60)

    assert caught.value.__cause__ is error
    assert ref.ended.wait(timeout=60).cause is error
    assert other.ask("alive") == "alive"
    other.stop()


@pytest.mark.parametrize("error", [KeyError("start"), SystemExit("start")], ids=["exception", "base-exception"])
def test_an_actor_whose_on_start_raises_ends_with_that_cause_and_answers_what_waits(error: BaseException) -> None:
    hold = Hold()

    class Stillborn(Echo):
        def on_start(self) -> None:
            hold()
            raise error

    ref = Stillborn.start()
    waiting = ref.ask("too early", block=False)
    hold.release()

    assert ref.ended.wait(timeout=60).cause is error
    with pytest.raises(ActorDeadError) as caught:
        waiting.wait(timeout=60)
    assert caught.value.__cause__ is error


def test_ended_resolves_after_on_stop_has_run_and_the_stop_is_answered_after_that() -> None:
    order: list[str] = []
    with Hold() as hold:

        class Tidy(Echo):
            def on_stop(self) -> None:
                hold()
                order.append("on_stop")

        ref = Tidy.start()
        ref.ended.on_ready(lambda _: order.append("ended"))
        stopped = ref.stop(block=False)
        hold.wait_reached()
        assert not ref.ended.is_ready()
        assert not stopped.is_ready()

    assert stopped.wait(timeout=60) is True
    assert order == ["on_stop", "ended"]


def test_on_stop_that_raises_is_the_cause_of_the_end() -> None:
    error = KeyError("stop")

    class Untidy(Echo):
        def on_stop(self) -> None:
            raise error

    ref = Untidy.start()
    ref.stop()

    assert ref.ended.wait(timeout=60).cause is error


def test_on_failure_is_called_with_the_cause_and_may_raise_itself() -> None:
    seen: list[BaseException | None] = []

    class Fragile(Echo):
        def on_failure(self, exception_type: Any, exception_value: Any, traceback: Any) -> None:
            seen.append(exception_value)
            raise SystemExit

    error = KeyError("told")
    ref = Fragile.start()
    ref.tell(error)

    assert ref.ended.wait(timeout=60).cause is error
    assert seen == [error]


def test_inbox_of_an_ended_actor_is_answered_with_the_cause() -> None:
    with Hold() as hold:
        ref = Echo.start()
        ref.tell(hold)
        error = SystemExit("the end")
        ref.tell(error)
        tickets = [ref.ask(number, block=False) for number in range(10)]

    for ticket in tickets:
        with pytest.raises(ActorDeadError) as caught:
            ticket.wait(timeout=60)
        assert caught.value.__cause__ is error


def test_a_dead_actor_refuses_a_tell_and_fails_an_ask_and_a_send() -> None:
    ref = Echo.start()
    assert ref.stop() is True

    with pytest.raises(ActorDeadError):
        ref.tell("late")
    with pytest.raises(pykka.ActorDeadError):
        ref.ask("late")
    with pytest.raises(ActorDeadError):
        ref.send(Ping()).wait(timeout=60)
    with pytest.raises(ActorDeadError):
        ref.proxy()
    assert ref.stop() is False


def test_a_ticket_that_a_tell_carries_is_answered_and_failed_at_the_end() -> None:
    ref = Echo.start()
    answered, late = Ticket[str](), Ticket[str]()

    ref.tell(Ping(ticket=answered))
    assert isinstance(answered.wait(timeout=60), Ping)
    ref.stop()
    ref.tell(Ping(ticket=late))

    with pytest.raises(ActorDeadError):
        late.wait(timeout=60)


def test_send_returns_the_ticket_that_the_message_carries() -> None:
    ref = Echo.start()
    carried: Ticket[str] = Ticket()

    assert ref.send(Ping(ticket=carried)) is carried

    carried.wait(timeout=60)
    ref.stop()


def test_an_ask_resolves_its_own_ticket_and_the_carried_one_even_by_death() -> None:
    ref = Echo.start()
    carried, dying = Ticket[str](), Ticket[str]()

    asked = ref.ask(Ping(ticket=carried), block=False)
    assert asked.wait(timeout=60) is carried.wait(timeout=60)
    ref.stop()
    failed = ref.ask(Ping(ticket=dying), block=False)

    for ticket in (failed, dying):
        with pytest.raises(ActorDeadError):
            ticket.wait(timeout=60)


def test_an_error_in_the_handler_of_a_carried_ticket_goes_to_that_ticket_and_the_actor_lives_on() -> None:
    class Refusing(ControlActor):
        def on_receive(self, message: Any) -> Any:
            if isinstance(message, Ping):
                raise KeyError("ping")
            return message

    ref = Refusing.start()
    carried: Ticket[str] = Ticket()
    ref.tell(Ping(ticket=carried))

    with pytest.raises(KeyError):
        carried.wait(timeout=60)
    assert ref.ask("alive") == "alive"
    ref.stop()


def test_a_reply_to_a_cancelled_ticket_is_counted_and_the_actor_answers_the_next_request() -> None:
    with Hold() as hold:
        ref = Echo.start()
        cancelled = ref.ask(hold, block=False)
        hold.wait_reached()
        assert cancelled.cancel()

    assert ref.ask("next", timeout=60) == "next"
    assert ref.proxy().unclaimed_replies.get() == 1
    ref.stop()


def test_a_ticket_completed_from_outside_is_counted_and_the_actor_answers_the_next_request() -> None:
    with Hold() as hold:
        ref = Echo.start()
        stolen = ref.ask(hold, block=False)
        hold.wait_reached()
        stolen.complete("from outside")

    assert stolen.wait() == "from outside"
    assert ref.ask("next", timeout=60) == "next"
    ref.stop()


def test_a_callback_that_raises_on_the_actors_thread_does_not_end_the_actor(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: object) -> None:
        raise SystemExit("callback")

    with Hold() as hold, caplog.at_level(logging.ERROR, logger="loopwarden"):
        ref = Echo.start()
        ref.ask(hold, block=False).on_ready(broken)
        hold.release()
        assert ref.ask("next", timeout=60) == "next"

    assert "callback" in caplog.text
    ref.stop()


def test_a_deferred_answer_comes_when_its_ticket_does() -> None:
    ref = Echo.start()
    later: Ticket[str] = Ticket()
    asked = ref.ask(lambda: Deferred(later), block=False)
    assert ref.ask("meanwhile") == "meanwhile"
    assert not asked.is_ready()

    later.complete("at last")

    assert asked.wait(timeout=60) == "at last"
    ref.stop()


def test_a_deferred_answer_may_be_an_error() -> None:
    ref = Echo.start()
    later: Ticket[str] = Ticket()
    asked = ref.ask(lambda: Deferred(later), block=False)

    later.fail(KeyError("at last"))

    with pytest.raises(KeyError):
        asked.wait(timeout=60)
    ref.stop()


def test_a_deferred_answer_that_never_comes_is_failed_by_the_end_of_the_actor() -> None:
    ref = Echo.start()
    never: Ticket[str] = Ticket()
    asked = ref.ask(lambda: Deferred(never), block=False)

    ref.stop()

    with pytest.raises(ActorDeadError):
        asked.wait(timeout=60)
    never.complete("too late")


def test_ended_cannot_be_cancelled_but_may_be_completed_first() -> None:
    ref = Echo.start()

    assert not ref.ended.cancel()
    ref.stop()

    assert ref.ended.wait(timeout=60).cause is None
    other = Echo.start()
    other.ended.fail(KeyError("from outside"))
    assert other.stop() is True


def test_a_request_that_an_actor_does_not_know_never_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    ref = Echo.start()

    ref.tell(UnsupportedRequestError("Echo", "that", "it cannot"))

    assert ref.ask("alive", timeout=60) == "alive"
    assert "Echo does not support that: it cannot" in caplog.text
    ref.stop()


def test_proxies_work_as_in_pykka() -> None:
    class Counter(ControlActor):
        count = 1

        def add(self, number: int) -> int:
            self.count += number
            return self.count

    ref = Counter.start()
    proxy = ref.proxy()

    assert proxy.add(2).get() == 3
    proxy.count = 10
    assert proxy.add(0).get() == 10
    assert proxy.clock.get() is SYSTEM_CLOCK
    ref.stop()


def test_an_unknown_message_is_logged_as_in_pykka(caplog: pytest.LogCaptureFixture) -> None:
    ref = ControlActor.start()

    assert ref.ask("what?") is None

    assert "Unexpected message" in caplog.text
    ref.stop()


def test_stop_all_of_pykka_stops_ours_too() -> None:
    refs = [Echo.start() for _ in range(3)]

    assert pykka.ActorRegistry.stop_all(timeout=60) == [True] * 3

    assert not any(ref.is_alive() for ref in refs)


def test_an_actor_can_stop_itself_from_its_handler() -> None:
    class Mortal(ControlActor):
        def on_receive(self, message: Any) -> Any:
            self.stop()
            return "bye"

    ref = Mortal.start()

    assert ref.ask("die") == "bye"
    assert ref.ended.wait(timeout=60).cause is None


def test_launching_twice_starts_one_thread() -> None:
    started: list[str] = []

    class Once(Echo):
        def on_start(self) -> None:
            started.append("once")

    actor = Once()
    assert actor.launch() is actor.launch()
    actor.actor_ref.stop()

    assert started == ["once"]


def test_an_actor_whose_thread_cannot_be_started_has_ended_with_that_cause() -> None:
    def no_thread(_name: str) -> None:
        raise RuntimeError("can't start new thread")

    actor = Echo(clock=FakeClock(blocking=FaultyBlocking(before_start=no_thread)))

    with pytest.raises(RuntimeError, match="can't start"):
        actor.launch()

    assert isinstance(actor.ended.wait(0).cause, RuntimeError)
    with pytest.raises(ActorDeadError):
        actor.actor_ref.ask("hello?", timeout=0)


def test_an_epilogue_that_raises_leaves_no_ticket_behind(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Echo):
        def _answers_after_end(self, cause: BaseException | None) -> Any:
            raise KeyError("epilogue")

    ref = Broken.start()
    ref.stop()

    with pytest.raises(ActorDeadError):
        ref.ask("late")
    assert "epilogue" in caplog.text


@pytest.mark.parametrize("seed", range(100))
def test_an_ask_that_races_with_the_end_of_the_actor_resolves(seed: int) -> None:
    steps = SteppedBlocking()
    ref = Echo.start(clock=FakeClock(blocking=steps))
    answers: list[object] = []

    def ask() -> None:
        try:
            answers.append(ref.ask("hello"))
        except ActorDeadError as error:
            answers.append(error)

    steps.start_thread(ask, "asker")
    steps.start_thread(ref.stop, "stopper")
    steps.start_thread(ask, "other asker")

    steps.run(seed=seed)  # raises DeadlockError if a thread waits for ever

    assert len(answers) == 2


def test_200_actors_that_die_at_random_leave_no_asker_waiting() -> None:
    refs = [Echo.start() for _ in range(200)]
    started: Ticket[None] = Ticket()
    tickets: list[list[Ticket[Any]]] = [[] for _ in range(8)]
    done = [Ticket[None]() for _ in range(8)]

    def asker(number: int) -> None:
        started.wait(timeout=60)
        for ref in refs[number:] + refs[:number]:
            tickets[number].append(ref.ask("hello", block=False))
            tickets[number].append(ref.send(HealthCheckRequest()))
        done[number].complete(None)

    for number in range(8):
        SYSTEM.start_thread(functools.partial(asker, number), f"asker-{number}")
    started.complete(None)
    for number, ref in enumerate(refs):
        if number % 2:
            ref.stop(block=False)
        else:
            try:
                ref.tell(SystemExit(number))
            except ActorDeadError:
                pytest.fail("no other thread ends it")

    for ticket in done:
        ticket.wait(timeout=60)
    for ticket in (each for many in tickets for each in many):
        assert ticket.wait_ready(timeout=60)


class Lazy:
    """What a lazy proxy can be: its class is a property that raises."""

    @property  # type: ignore[misc]  # it is never set
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  it is never set
        raise LookupError("no context")


def test_a_message_and_a_reply_whose_class_raises_end_nothing_else() -> None:
    ref = Echo.start()

    reply = ref.ask(Lazy, timeout=60)
    echoed = ref.ask(Lazy(), block=False)

    assert type(reply) is Lazy
    assert echoed.wait_ready(timeout=60)
    assert ref.ask("alive", timeout=60) == "alive"
    ref.stop()


def test_a_message_that_cannot_be_refused_keeps_no_other_from_being_answered() -> None:
    with Hold() as hold:
        ref = Echo.start()
        ref.tell(hold)
        stopped = ref.stop(block=False)
        tickets = [ref.ask(Lazy(), block=False), ref.ask("behind it", block=False)]

    assert stopped.wait(timeout=60) is True
    for ticket in tickets:
        with pytest.raises(ActorDeadError):
            ticket.wait(timeout=60)


def test_deferred_takes_only_a_ticket() -> None:
    ref = Echo.start()

    with pytest.raises(TypeError, match="Deferred takes a Ticket"):
        ref.ask(lambda: Deferred(pykka.ThreadingFuture()), timeout=60)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  the misuse under test

    ref.stop()


def test_a_bug_in_the_actor_loop_itself_is_seen_as_the_end() -> None:
    class Buggy(Echo):
        def _reply(self, envelope: Any, reply: object) -> None:
            raise KeyError("a bug of ours")

    ref = Buggy.start()
    ref.tell(Ping())

    assert isinstance(ref.ended.wait(timeout=60).cause, KeyError)


def test_a_blocking_stop_on_the_actors_own_thread_does_not_wait_for_itself() -> None:
    ref = Echo.start()

    assert ref.ask(ref.stop, timeout=60) is False

    ref.ended.wait(timeout=60)


def test_the_ticket_of_a_stop_may_be_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    with Hold() as hold:
        ref = Echo.start()
        ref.tell(hold)
        ref.stop(block=False).cancel()
    ref.ended.wait(timeout=60)

    assert caplog.text == ""


def test_an_actor_that_is_never_launched_answers_when_it_is_collected() -> None:
    ref = Echo().actor_ref
    gc.collect()

    with pytest.raises(ActorDeadError):
        ref.ask("hello?", timeout=60)
