"""Pykka's own actors, unmodified: each end is seen once, ends no other actor, and leaves no sender waiting."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from children import Boom, ChildFactory, outcome, supervising, wake

from loopwarden import HealthCheckRequest, ProcessRequest, ShutdownRequest
from loopwarden._blocking import SYSTEM
from loopwarden.actors import ZOMBIES
from loopwarden.errors import ActorDeadError, ChildUnavailableError, StartFailed, TicketTimeoutError
from loopwarden.supervision import ChildSpec, EventKind, ExitReason, Supervisor, TerminateChildRequest
from loopwarden.testing import FakeClock, Hold, our_threads, wait_no_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loopwarden._ticket import Ticket
    from loopwarden.supervision import ChildRef, SupervisorRef
#: Time stands still unless a test moves it, so no child is abandoned because the machine is slow.
pytestmark = pytest.mark.usefixtures("clock")


class Plain(pykka.ThreadingActor):
    """Does what it is told."""

    def __init__(self, greeting: str = "hello") -> None:
        super().__init__()
        self.greeting = greeting

    def on_receive(self, message: Any) -> Any:
        return message(self) if callable(message) else message

    def greet(self, name: str) -> str:
        return f"{self.greeting}, {name}"

    def pass_away(self) -> None:
        self.stop()

    def tell_ref(self) -> pykka.ActorRef[Any]:
        return self.actor_ref

    def tell_thread(self) -> Any:
        return threading.current_thread()


class Fragile(Plain):
    """Raises where its class attributes say so, the first time."""

    def __init__(self, faults: dict[str, list[BaseException]]) -> None:
        super().__init__()
        self.faults = faults

    def _raise(self, where: str) -> None:
        if self.faults.get(where):
            raise self.faults[where].pop(0)

    def on_start(self) -> None:
        self._raise("on_start")

    def on_stop(self) -> None:
        self._raise("on_stop")

    def on_failure(self, exception_type: Any, exception_value: Any, traceback: Any) -> None:
        self._raise("on_failure")


def raise_boom(_: Plain) -> None:
    raise Boom


def raise_exit(_: Plain) -> None:
    raise SystemExit(3)


def raise_interrupt(_: Plain) -> None:
    raise KeyboardInterrupt


def stop_yourself(actor: Plain) -> None:
    actor.stop()


def states(supervisor: SupervisorRef) -> dict[str, str]:
    return {info.id: info.state.value for info in supervisor.children()}


def seen(supervisor: SupervisorRef, child: str = "plain") -> Counter[str]:
    return Counter(str(event.kind) for event in supervisor.events() if event.child == child)


def with_siblings(factory: ChildFactory, child: ChildSpec) -> tuple[ChildSpec, ...]:
    return (child, ChildSpec(id="sibling", actor=Plain), factory.spec("loop"))


def siblings_are_untouched(supervisor: SupervisorRef) -> bool:
    """Ask them; their answers say that they live, their events that it is still their first life."""
    assert supervisor.child("sibling").ask("are you there?", timeout=60) == "are you there?"
    assert supervisor.child("loop").ask(ProcessRequest(body="are you there?"), timeout=60) == "are you there?"
    return seen(supervisor, "sibling") == seen(supervisor, "loop") == Counter(started=1)


#: What is left of a child after an end by an error, and how many starts it had.
BY_TYPE = [("permanent", "up", 2), ("transient", "up", 2), ("temporary", None, 1)]

every_type = pytest.mark.parametrize(("restart", "left", "starts"), BY_TYPE, ids=[each[0] for each in BY_TYPE])


def wait_replaced(events: Any, left: str | None) -> None:
    events.wait_for(EventKind.EXITED, "plain")
    if left == "up":
        events.wait_for(EventKind.STARTED, "plain")


# Ends by an error


@every_type
@pytest.mark.parametrize("how", [raise_boom, raise_exit, raise_interrupt])
def test_exception_in_a_tell_ends_this_actor_alone_and_is_seen_once(
    how: Callable[[Plain], None], restart: Any, left: str | None, starts: int
) -> None:
    factory = ChildFactory()
    with supervising(
        children=with_siblings(factory, ChildSpec(id="plain", actor=Plain, restart=restart))
    ) as supervisor:
        events = supervisor.subscribe()

        supervisor.child("plain").tell(how)

        wait_replaced(events, left)
        assert states(supervisor).get("plain") == left
        assert (seen(supervisor)["exited"], seen(supervisor)["started"], seen(supervisor)["start_failed"]) == (
            1,
            starts,
            0,
        )
        assert siblings_are_untouched(supervisor)


@every_type
@pytest.mark.parametrize("how", [raise_exit, raise_interrupt])
def test_a_base_exception_in_an_ask_ends_the_actor_and_the_asker_is_told_why(
    how: Callable[[Plain], None], restart: Any, left: str | None, starts: int
) -> None:
    factory = ChildFactory()
    with supervising(
        children=with_siblings(factory, ChildSpec(id="plain", actor=Plain, restart=restart))
    ) as supervisor:
        events = supervisor.subscribe()

        with pytest.raises(ActorDeadError) as caught:
            supervisor.child("plain").ask(how, timeout=60)

        assert isinstance(caught.value.__cause__, (SystemExit, KeyboardInterrupt))
        wait_replaced(events, left)
        assert (seen(supervisor)["exited"], seen(supervisor)["started"]) == (1, starts)
        assert siblings_are_untouched(supervisor)


@pytest.mark.parametrize("error", [Boom(), SystemExit(), KeyboardInterrupt()], ids=repr)
def test_on_start_that_raises_is_a_failed_start(error: BaseException) -> None:
    factory = ChildFactory()
    child = ChildSpec(id="plain", actor=Fragile, args=({"on_start": [error]},))
    with supervising(children=with_siblings(factory, ChildSpec(id="other", actor=Plain))) as supervisor:
        with pytest.raises(StartFailed, match="child 'plain'") as caught:
            supervisor.spawn(child, timeout=60)

        assert caught.value.__cause__ is error
        assert seen(supervisor) == Counter(start_failed=1)
        assert siblings_are_untouched(supervisor)


@pytest.mark.parametrize("restart", ["permanent", "transient"])
def test_on_start_that_raises_at_a_restart_is_tried_again(restart: Any) -> None:
    factory = ChildFactory()
    faults: dict[str, list[BaseException]] = {}
    child = ChildSpec(id="plain", actor=Fragile, args=(faults,), restart=restart)
    with supervising(children=with_siblings(factory, child)) as supervisor:
        events = supervisor.subscribe()
        faults["on_start"] = [Boom()]

        supervisor.child("plain").tell(raise_boom)

        events.wait_for(EventKind.START_FAILED)
        assert events.wait_for(EventKind.STARTED).attempt == 2
        assert seen(supervisor) == Counter(started=2, exited=1, start_failed=1, restarting=2)
        assert siblings_are_untouched(supervisor)


@every_type
@pytest.mark.parametrize("error", [Boom(), SystemExit(), KeyboardInterrupt()], ids=repr)
def test_on_stop_that_raises_after_a_stop_of_its_own_is_an_end_by_an_error(
    error: BaseException, restart: Any, left: str | None, starts: int
) -> None:
    factory = ChildFactory()
    child = ChildSpec(id="plain", actor=Fragile, args=({"on_stop": [error]},), restart=restart)
    with supervising(children=with_siblings(factory, child)) as supervisor:
        events = supervisor.subscribe()

        supervisor.child("plain").tell(stop_yourself)

        exited = events.wait_for(EventKind.EXITED)
        assert (exited.reason, exited.cause) == (ExitReason.ERROR, repr(error))
        if left == "up":
            events.wait_for(EventKind.STARTED)
        assert (seen(supervisor)["exited"], seen(supervisor)["started"]) == (1, starts)
        assert siblings_are_untouched(supervisor)


@every_type
@pytest.mark.parametrize("error", [ValueError(), SystemExit()], ids=repr)
def test_on_failure_that_raises_does_not_hide_what_it_was_called_for(
    error: BaseException, restart: Any, left: str | None, starts: int
) -> None:
    factory = ChildFactory()
    child = ChildSpec(id="plain", actor=Fragile, args=({"on_failure": [error]},), restart=restart)
    with supervising(children=with_siblings(factory, child)) as supervisor:
        events = supervisor.subscribe()

        supervisor.child("plain").tell(raise_boom)

        exited = events.wait_for(EventKind.EXITED)
        assert (exited.reason, exited.cause) == (ExitReason.ERROR, "Boom()")
        if left == "up":
            events.wait_for(EventKind.STARTED)
        assert (seen(supervisor)["exited"], seen(supervisor)["started"]) == (1, starts)
        assert siblings_are_untouched(supervisor)


def test_on_failure_is_called_once_with_what_was_raised() -> None:
    calls: list[Any] = []

    class Watched(Plain):
        def on_failure(self, exception_type: Any, exception_value: Any, traceback: Any) -> None:
            calls.append(exception_type)

    with supervising(children=(ChildSpec(id="plain", actor=Watched),)) as supervisor:
        events = supervisor.subscribe()

        supervisor.child("plain").tell(raise_boom)

        events.wait_for(EventKind.EXITED)
        assert calls == [Boom]


def test_an_exception_in_an_ask_goes_to_the_asker_and_the_actor_lives_on() -> None:
    with supervising(children=(ChildSpec(id="plain", actor=Plain),)) as supervisor:
        ref = supervisor.child("plain")

        with pytest.raises(Boom):
            ref.ask(raise_boom, timeout=60)

        assert ref.ask("still there", timeout=60) == "still there"
        assert seen(supervisor) == Counter(started=1)


# Ends without an error


@pytest.mark.parametrize(
    ("restart", "left"), [("permanent", "up"), ("transient", "down"), ("temporary", None)], ids=str
)
def test_a_stop_of_its_own_is_a_normal_end(restart: Any, left: str | None) -> None:
    factory = ChildFactory()
    with supervising(
        children=with_siblings(factory, ChildSpec(id="plain", actor=Plain, restart=restart))
    ) as supervisor:
        events = supervisor.subscribe()

        supervisor.child("plain").tell(stop_yourself)

        assert events.wait_for(EventKind.EXITED).reason == ExitReason.NORMAL
        if left == "up":
            events.wait_for(EventKind.STARTED)
        assert states(supervisor).get("plain") == left
        assert siblings_are_untouched(supervisor)


def test_a_method_that_stops_its_own_actor_is_a_normal_end_too() -> None:
    with supervising(children=(ChildSpec(id="plain", actor=Plain, restart="transient"),)) as supervisor:
        events = supervisor.subscribe()

        supervisor.child("plain").proxy().pass_away()

        assert events.wait_for(EventKind.EXITED).reason == ExitReason.NORMAL


def own_ref(supervisor: SupervisorRef) -> pykka.ActorRef[Any]:
    ref: pykka.ActorRef[Any] = supervisor.child("plain").ask(Plain.tell_ref, block=True, timeout=60)
    return ref


@pytest.mark.parametrize(("restart", "left"), [("permanent", "down"), ("transient", "down"), ("temporary", None)])
def test_a_stop_by_others_was_asked_for(restart: Any, left: str | None) -> None:
    factory = ChildFactory()
    with supervising(
        children=with_siblings(factory, ChildSpec(id="plain", actor=Plain, restart=restart))
    ) as supervisor:
        events = supervisor.subscribe()

        assert own_ref(supervisor).stop(timeout=60) is True

        assert events.wait_for(EventKind.EXITED).reason == ExitReason.SHUTDOWN
        events.wait_for(EventKind.TERMINATED)
        assert states(supervisor).get("plain") == left
        assert siblings_are_untouched(supervisor)


def test_on_stop_that_raises_after_a_stop_by_its_ref_restarts_nothing() -> None:
    faults: dict[str, list[BaseException]] = {"on_stop": [Boom()]}
    with supervising(children=(ChildSpec(id="plain", actor=Fragile, args=(faults,)),)) as supervisor:
        events = supervisor.subscribe()

        own_ref(supervisor).stop(timeout=60)

        assert events.wait_for(EventKind.EXITED).cause == "Boom()"
        events.wait_for(EventKind.TERMINATED)
        assert states(supervisor) == {"plain": "down"}


def test_a_shutdown_request_lets_it_do_first_what_it_was_told_before() -> None:
    def note(_: Plain) -> None:
        told.append("done")

    told: list[str] = []
    with supervising(children=(ChildSpec(id="plain", actor=Plain),)) as supervisor:
        ref = supervisor.child("plain")
        for _ in range(5):
            ref.tell(note)

        result = ref.send(ShutdownRequest(timeout=5.0)).wait(timeout=60)

        assert result.clean_shutdown
        assert len(told) == 5
        assert states(supervisor) == {"plain": "down"}


# Tickets


def test_a_cancelled_ticket_does_not_kill_the_actor() -> None:
    hold = Hold()
    with supervising(children=(ChildSpec(id="plain", actor=Plain),)) as supervisor, hold:
        ref = supervisor.child("plain")
        ticket = ref.ask(hold, block=False)
        hold.wait_reached()

        assert ticket.cancel()
        hold.release()

        assert ref.ask("still there", timeout=60) == "still there"
        assert seen(supervisor) == Counter(started=1)


def test_a_cancelled_ticket_of_a_failing_ask_does_not_kill_the_actor() -> None:
    def hold_then_raise(_: Plain) -> None:
        hold()
        raise Boom

    hold = Hold()
    with supervising(children=(ChildSpec(id="plain", actor=Plain),)) as supervisor, hold:
        ref = supervisor.child("plain")
        ticket = ref.ask(hold_then_raise, block=False)
        hold.wait_reached()

        assert ticket.cancel()
        hold.release()

        assert ref.ask("still there", timeout=60) == "still there"
        assert seen(supervisor) == Counter(started=1)


def test_inbox_of_an_ended_plain_actor_is_answered_with_its_name_and_the_cause() -> None:
    def hold_then_raise(_: Plain) -> None:
        hold()
        raise Boom

    hold = Hold()
    with supervising(children=(ChildSpec(id="plain", actor=Plain),)) as supervisor, hold:
        ref = supervisor.child("plain")
        ref.tell(hold_then_raise)
        hold.wait_reached()
        behind = ref.ask("behind it", block=False)

        hold.release()

        error = outcome(behind)
        assert isinstance(error, ActorDeadError)
        assert isinstance(error.__cause__, Boom)


def test_tell_to_a_plain_actor_that_has_stopped_is_refused_as_by_pykka_not_lost() -> None:
    class Slow(Plain):
        def on_stop(self) -> None:
            hold()

    hold = Hold()
    with supervising(children=(ChildSpec(id="plain", actor=Slow),)) as supervisor, hold:
        ref = supervisor.child("plain")
        own = own_ref(supervisor)
        ref.stop(block=False)
        hold.wait_reached()

        with pytest.raises(pykka.ActorDeadError):
            own.tell("too late")
        with pytest.raises((pykka.ActorDeadError, ChildUnavailableError)):
            ref.tell("too late")


ENDS: dict[str, Callable[[Plain], None]] = {
    "raises": raise_boom,
    "exits": raise_exit,
    "stops itself": stop_yourself,
}


def storm(supervisor: SupervisorRef, ref: ChildRef, end: Callable[[Plain], None]) -> Iterator[Ticket[Any]]:
    """Ask from four threads while the actor dies."""
    tickets: list[Ticket[Any]] = []
    go = SYSTEM.gate()

    def ask_many() -> None:
        go.wait()
        go.open()  # for the next
        tickets.extend(ref.ask(number, block=False) for number in range(50))

    threads = [SYSTEM.start_thread(ask_many, f"asker-{number}") for number in range(4)]
    events = supervisor.subscribe()
    for _ in range(10):
        ref.tell("work before the end")
    go.open()
    ref.tell(end)
    for thread in threads:
        thread.join(60)
    events.wait_for(EventKind.EXITED)
    yield from tickets


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_asks_that_race_with_the_end_always_resolve(end: Callable[[Plain], None]) -> None:
    child = ChildSpec(id="plain", actor=Plain, restart="transient", decide={Boom: "stop", SystemExit: "stop"})
    with supervising(children=(child,)) as supervisor:
        answers = [outcome(ticket) for ticket in storm(supervisor, supervisor.child("plain"), end)]

        assert len(answers) == 200
        assert not any(isinstance(answer, TicketTimeoutError) for answer in answers)
        assert all(isinstance(answer, (int, pykka.ActorDeadError, ChildUnavailableError)) for answer in answers)
        assert seen(supervisor)["exited"] == 1


def test_asks_that_race_with_the_end_through_pykkas_own_ref_always_resolve() -> None:
    child = ChildSpec(id="plain", actor=Plain, restart="temporary")
    with supervising(children=(child,)) as supervisor:
        events = supervisor.subscribe()
        ref = own_ref(supervisor)
        ref.tell(raise_boom)
        futures = [ref.ask(number, block=False) for number in range(200)]
        events.wait_for(EventKind.EXITED)

        for future in futures:
            with pytest.raises(pykka.ActorDeadError):
                future.get(timeout=60)


# Actors that hang


def test_an_actor_that_is_stuck_in_its_handler_is_abandoned_and_counted_until_it_returns(clock: FakeClock) -> None:
    with Hold() as hold:
        supervisor = Supervisor.start("root", clock=clock, children=(ChildSpec(id="plain", actor=Plain, shutdown=3.0),))
        supervisor.child("plain").tell(hold)
        hold.wait_reached()
        behind = supervisor.child("plain").ask("behind it", block=False)
        stopped = supervisor.stop(block=False)
        clock.advance(0)
        assert len(ZOMBIES) == 0

        clock.advance(3.0)

        assert stopped.wait(timeout=60)
        assert ZOMBIES.names == ("plain",)
        assert isinstance(outcome(behind), ActorDeadError)
        assert seen(supervisor) == Counter(started=1, abandoned=1, exited=1, terminated=1)
        assert pykka.ActorRegistry.get_all() == []
    assert wait_no_threads() == []
    assert len(ZOMBIES) == 0


def test_an_actor_that_was_abandoned_can_be_started_again_at_once(clock: FakeClock) -> None:
    hold = Hold()
    with supervising(clock=clock, children=(ChildSpec(id="plain", actor=Plain, shutdown=3.0),)) as supervisor, hold:
        ref = supervisor.child("plain")
        ref.tell(hold)
        hold.wait_reached()
        terminated = supervisor.send(TerminateChildRequest(id="plain"))
        clock.advance(3.0)
        assert not terminated.wait(timeout=60).clean_shutdown

        ref = supervisor.child("plain")
        assert states(supervisor) == {"plain": "down"}
        hold.release()


@pytest.mark.parametrize("how", ["on_start", "on_stop"])
def test_an_actor_that_hangs_in_a_hook_is_abandoned(clock: FakeClock, how: str) -> None:
    class Hanging(Plain):
        def on_start(self) -> None:
            if how == "on_start":
                hold()

        def on_stop(self) -> None:
            if how == "on_stop":
                hold()

    with Hold() as hold:
        child = ChildSpec(id="plain", actor=Hanging, shutdown=3.0)
        supervisor = Supervisor("root", clock=clock, children=(child,)).launch()
        if how == "on_stop":
            supervisor.ready.wait(timeout=60)
        else:
            hold.wait_reached()
        stopped = supervisor.stop(block=False)
        hold.wait_reached()

        clock.advance(3.0)

        assert stopped.wait(timeout=60)
        assert ZOMBIES.names == ("plain",)
    assert wait_no_threads() == []
    assert len(ZOMBIES) == 0


def test_a_brutal_kill_of_an_actor_that_is_stuck_does_not_wait() -> None:
    with Hold() as hold:
        with supervising(children=(ChildSpec(id="plain", actor=Plain, shutdown="brutal_kill"),)) as supervisor:
            supervisor.child("plain").tell(hold)
            hold.wait_reached()

        assert ZOMBIES.names == ("plain",)
    assert wait_no_threads() == []


def test_a_brutal_kill_of_an_idle_plain_actor_leaves_no_thread() -> None:
    actors: list[Plain] = []

    def make() -> Plain:
        actors.append(Plain())
        return actors[0]

    with supervising(children=(ChildSpec(id="plain", start=make, shutdown="brutal_kill"),)) as supervisor:
        supervisor.child("plain").ask("idle from here on", timeout=60)

    left = wait_no_threads()
    wake(actors[0])
    assert left == []
    assert len(ZOMBIES) == 0


def test_an_actor_whose_handler_returns_just_when_it_is_abandoned_leaves_no_thread(clock: FakeClock) -> None:
    # Its loop has looked whether it was stopped, and goes to its inbox: from there only a message brings it back.
    hold = Hold()

    def be_late(actor: Plain) -> None:
        inbox: Any = actor.actor_inbox
        get = inbox.get

        def get_late() -> Any:
            hold()
            return get()

        inbox.get = get_late

    with supervising(clock=clock, children=(ChildSpec(id="plain", actor=Plain, shutdown=3.0),)) as supervisor, hold:
        supervisor.child("plain").tell(be_late)
        hold.wait_reached()
        terminated = supervisor.send(TerminateChildRequest(id="plain"))
        clock.advance(3.0)
        terminated.wait(timeout=60)

        hold.release()

    assert wait_no_threads() == []


# What else is promised


def test_plain_actor_runs_on_a_daemon_thread_of_ours_that_is_named_after_its_child() -> None:
    with supervising(children=(ChildSpec(id="plain", actor=Plain),)) as supervisor:
        thread = supervisor.child("plain").ask(Plain.tell_thread, block=True, timeout=60)

        assert (thread.name, thread.daemon) == ("plain-actor", True)
        assert thread in our_threads()


def test_class_of_a_plain_actor_is_left_as_it_is() -> None:
    before = dict(vars(Plain))
    with supervising(children=(ChildSpec(id="plain", actor=Plain),)):
        assert dict(vars(Plain)) == before
        free = Plain.start()
        assert free.ask("alone", timeout=60) == "alone"
        free.stop(timeout=60)


def test_plain_actor_is_in_pykkas_registry_while_it_lives() -> None:
    with supervising(children=(ChildSpec(id="plain", actor=Plain),)) as supervisor:
        [ref] = pykka.ActorRegistry.get_by_class(Plain)
        assert ref.ask("by the registry", timeout=60) == "by the registry"

        supervisor.child("plain").stop(timeout=60)

        assert pykka.ActorRegistry.get_by_class(Plain) == []


def test_proxy_reaches_methods_and_attributes_of_a_plain_actor() -> None:
    child = ChildSpec(id="plain", actor=Plain, kwargs={"greeting": "good morning"})
    with supervising(children=(child,)) as supervisor:
        proxy = supervisor.child("plain").proxy()

        assert proxy.greet("you").get(timeout=60) == "good morning, you"
        proxy.__setattr__("greeting", "good night")
        assert proxy.greeting.get(timeout=60) == "good night"


def test_pykkas_own_ref_has_a_proxy_that_works_too() -> None:
    with supervising(children=(ChildSpec(id="plain", actor=Plain),)) as supervisor:
        assert own_ref(supervisor).proxy().greet("you").get(timeout=60) == "hello, you"


def test_health_is_answered_for_it_while_it_is_stuck() -> None:
    hold = Hold()
    with supervising(children=(ChildSpec(id="plain", actor=Plain),)) as supervisor, hold:
        ref = supervisor.child("plain")
        ref.tell(hold)
        hold.wait_reached()

        status = ref.send(HealthCheckRequest()).wait(timeout=60)

        assert not hold.is_released
        assert (status.loop_name, status.running) == ("plain", True)


def test_a_factory_may_make_it_too() -> None:
    with supervising(children=(ChildSpec(id="plain", start=lambda: Plain("hi")),)) as supervisor:
        assert supervisor.child("plain").proxy().greet("you").get(timeout=60) == "hi, you"


def test_stop_of_all_actors_of_the_process_is_an_end_that_was_asked_for() -> None:
    factory = ChildFactory()
    with supervising(children=(factory.spec("loop"), ChildSpec(id="plain", actor=Plain))) as supervisor:
        pykka.ActorRegistry.stop_all(timeout=60)

        assert supervisor.ended.wait(timeout=60).cause is None
    assert wait_no_threads() == []


def test_shutdown_result_of_a_plain_actor_says_how_long_its_end_took(clock: FakeClock) -> None:
    with supervising(children=(ChildSpec(id="plain", actor=Plain, shutdown=10.0),)) as supervisor, Hold() as hold:
        child = supervisor.child("plain")
        child.tell(hold)
        hold.wait_reached()
        result = child.send(ShutdownRequest(timeout=10.0))
        supervisor.children()  # answered after the request

        clock.advance(2.9)
        hold.release()

        assert result.wait(60).duration == pytest.approx(2.9)


def test_shutdown_result_of_a_supervisor_says_how_long_each_plain_actor_took(clock: FakeClock) -> None:
    with supervising(children=(ChildSpec(id="plain", actor=Plain, shutdown=10.0),)) as supervisor, Hold() as hold:
        supervisor.child("plain").tell(hold)
        hold.wait_reached()
        result = supervisor.send(ShutdownRequest(timeout=10.0))
        supervisor.send(HealthCheckRequest()).wait(60)  # answered after the request

        clock.advance(2.9)
        hold.release()

        assert [child.duration for child in result.wait(60).children] == pytest.approx([2.9])


def test_child_ref_raises_pykkas_error_for_a_dead_actor_while_its_child_is_down() -> None:
    with supervising(children=(ChildSpec(id="plain", actor=Plain),)) as supervisor:
        child = supervisor.child("plain")
        child.stop()

        for use in (lambda: child.tell("hello"), lambda: child.ask("hello"), child.proxy):
            with pytest.raises(pykka.ActorDeadError) as caught:
                use()
            assert isinstance(caught.value, ChildUnavailableError)


def test_actor_dead_error_reads_like_pykkas() -> None:
    with supervising(children=(ChildSpec(id="plain", actor=Plain),)) as supervisor:
        ours = supervisor
        bare = Plain.start()
        bare.stop()

        with pytest.raises(pykka.ActorDeadError, match=r"not found") as pykkas:
            bare.tell("hello")
        ours.stop()
        with pytest.raises(pykka.ActorDeadError) as caught:
            ours.tell("hello")

    assert str(pykkas.value) == f"{bare} not found"
    assert str(caught.value).startswith(f"{ours} not found")
