"""Loopwarden's pytest plugin. It is loaded with every run of pytest, so it imports nothing until a fixture is used.

It is no part of the package, whose import alone would bring Pykka and pydantic into everybody's tests.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from loopwarden.supervision import SupervisorRef
    from loopwarden.testing import FakeClock, FaultyMailbox, Probe, Simulation

_OURS = {"simulation", "fake_clock", "warden", "mailbox", "probe"}
_HANG = "loopwarden_hang_timeout"
_SEED = "loopwarden_seed"
_failed = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the settings."""
    parser.addini(_HANG, "real seconds after which a test that uses Loopwarden's fixtures is ended", default="60")
    parser.addini(_SEED, "seed of the fixture `simulation`", default="0")


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker."""
    config.addinivalue_line("markers", "simulation(seed): the seed of Loopwarden's fixture `simulation` for this test")


def _is_ours(item: pytest.Item) -> bool:
    # Somebody else's fixture may be called like one of ours: then nothing of ours has been imported.
    return bool(_OURS & set(getattr(item, "fixturenames", ()))) and "loopwarden.testing" in sys.modules


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """End a test of ours that hangs."""
    if not _is_ours(item):
        yield
        return
    from loopwarden.testing import hang_guard  # noqa: PLC0415  see above

    with hang_guard(float(item.config.getini(_HANG))):
        outcome = yield
        item.stash[_failed] = outcome.excinfo is not None
        if outcome.excinfo is not None:
            _add_story(outcome.excinfo[1])


def _add_story(error: BaseException) -> None:
    from loopwarden.clock import current_clock  # noqa: PLC0415  see above
    from loopwarden.testing import Simulation  # noqa: PLC0415  see above

    simulation = current_clock()
    if isinstance(simulation, Simulation) and isinstance(error, Exception):
        error.add_note(f"in the simulation of seed {simulation.seed!r}:\n{simulation.story()}")


def _has_failed(request: pytest.FixtureRequest) -> Callable[[], bool]:
    return lambda: request.node.stash.get(_failed, False)


@pytest.fixture
def simulation(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    """A simulation around the test: all threads one at a time, in simulated time; leaks make the test fail."""
    from loopwarden.testing import _fixtures  # noqa: PLC0415  see above

    marker = request.node.get_closest_marker("simulation")
    seed = int(request.config.getini(_SEED)) if marker is None else marker.args[0]
    with _fixtures.checked_simulation(seed, _has_failed(request)) as simulation:
        yield simulation


@pytest.fixture
def fake_clock(request: pytest.FixtureRequest) -> Iterator[FakeClock]:
    """A clock that stands still until it is advanced, for threads that truly race; leaks make the test fail."""
    from loopwarden.testing import _fixtures  # noqa: PLC0415  see above

    with _fixtures.checked_fake_clock(_has_failed(request)) as clock:
        yield clock


@pytest.fixture
def _time(request: pytest.FixtureRequest) -> None:
    """Simulated time for what needs one, unless the test asks for a `fake_clock`."""
    request.getfixturevalue("fake_clock" if "fake_clock" in request.fixturenames else "simulation")


@pytest.fixture
def warden(request: pytest.FixtureRequest, _time: None) -> Iterator[SupervisorRef]:
    """A supervisor in simulated time, shut down and checked after the test."""
    from loopwarden.testing import _fixtures  # noqa: PLC0415  see above

    with _fixtures.open_warden(_has_failed(request)) as warden:
        yield warden


@pytest.fixture
def mailbox(_time: None) -> Iterator[FaultyMailbox[Any, Any]]:
    """A mailbox in simulated time, which can be made to fail."""
    from loopwarden.testing import _fixtures  # noqa: PLC0415  see above

    with _fixtures.open_mailbox_for_test() as mailbox:
        yield mailbox


@pytest.fixture
def probe(request: pytest.FixtureRequest, _time: None) -> Iterator[Probe]:
    """An actor that writes down what it is told."""
    from loopwarden.testing import Probe  # noqa: PLC0415  see above

    probe = Probe()
    yield probe
    probe.ref.stop(block=not _has_failed(request)())
