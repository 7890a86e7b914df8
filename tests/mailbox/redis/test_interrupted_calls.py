"""A Ctrl-C in the middle of a call takes nothing with it: no message, and no wake-up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import ConnectionError as ServerConnectionError

from loopwarden._blocking import SYSTEM
from loopwarden.mailbox import RedisMailbox
from loopwarden.testing.contracts._background import run_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis_servers import Server

PATIENCE = 60.0
Jobs = RedisMailbox[Any, Any]


@pytest.fixture
def jobs(server: Server) -> Iterator[Jobs]:
    jobs: Jobs = RedisMailbox(server.url, "jobs", max_size=1)
    yield jobs
    jobs.close()


@pytest.fixture
def elsewhere(server: Server) -> Iterator[Jobs]:
    """The same mailbox as another process has it, which is another store."""
    with server.client() as client:
        elsewhere: Jobs = RedisMailbox(client, "jobs", max_size=1)
        yield elsewhere
        elsewhere.close()


@pytest.fixture
def interrupt_parking(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a Ctrl-C come when a call has parked, and has the notifier look up."""
    listen: Callable[..., Callable[[], object]] = jobs._store.listen

    def wake() -> None:
        raise KeyboardInterrupt

    def listened(base: str, bell: str | None = None) -> Callable[[], object]:
        wake_up = listen(base, bell)
        return wake_up if bell is None else wake

    monkeypatch.setattr(jobs._store, "listen", listened)


def do_nothing(*_: object) -> None: ...


@pytest.mark.parametrize("swept", ["at once", "by the close"])
def test_receive_that_is_interrupted_when_it_has_leased_leaves_the_message_to_others_by_its_close(
    jobs: Jobs, elsewhere: Jobs, monkeypatch: pytest.MonkeyPatch, swept: str
) -> None:
    ask: Callable[..., Any] = jobs._store.run_script

    def asked(script: str, *arguments: Any) -> Any:
        if script == "sweep" and swept == "by the close":
            raise ServerConnectionError("the connection is lost too")
        answer = ask(script, *arguments)
        if script == "receive":  # it is leased, and the answer is on its way
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(jobs._store, "beat", do_nothing)  # the next sign of life would put it back too
    jobs.send("a")
    with monkeypatch.context() as patched:
        patched.setattr(jobs._store, "run_script", asked)
        with pytest.raises(KeyboardInterrupt):
            jobs.receive(visibility_timeout=300)

    jobs.close()

    assert [(message.body, message.delivery_count) for message in elsewhere.receive()] == [("a", 1)]


@pytest.mark.usefixtures("interrupt_parking")
def test_receive_that_is_interrupted_while_it_parks_takes_no_wake_up_from_others(jobs: Jobs, elsewhere: Jobs) -> None:
    with pytest.raises(KeyboardInterrupt):
        jobs.receive(wait_time_seconds=20)
    assert jobs._store.awaited("loopwarden") == frozenset()
    is_visible = run_in_background(lambda: elsewhere.wait_visible(600), SYSTEM)

    jobs.send("a")

    assert is_visible.wait(PATIENCE)


@pytest.mark.usefixtures("interrupt_parking")
def test_send_that_is_interrupted_while_it_parks_takes_no_wake_up_from_others(jobs: Jobs, elsewhere: Jobs) -> None:
    jobs.send("a")
    with pytest.raises(KeyboardInterrupt):
        jobs.send("interrupted", timeout=600)
    assert jobs._store.awaited("loopwarden") == frozenset()
    sent = run_in_background(lambda: elsewhere.send("b", timeout=600), SYSTEM)

    jobs.receive()[0].acknowledge()

    sent.wait(PATIENCE)
    assert [message.body for message in jobs.receive()] == ["b"]
