"""A Ctrl-C, a stop or a close in the middle of a call takes nothing with it: no message, no wake-up and no thread."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Any

import pytest
from postgres_elsewhere import elsewhere_of, wait_for_waiting

from loopwarden._blocking import SYSTEM
from loopwarden.errors import MailboxClosedError, MailboxConnectionError
from loopwarden.mailbox import PostgresMailbox, Token
from loopwarden.testing import wait_no_threads
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postgres_servers import PostgresServer

PATIENCE = 60.0
Jobs = PostgresMailbox[Any, Any]
_NOTHING_LEFT = "SELECT count(*) FROM loopwarden.members UNION ALL SELECT count(*) FROM loopwarden.waiting"


@pytest.fixture
def jobs(postgres: PostgresServer) -> Iterator[Jobs]:
    jobs: Jobs = PostgresMailbox(postgres.url, "jobs", max_size=1)
    yield jobs
    jobs.close()


@pytest.fixture
def elsewhere(postgres: PostgresServer) -> Iterator[Jobs]:
    with elsewhere_of(postgres, max_size=1) as elsewhere:
        yield elsewhere


def after(jobs: Jobs, monkeypatch: pytest.MonkeyPatch, procedure: str, act: Callable[[], object]) -> None:
    """Have something happen when the server has carried out a procedure, and before the answer is read."""
    ask: Callable[..., Any] = jobs._store.once

    def asked(mailbox: str, query: bytes, *given: Any, **options: Any) -> Any:
        answer = ask(mailbox, query, *given, **options)
        if f"loopwarden.{procedure}(".encode() in query:
            act()
        return answer

    monkeypatch.setattr(jobs._store, "once", asked)


def press_ctrl_c(*_: object) -> None:
    raise KeyboardInterrupt


def do_nothing(*_: object) -> float:
    return 600.0


def test_receive_in_a_process_that_has_no_sockets_for_a_notifier_receives_all_the_same(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "too many open files")

    jobs.send("a")
    monkeypatch.setattr(socket, "socketpair", refuse)

    assert [message.body for message in jobs.receive(wait_time_seconds=0.01)] == ["a"]
    assert jobs.receive(wait_time_seconds=0.01) == []


@pytest.mark.parametrize("put_back", ["at once", "by the close"])
def test_receive_that_is_interrupted_when_it_has_leased_leaves_the_message_to_others_by_its_close(
    jobs: Jobs, elsewhere: Jobs, monkeypatch: pytest.MonkeyPatch, put_back: str
) -> None:
    def lose() -> None:
        raise MailboxConnectionError("jobs", "the connection is lost too")

    monkeypatch.setattr(jobs._store, "beat", do_nothing)  # the next sign of life would put it back too
    jobs.send("a")
    with monkeypatch.context() as patched:
        after(jobs, patched, "receive", press_ctrl_c)
        if put_back == "by the close":
            after(jobs, patched, "give_back_lost", lose)
        with pytest.raises(KeyboardInterrupt):
            jobs.receive(visibility_timeout=300)

    jobs.close()

    assert [(message.body, message.delivery_count) for message in elsewhere.receive()] == [("a", 1)]


@pytest.mark.parametrize("when", ["before it is known", "when it is known"])
def test_receive_that_is_interrupted_while_it_parks_takes_no_wake_up_from_others(
    jobs: Jobs, elsewhere: Jobs, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    with monkeypatch.context() as patched:
        if when == "when it is known":
            after(jobs, patched, "wait", press_ctrl_c)  # as soon as the notifier listens
        else:
            patched.setattr(jobs._store, "wait_from_now", press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            jobs.receive(wait_time_seconds=20)
    assert jobs._store.awaited() == []
    is_visible = run_in_background(lambda: elsewhere.wait_visible(600), SYSTEM)
    wait_for_waiting(postgres, 2 if when == "when it is known" else 1)

    elsewhere.send("a")

    assert is_visible.wait(PATIENCE)


def test_send_that_is_interrupted_while_it_parks_takes_no_room_from_others(
    jobs: Jobs, elsewhere: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.send("a")
    with monkeypatch.context() as patched:
        patched.setattr(jobs._store, "listen", press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            jobs.send("interrupted", timeout=600)
    assert jobs._store.awaited() == []
    sent = run_in_background(lambda: elsewhere.send("b", timeout=600), SYSTEM)

    jobs.receive()[0].acknowledge()

    sent.wait(PATIENCE)
    assert [message.body for message in jobs.receive()] == ["b"]


@pytest.mark.parametrize("where", ["wake_all", "leave", "_leave_server"])
def test_close_that_is_interrupted_can_be_called_again(
    postgres: PostgresServer, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    jobs.receive()
    owner: Any = jobs._queue if where == "wake_all" else jobs._store
    done: Callable[..., None] = getattr(owner, where)

    def interrupted(_: Any, *arguments: Any) -> None:
        monkeypatch.undo()
        if where != "leave":
            done(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner.__class__, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        jobs.close()

    jobs.close()

    assert wait_no_threads() == []
    assert postgres.execute(_NOTHING_LEFT) == [(0,), (0,)]


@pytest.mark.parametrize("what", ["stop", "nudge"])
def test_what_the_server_gives_in_the_moment_of_a_stop_goes_back_at_once_and_uncounted(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    token = Token()
    jobs.send("in that very moment")
    with monkeypatch.context() as patched:
        after(jobs, patched, "receive", getattr(token, what))
        received = jobs.receive(wait_time_seconds=20, token=token)

    stats = jobs.stats()
    if what == "stop":
        assert (received, stats.ready, stats.leased) == ([], 1, 0)
        [message] = jobs.receive()
        assert message.delivery_count == 1
    else:
        assert ([message.body for message in received], stats.leased) == (["in that very moment"], 1)


@pytest.mark.parametrize("procedure", ["put", "receive"])
def test_call_whose_mailbox_is_closed_before_it_waits_leaves_no_thread(
    jobs: Jobs, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, procedure: str
) -> None:
    use: Callable[[], object] = lambda: jobs.receive(wait_time_seconds=20)  # noqa: E731  one of two
    if procedure == "put":
        jobs.send("fills it")
        use = lambda: jobs.send("waits", timeout=600)  # noqa: E731  as above
    after(jobs, monkeypatch, procedure, jobs.close)

    with pytest.raises(MailboxClosedError):
        use()

    assert wait_no_threads() == []
    assert postgres.execute(_NOTHING_LEFT) == [(0,), (0,)]


def test_receive_whose_mailbox_is_closed_while_it_leases_gives_back(
    jobs: Jobs, elsewhere: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.send("a")
    after(jobs, monkeypatch, "receive", jobs.close)

    with pytest.raises(MailboxClosedError):
        jobs.receive()

    assert wait_no_threads() == []
    assert [(message.body, message.delivery_count) for message in elsewhere.receive()] == [("a", 1)]


def test_receive_whose_mailbox_is_closed_before_it_takes_part_leaves_no_thread(
    jobs: Jobs, elsewhere: Jobs, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.send("a")
    take_part: Callable[..., None] = jobs._store.take_part

    def late(*arguments: Any) -> None:
        jobs.close()
        take_part(*arguments)

    monkeypatch.setattr(jobs._store, "take_part", late)

    with pytest.raises(MailboxClosedError):
        jobs.receive()

    assert wait_no_threads() == []
    assert postgres.execute(_NOTHING_LEFT) == [(0,), (0,)]
    assert [(message.body, message.delivery_count) for message in elsewhere.receive()] == [("a", 1)]


def test_sign_of_life_that_comes_after_a_close_leaves_no_trace(
    jobs: Jobs, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.receive()
    store, line = jobs._store, jobs._store.connections.line()
    call: Callable[..., Any] = line.call

    def late(query: bytes, *given: Any) -> Any:
        if b"loopwarden.beat(" in query:
            jobs.close()
        return call(query, *given)

    monkeypatch.setattr(line, "call", late)

    store.beat(line)

    line.close()
    assert wait_no_threads() == []
    assert postgres.execute(_NOTHING_LEFT) == [(0,), (0,)]
