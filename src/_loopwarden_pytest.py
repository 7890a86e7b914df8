"""Loopwarden's pytest plugin. It is loaded with every run of pytest, so it imports nothing until a fixture is used.

It is no part of the package, whose import alone would bring Pykka and pydantic into everybody's tests.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from contextlib import AbstractContextManager

    from loopwarden.supervision import SupervisorRef
    from loopwarden.testing import FakeClock, FaultyMailbox, Probe, Simulation

_HANG = "loopwarden_hang_timeout"
_SEED = "loopwarden_seed"
_failed = pytest.StashKey[bool]()
_NO_FAILURES = (pytest.skip.Exception, pytest.xfail.Exception, KeyboardInterrupt)
_used = pytest.StashKey[str]()  # which time of ours a test uses, and not another fixture of the same name


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the settings."""
    parser.addini(_HANG, "real seconds after which a test that uses Loopwarden's fixtures is ended", default="60")
    parser.addini(_SEED, "seed of the fixture `simulation`", default="0")


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker."""
    config.addinivalue_line("markers", "simulation(seed): the seed of Loopwarden's fixture `simulation` for this test")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Have what is logged in a test logged before the test goes on, so that `caplog` has it."""
    log = sys.modules.get("loopwarden._log")
    if log is not None:
        log.log_in_place(on=True)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """End a test of ours that hangs."""
    if "loopwarden.testing" in sys.modules:
        from loopwarden.testing import _hang_guard  # noqa: PLC0415  see above

        _hang_guard.limit = float(item.config.getini(_HANG))
    with _guard(item):
        outcome = yield
        if _used not in item.stash:
            return
        item.stash[_failed] = outcome.excinfo is not None
        if outcome.excinfo is not None:
            _add_story(outcome.excinfo[1])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, None]:
    """End what a test of ours waits for at its end, if that hangs."""
    with _guard(item):
        yield


def _guard(item: pytest.Item) -> AbstractContextManager[object]:
    if _used not in item.stash:
        return nullcontext()
    from loopwarden.testing import hang_guard  # noqa: PLC0415  see above

    return hang_guard(float(item.config.getini(_HANG)))


def _add_story(error: BaseException) -> None:
    from loopwarden.clock import current_clock  # noqa: PLC0415  see above
    from loopwarden.testing import Simulation, _fixtures  # noqa: PLC0415  see above

    simulation = current_clock()
    if isinstance(simulation, Simulation) and not isinstance(error, _NO_FAILURES):
        _fixtures.tell(simulation, error)


def _has_failed(request: pytest.FixtureRequest) -> Callable[[], bool]:
    return lambda: request.node.stash.get(_failed, False)


def _seed_of(marker: pytest.Mark) -> int | str:
    given: list[int | str] = [*marker.args, *(value for name, value in marker.kwargs.items() if name == "seed")]
    if len(given) != 1 or len(marker.kwargs) > 1 - len(marker.args):
        pytest.fail("the marker needs one seed, a number or a text: @pytest.mark.simulation(7)", pytrace=False)
    return given[0]


def _use(request: pytest.FixtureRequest, time: str) -> None:
    other = request.node.stash.get(_used, time)
    if other != time:
        pytest.fail(
            "a test has one time: ask for the fixture `simulation` or for `fake_clock`, not both", pytrace=False
        )
    request.node.stash[_used] = time


@pytest.fixture
def simulation(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    """A simulation around the test: all threads one at a time, in simulated time; leaks make the test fail."""
    from loopwarden.testing import _fixtures  # noqa: PLC0415  see above

    marker = request.node.get_closest_marker("simulation")
    seed = int(request.config.getini(_SEED)) if marker is None else _seed_of(marker)
    _use(request, "simulation")
    with _fixtures.checked_simulation(seed, _has_failed(request)) as simulation:
        yield simulation


@pytest.fixture
def fake_clock(request: pytest.FixtureRequest) -> Iterator[FakeClock]:
    """A clock that stands still until it is advanced, for threads that truly race; leaks make the test fail."""
    from loopwarden.testing import _fixtures  # noqa: PLC0415  see above

    _use(request, "fake_clock")
    with _fixtures.checked_fake_clock(_has_failed(request)) as clock:
        yield clock


@pytest.fixture
def _loopwarden_time(request: pytest.FixtureRequest) -> None:
    """Simulated time for what needs one, unless the test asks for a `fake_clock`."""
    if "fake_clock" in request.fixturenames:
        request.getfixturevalue("fake_clock")
    if _used not in request.node.stash:  # or that was another fixture of the same name
        request.getfixturevalue("simulation")


@pytest.fixture
def warden(request: pytest.FixtureRequest, _loopwarden_time: None) -> Iterator[SupervisorRef]:
    """A supervisor in simulated time, shut down and checked after the test."""
    from loopwarden.testing import _fixtures  # noqa: PLC0415  see above

    with _fixtures.open_warden(_has_failed(request)) as warden:
        yield warden


@pytest.fixture
def mailbox(_loopwarden_time: None) -> FaultyMailbox[Any, Any]:
    """A mailbox in simulated time, which can be made to fail."""
    from loopwarden.testing import _fixtures  # noqa: PLC0415  see above

    return _fixtures.open_mailbox_for_test()


@pytest.fixture
def probe(request: pytest.FixtureRequest, _loopwarden_time: None) -> Iterator[Probe]:
    """An actor that writes down what it is told."""
    from loopwarden.testing import Probe  # noqa: PLC0415  see above

    probe = Probe()
    yield probe
    probe.ref.stop(block=not _has_failed(request)())
