"""What the fixtures of the pytest plugin are made of; it needs no pytest."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from loopwarden.actors import ShutdownRequest
from loopwarden.clock import current_clock
from loopwarden.mailbox import InMemoryMailbox
from loopwarden.supervision import Supervisor
from loopwarden.testing._fake_clock import FakeClock
from loopwarden.testing._faulty_mailbox import FaultyMailbox
from loopwarden.testing._hang_guard import HangError
from loopwarden.testing._leaks import LeakError, find_leaks, standing
from loopwarden.testing._scheduler import DeadlockError
from loopwarden.testing._simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from loopwarden._blocking import Blocking
    from loopwarden.supervision import SupervisorRef

__all__ = ["checked_fake_clock", "checked_simulation", "open_mailbox_for_test", "open_warden", "tell"]

#: How many restarts the fixture `warden` allows in how many seconds: more than the five deliveries of `mailbox`, so
#: that a message that kills its loop is a dead letter before the warden gives up. A loop that dies whenever it is
#: started comes to that, with the usual back-off, in five minutes.
_INTENSITY, _PERIOD = 10, 600.0
_mailboxes: list[FaultyMailbox[Any, Any]] = []


@contextmanager
def checked_simulation(seed: int | str, has_failed: Callable[[], bool]) -> Generator[Simulation, None, None]:
    """Give a simulation that complains about what is left behind at its end, unless the test has failed anyway."""
    before = standing()
    simulation = Simulation(seed)
    try:
        with simulation, _closed_mailboxes():
            yield simulation
            if not has_failed():
                simulation.settle()  # a thread that is about to end has ended
                _complain(before, simulation, simulation)
    except BaseException as error:
        if error in simulation.scheduler.errors:
            tell(simulation, error)
        raise


def tell(simulation: Simulation, error: BaseException) -> None:
    """Add to an error in which simulation it was and, if that may explain it, what happened there."""
    text = f"in the simulation of seed {simulation.seed!r}"
    if isinstance(error, DeadlockError | HangError) or error in simulation.scheduler.errors:
        text = f"{text}:\n{simulation.story()}"
    error.add_note(text)


@contextmanager
def checked_fake_clock(has_failed: Callable[[], bool]) -> Generator[FakeClock, None, None]:
    """Give a clock that complains likewise."""
    before = standing()
    with FakeClock() as clock, _closed_mailboxes():
        yield clock
        if not has_failed():
            _complain(before, None, clock.blocking)


@contextmanager
def _closed_mailboxes() -> Generator[None, None, None]:
    """Close the mailboxes of a test when all has been looked at: that ends a loop which the test has forgotten."""
    try:
        yield
    finally:
        mailboxes, _mailboxes[:] = list(_mailboxes), []
        for each in mailboxes:
            each.close()


def _complain(before: list[object], simulation: Simulation | None, seam: Blocking) -> None:
    leaks = find_leaks(before=before, simulation=simulation, mailboxes=_mailboxes, seam=seam)
    if leaks:
        raise LeakError("the test has left behind:\n" + "\n".join(f"- {each}" for each in leaks))


@contextmanager
def open_warden(has_failed: Callable[[], bool]) -> Generator[SupervisorRef, None, None]:
    """Give a supervisor that is shut down at the end, and must have stopped cleanly then, unless the test failed.

    Raises:
        SupervisorGaveUp: if it has given up, and the test has not heard of it by `SupervisorRef.wait`.
    """
    warden = Supervisor.start("warden", intensity=_INTENSITY, period=_PERIOD)
    yield warden
    if has_failed():
        warden.stop(block=False)
        return
    clock = current_clock()
    if isinstance(clock, Simulation):
        clock.settle()  # a loop that is about to end, or the warden, has ended: neither is stopped on its way
    if warden.ended.is_ready():
        if not warden.has_told:
            warden.wait()  # it returns if the test has ended it
        return
    result = warden.send(ShutdownRequest(timeout=30.0)).wait()
    warden.stop()
    assert result.clean_shutdown, f"the warden did not stop cleanly: {result.error}"


def open_mailbox_for_test() -> FaultyMailbox[Any, Any]:
    """Return a mailbox that keeps bodies as JSON, as a durable one does, and that can be made to fail.

    It is closed with the clock of the test, after the leaks were looked for.
    """
    inner: InMemoryMailbox[Any, Any] = InMemoryMailbox("mailbox", roundtrip=True, clock=current_clock())
    mailbox: FaultyMailbox[Any, Any] = FaultyMailbox(inner)
    _mailboxes.append(mailbox)
    return mailbox
