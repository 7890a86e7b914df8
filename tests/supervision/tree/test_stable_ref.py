"""A ref that stays good over restarts, and answers in every state of its child."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pykka
import pytest
from children import ChildFactory, crash, crash_and_wait, outcome, supervising

from loopwarden import (
    HealthCheckRequest,
    LoopActor,
    LoopState,
    ProcessRequest,
    ShutdownConfirmRequest,
    ShutdownRequest,
    ShutdownResult,
    check_health,
)
from loopwarden._ticket import Ticket
from loopwarden.actors import Activity, HealthStatus
from loopwarden.errors import (
    ActorDeadError,
    ChildUnavailableError,
    TicketError,
    TicketTimeoutError,
    UnsupportedRequestError,
)
from loopwarden.supervision import (
    Backoff,
    ChildSpec,
    DeleteChildRequest,
    EventKind,
    RestartChildRequest,
    StartChildRequest,
    Supervisor,
    TerminateChildRequest,
)
from loopwarden.testing import FakeClock, FaultyBlocking, Hold, ProbeLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from loopwarden.supervision import ChildRef, SupervisorRef
#: Time stands still unless a test moves it, so no child is abandoned because the machine is slow.
pytestmark = pytest.mark.usefixtures("clock")


class Counter(pykka.ThreadingActor):
    """A plain actor that counts, and can be made to fail."""

    made = 0

    def __init__(self, start: int = 0) -> None:
        super().__init__()
        self.total = start

    def on_receive(self, message: Any) -> Any:
        if callable(message):
            return message()
        self.total += 1
        return self.total

    def add(self, number: int) -> int:
        self.total += number
        return self.total


def fail() -> None:
    raise ValueError("told to")


def states(supervisor: SupervisorRef) -> dict[str, str]:
    return {info.id: info.state.value for info in supervisor.children()}


def health(ref: ChildRef | SupervisorRef) -> HealthStatus:
    return ref.send(HealthCheckRequest()).wait(timeout=60)


# Over restarts


def test_requests_reach_the_next_life_of_a_loop() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        events = supervisor.subscribe()
        ref = supervisor.child("a")
        assert ref.send(ProcessRequest(body=1)).wait(timeout=60) == 1

        crash_and_wait(ref, events)

        assert ref.send(ProcessRequest(body=2)).wait(timeout=60) == 2
        assert ref.ask(ProcessRequest(body=3), timeout=60) == 3
        carried: Ticket[object] = Ticket()
        ref.tell(ProcessRequest(body=4, ticket=carried))
        assert carried.wait(timeout=60) == 4
        assert (health(ref).restarts, health(ref).state) == (1, LoopState.RUNNING)


def test_post_reaches_the_next_incarnation_of_a_loop() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        events = supervisor.subscribe()
        ref = supervisor.child("a")
        crash_and_wait(ref, events)
        ran: Ticket[None] = Ticket()

        assert ref.post(lambda: ran.complete(None))

        ran.wait(timeout=60)


def test_messages_reach_the_next_life_of_a_plain_actor() -> None:
    with supervising(children=(ChildSpec(id="counter", actor=Counter, args=(10,)),)) as supervisor:
        events = supervisor.subscribe()
        ref = supervisor.child("counter")
        assert ref.ask("count", timeout=60) == 11

        ref.tell(fail)
        events.wait_for(EventKind.STARTED)

        assert ref.ask("count", timeout=60) == 11
        ref.tell("count")
        assert ref.ask("count", block=False).wait(timeout=60) == 13


def test_a_proxy_reaches_the_next_life() -> None:
    with supervising(children=(ChildSpec(id="counter", actor=Counter),)) as supervisor:
        events = supervisor.subscribe()
        ref = supervisor.child("counter")
        proxy = ref.proxy()
        assert proxy.add(5).get(timeout=60) == 5

        ref.tell(fail)
        events.wait_for(EventKind.STARTED)

        assert proxy.add(2).get(timeout=60) == 2
        assert proxy.total.get(timeout=60) == 2


def test_proxy_of_a_child_that_is_down_is_refused_and_one_that_was_made_before_says_so_by_its_future() -> None:
    with supervising(children=(ChildSpec(id="counter", actor=Counter),)) as supervisor:
        ref = supervisor.child("counter")
        proxy = ref.proxy()
        ref.stop(timeout=60)

        with pytest.raises(ChildUnavailableError, match="child 'counter' is down"):
            ref.proxy()
        with pytest.raises(ChildUnavailableError):
            proxy.add(2).get(timeout=60)


def test_a_proxy_of_a_loops_actor_works_too() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        assert supervisor.child("a").proxy().name.get(timeout=60) == "a"


def test_child_ref_refuses_to_send_what_is_not_a_request() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor, pytest.raises(TypeError, match="takes a Request"):
        supervisor.child("a").send("hello")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  the misuse under test


def test_post_is_refused_by_a_child_that_is_not_a_loop() -> None:
    with (
        supervising(children=(ChildSpec(id="counter", actor=Counter),)) as supervisor,
        pytest.raises(UnsupportedRequestError, match="child 'counter'"),
    ):
        supervisor.child("counter").post(lambda: None)


def test_a_ref_says_who_it_is() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a", "b")) as supervisor:
        ref = supervisor.child("a")

        assert (str(ref), repr(ref)) == ("child 'a'", "<ChildRef 'a', up>")
        assert ref.actor_urn != supervisor.child("b").actor_urn


def test_ready_resolves_when_the_child_is_up_for_the_first_time() -> None:
    factory, hold = ChildFactory(), Hold()
    with supervising() as supervisor, hold:
        factory.holds["a"] = hold
        supervisor.send(StartChildRequest(child=factory.spec("a")))
        hold.wait_reached()
        ref = supervisor.child("a")
        assert not ref.ready.is_ready()

        hold.release()

        ref.ready.wait(timeout=60)


def test_health_of_all_is_checked_through_stable_refs() -> None:
    factory = ChildFactory()
    children = (*factory.specs("a", "b"), ChildSpec(id="counter", actor=Counter))
    with supervising(children=children) as supervisor:
        refs = [info.ref for info in supervisor.children()]
        refs[1].stop(timeout=60)

        statuses = check_health(refs, timeout=60)

        assert [status.loop_name for status in statuses] == ["a", "b", "counter"]
        assert [status.state for status in statuses] == ["running", "stopped", "running"]
        assert [status.running for status in statuses] == [True, False, True]


# The child is down


def backing_off(supervisor: SupervisorRef, clock: FakeClock, name: str = "a") -> ChildRef:
    """Crash a child; return its ref when it is backing off."""
    events = supervisor.subscribe()
    ref = supervisor.child(name)
    crash(ref)
    events.wait_for(EventKind.RESTARTING, name)
    clock.advance(0)
    return ref


def with_back_off(factory: ChildFactory, clock: FakeClock, *names: str, **options: Any) -> Any:
    backoff = Backoff(minimum=4.0, jitter=0.0)
    return supervising(clock=clock, children=factory.specs(*names), backoff=backoff, **options)


def test_health_of_a_child_that_backs_off_is_answered_for_it() -> None:
    factory, clock = ChildFactory(), FakeClock(start=100.0)
    with with_back_off(factory, clock, "a") as supervisor:
        ref = backing_off(supervisor, clock)

        status = health(ref)

        assert (status.state, status.activity) == (LoopState.FAILED, Activity.BACKING_OFF)
        assert (status.running, status.retry_at) == (False, 104.0)
        assert status.error == "Boom('crashed')"


def test_requests_to_a_child_that_backs_off_fail_at_once_and_say_until_when() -> None:
    factory, clock = ChildFactory(), FakeClock(start=100.0)
    with with_back_off(factory, clock, "a") as supervisor:
        ref = backing_off(supervisor, clock)
        carried: Ticket[object] = Ticket()

        ref.tell(ProcessRequest(body=1, ticket=carried))
        tickets: list[Ticket[Any]] = [
            ref.send(ProcessRequest(body=1)),
            ref.ask(ProcessRequest(body=1), block=False),
            ref.ask("anything", block=False),
            carried,
        ]

        assert all(ticket.is_ready() for ticket in tickets)
        errors = [outcome(ticket) for ticket in tickets]
        assert [type(error) for error in errors] == [ChildUnavailableError] * 4
        assert {(error.state, error.retry_at) for error in errors if isinstance(error, ChildUnavailableError)} == {
            ("restarting", 104.0)
        }
        for message in ("anything", ProcessRequest(body=1)):
            with pytest.raises(ChildUnavailableError, match="is restarting; it will be restarted after a delay"):
                ref.tell(message)
        assert not ref.post(lambda: None)
        assert not ref.is_alive()


def test_child_ref_is_answered_again_after_the_back_off(clock: FakeClock) -> None:
    factory = ChildFactory()
    with with_back_off(factory, clock, "a") as supervisor:
        events = supervisor.subscribe()
        ref = backing_off(supervisor, clock)

        clock.advance(4.0)
        events.wait_for(EventKind.STARTED)

        assert ref.send(ProcessRequest(body=1)).wait(timeout=60) == 1
        assert health(ref).state is LoopState.RUNNING


def test_a_message_in_the_inbox_of_one_that_dies_fails_with_it_and_is_not_moved() -> None:
    bodies: list[object] = []

    def handle(body: object) -> object:
        bodies.append(body)
        if body == "crash":
            hold()
            raise SystemExit
        return body

    factory, hold = ChildFactory(), Hold()
    with supervising(children=(factory.spec("a", handle),)) as supervisor, hold:
        events = supervisor.subscribe()
        ref = supervisor.child("a")
        ref.send(ProcessRequest(body="crash"))
        hold.wait_reached()
        behind = ref.send(ProcessRequest(body="behind it"))
        health(ref)  # the request before it is in the loop's hands

        hold.release()

        assert isinstance(outcome(behind), ActorDeadError)
        events.wait_for(EventKind.STARTED)
        assert ref.send(ProcessRequest(body="new")).wait(timeout=60) == "new"
        assert bodies == ["crash", "new"]


def test_a_message_in_the_inbox_of_a_plain_actor_that_dies_fails_with_it_and_is_not_moved() -> None:
    def hold_then_fail() -> None:
        hold()
        raise ValueError

    hold = Hold()
    with supervising(children=(ChildSpec(id="counter", actor=Counter),)) as supervisor, hold:
        events = supervisor.subscribe()
        ref = supervisor.child("counter")
        ref.tell(hold_then_fail)
        hold.wait_reached()
        behind = [ref.ask("count", block=False) for _ in range(3)]

        hold.release()

        assert [type(outcome(ticket)) for ticket in behind] == [ActorDeadError] * 3
        events.wait_for(EventKind.STARTED)
        assert ref.ask("count", timeout=60) == 1


# Stopping through the ref


def stop_by_request(ref: ChildRef) -> None:
    assert ref.send(ShutdownRequest(timeout=5.0)).wait(timeout=60).clean_shutdown


def stop_by_told_request(ref: ChildRef) -> None:
    carried: Ticket[Any] = Ticket()
    ref.tell(ShutdownRequest(timeout=5.0, ticket=carried))
    assert carried.wait(timeout=60).clean_shutdown


def stop_as_pykka_does(ref: ChildRef) -> None:
    assert ref.stop(timeout=60) is True


@pytest.mark.parametrize("stop", [stop_by_request, stop_by_told_request, stop_as_pykka_does])
@pytest.mark.parametrize("restart", ["permanent", "transient"])
def test_a_child_that_is_stopped_through_its_ref_stays_down(stop: Callable[[ChildRef], None], restart: Any) -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a", "b", restart=restart)) as supervisor:
        events = supervisor.subscribe()
        ref = supervisor.child("a")

        stop(ref)

        crash_and_wait(supervisor.child("b"), events)
        assert states(supervisor) == {"a": "down", "b": "up"}
        assert (health(ref).state, health(ref).running) == (LoopState.STOPPED, False)
        with pytest.raises(ChildUnavailableError, match="child 'a' is down"):
            ref.ask(ProcessRequest(body=1), timeout=60)


@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one"])
def test_a_child_that_is_stopped_through_its_ref_stays_down_when_a_sibling_crashes(strategy: Any) -> None:
    factory = ChildFactory()
    with supervising(strategy=strategy, children=factory.specs("a", "b", "c")) as supervisor:
        events = supervisor.subscribe()
        stop_by_request(supervisor.child("b"))
        factory.told()

        crash(supervisor.child("a"))

        events.wait_for(EventKind.STARTED, "c")
        assert factory.told() == ["-c", "+a", "+c"]
        assert states(supervisor) == {"a": "up", "b": "down", "c": "up"}
        supervisor.send(RestartChildRequest(id="b")).wait(timeout=60)
        crash(supervisor.child("a"))
        events.wait_for(EventKind.STARTED, "c")
        assert states(supervisor) == {"a": "up", "b": "up", "c": "up"}


def test_a_child_that_is_stopped_through_its_ref_is_brought_back_by_a_restart() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        ref = supervisor.child("a")
        stop_by_request(ref)

        supervisor.send(RestartChildRequest(id="a")).wait(timeout=60)

        assert ref.send(ProcessRequest(body=1)).wait(timeout=60) == 1


def test_stop_of_a_child_that_is_down_says_that_it_was_down() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        ref = supervisor.child("a")

        assert [ref.stop(timeout=60), ref.stop(timeout=60), ref.stop(block=False).wait(timeout=60)] == [
            True,
            False,
            False,
        ]
        assert ref.send(ShutdownRequest()).wait(timeout=60).clean_shutdown


def test_a_child_that_backs_off_is_kept_down_by_a_request_to_stop(clock: FakeClock) -> None:
    factory = ChildFactory()
    with with_back_off(factory, clock, "a") as supervisor:
        ref = backing_off(supervisor, clock)

        stop_by_request(ref)
        clock.advance(100.0)

        assert states(supervisor) == {"a": "down"}
        assert health(ref).activity is None


def loop_actor(refs: list[Any], clock: FakeClock | None = None) -> ChildSpec:
    def make() -> LoopActor:
        actor = LoopActor(ProbeLoop(), "a") if clock is None else LoopActor(ProbeLoop(), "a", clock=clock)
        refs.append(actor.actor_ref)
        return actor

    return ChildSpec(id="a", start=make)


def test_a_permanent_child_that_is_stopped_by_its_own_ref_stays_down_too() -> None:
    factory, own = ChildFactory(), list[Any]()
    with supervising(strategy="one_for_all", children=(loop_actor(own), factory.spec("b"))) as supervisor:
        events = supervisor.subscribe()
        own[0].send(ShutdownRequest(timeout=5.0)).wait(timeout=60)
        events.wait_for(EventKind.TERMINATED, "a")

        crash_and_wait(supervisor.child("b"), events)

        assert states(supervisor) == {"a": "down", "b": "up"}
        supervisor.send(RestartChildRequest(id="a")).wait(timeout=60)
        assert len(own) == 2


class Foreign:
    """A foreign loop, which is not run at all if it is stopped before."""

    def __init__(self) -> None:
        self.end: Ticket[None] = Ticket()

    def run(self) -> None:
        self.end.wait(timeout=60)

    def shutdown(self, *, timeout: float) -> None:
        if not self.end.is_ready():
            self.end.complete(None)


def test_a_child_that_is_stopped_by_its_own_ref_while_it_is_being_restarted_stays_down() -> None:
    made: list[tuple[Foreign, LoopActor]] = []

    def make() -> LoopActor:
        loop = Foreign()
        made.append((loop, LoopActor(loop, "a", clock=clock)))
        return made[-1][1]

    def hold_the_second(name: str) -> None:
        if name == "a-worker" and len(made) == 2:
            hold()

    hold = Hold()
    clock = FakeClock(blocking=FaultyBlocking(on_entry=hold_the_second))
    with supervising(clock=clock, children=(ChildSpec(id="a", start=make),)) as supervisor, hold:
        events = supervisor.subscribe()
        made[0][0].end.fail(ValueError("crashed"))
        hold.wait_reached()
        events.wait_for(EventKind.RESTARTING)
        own = made[1][1].actor_ref
        own.send(ShutdownRequest(timeout=5.0))
        own.send(HealthCheckRequest()).wait(timeout=60)

        hold.release()

        assert events.get(timeout=60).kind is EventKind.EXITED
        assert events.get(timeout=60).kind is EventKind.TERMINATED
        assert states(supervisor) == {"a": "down"}
        assert len(made) == 2


def test_a_stop_from_inside_a_handler_does_not_wait_for_itself() -> None:
    results: list[object] = []
    factory = ChildFactory()
    with supervising(children=(factory.spec("a", lambda _: results.append(ref.stop())),)) as supervisor:
        events = supervisor.subscribe()
        ref = supervisor.child("a")

        factory.loops["a"][0].feed("stop yourself")

        events.wait_for(EventKind.TERMINATED)
        assert results == [False]


def test_a_stop_from_inside_a_plain_actor_does_not_wait_for_itself(clock: FakeClock) -> None:
    done: Ticket[object] = Ticket()
    with supervising(clock=clock, children=(ChildSpec(id="counter", actor=Counter),)) as supervisor:
        ref = supervisor.child("counter")
        ref.tell(lambda: done.complete(ref.stop()))

        clock.advance(0)

        is_done = done.is_ready()
        clock.advance(100.0)  # so that a failing test ends
        done.wait(timeout=60)
        assert is_done


def test_an_end_that_is_to_be_confirmed_is_not_confirmed_before() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        ref = supervisor.child("a")
        confirmed = ref.send(ShutdownConfirmRequest())
        health(supervisor)  # it has been handled

        assert not confirmed.is_ready()
        stop_by_request(ref)
        assert confirmed.wait(timeout=60).clean_shutdown


def test_the_end_of_a_plain_actor_is_confirmed_when_it_has_ended_and_not_before() -> None:
    with supervising(children=(ChildSpec(id="counter", actor=Counter, restart="temporary"),)) as supervisor:
        ref = supervisor.child("counter")
        confirmed = ref.send(ShutdownConfirmRequest())
        health(supervisor)  # it has been handled

        assert not confirmed.is_ready()
        ref.tell(fail)
        assert not confirmed.wait(timeout=60).clean_shutdown


def test_the_end_of_a_child_that_is_down_is_confirmed_at_once() -> None:
    with supervising(children=(ChildSpec(id="counter", actor=Counter),)) as supervisor:
        ref = supervisor.child("counter")
        ref.stop(timeout=60)

        assert ref.send(ShutdownConfirmRequest()).wait(timeout=60).clean_shutdown


def test_a_plain_actor_answers_a_request_of_its_users_own() -> None:
    with supervising(children=(ChildSpec(id="counter", actor=Counter),)) as supervisor:
        ref = supervisor.child("counter")

        assert ref.send(ProcessRequest(body="count")).wait(timeout=60) == 1


def test_a_request_that_a_plain_actor_fails_at_fails() -> None:
    class Picky(Counter):
        def on_receive(self, message: Any) -> Any:
            raise ValueError(message.body)

    with supervising(children=(ChildSpec(id="counter", actor=Picky),)) as supervisor:
        asked = supervisor.child("counter").send(ProcessRequest(body="wrong"))

        with pytest.raises(ValueError, match="wrong"):
            asked.wait(timeout=60)


def test_a_request_to_stop_that_times_out_says_so_and_the_child_goes_on_stopping(clock: FakeClock) -> None:
    factory, hold = ChildFactory(), Hold()
    with supervising(clock=clock, children=(factory.spec("a", hold, shutdown=100.0),)) as supervisor, hold:
        factory.loops["a"][0].feed("held")
        hold.wait_reached()
        ref = supervisor.child("a")
        request = ref.send(ShutdownRequest(timeout=2.0))

        clock.advance(2.0)

        assert (request.wait(timeout=60).clean_shutdown, request.wait(timeout=60).duration) == (False, 2.0)
        assert states(supervisor) == {"a": "stopping"}
        later = ref.send(ShutdownRequest(timeout=50.0))
        hold.release()
        assert later.wait(timeout=60).clean_shutdown


# After deletion, and after the supervisor


def every_ticket(ref: ChildRef) -> Iterator[Ticket[Any]]:
    carried: Ticket[Any] = Ticket()
    ref.tell(ProcessRequest(body=1, ticket=carried))
    yield carried
    yield ref.send(HealthCheckRequest())
    yield ref.send(ProcessRequest(body=1))
    yield ref.send(ShutdownRequest())
    yield ref.send(ShutdownConfirmRequest())
    yield ref.ask(ProcessRequest(body=1), block=False)
    yield ref.ask("anything", block=False)
    yield ref.stop(block=False)
    yield ref.ended
    yield ref.ready


def test_every_ticket_of_a_deleted_child_resolves() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        ref = supervisor.child("a")
        stop_by_request(ref)
        supervisor.send(DeleteChildRequest(id="a")).wait(timeout=60)

        answers = [outcome(ticket) for ticket in every_ticket(ref)]

        assert not any(isinstance(answer, TicketTimeoutError) for answer in answers)
        assert isinstance(answers[1], HealthStatus)
        assert isinstance(answers[2], ChildUnavailableError)
        assert isinstance(answers[3], ShutdownResult)
        assert not ref.is_alive()


def test_every_ticket_of_a_child_resolves_after_the_end_of_its_supervisor() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        ref = supervisor.child("a")

    answers = [outcome(ticket) for ticket in every_ticket(ref)]

    assert not any(isinstance(answer, TicketError) for answer in answers)
    assert isinstance(answers[1], HealthStatus)
    assert answers[1].state is LoopState.STOPPED
    assert isinstance(answers[2], ChildUnavailableError)


def test_ready_resolves_even_for_a_child_that_never_was() -> None:
    factory, hold = ChildFactory(), Hold()
    with hold:
        with supervising() as supervisor, hold:
            factory.holds["a"] = hold
            supervisor.send(StartChildRequest(child=factory.spec("a")))
            hold.wait_reached()
            ref = supervisor.child("a")
            supervisor.send(TerminateChildRequest(id="a"))
            hold.release()

        ref.ended.wait(timeout=60)
        assert ref.ready.wait_ready(timeout=60)
    assert isinstance(outcome(ref.ready), ChildUnavailableError)


def test_the_ref_of_a_deleted_child_is_not_that_of_the_next_of_its_name() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        old = supervisor.child("a")
        stop_by_request(old)
        supervisor.send(DeleteChildRequest(id="a")).wait(timeout=60)

        new = supervisor.spawn(factory.spec("a"), timeout=60)

        with pytest.raises(ChildUnavailableError):
            old.ask(ProcessRequest(body=1), timeout=60)
        assert new.ask(ProcessRequest(body=1), timeout=60) == 1


def test_stop_of_the_ref_of_a_deleted_child_does_not_stop_the_next_of_its_name() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a")) as supervisor:
        old = supervisor.child("a")
        stop_by_request(old)
        supervisor.send(DeleteChildRequest(id="a")).wait(timeout=60)
        new = supervisor.spawn(factory.spec("a"), timeout=60)

        outcome(old.stop(block=False))

        assert new.ask(ProcessRequest(body=1), timeout=60) == 1


def test_a_temporary_child_that_ends_takes_its_ref_with_it() -> None:
    factory = ChildFactory()
    with supervising(children=factory.specs("a", restart="temporary")) as supervisor:
        ref = supervisor.child("a")

        crash(ref)

        assert str(ref.ended.wait(timeout=60).cause) == "crashed"
        assert health(ref).state is LoopState.FAILED


# The whole tree answers, whatever is being done


def answers_of_the_tree(supervisor: SupervisorRef, hold: Hold) -> tuple[HealthStatus, dict[str, str]]:
    """Ask the supervisor and all refs; return what the first child and the supervisor say, before the gate opens."""
    seen = states(supervisor)
    statuses = check_health([supervisor, *(info.ref for info in supervisor.children())], timeout=60)
    assert not hold.is_released
    assert statuses[0].loop_name == "root"
    assert [status.loop_name for status in statuses[1:]] == list(seen)
    assert statuses[2].state is LoopState.RUNNING
    return statuses[1], seen


def test_tree_answers_while_a_factory_is_at_work() -> None:
    factory, hold = ChildFactory(), Hold()
    with supervising(children=factory.specs("a", "b")) as supervisor, hold:
        supervisor.child("a").stop(timeout=60)
        factory.holds["a"] = hold
        restarted = supervisor.send(RestartChildRequest(id="a"))
        hold.wait_reached()

        status, seen = answers_of_the_tree(supervisor, hold)

        assert (status.state, status.running, seen["a"]) == (LoopState.STARTING, True, "starting")
        with pytest.raises(ChildUnavailableError, match="starting"):
            supervisor.child("a").ask(ProcessRequest(body=1), timeout=60)
        hold.release()
        restarted.wait(timeout=60)


def test_tree_answers_while_its_first_child_is_being_made() -> None:
    factory = ChildFactory()
    with Hold() as hold:
        factory.holds["b"] = hold
        supervisor = Supervisor("root", children=factory.specs("b", "c")).launch()
        hold.wait_reached()

        statuses = check_health([supervisor, *(info.ref for info in supervisor.children())], timeout=60)

        assert not hold.is_released
        assert [status.state for status in statuses] == ["starting", "starting", "idle"]
    supervisor.ready.wait(timeout=60)
    supervisor.stop(timeout=60)


def test_tree_answers_while_a_loop_has_not_entered() -> None:
    factory, hold = ChildFactory(), Hold()
    blocking = FaultyBlocking(on_entry=lambda name: name == "a-worker" and hold())
    with supervising(clock=FakeClock(blocking=blocking)) as supervisor, hold:
        spawned = supervisor.send(StartChildRequest(child=factory.spec("a")))
        hold.wait_reached()
        supervisor.spawn(factory.spec("b"), timeout=60)

        status, seen = answers_of_the_tree(supervisor, hold)

        assert (status.state, seen["a"]) == (LoopState.STARTING, "starting")
        hold.release()
        spawned.wait(timeout=60)


def test_tree_answers_while_a_plain_actor_is_starting() -> None:
    class Slow(pykka.ThreadingActor):
        def on_start(self) -> None:
            hold()

    factory, hold = ChildFactory(), Hold()
    with supervising() as supervisor, hold:
        spawned = supervisor.send(StartChildRequest(child=ChildSpec(id="slow", actor=Slow)))
        hold.wait_reached()
        supervisor.spawn(factory.spec("b"), timeout=60)

        status, seen = answers_of_the_tree(supervisor, hold)

        assert (status.state, seen["slow"]) == (LoopState.STARTING, "starting")
        hold.release()
        spawned.wait(timeout=60)


def test_tree_answers_while_a_child_backs_off(clock: FakeClock) -> None:
    factory, hold = ChildFactory(), Hold()
    with with_back_off(factory, clock, "a", "b") as supervisor:
        backing_off(supervisor, clock)

        status, seen = answers_of_the_tree(supervisor, hold)

        assert (status.activity, seen["a"]) == (Activity.BACKING_OFF, "restarting")


def test_tree_answers_while_a_group_waits_for_the_back_off_of_one_child(clock: FakeClock) -> None:
    factory = ChildFactory()
    with with_back_off(factory, clock, "a", "b", strategy="one_for_all") as supervisor:
        events = supervisor.subscribe()
        ref = supervisor.child("b")
        crash(supervisor.child("a"))
        events.wait_for(EventKind.EXITED, "b")
        clock.advance(0)

        assert states(supervisor) == {"a": "restarting", "b": "restarting"}
        assert health(ref).activity is Activity.BACKING_OFF
        clock.advance(4.0)
        events.wait_for(EventKind.STARTED, "b")
        assert health(ref).state is LoopState.RUNNING


@pytest.mark.parametrize("whom", ["child", "supervisor"])
def test_tree_answers_while_a_loop_is_stopping(whom: str) -> None:
    factory, hold = ChildFactory(), Hold()
    children = (factory.spec("a"), factory.spec("b", hold))
    with supervising(children=children, sequential=True) as supervisor, hold:
        factory.loops["b"][0].feed("held")
        hold.wait_reached()
        target = supervisor if whom == "supervisor" else supervisor.child("b")
        stopped = target.send(ShutdownRequest())
        factory.loops["b"][0].stop_asked.wait(timeout=60)

        statuses = check_health([info.ref for info in supervisor.children()], timeout=60)

        assert not hold.is_released
        assert [status.state for status in statuses] == ["running", "stopping"]
        assert states(supervisor) == {"a": "up", "b": "stopping"}
        assert health(supervisor).state is (LoopState.STOPPING if whom == "supervisor" else LoopState.RUNNING)
        hold.release()
        assert stopped.wait(timeout=60).clean_shutdown


def test_tree_answers_while_a_plain_actor_is_stopping() -> None:
    class Slow(pykka.ThreadingActor):
        def on_stop(self) -> None:
            hold()

    factory, hold = ChildFactory(), Hold()
    children = (ChildSpec(id="slow", actor=Slow), factory.spec("b"))
    with supervising(children=children) as supervisor, hold:
        stopped = supervisor.child("slow").stop(block=False)
        hold.wait_reached()

        status, seen = answers_of_the_tree(supervisor, hold)

        assert (status.state, seen["slow"]) == (LoopState.STOPPING, "stopping")
        hold.release()
        assert stopped.wait(timeout=60)
