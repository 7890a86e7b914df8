"""Whole trees on real threads, one thing after another, do what the model does that reads Erlang's rules."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any, TypeAlias, final

import pytest
from children import Boom
from supervisor_model import ModelSupervisor, World

from loopwarden.supervision import (
    ChildSpec,
    DeleteChildRequest,
    RestartChildRequest,
    StartChildRequest,
    Supervisor,
    SupervisorSpec,
    TerminateChildRequest,
    WhichChildrenRequest,
)
from loopwarden.testing import FakeClock, ProbeLoop

if TYPE_CHECKING:
    from loopwarden.actors import Request
    from loopwarden.supervision import ChildInfo, ChildRef, SupervisorRef

MAX_DEPTH = 2
MAX_LEAVES = 6
STEPS = 12

#: The children of each supervisor that is alive, with their states.
View: TypeAlias = list[tuple[str, list[tuple[str, str]]]]


@final
class Tree:
    """A random tree, as a model and as real supervisors, to which the same things happen."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.numbers = itertools.count(1)
        self.clock = FakeClock()
        #: What the factories and loops of the leaves did: ``+leaf1`` is a start, ``-leaf1`` an order to stop.
        self.log: list[str] = []
        self.loops: dict[str, ProbeLoop] = {}
        self.failures: dict[str, int] = {}
        self.ends_by_itself: set[ProbeLoop] = set()
        self.leaves = 0
        modelled, real = self.supervisor("root", depth=1)
        self.model = ModelSupervisor(World(), modelled, None)
        self.real: SupervisorRef = Supervisor(**real).launch()

    # Growing: what describes a supervisor to the model, and the same for the real one.

    def supervisor(self, name: str, depth: int) -> tuple[SupervisorSpec, dict[str, Any]]:
        options: dict[str, Any] = {
            "name": name,
            "strategy": self.dice.choice(["one_for_one", "rest_for_one", "one_for_all"]),
            "auto_shutdown": self.dice.choice(["never", "never", "any_significant", "all_significant"]),
            "intensity": self.dice.choice([3, 5, None] if depth == 1 else [0, 1, 2, None]),
            "backoff": None,
            "sequential": True,
        }
        children = [self.child(depth, options["auto_shutdown"]) for _ in range(self.dice.randint(1, 3))]
        modelled = SupervisorSpec(**options, children=tuple(model for model, _ in children))
        return modelled, {**options, "clock": self.clock, "children": tuple(real for _, real in children)}

    def child(self, depth: int, auto_shutdown: str) -> tuple[ChildSpec, ChildSpec]:
        restart = self.dice.choice(["permanent", "permanent", "transient", "temporary"])
        significant = auto_shutdown != "never" and restart != "permanent" and self.dice.random() < 0.5
        fields: dict[str, Any] = {"restart": restart, "significant": significant}
        if depth < MAX_DEPTH and self.dice.random() < 0.5 and self.leaves < MAX_LEAVES:
            name = f"s{next(self.numbers)}"
            modelled, real = self.supervisor(name, depth + 1)
            return (
                ChildSpec(id=name, start=lambda: modelled, **fields),
                ChildSpec(id=name, start=lambda: Supervisor(**real), **fields),
            )
        self.leaves += 1
        name = f"leaf{next(self.numbers)}"
        return (
            ChildSpec(id=name, start=lambda: None, **fields),
            ChildSpec(id=name, start=lambda: self.leaf(name), **fields),
        )

    def leaf(self, name: str) -> ProbeLoop:
        self.log.append(f"+{name}")
        if self.failures.get(name):
            self.failures[name] -= 1
            raise Boom(name)
        loop = self.loops[name] = ProbeLoop()

        def note(_: object) -> None:
            if loop not in self.ends_by_itself:
                self.log.append(f"-{name}")

        loop.stop_asked.on_ready(note)
        return loop

    # What happens.

    def begin(self) -> None:
        self.model.init()
        self.real.ready.wait(timeout=60)

    def step(self) -> None:
        happening = self.dice.choice(
            ["crash"] * 4 + ["fail"] * 2 + ["terminate", "restart", "restart", "delete", "start"]
        )
        match happening:
            case "crash":
                self.crash()
            case "fail":
                self.fail()
            case _:
                self.ask(happening)

    def crash(self) -> None:
        running = [
            (model, child)
            for model in self.model.alive
            for child in model.children
            if child.is_running and child.inner is None
        ]
        if not running:
            return
        model, child = self.dice.choice(running)
        normally = self.dice.random() < 0.3
        loop = self.loops[child.spec.id]
        if normally:
            self.ends_by_itself.add(loop)
            loop.shutdown_nowait()
        else:
            loop.post(self.boom)
        model.exited(child, normally=normally)

    @staticmethod
    def boom() -> None:
        raise Boom

    def fail(self) -> None:
        leaf = self.dice.choice(sorted(self.loops))
        self.failures[leaf] = self.model.world.failures[leaf] = self.dice.randint(1, 3)

    def ask(self, what: str) -> None:
        model = self.dice.choice(list(self.model.alive))
        name = self.dice.choice([child.spec.id for child in model.children] or ["unknown"])
        request: Request[Any]
        match what:
            case "terminate":
                expected, request = model.terminate_child(name), TerminateChildRequest(id=name)
            case "restart":
                expected, request = model.restart_child(name), RestartChildRequest(id=name)
            case "delete":
                expected, request = model.delete_child(name), DeleteChildRequest(id=name)
            case _:
                modelled, real = self.child(MAX_DEPTH, model.spec.auto_shutdown)
                if self.dice.random() < 0.3:
                    self.failures[real.id] = self.model.world.failures[real.id] = 1
                expected, request = model.start_child(modelled), StartChildRequest(child=real)
        answer = self.real_of(model).send(request)
        answer.wait_ready(timeout=60)
        assert answer.is_ready()
        assert self.named(answer) == expected

    @staticmethod
    def named(answer: Any) -> str:
        try:
            answer.wait(0)
        except Exception as error:  # noqa: BLE001  it is data here
            return type(error).__name__
        return "done"

    def real_of(self, model: ModelSupervisor) -> Any:
        if model.parent is None:
            return self.real
        return self.infos(self.real_of(model.parent))[model.spec.name].ref

    @staticmethod
    def infos(ref: SupervisorRef | ChildRef) -> dict[str, ChildInfo]:
        return {info.id: info for info in ref.send(WhichChildrenRequest()).wait(timeout=60)}

    # Comparing.

    def look(self, name: str, ref: SupervisorRef | ChildRef) -> View:
        """Return what can be seen."""
        infos = self.infos(ref)
        seen: View = [(name, [(info.id, info.state.value) for info in infos.values()])]
        for info in infos.values():
            if info.is_supervisor and info.state.value == "up":
                seen += self.look(info.id, info.ref)
        return seen

    def compare(self) -> None:
        self.clock.advance(0)  # nothing is being done any more
        assert self.real.ended.is_ready() == self.model.has_ended
        seen = [] if self.model.has_ended else self.look("root", self.real)
        assert seen == [(model.spec.name, model.view) for model in self.model.alive]
        assert self.told() == self.expected()

    def told(self) -> list[str]:
        log, self.log[:] = list(self.log), []
        return log

    def expected(self) -> list[str]:
        entries, self.model.world.log[:] = list(self.model.world.log), []
        signs = {"start": "+", "stop": "-"}
        return [f"{signs[what]}{who}" for _, what, who in entries if what in signs and who.startswith("leaf")]

    def end(self) -> None:
        if not self.model.has_ended:
            self.model.terminate_all("shutdown")
        self.real.stop(timeout=60)
        assert self.told() == self.expected()


@pytest.mark.parametrize("seed", range(30))
def test_a_tree_on_real_threads_does_what_the_model_does(seed: int) -> None:
    tree = Tree(seed)
    try:
        tree.begin()
        tree.compare()
        for _ in range(STEPS):
            if not tree.model.has_ended:
                tree.step()
                tree.compare()
        tree.end()
    finally:
        tree.real.stop(timeout=60)
