"""A plain, recursive reading of Erlang's rules for supervisors, written from the rules alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, final

from loopwarden.errors import LoopAbandonedError
from loopwarden.supervision.tree._spec import ChildSpec, SupervisorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator


#: Less than a period of the supervisors, so that starts which hang count together.
START_TIMEOUT = 2.0

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
    #: A request took it down, so only a request brings it up: the one agreed difference to Erlang.
    is_terminated: bool = False
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
        #: Leaves that cannot drain; None before the drain.
        self.cannot_drain: frozenset[str] | None = None

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
        if self.cannot_drain is not None:  # nothing is started any more, whatever ends
            self.stop_what_cannot_drain()
            return
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

    # The drain, which Erlang has not: children are kept until the supervisor is told to stop.

    def drain(self, cannot: frozenset[str]) -> None:
        self.cannot_drain = cannot
        self.stop_what_cannot_drain()
        for child in list(self.children):
            if child.is_running and child.inner is not None:
                child.inner.drain(cannot)

    @property
    def kept(self) -> list[ModelChild]:
        """Children whose stop waits for the end of the drain; in a group, the ones on its left wait for the first."""
        is_ordered = self.spec.sequential or self.spec.strategy != "one_for_one"
        running = [each for each in reversed(self.children) if each.is_running]
        return [] if self.cannot_drain is None else running[:1] if is_ordered else running

    def stop_what_cannot_drain(self) -> None:
        assert self.cannot_drain is not None
        while stopped := [each for each in self.kept if each.spec.id in self.cannot_drain]:
            self.terminate(stopped[0])
        if not self.has_ended and not any(each.is_running for each in self.children):
            self.shut_down("shutdown")

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
        """Restart a child and those that go with it; return the one that could not be started."""
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
            if each not in dropped and not each.is_terminated and not self.start(each):
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
        child.is_terminated = True
        if child.spec.restart == "temporary":
            self.children.remove(child)
        return "done"

    def restart_child(self, child_id: str) -> str:
        child = self.find(child_id)
        if child is None:
            return "ChildNotFoundError"
        if child.is_running:
            return "ChildBusyError"
        # If it fails, the next try is up to the one who asked.
        child.is_terminated = False
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
        kept = self.kept
        return [
            (each.spec.id, "stopping" if each in kept else "up" if each.is_running else "down")
            for each in self.children
        ]


# The real thing.
