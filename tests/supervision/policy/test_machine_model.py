"""Whole trees of supervisors do what a plain, recursive reading of Erlang's rules does.

The model is written from the rules alone. It does one thing after another and waits for each, as Erlang's supervisor
does; so do the simulated children, and then the two must agree on everything that can be seen.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, TypeVar, final

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from supervisor_model import ENDS, START_TIMEOUT, End, ModelSupervisor, World, supervisor_in

from loopwarden.errors import LoopAbandonedError
from loopwarden.supervision.policy._effects import (
    Effect,
    EmitEvent,
    Finish,
    GiveUp,
    Hold,
    Ready,
    Reply,
    Start,
    StartTimer,
    Stop,
)
from loopwarden.supervision.policy._machine import SupervisorMachine
from loopwarden.supervision.policy._restart import exit_of
from loopwarden.supervision.tree._spec import ChildSpec, Restart, SupervisorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from loopwarden.supervision.tree._spec import AutoShutdown, Strategy

PERIOD = 5.0
MAX_DEPTH = 3
MAX_FIRST_CHILDREN = 9
MAX_CHILDREN = 12

T = TypeVar("T")


@final
class RealSupervisor:
    """A `SupervisorMachine` whose children do at once what they are told."""

    def __init__(self, world: World, spec: SupervisorSpec, parent: RealSupervisor | None, incarnation: int) -> None:
        self.world = world
        self.spec = spec
        self.parent = parent
        self.incarnation = incarnation
        self.machine = SupervisorMachine(spec)
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
                case Reply(_, error):
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
                    queue.extend(self.machine.start_failed(spec.id, incarnation, error, self.world.now, 0.5))
                case StartTimer():
                    pytest.fail("without a back-off there is nothing to wait for")
                case Hold() | EmitEvent():
                    pass

    def start(self, spec: ChildSpec, incarnation: int) -> list[Effect]:
        self.world.log.append((self.spec.name, "start", spec.id))
        inner_spec = supervisor_in(spec)
        if inner_spec is None:
            match self.world.outcome(spec.id):
                case "up":
                    return self.machine.started(spec.id, incarnation, self.world.now)
                case "failed":
                    return self.machine.start_failed(spec.id, incarnation, RuntimeError(), self.world.now, 0.5)
                case "hangs":
                    return self.machine.timed_out(spec.id, incarnation)
                case "ignored":
                    return self.machine.ignored(spec.id, incarnation)
        inner = self.inner[spec.id] = RealSupervisor(self.world, inner_spec, self, incarnation)
        inner.carry_out(inner.machine.begin())
        if inner.is_ready:
            return self.machine.started(spec.id, incarnation, self.world.now, is_supervisor=True)
        assert inner.cause is not None
        return self.machine.start_failed(spec.id, incarnation, inner.cause, self.world.now, 0.5)

    def stop(self, spec: ChildSpec, incarnation: int) -> list[Effect]:
        self.world.log.append((self.spec.name, "stop", spec.id))
        if spec.id in self.inner:
            inner = self.inner[spec.id]
            inner.carry_out(inner.machine.stop())
            assert inner.has_ended
        return self.machine.ended(spec.id, incarnation, exit_of(None, asked=True), self.world.now, 0.5)

    def drain(self, cannot: frozenset[str]) -> None:
        alive = [each for each in self.machine.roster.children.values() if each.state.is_alive]
        self.carry_out(self.machine.drain({each.incarnation for each in alive if each.id not in cannot}))
        self.tell_parent_of_the_end()
        for child in alive:
            if child.id in self.inner and not self.inner[child.id].has_ended:
                self.inner[child.id].drain(cannot)

    def exited(self, child_id: str, incarnation: int, cause: BaseException | None) -> None:
        """Report the end of a child, and then our own if that follows."""
        ended = exit_of(cause, asked=False)
        self.carry_out(self.machine.ended(child_id, incarnation, ended, self.world.now, 0.5))
        self.tell_parent_of_the_end()

    def tell_parent_of_the_end(self) -> None:
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
            for child_id, child in self.machine.roster.children.items():
                if child.state.is_alive and child_id in self.inner:
                    yield from self.inner[child_id].alive

    @property
    def view(self) -> list[tuple[str, str]]:
        return [(each.id, each.state.value) for each in self.machine.roster.children.values()]


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
        self.real.carry_out(self.real.machine.begin())

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
        incarnation = real.machine.roster.children[child.spec.id].incarnation
        model.exited(child, normally=end == "normal")
        real.exited(child.spec.id, incarnation, ENDS[end])

    def fail(self, leaf: str) -> None:
        times = 1 + self.choices.below(4)
        for world in self.worlds:
            world.failures[leaf] = times

    def ask(self, operation: str) -> None:
        model, real = self.choices.of(self.alive())
        machine = real.machine
        if operation == "start":
            spec = self.spec_to_start(model)
            note(f"start {spec.id} in {model.spec.name}")
            answers = model.start_child(spec), real.ask(lambda waiter: machine.start_child(spec, waiter))
        else:
            child_id = self.choices.of([each.spec.id for each in model.children] or ["unknown"])
            note(f"{operation} {child_id} in {model.spec.name}")
            match operation:
                case "terminate":
                    answers = (
                        model.terminate_child(child_id),
                        real.ask(lambda waiter: machine.terminate_child(child_id, waiter)),
                    )
                case "restart":
                    answers = (
                        model.restart_child(child_id),
                        real.ask(lambda waiter: machine.restart_child(child_id, waiter)),
                    )
                case _:
                    answers = (
                        model.delete_child(child_id),
                        real.ask(lambda waiter: machine.delete_child(child_id, waiter)),
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

    def end(self) -> None:
        """Drain the tree, let some of its leaves end meanwhile, and stop it; compare after each step."""
        cannot = frozenset(leaf for leaf in self.leaves if not self.choices.below(3))
        note(f"drain, but {sorted(cannot)} cannot")
        self.model.drain(cannot)
        self.real.drain(cannot)
        self.compare()
        for _ in range(self.choices.below(4)):
            if not self.model.has_ended:
                self.crash()
                self.compare()
        if not self.model.has_ended:
            note("stop")
            self.model.terminate_all("shutdown")
            self.real.carry_out(self.real.machine.stop())
            self.compare()
        assert self.real.has_ended

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
        steps = len(data) if choices.below(2) else choices.below(20)
        while steps and choices.are_left and not forest.model.has_ended:
            forest.step()
            forest.compare()
            steps -= 1
        if not forest.model.has_ended:
            forest.end()

    run()
