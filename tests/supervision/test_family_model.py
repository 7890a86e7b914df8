"""Whole trees of supervisors do what a plain, recursive reading of Erlang's rules does.

The model is written from the rules alone. It does one thing after another and waits for each, as Erlang's supervisor
does; so do the simulated children, and then the two must agree on everything that can be seen.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar, final

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from loopwarden.errors import LoopAbandonedError
from loopwarden.supervision._effects import Answer, Effect, Finish, GiveUp, Note, Ready, Start, Stop, Wake
from loopwarden.supervision._family import Family
from loopwarden.supervision._spec import ChildSpec, Restart, SupervisorSpec
from loopwarden.supervision._verdict import exit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from loopwarden.supervision._spec import AutoShutdown, Strategy

PERIOD = 5.0
#: Less than a period, so that starts which hang count together.
START_TIMEOUT = 2.0
MAX_DEPTH = 3
MAX_FIRST_CHILDREN = 9
MAX_CHILDREN = 12

T = TypeVar("T")

End: TypeAlias = Literal["normal", "error", "killed"]
#: Which supervisor did what to which child; or that it ended, and why.
Entry: TypeAlias = tuple[str, str, str]

ENDS: dict[End, BaseException | None] = {
    "normal": None,
    "error": RuntimeError("boom"),
    "killed": LoopAbandonedError("leaf"),
}


@final
@dataclass(slots=True)
class World:
    """What is given, the time and how the next starts of a leaf go, and what was done."""

    now: float = 0.0
    failures: dict[str, int] = field(default_factory=dict[str, int])
    ignored: set[str] = field(default_factory=set[str])
    #: Leaves whose next start takes as long as it may, and then is given up.
    hanging: set[str] = field(default_factory=set[str])
    log: list[Entry] = field(default_factory=list[Entry])

    def outcome(self, leaf: str) -> Literal["up", "failed", "ignored", "hangs"]:
        """Return how this start of a leaf goes; one that hangs takes all of its time."""
        if leaf in self.hanging:
            self.hanging.remove(leaf)
            self.now += START_TIMEOUT
            return "hangs"
        if self.failures.get(leaf):
            self.failures[leaf] -= 1
            return "failed"
        if leaf in self.ignored:
            self.ignored.remove(leaf)
            return "ignored"
        return "up"


def supervisor_in(spec: ChildSpec) -> SupervisorSpec | None:
    """Return what a child supervises; None if it is a leaf."""
    assert spec.start is not None
    made = spec.start()
    assert made is None or isinstance(made, SupervisorSpec)
    return made


# The model.


@final
@dataclass(eq=False, slots=True)
class ModelChild:
    spec: ChildSpec
    is_running: bool = False
    #: Somebody took it down, so only somebody brings it up: the one agreed difference to Erlang.
    is_held_down: bool = False
    inner: ModelSupervisor | None = None


@final
class ModelSupervisor:
    """A supervisor of Erlang: synchronous, and one thing after another."""

    def __init__(self, world: World, spec: SupervisorSpec, parent: ModelSupervisor | None) -> None:
        self.world = world
        self.spec = spec
        self.parent = parent
        self.children = [ModelChild(each) for each in spec.children]
        self.restarts: list[float] = []
        self.has_ended = False

    # D2: start.

    def init(self) -> bool:
        for child in list(self.children):
            if not self.start(child):
                self.terminate_all("StartFailed")
                return False
        return True

    def start(self, child: ModelChild) -> bool:
        self.world.log.append((self.spec.name, "start", child.spec.id))
        inner = supervisor_in(child.spec)
        if inner is not None:
            child.inner = ModelSupervisor(self.world, inner, self)
            child.is_running = child.inner.init()
            return child.is_running
        outcome = self.world.outcome(child.spec.id)
        child.is_running = outcome == "up"
        if outcome == "ignored" and child.spec.restart == "temporary":
            self.children.remove(child)
        return outcome in {"up", "ignored"}

    # D7 and D8: stop.

    def terminate(self, child: ModelChild) -> None:
        if child.is_running:
            self.world.log.append((self.spec.name, "stop", child.spec.id))
            if child.inner is not None:
                child.inner.terminate_all("shutdown")
            child.is_running = False

    def terminate_all(self, why: str) -> None:
        for child in reversed(self.children):
            self.terminate(child)
        self.has_ended = True
        self.world.log.append((self.spec.name, "end", why))

    # D3: the end of a child.

    def exited(self, child: ModelChild, *, normally: bool) -> None:
        child.is_running = False
        if child.spec.restart == "permanent" or (child.spec.restart == "transient" and not normally):
            self.restart(child)
            return
        if child.spec.restart == "temporary":
            self.children.remove(child)
        if child.spec.significant:
            self.check_auto_shutdown()

    # D9: auto_shutdown.

    def check_auto_shutdown(self) -> None:
        others = [each for each in self.children if each.spec.significant and each.is_running]
        if self.spec.auto_shutdown == "any_significant" or not others:
            self.shut_down("shutdown")

    # D5: the end of the supervisor, as its parent sees it.

    def shut_down(self, why: str) -> None:
        self.terminate_all(why)
        if self.parent is not None:
            [me] = [each for each in self.parent.children if each.inner is self]
            self.parent.exited(me, normally=True)

    # D4: intensity.

    def may_restart(self) -> bool:
        if self.spec.intensity is None:
            return True
        if self.spec.intensity == 0:
            return False
        kept = [each for each in self.restarts if each >= self.world.now - self.spec.period]
        if len(kept) >= self.spec.intensity:
            return False
        self.restarts = [self.world.now, *kept]
        return True

    # D6: strategies.

    def restart(self, child: ModelChild) -> None:
        failed: ModelChild | None = child
        while failed is not None:
            if not self.may_restart():
                self.shut_down("SupervisorGaveUp")
                return
            failed = self.try_restart(failed)

    def try_restart(self, child: ModelChild) -> ModelChild | None:
        """Restart a child and whoever goes with it; return the one that could not be started."""
        place = self.children.index(child)
        first, last = {
            "one_for_one": (place, place + 1),
            "rest_for_one": (place, len(self.children)),
            "one_for_all": (0, len(self.children)),
        }[self.spec.strategy]
        group = self.children[first:last]
        for each in reversed(group):
            self.terminate(each)
        dropped = [each for each in group if each.spec.restart == "temporary"]
        self.children = [each for each in self.children if each not in dropped]
        for each in group:
            if each not in dropped and not each.is_held_down and not self.start(each):
                return each
        return None

    # D10: what people ask for.

    def find(self, child_id: str) -> ModelChild | None:
        return next((each for each in self.children if each.spec.id == child_id), None)

    def start_child(self, spec: ChildSpec) -> str:
        if self.find(spec.id) is not None:
            return "ChildExistsError"
        child = ModelChild(spec)
        self.children.append(child)
        if self.start(child):
            return "done"
        self.children.remove(child)
        return "StartFailed"

    def terminate_child(self, child_id: str) -> str:
        child = self.find(child_id)
        if child is None:
            return "ChildNotFoundError"
        self.terminate(child)
        child.is_held_down = True
        if child.spec.restart == "temporary":
            self.children.remove(child)
        return "done"

    def restart_child(self, child_id: str) -> str:
        child = self.find(child_id)
        if child is None:
            return "ChildNotFoundError"
        if child.is_running:
            return "ChildBusyError"
        # If it fails, whoever asked has it in hand.
        child.is_held_down = False
        return "done" if self.start(child) else "StartFailed"

    def delete_child(self, child_id: str) -> str:
        child = self.find(child_id)
        if child is None:
            return "ChildNotFoundError"
        if child.is_running:
            return "ChildBusyError"
        self.children.remove(child)
        return "done"

    # What can be seen.

    @property
    def alive(self) -> Iterator[ModelSupervisor]:
        """This supervisor and those below it."""
        if not self.has_ended:
            yield self
            for child in self.children:
                if child.is_running and child.inner is not None:
                    yield from child.inner.alive

    @property
    def view(self) -> list[tuple[str, str]]:
        return [(each.spec.id, "up" if each.is_running else "down") for each in self.children]


# The real thing.


@final
class RealSupervisor:
    """A `Family` whose children do at once what they are told."""

    def __init__(self, world: World, spec: SupervisorSpec, parent: RealSupervisor | None, incarnation: int) -> None:
        self.world = world
        self.spec = spec
        self.parent = parent
        self.incarnation = incarnation
        self.family = Family(spec)
        self.inner: dict[str, RealSupervisor] = {}
        self.is_ready = False
        self.has_ended = False
        self.cause: BaseException | None = None
        self.answers: list[str] = []

    def carry_out(self, effects: list[Effect]) -> None:
        queue = deque(effects)
        while queue:
            match queue.popleft():
                case Start(spec, incarnation):
                    queue.extend(self.start(spec, incarnation))
                case Stop(spec, incarnation):
                    queue.extend(self.stop(spec, incarnation))
                case Answer(_, error):
                    self.answers.append("done" if error is None else type(error).__name__)
                case Ready():
                    self.is_ready = True
                case Finish(cause):
                    assert not self.has_ended
                    self.has_ended, self.cause = True, cause
                    why = "shutdown" if cause is None else type(cause).__name__
                    self.world.log.append((self.spec.name, "end", why))
                case GiveUp(spec, incarnation, reason):
                    error = LoopAbandonedError(spec.id, reason)
                    queue.extend(self.family.start_failed(spec.id, incarnation, error, self.world.now, 0.5))
                case Wake():
                    pytest.fail("without a back-off nobody is to be woken")
                case Note():
                    pass

    def start(self, spec: ChildSpec, incarnation: int) -> list[Effect]:
        self.world.log.append((self.spec.name, "start", spec.id))
        inner_spec = supervisor_in(spec)
        if inner_spec is None:
            match self.world.outcome(spec.id):
                case "up":
                    return self.family.started(spec.id, incarnation, self.world.now)
                case "failed":
                    return self.family.start_failed(spec.id, incarnation, RuntimeError(), self.world.now, 0.5)
                case "hangs":
                    return self.family.start_timed_out(spec.id, incarnation)
                case "ignored":
                    return self.family.ignored(spec.id, incarnation)
        inner = self.inner[spec.id] = RealSupervisor(self.world, inner_spec, self, incarnation)
        inner.carry_out(inner.family.begin())
        if inner.is_ready:
            return self.family.started(spec.id, incarnation, self.world.now, is_supervisor=True)
        assert inner.cause is not None
        return self.family.start_failed(spec.id, incarnation, inner.cause, self.world.now, 0.5)

    def stop(self, spec: ChildSpec, incarnation: int) -> list[Effect]:
        self.world.log.append((self.spec.name, "stop", spec.id))
        if spec.id in self.inner:
            inner = self.inner[spec.id]
            inner.carry_out(inner.family.stop())
            assert inner.has_ended
        return self.family.ended(spec.id, incarnation, exit_of(None, asked=True), self.world.now, 0.5)

    def exited(self, child_id: str, incarnation: int, cause: BaseException | None) -> None:
        """Report the end of a child, and then our own if that follows."""
        ended = exit_of(cause, asked=False)
        self.carry_out(self.family.ended(child_id, incarnation, ended, self.world.now, 0.5))
        if self.has_ended and self.parent is not None:
            self.parent.exited(self.spec.name, self.incarnation, self.cause)

    def ask(self, request: Callable[[object], list[Effect]]) -> str:
        """Return the one answer to a request."""
        self.answers = []
        self.carry_out(request("waiter"))
        [answer] = self.answers
        return answer

    @property
    def alive(self) -> Iterator[RealSupervisor]:
        """This supervisor and those below it."""
        if not self.has_ended:
            yield self
            for child_id, child in self.family.roster.children.items():
                if child.state.is_alive and child_id in self.inner:
                    yield from self.inner[child_id].alive

    @property
    def view(self) -> list[tuple[str, str]]:
        return [(each.id, each.state.value) for each in self.family.roster.children.values()]


# Trees and what happens to them, from a string of bytes: nothing is drawn faster, and it shrinks well.


@final
class Choices:
    def __init__(self, data: bytes) -> None:
        self._data = iter(data)
        self.are_left = True

    def below(self, limit: int) -> int:
        """Return a number; 0 when there are no choices left."""
        value = next(self._data, None)
        self.are_left = value is not None
        return 0 if value is None else value % limit

    def of(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]


STRATEGIES: tuple[Strategy, ...] = ("one_for_one", "rest_for_one", "one_for_all")
RESTARTS: tuple[Restart, ...] = ("permanent", "permanent", "transient", "temporary")
AUTO: tuple[AutoShutdown, ...] = ("never", "never", "any_significant", "never", "all_significant")
INTENSITIES = (1, 2, 3, None, 0)
#: More patient, so that most trees see more than the end of their root.
ROOT_INTENSITIES = (3, None, 5, 2, 1, 0)
OPERATIONS = (
    ("crash",) * 6 + ("fail",) * 3 + ("wait", "wait", "terminate", "restart", "delete", "start", "ignore", "hang")
)
SECONDS = (1, 4, 5, 6)
CRASHES: tuple[End, ...] = ("error", "normal", "error", "killed")


@final
class Forest:
    """The model and the real thing, side by side."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.numbers = itertools.count(1)
        self.how_many = 0
        #: Whether a supervisor keeps its children in order.
        self.is_ordered: dict[str, bool] = {}
        self.leaves: list[str] = []
        #: The children that a supervisor has or had.
        self.specs: dict[str, list[ChildSpec]] = {}
        spec = self.supervisor("root", depth=1, at_most=MAX_FIRST_CHILDREN)
        self.model = ModelSupervisor(World(), spec, None)
        self.real = RealSupervisor(World(), spec, None, 0)
        self.worlds = (self.model.world, self.real.world)

    # Growing.

    def supervisor(self, name: str, depth: int, at_most: int) -> SupervisorSpec:
        choices = self.choices
        strategy = choices.of(STRATEGIES)
        auto = choices.of(AUTO)
        sequential = bool(choices.below(2))
        self.is_ordered[name] = sequential or strategy != "one_for_one"
        intensity = choices.of(ROOT_INTENSITIES if depth == 1 else INTENSITIES)
        slots = range(1 + choices.below(5))
        self.specs[name] = []
        children = [self.child(name, depth, at_most, auto) for _ in slots if self.how_many < at_most]
        return SupervisorSpec(
            name=name,
            strategy=strategy,
            auto_shutdown=auto,
            sequential=sequential,
            intensity=intensity,
            period=PERIOD,
            backoff=None,
            children=tuple(children),
        )

    def child(self, parent: str, depth: int, at_most: int, auto: AutoShutdown) -> ChildSpec:
        restart = self.choices.of(RESTARTS)
        significant = auto != "never" and restart != "permanent" and not self.choices.below(2)
        self.how_many += 1
        inner: SupervisorSpec | None = None
        if depth < MAX_DEPTH and self.choices.below(3) == 1:
            name = f"s{next(self.numbers)}"
            inner = self.supervisor(name, depth + 1, at_most)
        else:
            name = f"leaf{next(self.numbers)}"
            self.leaves.append(name)
        spec = ChildSpec(
            id=name, start=lambda: inner, restart=restart, significant=significant, start_timeout=START_TIMEOUT
        )
        self.specs[parent].append(spec)
        return spec

    # What happens.

    def begin(self) -> None:
        if self.choices.below(16) == 15:
            self.fail(self.choices.of(self.leaves))
        self.model.init()
        self.real.carry_out(self.real.family.begin())

    def step(self) -> None:
        operation = self.choices.of(OPERATIONS)
        match operation:
            case "crash":
                self.crash()
            case "fail":
                self.fail(self.choices.of(self.leaves))
            case "ignore":
                leaf = self.choices.of(self.leaves)
                for world in self.worlds:
                    world.ignored.add(leaf)
            case "hang":
                leaf = self.choices.of(self.leaves)
                for world in self.worlds:
                    world.hanging.add(leaf)
            case "wait":
                seconds = self.choices.of(SECONDS)
                for world in self.worlds:
                    world.now += seconds
            case _:
                self.ask(operation)

    def crash(self) -> None:
        running = [
            (model, real, child)
            for model, real in self.alive()
            for child in model.children
            if child.is_running and child.inner is None
        ]
        if not running:
            return
        model, real, child = self.choices.of(running)
        end = self.choices.of(CRASHES)
        note(f"{child.spec.id} ends: {end}")
        incarnation = real.family.roster.children[child.spec.id].incarnation
        model.exited(child, normally=end == "normal")
        real.exited(child.spec.id, incarnation, ENDS[end])

    def fail(self, leaf: str) -> None:
        times = 1 + self.choices.below(4)
        for world in self.worlds:
            world.failures[leaf] = times

    def ask(self, operation: str) -> None:
        model, real = self.choices.of(self.alive())
        family = real.family
        if operation == "start":
            spec = self.spec_to_start(model)
            note(f"start {spec.id} in {model.spec.name}")
            answers = model.start_child(spec), real.ask(lambda waiter: family.start_child(spec, waiter))
        else:
            child_id = self.choices.of([each.spec.id for each in model.children] or ["nobody"])
            note(f"{operation} {child_id} in {model.spec.name}")
            match operation:
                case "terminate":
                    answers = (
                        model.terminate_child(child_id),
                        real.ask(lambda waiter: family.terminate_child(child_id, waiter)),
                    )
                case "restart":
                    answers = (
                        model.restart_child(child_id),
                        real.ask(lambda waiter: family.restart_child(child_id, waiter)),
                    )
                case _:
                    answers = (
                        model.delete_child(child_id),
                        real.ask(lambda waiter: family.delete_child(child_id, waiter)),
                    )
        assert answers[0] == answers[1]

    def spec_to_start(self, model: ModelSupervisor) -> ChildSpec:
        """Return a new child, or one that is or was there already."""
        known = self.specs[model.spec.name]
        if known and (self.how_many >= MAX_CHILDREN or self.choices.below(3) == 2):
            return self.choices.of(known)
        depth = 1
        above = model.parent
        while above is not None:
            depth, above = depth + 1, above.parent
        spec = self.child(model.spec.name, depth, MAX_CHILDREN, model.spec.auto_shutdown)
        if self.choices.below(3) == 2:
            self.fail(self.leaves[-1])
        return spec

    # Comparing.

    def alive(self) -> list[tuple[ModelSupervisor, RealSupervisor]]:
        return list(zip(self.model.alive, self.real.alive, strict=True))

    def compare(self) -> None:
        model, real = self.worlds
        note(f"{real.log}")
        if all(self.is_ordered.values()):
            assert real.log == model.log
        for name, is_ordered in self.is_ordered.items():
            expected = [entry for entry in model.log if entry[0] == name]
            actual = [entry for entry in real.log if entry[0] == name]
            assert actual == expected if is_ordered else sorted(actual) == sorted(expected)
        model.log.clear()
        real.log.clear()
        assert self.real.has_ended == self.model.has_ended
        assert [(each.spec.name, each.view) for each in self.real.alive] == [
            (each.spec.name, each.view) for each in self.model.alive
        ]


@pytest.mark.parametrize("count", [500, pytest.param(50_000, marks=[pytest.mark.prove, pytest.mark.timeout(900)])])
def test_a_tree_of_supervisors_does_what_the_model_does(count: int) -> None:
    @settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.binary(min_size=200, max_size=200))
    def run(data: bytes) -> None:
        choices = Choices(data)
        forest = Forest(choices)
        forest.begin()
        forest.compare()
        while choices.are_left and not forest.model.has_ended:
            forest.step()
            forest.compare()

    run()
