"""Supervisors do what those of a real Erlang/OTP do: the same children, orders, answers and ends, step by step.

The scenarios are drawn from seeds. `YARDSTICK_SCENARIOS` says how many, `YARDSTICK_SEED` with which seed to begin; a
failure names its seed and tells all steps. Where there is no ``escript`` nothing is compared.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

import pytest

from loopwarden import ChildSpec, Supervisor
from loopwarden.clock import current_clock
from loopwarden.errors import (
    ChildBusyError,
    ChildExistsError,
    ChildNotFoundError,
    StartFailed,
)
from loopwarden.supervision import (
    CountChildrenRequest,
    DeleteChildRequest,
    RestartChildRequest,
    StartChildRequest,
    TerminateChildRequest,
    WhichChildrenRequest,
)
from loopwarden.testing import Simulation

if TYPE_CHECKING:
    from collections.abc import Generator

    from loopwarden._ticket import Ticket
    from loopwarden.supervision import ChildRef, SupervisorRef
    from loopwarden.supervision.tree._spec import AutoShutdown, Restart, Strategy

SCENARIOS = int(os.environ.get("YARDSTICK_SCENARIOS", "400"))
FIRST_SEED = int(os.environ.get("YARDSTICK_SEED", "0"))
#: Steps of a scenario whose root does not end before.
STEPS = 25
MAX_DEPTH = 3
MAX_CHILDREN = 12
#: Seconds in which restarts count together, as in yardstick.erl: no time passes in a scenario.
PERIOD = 3600.0

STRATEGIES: tuple[Strategy, ...] = ("one_for_one", "rest_for_one", "one_for_all")
RESTARTS: tuple[Restart, ...] = ("permanent", "permanent", "transient", "temporary")
AUTO: tuple[AutoShutdown, ...] = ("never", "never", "never", "any_significant", "all_significant")

HARNESS = Path(__file__).parents[2] / "support" / "otp" / "yardstick.erl"

#: One line of what a supervisor knows: its name, its children with state and type, and its counts.
Row: TypeAlias = list[Any]


# Trees, as data for both.


@final
@dataclass(frozen=True, slots=True)
class Tree:
    """A supervisor."""

    name: str
    strategy: Strategy
    intensity: int
    auto_shutdown: AutoShutdown
    children: tuple[Branch, ...]

    @property
    def term(self) -> str:
        """As Erlang reads it."""
        children = ", ".join(child.term for child in self.children)
        return f"{{{self.name}, {self.strategy}, {self.intensity}, {self.auto_shutdown}, [{children}]}}"

    @property
    def trees(self) -> Generator[Tree, None, None]:
        """This one and those below it."""
        yield self
        for child in self.children:
            if child.tree is not None:
                yield from child.tree.trees


@final
@dataclass(frozen=True, slots=True)
class Branch:
    """A child: a leaf, or a supervisor of its own name."""

    id: str
    restart: Restart
    significant: bool
    tree: Tree | None

    @property
    def term(self) -> str:
        """As Erlang reads it."""
        inner = "leaf" if self.tree is None else self.tree.term
        return f"{{{self.id}, {self.restart}, {str(self.significant).lower()}, {inner}}}"


@final
@dataclass(frozen=True, slots=True)
class Seen:
    """What can be seen after a step: the answer, who was started (+) and stopped (-), and the tree, if it is there."""

    answer: str
    log: list[str]
    tree: list[Row]


# Erlang's.


@final
class Otp:
    """One Erlang, which runs one tree after another."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @classmethod
    @contextmanager
    def open(cls) -> Generator[Otp, None, None]:
        """Run one for a ``with`` block."""
        escript = shutil.which("escript")
        assert escript is not None
        process = subprocess.Popen(
            [escript, str(HARNESS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="ascii"
        )
        try:
            yield cls(process)
        finally:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.stdout.close()
            process.kill()
            process.wait()

    def step(self, order: str) -> Seen:
        """Have one thing done; return when the tree has come to rest."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{order}.\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"Erlang has ended at {order}"
        return Seen(**json.loads(line))


# Ours.


class Boom(Exception):  # noqa: N818  it is what happened
    """What leaves die of."""


@final
class Leaf:
    """A loop that ends when it is told how."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name = name
        self._log = log
        self._ends = current_clock().blocking.queue()
        self._is_stopped = False

    def run(self) -> None:
        """Wait for the end."""
        if self._ends.get() == "error":
            raise Boom(self._name)

    def shutdown(self, *, timeout: float) -> None:
        """End as told by the supervisor, which is written down once."""
        if not self._is_stopped:
            self._is_stopped = True
            self._log.append(f"-{self._name}")
            self._ends.put("stop")

    def crash(self, how: str) -> None:
        """End by itself."""
        self._ends.put(how)


@final
@dataclass(slots=True)
class Ours:
    """Our own supervisors, in a simulation; what is asked of them is what Erlang's are asked."""

    sim: Simulation
    log: list[str] = field(default_factory=list[str])
    failures: dict[str, int] = field(default_factory=dict[str, int])
    ignored: set[str] = field(default_factory=set[str])
    leaves: dict[str, Leaf] = field(default_factory=dict[str, Leaf])
    root: SupervisorRef | None = None

    def begin(self, tree: Tree) -> Seen:
        root = self._make(tree).launch()
        self.sim.settle()
        self.root = None if root.ended.is_ready() else root
        return self._seen("start_failed" if self.root is None else "done")

    def fail(self, leaf: str, times: int) -> Seen:
        self.failures[leaf] = times
        return self._seen("done")

    def ignore(self, leaf: str) -> Seen:
        self.ignored.add(leaf)
        return self._seen("done")

    def crash(self, leaf: str, how: str) -> Seen:
        self.leaves[leaf].crash(how)
        self.sim.settle()
        return self._seen("done")

    def start(self, name: str, child: Branch) -> Seen:
        return self._ask(self._find(name).send(StartChildRequest(child=self._spec(child))))

    def terminate(self, name: str, child: str) -> Seen:
        return self._ask(self._find(name).send(TerminateChildRequest(id=child)))

    def restart(self, name: str, child: str) -> Seen:
        return self._ask(self._find(name).send(RestartChildRequest(id=child)))

    def delete(self, name: str, child: str) -> Seen:
        return self._ask(self._find(name).send(DeleteChildRequest(id=child)))

    def stop(self) -> Seen:
        if self.root is not None:
            self.root.stop()
            self.sim.settle()
        return self._seen("done")

    def _make(self, tree: Tree) -> Supervisor:
        self.log.append(f"+{tree.name}")
        return Supervisor(
            tree.name,
            strategy=tree.strategy,
            intensity=tree.intensity,
            period=PERIOD,
            auto_shutdown=tree.auto_shutdown,
            children=[self._spec(child) for child in tree.children],
            backoff=None,
            sequential=True,
        )

    def _spec(self, child: Branch) -> ChildSpec:
        tree = child.tree
        start = (lambda: self._start_leaf(child.id)) if tree is None else (lambda: self._make(tree))
        return ChildSpec(id=child.id, start=start, restart=child.restart, significant=child.significant)

    def _start_leaf(self, name: str) -> Leaf | None:
        self.log.append(f"+{name}")
        if self.failures.get(name):
            self.failures[name] -= 1
            raise Boom(name)
        if name in self.ignored:
            self.ignored.remove(name)
            return None
        leaf = self.leaves[name] = Leaf(name, self.log)
        return leaf

    def _find(self, name: str) -> SupervisorRef | ChildRef:
        return next(ref for each, ref in self._supervisors() if each == name)

    def _supervisors(self) -> list[tuple[str, SupervisorRef | ChildRef]]:
        """Return those that are up, as in a walk from left to right."""
        found: list[tuple[str, SupervisorRef | ChildRef]] = []
        left: list[tuple[str, SupervisorRef | ChildRef]] = [] if self.root is None else [("root", self.root)]
        while left:
            name, ref = left.pop(0)
            found.append((name, ref))
            children = ref.send(WhichChildrenRequest()).wait()
            left[:0] = [(each.id, each.ref) for each in children if each.is_supervisor and each.state == "up"]
        return found

    def _ask(self, ticket: Ticket[Any]) -> Seen:
        try:
            ticket.wait()
        except (ChildBusyError, ChildExistsError, ChildNotFoundError, StartFailed) as error:
            answer = _ANSWERS[type(error)]
        else:
            answer = "done"
        self.sim.settle()
        return self._seen(answer)

    def _seen(self, answer: str) -> Seen:
        if self.root is not None and self.root.ended.is_ready():
            self.root = None
        log, self.log[:] = list(self.log), []
        return Seen(answer, log, [self._row(name, ref) for name, ref in self._supervisors()])

    def _row(self, name: str, ref: SupervisorRef | ChildRef) -> Row:
        children = ref.send(WhichChildrenRequest()).wait()
        counts = ref.send(CountChildrenRequest()).wait()
        rows = [[each.id, each.state.value, "supervisor" if each.is_supervisor else "worker"] for each in children]
        return [name, rows, [counts.specs, counts.active, counts.supervisors, counts.workers]]


_ANSWERS = {
    ChildBusyError: "busy",
    ChildExistsError: "exists",
    ChildNotFoundError: "not_found",
    StartFailed: "start_failed",
}


# Scenarios.

Operation: TypeAlias = Literal["crash", "fail", "ignore", "start", "terminate", "restart", "delete"]
#: How often each is drawn.
OPERATIONS: dict[Operation, int] = {
    "crash": 6,
    "fail": 3,
    "ignore": 1,
    "start": 2,
    "terminate": 2,
    "restart": 1,
    "delete": 1,
}


@final
class Scenario:
    """What happens to a tree, drawn from a seed, on both sides."""

    def __init__(self, seed: int, otp: Otp, ours: Ours) -> None:
        self._dice = random.Random(seed)
        self._otp = otp
        self._ours = ours
        self._numbers = 0
        self._leaves: list[str] = []
        #: What was ever a child of a supervisor, so that it can be added once more.
        self._known: dict[str, list[Branch]] = {}
        self._trees: dict[str, Tree] = {}
        self._now: list[Row] = []
        #: What was done, for the report of a failure.
        self.story: list[str] = []

    def play(self) -> None:
        """Do it, and compare after each step."""
        tree = self._supervisor("root", 1)
        if self._dice.random() < 0.1:
            self._fail(self._dice.choice(self._leaves or ["leaf0"]))
        self._compare(f"{{'begin', {tree.term}}}", self._ours.begin(tree))
        for _ in range(STEPS):
            if not self._now:
                break
            [operation] = self._dice.choices(list(OPERATIONS), weights=list(OPERATIONS.values()))
            self._step(operation)
        self._compare("stop", self._ours.stop())

    # Growing.

    def _supervisor(self, name: str, depth: int) -> Tree:
        dice = self._dice
        auto = dice.choice(AUTO)
        self._known[name] = []
        children = [self._child(name, depth, auto) for _ in range(dice.randint(1, 5)) if self._numbers < MAX_CHILDREN]
        intensity = dice.choice((3, 5, 8, 2) if depth == 1 else (1, 2, 3, 0))
        self._trees[name] = Tree(name, dice.choice(STRATEGIES), intensity, auto, tuple(children))
        return self._trees[name]

    def _child(self, above: str, depth: int, auto: AutoShutdown) -> Branch:
        dice = self._dice
        restart = dice.choice(RESTARTS)
        significant = auto != "never" and restart != "permanent" and dice.random() < 0.5
        self._numbers += 1
        if depth < MAX_DEPTH and dice.random() < 0.3:
            name = f"s{self._numbers}"
            child = Branch(name, restart, significant, self._supervisor(name, depth + 1))
        else:
            child = Branch(f"leaf{self._numbers}", restart, significant, None)
            self._leaves.append(child.id)
        self._known[above].append(child)
        return child

    # Happening.

    def _step(self, operation: Operation) -> None:
        match operation:
            case "crash":
                self._crash()
            case "fail":
                self._fail(self._dice.choice(self._leaves or ["leaf0"]))
            case "ignore":
                leaf = self._dice.choice(self._leaves or ["leaf0"])
                self._compare(f"{{ignore, {leaf}}}", self._ours.ignore(leaf))
            case "start":
                self._start()
            case "terminate" | "restart" | "delete":
                name, rows, _ = self._dice.choice(self._now)
                child = self._dice.choice([row[0] for row in rows] or ["unknown"])
                self._ask(operation, name, child)

    def _crash(self) -> None:
        running = [row[0] for _, rows, _ in self._now for row in rows if row[1:] == ["up", "worker"]]
        if running:
            leaf, how = self._dice.choice(running), self._dice.choice(("error", "error", "normal"))
            self._compare(f"{{crash, {leaf}, {how}}}", self._ours.crash(leaf, how))

    def _fail(self, leaf: str) -> None:
        times = self._dice.randint(1, 3)
        self._compare(f"{{fail, {leaf}, {times}}}", self._ours.fail(leaf, times))

    def _start(self) -> None:
        name = self._dice.choice(self._now)[0]
        known = self._known[name]
        if known and (self._numbers >= MAX_CHILDREN or self._dice.random() < 0.3):
            child = self._dice.choice(known)
        else:
            child = self._child(name, MAX_DEPTH - self._dice.randint(0, 1), self._trees[name].auto_shutdown)
        self._compare(f"{{start, {name}, {child.term}}}", self._ours.start(name, child))

    def _ask(self, operation: Literal["terminate", "restart", "delete"], name: str, child: str) -> None:
        ask = {"terminate": self._ours.terminate, "restart": self._ours.restart, "delete": self._ours.delete}
        self._compare(f"{{{operation}, {name}, {child}}}", ask[operation](name, child))
        # The one agreed difference: with us a child that was terminated does not come up with its group. So in a
        # group it is brought up or deleted at once.
        if operation == "terminate" and self._trees[name].strategy != "one_for_one":
            then: Literal["restart", "delete"] = self._dice.choice(("restart", "delete"))
            self._compare(f"{{{then}, {name}, {child}}}", ask[then](name, child))

    def _compare(self, order: str, ours: Seen) -> None:
        self.story.append(order)
        theirs = self._otp.step(order)
        assert ours == theirs, "\n".join(["Erlang does something else. The steps:", *self.story])
        self._now = theirs.tree


@pytest.mark.prove
@pytest.mark.skipif(shutil.which("escript") is None, reason="there is no Erlang: escript (erlang-base) is not found")
def test_supervisor_does_what_erlangs_does(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "loopwarden")  # thousands of crashes that are meant
    with Otp.open() as otp:
        for seed in range(FIRST_SEED, FIRST_SEED + SCENARIOS):
            with Simulation(seed=seed) as sim:
                scenario = Scenario(seed, otp, Ours(sim))
                try:
                    scenario.play()
                except AssertionError as error:
                    error.add_note(f"YARDSTICK_SEED={seed} YARDSTICK_SCENARIOS=1 repeats it")
                    raise
