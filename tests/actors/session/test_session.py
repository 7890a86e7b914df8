"""A session changes by events alone, in one order, and is read without a lock."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from loopwarden import ChildSpec, Supervisor, Ticket, wait_all
from loopwarden._blocking import SYSTEM
from loopwarden.actors import HealthCheckRequest, Session, SessionSnapshot, Slice, SliceSnapshot, StateRequest
from loopwarden.actors.session._session import LARGEST_BATCH
from loopwarden.errors import ActorDeadError, JournalLockedError, UnsupportedRequestError
from loopwarden.supervision import EventKind
from loopwarden.testing import FakeClock, Hold, SteppedBlocking

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from loopwarden.actors import SessionRef


class Added(BaseModel, frozen=True):
    amount: int
    by: int = 0


class Cleared(BaseModel, frozen=True):
    pass


class Ended(BaseModel, frozen=True):
    pass


class Total(BaseModel, frozen=True):
    sum: int = 0


@dataclass(frozen=True, slots=True)
class Log:
    length: int = 0
    last: tuple[tuple[int, int], ...] = ()


def add(total: Total, added: Added) -> Total:
    if added.amount < 0:
        raise ValueError(added.amount)
    return Total(sum=total.sum + added.amount)


def leave(total: Total, ended: Ended) -> Total:
    raise SystemExit("a reducer wants to leave")


def note(log: Log, added: Added) -> Log:
    if added.amount == 13:
        raise ValueError("unlucky")
    return Log(log.length + 1, ((added.by, added.amount),))


TOTAL = Slice(Total()).on(Added, add).on(Cleared, lambda total, _: Total() if total.sum else total).on(Ended, leave)
LOG = Slice(Log()).on(Added, note)


def failure(ticket: Ticket[Any]) -> BaseException | None:
    assert ticket.wait_ready(60), "a ticket always resolves"
    try:
        ticket.wait(0)
    except BaseException as error:  # noqa: BLE001  it is what the test looks at
        return error
    return None


def test_an_event_is_answered_with_its_place_and_what_it_changed_and_is_then_in_the_state() -> None:
    with Session.open("bakery", [TOTAL, LOG]) as session:
        first = session.dispatch(Added(amount=5)).wait(60)
        second = session.dispatch(Cleared()).wait(60)
        third = session.dispatch(Cleared()).wait(60)

        assert first == (1, (Total, Log))
        assert (second.sequence, second.changed) == (2, (Total,))
        assert third == (3, ())
        assert session.state[Total] == session[Total] == session.view(Total).value == Total()
        assert session.state[Log] == Log(1, ((0, 5),))
        assert session.sequence == 3
        assert len(session.state) == 2
        assert repr(session) == "<Session 'bakery', alive, sequence 3>"


def test_a_state_that_was_taken_does_not_change_and_cannot_be_changed() -> None:
    with Session.open("bakery", [TOTAL]) as session:
        before = session.state

        session.dispatch(Added(amount=5)).wait(60)

        assert before[Total] == Total()
        with pytest.raises(TypeError):
            before[Total] = Total(sum=7)  # type: ignore[index]  # pyright: ignore[reportIndexIssue]  that is the test


def test_a_reducer_that_raises_fails_its_dispatch_alone_and_changes_nothing() -> None:
    with Session.open("bakery", [TOTAL, LOG]) as session:
        tickets = [session.dispatch(Added(amount=amount)) for amount in (1, -1, 13, 2)]

        failed = [failure(ticket) for ticket in tickets]

        assert [type(error) for error in failed] == [type(None), ValueError, ValueError, type(None)]
        assert tickets[3].wait(0).sequence == 2
        # Of 13 the first reducer had returned, and the second raised.
        assert (session.state[Total].sum, session.state[Log].length) == (3, 2)


def test_a_reducer_that_returns_something_else_fails_its_dispatch_by_name() -> None:
    forgetful: Slice[Any] = Slice(Total()).on(Added, lambda total, added: None)  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]  that is the test
    with (
        Session.open("bakery", [forgetful, LOG]) as session,
        pytest.raises(TypeError, match="Total for Added returned"),
    ):
        session.dispatch(Added(amount=1)).wait(60)


def test_an_event_that_no_slice_knows_is_refused_by_name_and_the_session_lives() -> None:
    with Session.open("bakery", [TOTAL]) as session:
        for unknown in (Total(), "text", HealthCheckRequest()):
            with pytest.raises(UnsupportedRequestError, match=f"does not support {type(unknown).__name__}: no slice"):
                session.dispatch(unknown).wait(60)

        assert session.dispatch(Added(amount=1)).wait(60).sequence == 1


def test_tell_that_cannot_be_handled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with Session.open("bakery", [TOTAL]) as session:
        session.tell(Added(amount=-1))
        session.tell("text")
        session.tell(Added(amount=3))

        assert session.send(StateRequest()).wait(60)[Total] == Total(sum=3)
    assert [text for text in caplog.messages if "could not handle" in text] == [
        "Session 'bakery' could not handle Added: ValueError(-1)",
        "Session 'bakery' could not handle str: UnsupportedRequestError("
        + repr("Session 'bakery' does not support str: no slice has a reducer for events of this type")
        + ")",
    ]


def test_a_base_exception_in_a_reducer_ends_its_session_alone() -> None:
    hold = Hold()
    waiting = Slice(Total()).on(Cleared, lambda total, _: (hold(), total)[1]).on(Ended, leave).on(Added, add)
    with hold, Session.open("other", [TOTAL]) as other:
        session = Session.open("bakery", [waiting])
        blocked = session.dispatch(Cleared())
        hold.wait_reached()
        tickets = [session.dispatch(event) for event in (Added(amount=1), Ended(), Added(amount=2))]
        asked = session.ask(StateRequest(), block=False)
        hold.release()

        assert failure(blocked) is None
        assert failure(tickets[0]) is None
        assert [type(failure(ticket)) for ticket in (*tickets[1:], asked)] == [ActorDeadError] * 3
        assert isinstance(session.ended.wait(60).cause, SystemExit)
        assert session.state[Total] == Total(sum=1)
        assert other.dispatch(Added(amount=1)).wait(60).sequence == 1


@pytest.mark.parametrize("events", [LARGEST_BATCH - 1, LARGEST_BATCH, LARGEST_BATCH + 1, 3 * LARGEST_BATCH])
def test_events_of_a_batch_keep_their_order_with_other_requests(events: int) -> None:
    hold = Hold()
    waiting = Slice(Total()).on(Cleared, lambda total, _: (hold(), total)[1]).on(Added, add)
    with Session.open("bakery", [waiting]) as session, hold:
        session.dispatch(Cleared())
        hold.wait_reached()
        before = [session.dispatch(Added(amount=1)) for _ in range(events)]
        between = session.send(StateRequest())
        after = [session.dispatch(Added(amount=1)) for _ in range(events)]
        cancelled = session.dispatch(Added(amount=1))
        assert cancelled.cancel()
        session.stop(block=False)
        late = session.dispatch(Added(amount=1))
        hold.release()

        assert [result.sequence for result in wait_all(before + after, 60)] == list(range(2, 2 * events + 2))
        assert between.wait(60)[Total] == Total(sum=events)
        assert isinstance(failure(late), ActorDeadError)
        # The event whose ticket was cancelled is handled nevertheless.
        assert session.state[Total] == Total(sum=2 * events + 1)


def test_closed_session_refuses_events_and_still_has_its_state() -> None:
    session = Session.open("bakery", [TOTAL])
    ticket = session.dispatch(Added(amount=1))

    assert session.close(timeout=60)
    assert session.close()

    assert ticket.wait(0).sequence == 1
    assert isinstance(failure(session.dispatch(Added(amount=1))), ActorDeadError)
    assert session.state[Total] == Total(sum=1)
    assert repr(session) == "<Session 'bakery', ended, sequence 1>"


@pytest.mark.parametrize("disowned", [False, True], ids=["stopped", "disowned"])
@pytest.mark.parametrize("seed", range(20))
def test_dispatch_that_races_with_the_end_always_resolves(seed: int, disowned: bool) -> None:
    steps = SteppedBlocking()
    actor = Session("bakery", [TOTAL, LOG], clock=FakeClock(blocking=steps))
    session = actor.launch()
    tickets: list[Ticket[Any]] = []
    requests: list[Ticket[Any]] = []

    def send() -> None:
        for amount in range(3):
            tickets.append(session.dispatch(Added(amount=amount)))
            requests.append(session.send(StateRequest()))

    steps.start_thread(send, "first")
    steps.start_thread(send, "second")
    steps.start_thread(lambda: actor.disown(ValueError()) if disowned else session.stop(block=False), "end")
    steps.run(seed=seed)

    done = sorted(ticket.wait(0).sequence for ticket in tickets if failure(ticket) is None)
    assert len(tickets) == len(requests) == 6
    assert {type(failure(ticket)) for ticket in (*tickets, *requests)} <= {type(None), ActorDeadError}
    assert done == list(range(1, len(done) + 1))


class First(BaseModel, frozen=True):
    count: int = 0
    by: tuple[int, ...] = (0,) * 8


class Second(BaseModel, frozen=True):
    count: int = 0


def count_first(first: First, added: Added) -> First:
    assert added.amount == first.by[added.by], "the events of one thread are in their order"
    by = tuple(amount + (place == added.by) for place, amount in enumerate(first.by))
    return First(count=first.count + 1, by=by)


def test_dispatch_from_many_threads_has_no_gap_and_readers_see_slices_that_agree() -> None:
    events = 50_000
    slices: list[Slice[Any]] = [
        Slice(First()).on(Added, count_first),
        Slice(Second()).on(Added, lambda second, _: Second(count=second.count + 1)),
    ]
    with Session.open("busy", slices) as session:
        over: list[bool] = []

        def dispatch(number: int) -> list[int]:
            tickets = [session.dispatch(Added(amount=place, by=number)) for place in range(events // 8)]
            return [result.sequence for result in wait_all(tickets, 200)]

        def read() -> int:
            seen = looks = 0
            while not over:
                for _ in range(1_000):
                    state = session.state
                    assert state[First].count == state[Second].count
                    assert seen <= state[First].count
                    seen = state[First].count
                looks += 1
                # In line behind the events: readers that never wait would keep the interpreter from all others.
                answer = session.send(StateRequest()).wait(200)
                assert seen <= answer[First].count == answer[Second].count
                seen = answer[First].count
            return looks

        readers = [run(read, f"reader-{number}") for number in range(4)]
        writers = [run(functools.partial(dispatch, number), f"writer-{number}") for number in range(8)]
        try:
            sequences: list[list[int]] = wait_all(writers, 200)
        finally:
            over.append(True)

        assert min(wait_all(readers, 60)) > 0
        assert all(each == sorted(each) for each in sequences)
        assert sorted(place for each in sequences for place in each) == list(range(1, events + 1))
        assert session.state[First] == First(count=events, by=(events // 8,) * 8)


def run(job: Callable[[], Any], name: str) -> Ticket[Any]:
    begun: Ticket[None] = Ticket()
    ended = begun.map(lambda _: job())
    SYSTEM.start_thread(lambda: begun.complete(None), name)
    return ended


class Thawed(BaseModel):
    pass


def coroutine() -> Any:
    async def reducer(total: Total, added: Added) -> Total:
        return total

    return reducer


def twin() -> type[BaseModel]:
    class Added(BaseModel, frozen=True):
        pass

    return Added


@dataclass(frozen=True)
class Unwritable:
    thing: Hold


def keep(total: Total, _: object) -> Total:
    return total


UNTYPED: Any = Slice(Total())


@pytest.mark.parametrize(
    ("declare", "culprit"),
    [
        (lambda: Slice(Thawed()), "a slice must be a frozen pydantic model or dataclass, got Thawed()"),
        (lambda: Slice(5), "frozen pydantic model or dataclass, got 5"),
        (lambda: TOTAL.on(Thawed, keep), "slice Total: an event must be a frozen .* got .*Thawed"),
        (lambda: UNTYPED.on("Added", add), "slice Total: an event must be .* got 'Added'"),
        (lambda: TOTAL.on(HealthCheckRequest, keep), "HealthCheckRequest is a request"),
        (lambda: TOTAL.on(Added, add), "slice Total has two reducers for Added"),
        (lambda: UNTYPED.on(Added, 5), "slice Total: the reducer for Added must be a plain function, got 5"),
        (lambda: Slice(Total(), {Added: coroutine()}), "the reducer for Added must be a plain function"),
        (lambda: Session("bakery", []), "session 'bakery' has no slices"),
        (lambda: Session("bakery", [TOTAL, TOTAL]), "session 'bakery' has two slices with the name 'Total'"),
        (lambda: Session("bakery", [TOTAL.on(twin(), keep)]), "two events with the name 'Added'"),
        (lambda: Session("bakery", [UNTYPED.initial]), "slices must be made by Slice"),
        (lambda: Session("bakery", [TOTAL.on(Unwritable, keep)]), "cannot write Unwritable as JSON"),
        (lambda: Session("a/b", [TOTAL]), "name of a session must be a string without '/'"),
        (lambda: Session("", [TOTAL]), "name of a session"),
        (lambda: Session("a\ud800", [TOTAL]), "name of a session must be text that can be written"),
        (lambda: Session("bakery", [TOTAL], synchronous="OFF"), "synchronous must be 'NORMAL' or 'FULL', got 'OFF'"),
        (
            lambda: Session("bakery", [TOTAL], snapshot_every=0),
            "snapshot_every must be a whole number from 1 on, got 0",
        ),
    ],
)
def test_session_names_a_wrong_declaration_before_anything_starts(declare: Callable[[], Any], culprit: str) -> None:
    with pytest.raises((TypeError, ValueError), match=culprit.replace("()", r"\(\)")):
        declare()


def test_a_snapshot_can_be_sent_and_restored_as_one_more_event() -> None:
    with Session.open("bakery", [TOTAL, LOG]) as session, Session.open("copy", [TOTAL, LOG]) as copy:
        session.dispatch(Added(amount=5)).wait(60)
        copy.dispatch(Added(amount=1)).wait(60)
        snapshot = SessionSnapshot.model_validate_json(session.snapshot().model_dump_json())

        restored = copy.restore(snapshot).wait(60)

        assert (snapshot.name, snapshot.sequence) == ("bakery", 1)
        assert restored == (2, (Total, Log))
        assert (copy.state[Total], copy.state[Log]) == (Total(sum=5), Log(1, ((0, 5),)))
        assert copy.dispatch(Added(amount=1)).wait(60).sequence == 3


@pytest.mark.parametrize(
    ("snapshot", "culprit"),
    [
        (SessionSnapshot(name="x", sequence=1, slices=(SliceSnapshot(name="Other", value="{}"),)), "no slice 'Other'"),
        (
            SessionSnapshot(name="x", sequence=1, slices=(SliceSnapshot(name="Total", value="{"),)),
            "Total cannot be read",
        ),
        (
            SessionSnapshot(
                name="x", sequence=1, slices=(), children=(SessionSnapshot(name="kid", sequence=0, slices=()),)
            ),
            "no child 'kid'",
        ),
    ],
)
def test_a_snapshot_of_something_else_is_refused_by_name(snapshot: SessionSnapshot, culprit: str) -> None:
    with Session.open("bakery", [TOTAL]) as session:
        session.dispatch(Added(amount=5)).wait(60)

        with pytest.raises(ValueError, match=culprit):
            session.restore(snapshot).wait(60)

        assert (session.sequence, session.state[Total]) == (1, Total(sum=5))


def test_a_child_has_its_own_state_is_in_the_snapshot_and_ends_with_its_parent() -> None:
    session = Session.open("bakery", [TOTAL])
    child = session.child("till", [LOG])
    grandchild = child.child("drawer", [TOTAL])
    child.dispatch(Added(amount=5)).wait(60)
    grandchild.dispatch(Added(amount=7)).wait(60)
    snapshot = session.snapshot()
    child.dispatch(Added(amount=6)).wait(60)
    session.restore(snapshot).wait(60)

    assert session.close(timeout=60)

    assert [each.name for each in snapshot.children] == ["till"]
    assert [each.sequence for each in snapshot.children[0].children] == [1]
    assert child.state[Log] == Log(1, ((0, 5),))
    assert child.sequence == 3
    assert child.ended.is_ready()
    assert grandchild.ended.is_ready()
    assert session.children == {}
    with pytest.raises(ActorDeadError):
        session.child("late", [LOG])


def test_a_snapshot_with_an_unknown_grandchild_or_slice_of_a_child_changes_no_session() -> None:
    with Session.open("bakery", [TOTAL]) as session:
        session.child("till", [TOTAL]).child("drawer", [TOTAL])
        session.child("office", [LOG])
        snapshot = session.snapshot()
    with Session.open("bakery", [TOTAL]) as session:
        till, office = session.child("till", [TOTAL]), session.child("office", [TOTAL])
        session.dispatch(Added(amount=50)).wait(60)

        with pytest.raises(ValueError, match="Session 'till' has no child 'drawer'"):
            session.restore(snapshot).wait(60)
        till.child("drawer", [TOTAL])
        with pytest.raises(ValueError, match="session 'office' has no slice 'Log'"):
            session.restore(snapshot).wait(60)

        assert (session.sequence, session.state[Total]) == (1, Total(sum=50))
        assert (till.sequence, office.sequence) == (0, 0)


@pytest.mark.parametrize("nothing", [None, 5, {"name": "bakery"}])
def test_restore_refuses_what_is_not_a_snapshot(nothing: Any) -> None:
    with (
        Session.open("bakery", [TOTAL]) as session,
        pytest.raises(TypeError, match="Session 'bakery' can restore what"),
    ):
        session.restore(nothing)


def test_a_childs_name_is_free_again_when_it_has_ended() -> None:
    with Session.open("bakery", [TOTAL]) as session:
        child = session.child("till", [LOG])
        with pytest.raises(ValueError, match="has a child 'till' already"):
            session.child("till", [LOG])
        child.close(timeout=60)

        again = session.child("till", [LOG])

        assert session.children == {"till": again}
        assert again.state[Log] == Log()


def test_a_reducer_can_neither_start_a_child_nor_wait_for_the_end() -> None:
    refs: list[SessionRef] = []

    def misuse(total: Total, event: Cleared) -> Total:
        with pytest.raises(RuntimeError, match="would wait for itself"):
            refs[0].child("till", [LOG])
        assert not refs[0].close()
        return Total(sum=1)

    session = Session.open("bakery", [TOTAL])
    child = session.child("till", [Slice(Total()).on(Cleared, misuse)])
    refs.append(session)

    assert child.dispatch(Cleared()).wait(60).sequence == 1
    assert session.ended.wait_ready(60)


def test_session_that_crashes_under_a_supervisor_is_started_again_with_its_state(tmp_path: Path) -> None:
    spec = ChildSpec(id="bakery", start=lambda: Session("bakery", [TOTAL], journal=tmp_path / "bakery.db"))
    supervisor = Supervisor.start("root", children=[spec], backoff=None)
    events = supervisor.subscribe()
    bakery = supervisor.child("bakery")
    assert bakery.ready.wait_ready(60)
    bakery.ask(Added(amount=5))

    assert isinstance(failure(bakery.ask(Ended(), block=False)), ActorDeadError)
    events.wait_for(EventKind.RESTARTING, timeout=60)
    events.wait_for(EventKind.STARTED, timeout=60)

    assert bakery.ask(Added(amount=1), block=False).wait(60).sequence == 2
    assert bakery.send(StateRequest()).wait(60)[Total] == Total(sum=6)
    supervisor.stop(timeout=60)


@pytest.mark.parametrize("message", [Added(amount=1), StateRequest()], ids=["event", "request"])
def test_disowned_session_answers_a_message_on_its_way_into_the_batch(message: Any) -> None:
    actor, hold = Session("bakery", [TOTAL]), Hold()
    take = actor._inbox.get

    def get() -> Any:
        envelope = take()
        hold()  # the thread loses the processor here
        return envelope

    actor._inbox.get = get
    session = actor.launch()
    ticket = session.ask(message, block=False)
    hold.wait_reached()

    actor.disown(TimeoutError("it hung"))
    hold.release()

    assert isinstance(failure(ticket), ActorDeadError)
    assert session.ended.wait_ready(60)
    assert session.sequence == 0


def test_a_session_that_hangs_and_is_given_up_can_write_no_more_once_another_has_its_journal(tmp_path: Path) -> None:
    journal = tmp_path / "bakery.db"
    hold = Hold()
    stuck = Slice(Total()).on(Cleared, lambda total, _: (hold(), Total(sum=99))[1]).on(Added, add)
    actor = Session("bakery", [stuck], journal=journal)
    zombie = actor.launch()
    zombie.dispatch(Added(amount=5)).wait(60)
    held, behind = zombie.dispatch(Cleared()), zombie.dispatch(Added(amount=1))
    hold.wait_reached()
    with hold:
        with pytest.raises(JournalLockedError, match="has it open"):
            Session.open("bakery", [TOTAL], journal=journal)

        actor.disown(TimeoutError("it hung"))

        assert [type(failure(ticket)) for ticket in (held, behind)] == [ActorDeadError, ActorDeadError]
        with Session.open("bakery", [TOTAL], journal=journal) as session:
            hold.release()
            assert isinstance(zombie.ended.wait(60).cause, JournalLockedError)
            assert session.dispatch(Added(amount=1)).wait(60).sequence == 2
            assert session.state[Total] == Total(sum=6)
    assert zombie.state[Total] == Total(sum=5)
