from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

# The root holds a folder `mailbox`, which would hide the standard library's module of that name.
_ROOT = str(Path(__file__).resolve().parent.parent)
sys.path[:] = [entry for entry in sys.path if entry not in {"", _ROOT}]

import pykka  # noqa: E402  after the path is in order
import pytest  # noqa: E402  as above

from loopwarden._lock_order import VIOLATIONS  # noqa: E402  as above
from loopwarden.mailbox import InMemoryMailbox  # noqa: E402  as above
from loopwarden.testing import FakeClock, wait_no_threads  # noqa: E402  as above

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_plugins = ["pytester", "loop_kinds", "postgres_servers", "redis_servers"]


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    yield
    left = [thread.name for thread in wait_no_threads()]
    actors = [str(ref) for ref in pykka.ActorRegistry.get_all()]
    pykka.ActorRegistry.stop_all(block=False)
    found, VIOLATIONS[:] = list(VIOLATIONS), []
    assert not found, f"locks were taken out of order: {found}"
    assert not left, f"threads left behind: {left}"
    assert not actors, f"actors left behind: {actors}"


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock() as clock:
        yield clock


@pytest.fixture
def jobs(clock: FakeClock) -> Iterator[InMemoryMailbox[Any, Any]]:
    mailbox: InMemoryMailbox[Any, Any] = InMemoryMailbox("jobs", clock=clock)
    yield mailbox
    mailbox.close()


def pytest_sessionfinish(session: pytest.Session) -> None:
    left = [thread.name for thread in wait_no_threads()]
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        raise pytest.UsageError(f"after the whole run these threads are alive: {left}")
