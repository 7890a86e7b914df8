"""Supervisors whose children die all the time."""

from __future__ import annotations

import gc
import logging
import random
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pykka
import pytest

from loopwarden import ChildSpec, HealthCheckRequest, Supervisor, Token, WhichChildrenRequest, check_health
from loopwarden._blocking import SYSTEM
from loopwarden.actors import ZOMBIES, ControlActor, LoopActor, Ticket
from loopwarden.errors import SupervisorGaveUp
from loopwarden.supervision import Backoff, ChildRef, EventKind, SupervisionEvent
from loopwarden.testing import wait_no_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.prove

LOOPS = 500
#: As many crashes as there are in about ten seconds on a small machine, and how often to look meanwhile at least.
CRASHES = 4_000
LOOKS = 20
BACKOFF = Backoff(minimum=0.05, maximum=0.4, jitter=0.2)


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    logger = logging.getLogger("loopwarden")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(before)


class MortalLoop:
    """Lives for a second on average, and dies of an error."""

    def __init__(self, dice: random.Random) -> None:
        self._life = dice.expovariate(1.0)
        self._token = Token()

    def run(self) -> None:
        if not self._token.wait(self._life):
            raise ConnectionError("a storm")

    def shutdown(self, *, timeout: float) -> None:
        self._token.stop()

    def shutdown_nowait(self, timeout: float) -> bool:
        self._token.stop()
        return True


def census() -> Counter[str]:
    """Count what a supervisor could leave behind."""
    gc.collect()
    kinds: Any = (ControlActor, Ticket, ChildRef, MortalLoop, SupervisionEvent, BaseException)
    counts: Counter[str] = Counter()
    for each in gc.get_objects():
        if isinstance(each, kinds):
            counts[type(each).__name__] += 1
    counts["threads"] = threading.active_count()
    counts["actors"] = len(pykka.ActorRegistry.get_all())
    counts["zombies"] = len(ZOMBIES)
    return counts


def storm(seed: int) -> list[SupervisionEvent]:
    """Let it storm until there were many crashes, and ask for the health of all meanwhile; return the events."""
    dice = random.Random(seed)
    events: list[SupervisionEvent] = []
    children = tuple(
        ChildSpec(id=f"mortal-{number}", start=lambda: MortalLoop(dice), backoff=BACKOFF) for number in range(LOOPS)
    )
    with Supervisor.open("storm", intensity=None, children=children) as supervisor:
        stream = supervisor.subscribe()
        refs = [info.ref for info in supervisor.send(WhichChildrenRequest()).wait(timeout=60)]
        reading: Ticket[None] = Ticket()

        def read() -> None:
            events.extend(stream)  # which ends with the supervisor
            reading.complete(None)

        SYSTEM.start_thread(read, "reader")
        crashes = looks = 0
        while crashes < CRASHES or looks < LOOKS:
            assert len(check_health(refs, timeout=60)) == LOOPS
            health = supervisor.send(HealthCheckRequest()).wait(timeout=60)
            assert health.running
            assert len(supervisor.send(WhichChildrenRequest()).wait(timeout=60)) == LOOPS
            crashes, looks = health.restarts, looks + 1
    reading.wait(timeout=60)
    return events


@pytest.mark.timeout(600)
def test_a_storm_of_crashes_leaves_nothing_behind_and_health_is_answered_throughout() -> None:
    storm_before = census()  # with everything imported and made that is made once

    events = storm(seed=1)
    held_back_too_little = [
        (restarting, started)
        for restarting, started in restarts_of(events)
        if started.at < restarting.at + restarting.delay - 0.001
    ]
    beyond_bounds = [
        event
        for event in events
        if event.kind is EventKind.RESTARTING
        and not 0.8 * BACKOFF.delay(event.attempt, 0.5) <= event.delay <= 1.2 * BACKOFF.delay(event.attempt, 0.5)
    ]
    events.clear()

    assert held_back_too_little == []
    assert beyond_bounds == []
    assert wait_no_threads() == []
    assert {kind: count for kind, count in (census() - storm_before).items() if count > 2} == {}


def restarts_of(events: list[SupervisionEvent]) -> Iterator[tuple[SupervisionEvent, SupervisionEvent]]:
    """Return each announced restart with the start that followed."""
    announced: dict[str, SupervisionEvent] = {}
    for event in events:
        if event.kind is EventKind.RESTARTING:
            announced[event.child] = event
        elif event.kind is EventKind.STARTED and event.child in announced:
            yield announced.pop(event.child), event


def test_100_supervisors_give_up_exactly_at_the_first_restart_that_is_too_many() -> None:
    dice = random.Random(2)
    intensities = [dice.randrange(5) for _ in range(100)]
    supervisors = [
        Supervisor.start(
            f"storm-{number}",
            intensity=intensity,
            period=1_000.0,
            backoff=Backoff(minimum=0.001, maximum=0.002),
            children=(ChildSpec(id="mortal", start=Suicide),),
        )
        for number, intensity in enumerate(intensities)
    ]

    for intensity, supervisor in zip(intensities, supervisors, strict=True):
        with pytest.raises(SupervisorGaveUp):
            supervisor.wait(timeout=60)
        kinds = Counter(event.kind for event in supervisor.events())
        assert kinds[EventKind.RESTARTING] == intensity
        assert kinds[EventKind.EXITED] == intensity + 1
        assert kinds[EventKind.GAVE_UP] == 1


class Suicide:
    """Dies at once."""

    def run(self) -> None:
        raise ConnectionError("at once")

    def shutdown(self, *, timeout: float) -> None:
        pass


def test_1_000_starts_and_stops_of_a_tree_leave_no_actor_behind() -> None:
    class Idle:
        def __init__(self) -> None:
            self._token = Token()

        def run(self) -> None:
            self._token.wait()

        def shutdown(self, *, timeout: float) -> None:
            self._token.stop()

    def inner() -> Supervisor:
        return Supervisor("inner", children=tuple(ChildSpec(id=f"idle-{number}", start=Idle) for number in range(3)))

    for _ in range(1_000):
        with Supervisor.open("outer", strategy="one_for_all", children=(ChildSpec(id="inner", start=inner),)):
            pass

    assert wait_no_threads() == []
    assert [each for each in gc.get_objects() if isinstance(each, LoopActor) and each.actor_ref.is_alive()] == []
