from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import pytest
from background import in_background
from typing_extensions import override

from loopwarden import HealthCheckRequest, Ticket
from loopwarden._ticket import write
from loopwarden.actors import ZOMBIES, AbandonRequest, ControlActor, MailboxLoop
from loopwarden.errors import LoopAbandonedError, StartFailed, StillRunningError, SupervisorGaveUp
from loopwarden.mailbox import InMemoryMailbox, Token
from loopwarden.supervision import (
    ChildSpec,
    DaemonScope,
    ReaperActor,
    Supervisor,
    WatchdogActor,
    daemon_scope,
)
from loopwarden.testing import FakeClock, FaultyBlocking, Hold, ProbeLoop, our_threads, wait_no_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.actors import ControlRef


#: So that no daemon has a real deadline to end by.
pytestmark = pytest.mark.usefixtures("clock")


def waits(token: Token) -> None:
    token.wait()


def timers(clock: FakeClock) -> list[float]:
    heap = clock._timers._heap
    return sorted(deadline - clock.monotonic() for deadline, _, timer in heap if timer.is_pending)


class Journal:
    """Daemons that write down when they begin and end."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def daemon(self, name: str) -> Callable[[Token], None]:
        def run(token: Token) -> None:
            self.lines.append(f"{name} begins")
            token.wait()
            self.lines.append(f"{name} ends")

        return run


class Noting(ControlActor):
    """An actor that writes down when it starts and stops."""

    def __init__(self, name: str, lines: list[str]) -> None:
        super().__init__()
        self._name = name
        self._lines = lines

    @override
    def on_start(self) -> None:
        self._lines.append(f"{self._name} begins")

    @override
    def on_stop(self) -> None:
        self._lines.append(f"{self._name} ends")


class Broken(ControlActor):
    """An actor that fails at one of its hooks."""

    def __init__(self, *, start: BaseException | None = None, stop: BaseException | None = None) -> None:
        super().__init__()
        self._at_start = start
        self._at_stop = stop

    @override
    def on_start(self) -> None:
        if self._at_start is not None:
            raise self._at_start

    @override
    def on_stop(self) -> None:
        if self._at_stop is not None:
            raise self._at_stop


# Order


def test_daemons_start_in_order_and_stop_in_reverse() -> None:
    lines: list[str] = []

    with daemon_scope() as scope:
        for name in ("first", "second", "third"):
            scope.spawn(Noting(name, lines))
        lines.append("body")

    assert lines == [
        *("first begins", "second begins", "third begins"),
        "body",
        *("third ends", "second ends", "first ends"),
    ]


def test_daemon_has_ended_before_the_one_that_was_started_earlier_is_stopped() -> None:
    journal = Journal()

    with daemon_scope() as scope:
        for name in ("first", "second", "third"):
            scope.spawn(journal.daemon(name), name)

    assert journal.lines[-3:] == ["third ends", "second ends", "first ends"]


def test_a_daemon_is_running_when_spawn_returns() -> None:
    entered: Ticket[None] = Ticket()

    def daemon(token: Token) -> None:
        entered.complete(None)
        token.wait()

    with daemon_scope() as scope:
        ref = scope.spawn(daemon)

        assert ref.ready.is_ready()
        entered.wait(timeout=60)
        assert ref.is_alive()
    assert not ref.is_alive()


# Functions


def test_a_function_gets_the_token_that_tells_it_to_stop() -> None:
    seen: list[tuple[str, bool]] = []

    def daemon(token: Token) -> None:
        seen.append(("before", token.stopped))
        seen.append(("waited", token.wait()))
        seen.append(("after", token.stopped))

    with DaemonScope() as scope:
        scope.spawn(daemon)

    assert seen == [("before", False), ("waited", True), ("after", True)]


def test_functions_in_a_scope_have_tokens_of_their_own() -> None:
    tokens: list[Token] = []

    def daemon(token: Token) -> None:
        tokens.append(token)
        token.wait()

    with DaemonScope() as scope:
        scope.spawn(daemon, "first")
        scope.spawn(daemon, "second")

    assert len(set(map(id, tokens))) == 2


class Callme:
    def __call__(self, token: Token) -> None:
        token.wait()

    def method(self, token: Token) -> None:
        token.wait()


@pytest.mark.parametrize(
    ("daemon", "name", "expected"),
    [
        pytest.param(waits, None, "LoopActor 'waits'", id="function"),
        pytest.param(waits, "renamed", "LoopActor 'renamed'", id="name"),
        pytest.param(Callme(), None, "LoopActor 'Callme'", id="object"),
        pytest.param(Callme().method, None, "LoopActor 'method'", id="method"),
    ],
)
def test_a_daemon_is_called_as_it_is_named(daemon: Callable[[Token], object], name: str | None, expected: str) -> None:
    with DaemonScope() as scope:
        ref = scope.spawn(daemon, name)

    assert str(ref) == expected


def test_a_function_that_returns_by_itself_is_no_error() -> None:
    with DaemonScope() as scope:
        ref = scope.spawn(lambda token: None)
        ref.ended.wait(timeout=60)


def test_scope_that_a_daemon_of_its_own_shuts_down_waits_for_it_no_longer_than_the_deadline(clock: FakeClock) -> None:
    scope = DaemonScope(timeout=20)
    raised: Ticket[BaseExceptionGroup[BaseException]] = Ticket()

    def shut_own_scope_down(token: Token) -> None:
        try:
            scope.shutdown_all(timeout=4)
        except BaseExceptionGroup as error:
            raised.complete(error)

    ref = scope.spawn(shut_own_scope_down, "suicidal")
    clock.advance(3)
    before = raised.is_ready()
    clock.advance(1)

    assert not before
    assert [type(error) for error in raised.wait(0).exceptions][:1] == [StillRunningError]
    assert ref.ended.is_ready()
    assert wait_no_threads() == []


# Errors


def test_exception_of_the_body_is_raised_alone_if_no_daemon_has_failed() -> None:
    lines: list[str] = []
    scope = DaemonScope()

    with pytest.raises(ValueError, match=r"^body$"), scope:  # noqa: PT012  the block is under test
        scope.spawn(Noting("daemon", lines))
        raise ValueError("body")

    assert lines == ["daemon begins", "daemon ends"]


def test_exceptions_of_daemons_are_one_group() -> None:
    def crash(token: Token) -> None:
        token.wait()
        raise KeyError("crashed")

    with pytest.raises(ExceptionGroup, match="daemons have failed") as raised, daemon_scope() as scope:  # noqa: PT012  the block is under test
        scope.spawn(crash)
        scope.spawn(waits)
        scope.spawn(Broken(stop=ValueError("on_stop")))

    assert sorted(map(repr, raised.value.exceptions)) == ["KeyError('crashed')", "ValueError('on_stop')"]


def test_a_daemon_that_failed_long_before_is_not_forgotten() -> None:
    def crash(token: Token) -> None:
        raise KeyError("crashed")

    with pytest.raises(ExceptionGroup) as raised, daemon_scope() as scope:
        scope.spawn(crash).ended.wait(timeout=60)

    assert list(map(repr, raised.value.exceptions)) == ["KeyError('crashed')"]


@pytest.mark.parametrize("make", [DaemonScope, daemon_scope], ids=["class", "function"])
def test_exceptions_of_the_body_and_the_daemons_are_one_group(make: Callable[[], Any]) -> None:
    def crash(token: Token) -> None:
        token.wait()
        raise KeyError("crashed")

    with pytest.raises(ExceptionGroup) as raised, make() as scope:  # noqa: PT012  the block is under test
        scope.spawn(crash)
        raise ValueError("body")

    assert list(map(repr, raised.value.exceptions)) == ["ValueError('body')", "KeyError('crashed')"]


def test_a_base_exception_of_a_daemon_is_in_the_group_and_ends_no_other_daemon() -> None:
    def leave(token: Token) -> None:
        token.wait()
        raise SystemExit(3)

    lines: list[str] = []
    with pytest.raises(BaseExceptionGroup) as raised, daemon_scope() as scope:  # noqa: PT012  the block is under test
        scope.spawn(Noting("earlier", lines))
        scope.spawn(leave)

    assert [type(error) for error in raised.value.exceptions] == [SystemExit]
    assert lines == ["earlier begins", "earlier ends"]


def test_a_keyboard_interrupt_of_the_body_stops_the_daemons() -> None:
    lines: list[str] = []
    scope = DaemonScope()

    with pytest.raises(KeyboardInterrupt), scope:  # noqa: PT012  the block is under test
        scope.spawn(Noting("daemon", lines))
        raise KeyboardInterrupt

    assert lines == ["daemon begins", "daemon ends"]


# The deadline


def test_scope_names_and_abandons_a_daemon_that_does_not_stop(clock: FakeClock) -> None:
    with Hold() as hold:
        scope = DaemonScope(clock=clock)
        ref = scope.spawn(hold, "stuck")
        hold.wait_reached()
        stopped = in_background(lambda: scope.shutdown_all(timeout=4))

        clock.advance(4)

        with pytest.raises(ExceptionGroup) as raised:
            stopped.wait(timeout=60)
        left = [error for error in raised.value.exceptions if isinstance(error, StillRunningError)]
        assert [error.child for error in left] == ["stuck"]
        assert isinstance(ref.ended.wait(timeout=60).cause, LoopAbandonedError)
        assert not hold.is_released
    assert wait_no_threads() == []
    assert len(ZOMBIES) == 0


def test_scope_tells_of_a_daemon_that_does_not_stop_in_one_error() -> None:
    """As when the thread that stops them is interrupted just after it has given one of them up."""
    with Hold() as hold:
        scope = DaemonScope()
        ref = scope.spawn(hold, "stuck")
        hold.wait_reached()
        send = ref.send

        def send_and_dawdle(message: Any) -> Any:
            ticket = send(message)
            if isinstance(message, AbandonRequest):
                ref.ended.wait_ready(60)
            return ticket

        ref.send = send_and_dawdle  # type: ignore[method-assign]  # only this one dawdles

        with pytest.raises(ExceptionGroup) as raised:
            scope.shutdown_all(timeout=0)

    assert [type(error) for error in raised.value.exceptions] == [StillRunningError]


def test_scope_takes_no_time_from_others_for_a_daemon_that_is_stuck(clock: FakeClock) -> None:
    journal = Journal()
    with Hold() as hold:
        scope = DaemonScope(clock=clock)
        first = scope.spawn(journal.daemon("first"), "first")
        second = scope.spawn(journal.daemon("second"), "second")
        stuck = scope.spawn(hold, "stuck")
        hold.wait_reached()
        stopped = in_background(lambda: scope.shutdown_all(timeout=6))

        clock.advance(2)  # a third of the time, after which the others are asked
        second.ended.wait(timeout=60)
        first.ended.wait(timeout=60)
        before = stopped.is_ready()
        clock.advance(4)

        with pytest.raises(ExceptionGroup) as raised:
            stopped.wait(timeout=60)
        stuck.ended.wait(timeout=60)
        assert not before
        assert {error.child for error in raised.value.exceptions if isinstance(error, StillRunningError)} == {"stuck"}
        assert journal.lines[-2:] == ["second ends", "first ends"]
        assert clock.monotonic() == 1006.0


def test_scope_has_one_deadline_for_several_that_are_stuck(clock: FakeClock) -> None:
    holds = [Hold() for _ in range(3)]
    scope = DaemonScope(clock=clock)
    refs = [scope.spawn(hold, f"stuck-{number}") for number, hold in enumerate(holds)]
    for hold in holds:
        hold.wait_reached()
    before: list[bool] = []
    stopped = in_background(lambda: scope.shutdown_all(timeout=6))
    for _ in holds:  # each has its part of the time before the next is asked
        before.append(stopped.is_ready())
        clock.advance(2)

    with pytest.raises(ExceptionGroup) as raised:
        stopped.wait(timeout=60)
    for ref, hold in zip(refs, holds, strict=True):
        ref.ended.wait(timeout=60)
        hold.release()
    names = [error.child for error in raised.value.exceptions if isinstance(error, StillRunningError)]
    assert names == ["stuck-2", "stuck-1", "stuck-0"]
    assert before == [False] * 3
    assert clock.monotonic() == 1006.0
    assert wait_no_threads() == []
    assert timers(clock) == []


def test_scope_accepts_a_daemon_that_stops_late_but_within_the_deadline(clock: FakeClock) -> None:
    with Hold() as hold:
        scope = DaemonScope(clock=clock)
        scope.spawn(waits)
        scope.spawn(hold, "slow")
        hold.wait_reached()
        stopped = in_background(lambda: scope.shutdown_all(timeout=6))
        clock.advance(3)  # its half
        hold.release()

        assert stopped.wait(timeout=60) is None
    assert timers(clock) == []


def test_scope_names_and_leaves_behind_an_actor_that_is_stuck(clock: FakeClock) -> None:
    with Hold() as hold:

        class Stuck(ControlActor):
            @override
            def on_stop(self) -> None:
                hold()

        scope = DaemonScope(clock=clock)
        scope.spawn(Stuck(clock=clock), "stuck actor")
        stopped = in_background(lambda: scope.shutdown_all(timeout=4))
        hold.wait_reached()

        clock.advance(4)

        with pytest.raises(ExceptionGroup) as raised:
            stopped.wait(timeout=60)
        assert [getattr(error, "child", None) for error in raised.value.exceptions] == ["stuck actor"]


def test_scope_raises_what_its_body_raised_and_a_daemon_left_behind_as_one_group(clock: FakeClock) -> None:
    refs: list[ControlRef] = []
    with Hold() as hold:

        def act() -> None:
            with DaemonScope(timeout=4, clock=clock) as scope:
                refs.append(scope.spawn(hold, "stuck"))
                raise ValueError("body")

        done = in_background(act)
        hold.wait_reached()
        clock.advance(4)

        with pytest.raises(ExceptionGroup) as raised:
            done.wait(timeout=60)
        refs[0].ended.wait(timeout=60)
        assert [type(error) for error in raised.value.exceptions][:2] == [ValueError, StillRunningError]


# Starting


@pytest.mark.parametrize(
    "daemon",
    [
        pytest.param("text", id="text"),
        pytest.param(None, id="none"),
        pytest.param(ReaperActor, id="class of an actor"),
        pytest.param(Journal, id="class"),
        pytest.param(ProbeLoop(), id="loop"),
    ],
)
def test_spawn_refuses_what_is_not_a_daemon_before_anything_starts(daemon: Any) -> None:
    with DaemonScope() as scope:
        with pytest.raises(TypeError, match=r"spawn\(\) takes an actor that is not started, or a function of a token"):
            scope.spawn(daemon)

        assert our_threads() == []


def test_spawn_refuses_an_actor_that_is_started_and_leaves_it_alone() -> None:
    actor = Noting("theirs", [])
    ref = actor.launch()

    with (
        DaemonScope() as scope,
        pytest.raises(TypeError, match=r"spawn\(\) takes an actor that is not started, but .* is$"),
    ):
        scope.spawn(actor)

    assert ref.is_alive()
    ref.stop()


def test_daemon_that_cannot_be_started_is_not_owned_and_the_next_can_be() -> None:
    lines: list[str] = []
    with DaemonScope() as scope:
        scope.spawn(Noting("before", lines))
        with pytest.raises(StartFailed, match="'broken' could not be started: ValueError") as raised:
            scope.spawn(Broken(start=ValueError("no")), "broken")
        scope.spawn(Noting("after", lines))

        assert isinstance(raised.value.__cause__, ValueError)
        assert raised.value.child == "broken"
        assert repr(scope) == "<DaemonScope, 2 daemons>"

    assert lines == ["before begins", "after begins", "after ends", "before ends"]


def test_daemon_that_cannot_be_started_stops_the_others_if_its_error_is_not_caught() -> None:
    lines: list[str] = []

    with pytest.raises(StartFailed), DaemonScope() as scope:  # noqa: PT012  the block is under test
        scope.spawn(Noting("before", lines))
        scope.spawn(Broken(start=ValueError("no")))

    assert lines == ["before begins", "before ends"]


@pytest.mark.parametrize("thread", ["-control", "-worker"])
def test_spawn_without_a_thread_is_a_failed_start(thread: str) -> None:
    def refuse(name: str) -> None:
        if name == f"waits{thread}":
            raise RuntimeError("can't start new thread")

    scope = DaemonScope(clock=FakeClock(blocking=FaultyBlocking(before_start=refuse)))

    with pytest.raises(StartFailed) as raised:
        scope.spawn(waits)

    assert isinstance(raised.value.__cause__, RuntimeError)
    assert repr(scope) == "<DaemonScope, 0 daemons>"
    scope.shutdown_all()


# Again


def test_shutdown_all_again_changes_nothing() -> None:
    def crash(token: Token) -> None:
        token.wait()
        raise KeyError("crashed")

    scope = DaemonScope()
    scope.spawn(crash)
    with pytest.raises(ExceptionGroup):
        scope.shutdown_all()

    scope.shutdown_all()

    assert repr(scope) == "<DaemonScope, 0 daemons>"


def test_a_shutdown_inside_of_the_block_leaves_nothing_to_do_at_its_end() -> None:
    lines: list[str] = []

    with DaemonScope() as scope:
        scope.spawn(Noting("daemon", lines))
        scope.shutdown_all()
        lines.append("body goes on")

    assert lines == ["daemon begins", "daemon ends", "body goes on"]


def test_a_scope_without_daemons_does_nothing() -> None:
    with DaemonScope() as scope:
        scope.shutdown_all()

    assert our_threads() == []


# Our own daemons


class Everything:
    """A supervisor with a loop, a watchdog and a reaper."""

    def __init__(self, clock: FakeClock) -> None:
        self.jobs: InMemoryMailbox[Any, Any] = InMemoryMailbox("jobs", clock=clock)
        child = ChildSpec(id="loop", start=lambda: MailboxLoop(self.jobs, lambda message: None, clock=clock))
        self.root = Supervisor("root", clock=clock, children=(child,))
        self.watchdog = WatchdogActor([self.root.actor_ref], clock=clock)
        self.reaper = ReaperActor([self.jobs], clock=clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.jobs.close()


def test_scope_runs_supervisor_watchdog_and_reaper_as_daemons(clock: FakeClock) -> None:
    with Everything(clock) as every:
        with daemon_scope(clock=clock) as scope:
            refs = [scope.spawn(each) for each in (every.root, every.watchdog, every.reaper)]
            clock.advance(0)

            names = {thread.name for thread in our_threads()}
            assert {"root-supervisor", "loopwarden-watchdog", "loopwarden-reaper", "loop-worker"} <= names
            loop = every.root.actor_ref.child("loop")
            assert loop.send(HealthCheckRequest()).wait(timeout=60).running

        assert [ref.is_alive() for ref in refs] == [False] * 3
        assert wait_no_threads() == []
        assert timers(clock) == []
        assert len(ZOMBIES._listeners) == 0
        assert every.jobs.store.queue.watchers == ()


def test_a_supervisor_whose_children_cannot_be_started_is_a_failure_to_start(clock: FakeClock) -> None:
    def crash() -> object:
        raise ValueError("no start")

    root = Supervisor("root", clock=clock, children=(ChildSpec(id="broken", start=crash),))

    with DaemonScope(clock=clock) as scope, pytest.raises(StartFailed, match="'tree' could not be started"):
        scope.spawn(root, "tree")


def test_a_supervisor_that_gave_up_is_an_error_of_the_scope(clock: FakeClock) -> None:
    jobs: InMemoryMailbox[Any, Any] = InMemoryMailbox("jobs", clock=clock)

    def handle(message: object) -> None:
        raise SystemExit

    child = ChildSpec(id="crashing", start=lambda: MailboxLoop(jobs, handle, clock=clock))
    root = Supervisor("root", clock=clock, children=(child,), intensity=0)
    with pytest.raises(ExceptionGroup) as raised, daemon_scope(clock=clock) as scope:  # noqa: PT012  the block is under test
        ref = scope.spawn(root)
        jobs.send("crash")
        ref.ended.wait(timeout=60)

    assert [type(error) for error in raised.value.exceptions] == [SupervisorGaveUp]
    jobs.close()


def test_scope_abandons_a_supervisor_with_a_child_that_hangs(clock: FakeClock) -> None:
    jobs: InMemoryMailbox[Any, Any] = InMemoryMailbox("jobs", clock=clock)
    jobs.send("stuck")
    with Hold() as hold:
        child = ChildSpec(id="stuck", start=lambda: MailboxLoop(jobs, hold, clock=clock), shutdown=60.0)
        scope = DaemonScope(clock=clock)
        ref = scope.spawn(Supervisor("root", clock=clock, children=(child,)), "tree")
        hold.wait_reached()
        stopped = in_background(lambda: scope.shutdown_all(timeout=4))

        clock.advance(4)

        with pytest.raises(ExceptionGroup) as raised:
            stopped.wait(timeout=60)
        left = [error for error in raised.value.exceptions if isinstance(error, StillRunningError)]
        assert [error.child for error in left] == ["tree"]
        ref.ended.wait(timeout=60)
        [message] = jobs.receive(wait_time_seconds=20)
        assert (message.body, hold.is_released) == ("stuck", False)
    assert wait_no_threads() == []
    jobs.close()


def test_scope_leaves_no_thread_after_a_hundred_daemons() -> None:
    started: Ticket[None] = Ticket()
    with daemon_scope() as scope:
        for number in range(100):
            scope.spawn(waits, f"daemon-{number}")
        write(started)

    assert wait_no_threads() == []
