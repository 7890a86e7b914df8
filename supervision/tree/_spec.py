"""`ChildSpec` and `SupervisorSpec`: what to supervise and how, as data that is validated before anything starts."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias, TypedDict, cast

import pykka
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from typing_extensions import override

from loopwarden._backoff import Backoff
from loopwarden._log import describe
from loopwarden._model import Model, fault_of, must_be
from loopwarden.supervision.policy._budget import Priority

__all__ = ["AutoShutdown", "ChildSpec", "Decision", "Restart", "Strategy", "SupervisorOptions", "SupervisorSpec"]

Strategy: TypeAlias = Literal["one_for_one", "one_for_all", "rest_for_one"]
Restart: TypeAlias = Literal["permanent", "transient", "temporary"]
AutoShutdown: TypeAlias = Literal["never", "any_significant", "all_significant"]
Decision: TypeAlias = Literal["restart", "stop", "escalate"]

_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Period = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Patience = Annotated[float, Field(ge=0)]
_Count = Annotated[int, Field(ge=0)]


def _check_printable(name: str) -> str:
    """Refuse a name that could forge lines of a log, or control a terminal."""
    if not name.isprintable():
        raise ValueError(f"must be printable, without line breaks and control characters, got {name!r}")
    return name


_Name = Annotated[str, Field(min_length=1), AfterValidator(_check_printable)]


def _as_tuple(children: object) -> object:
    """Accept a list as well."""
    if not isinstance(children, list | tuple):
        raise ValueError(f"must be a list, as children=[ChildSpec(id=…, start=lambda: …)], got {describe(children)}")  # noqa: TRY004  pydantic passes on only a ValueError
    return tuple(cast("list[object]", children))


def _has_fields(data: object) -> bool:
    """Say whether something could be the fields of a spec."""
    return isinstance(data, dict) and all(isinstance(key, str) for key in cast("dict[object, object]", data))


def _check_factory(start: Callable[[], object] | None) -> Callable[[], object] | None:
    """Refuse what makes no loop when it is called without arguments."""
    if start is None:
        return None
    if inspect.iscoroutinefunction(start) or inspect.isgeneratorfunction(start) or inspect.isasyncgenfunction(start):
        raise ValueError(
            f"must be a plain function, but {describe(start)} is a coroutine or generator function: what it makes can"
            " be made by start=lambda: …"
        )
    try:
        parameters = inspect.signature(start).parameters.values()
    except Exception:  # noqa: BLE001  C code may have none, and that of others may raise: then it is tried
        return start
    needed = [
        each.name
        for each in parameters
        if each.default is each.empty and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
    ]
    if needed:
        raise ValueError(
            f"must be a function without arguments, but {describe(start)} needs ({', '.join(needed)}): bind what it"
            " needs by start=lambda: …"
        )
    return start


class _Spec(Model):
    """A spec: its errors name the child or the supervisor."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    @model_validator(mode="wrap")
    @classmethod
    def _name_the_culprit(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, cls) and not _has_fields(data):
            raise ValueError(cls._wrong_kind(data))
        try:
            spec = handler(data)
            fault = spec._find_contradiction()  # noqa: SLF001  its own class
        except ValidationError as error:
            fault = fault_of(error, cls)
        else:
            if fault is None:
                return spec
        fields = cast("dict[str, object]", data) if isinstance(data, dict) else {}
        kind, key = ("child", "id") if "id" in cls.model_fields else ("supervisor", "name")
        raise ValueError(f"{kind} {describe(fields[key])}: {fault}" if key in fields else f"{cls.__name__}: {fault}")

    @classmethod
    def _wrong_kind(cls, data: object) -> str:
        return f"it must be a {cls.__name__}, got {describe(data)}"

    def _find_contradiction(self) -> str | None:
        """Return what is wrong with a combination of fields; None if they are consistent."""
        return None


class ChildSpec(_Spec):
    """One child: how it is started, when it is restarted, how it is stopped.

    It has either ``start``, which is called for each start of the child and returns a new loop, one of our actors that
    is not started (a `Supervisor`, say), or None for "not now"; or ``actor``, a Pykka actor class, unmodified.

    >>> from loopwarden.testing import ProbeLoop
    >>> ChildSpec(id="resize", start=ProbeLoop).restart
    'permanent'
    """

    #: Its name, unique in its supervisor.
    id: _Name
    #: Makes the loop or the actor; called on a thread of its own, so it may block.
    start: Annotated[
        Callable[[], object] | None,
        must_be("a function that makes a loop: start=lambda: …"),
        AfterValidator(_check_factory),
    ] = None
    #: The class of a Pykka actor, with the arguments of its constructor.
    actor: Annotated[
        type[pykka.ThreadingActor] | None, must_be("the class of a Pykka actor: actor=MyActor, args=(…)")
    ] = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = Field(default_factory=dict[str, Any])
    #: Seconds to start in: for ``start`` to return, or for the actor to be made and its ``on_start`` to return. A start
    #: that takes longer has failed as if it had raised, and its thread is abandoned. For a supervisor only ``start``
    #: counts, because each of its children has a time-out of its own; None means no limit but the watchdog's.
    start_timeout: _Period | None = 60.0
    #: ``permanent`` is always restarted, ``transient`` if it failed, ``temporary`` never.
    restart: Restart = "permanent"
    #: Seconds to stop in, before it is abandoned; ``"brutal_kill"`` gives it none. None means 5 seconds, and for a
    #: supervisor as long as its own children take.
    shutdown: Annotated[
        _Patience | Literal["brutal_kill"] | None, must_be("a number of seconds from 0 on, None, or 'brutal_kill'")
    ] = None
    #: How much of the time of a shutdown it may use: ``background`` 50 %, ``normal`` 80 %, ``critical`` all of it. The
    #: children of a supervisor have priorities of their own.
    priority: Priority = "normal"
    #: Whether its end may end the supervisor; see `SupervisorSpec.auto_shutdown`.
    significant: bool = False
    #: How many restarts in ``period`` seconds this child may have; None leaves that to the supervisor. After more it
    #: stays down, and its siblings go on.
    intensity: _Count | None = None
    period: _Period = 30.0
    #: How long to wait before a restart; None means as its supervisor does.
    backoff: Backoff | None = None
    #: What to do after an exception, by its class; the nearest class counts. ``restart`` leaves it to the restart type.
    decide: Mapping[type[BaseException], Decision] = Field(default_factory=dict[type[BaseException], Decision])

    @classmethod
    @override
    def _wrong_kind(cls, data: object) -> str:
        return f"a child must be a ChildSpec: ChildSpec(id=…, start=lambda: …), got {describe(data)}"

    @override
    def _find_contradiction(self) -> str | None:
        if (self.start is None) == (self.actor is None):
            return "give either start= or actor=, " + ("got neither" if self.start is None else "got both")
        if self.actor is None and (self.args or self.kwargs):
            return "args, kwargs: they are for actor, but start takes no arguments"
        if self.significant and self.restart == "permanent":
            return "significant: a permanent child is always restarted, so it cannot be significant"
        return None


class SupervisorSpec(_Spec):
    """One supervisor: its strategy, how many restarts it allows, and its first children."""

    name: _Name
    strategy: Strategy = "one_for_one"
    #: How many restarts in ``period`` seconds are allowed; one more and the supervisor gives up. None means for ever.
    #: A message that kills its loop does so ``max_deliveries`` times, 5 by default, and is a dead letter then: so many
    #: must be allowed. A child that crashes at every start does so for the eighth time after 64 s, which ends it.
    intensity: _Count | None = 7
    period: _Period = 120.0
    auto_shutdown: AutoShutdown = "never"
    children: Annotated[tuple[ChildSpec, ...], BeforeValidator(_as_tuple)] = ()
    #: The spec of all children of a pool; `ResizeRequest` says how many there are.
    template: ChildSpec | None = None
    #: How long to wait before a restart; None means not at all, as in Erlang.
    backoff: Backoff | None = Backoff()
    #: After this many seconds without a failure the back-off of a child begins anew.
    reset_after: _Seconds = 60.0
    #: Whether children are started and stopped strictly one after another, even with ``one_for_one``.
    sequential: bool = False

    @override
    def _find_contradiction(self) -> str | None:
        if self.template is not None and (
            self.children or self.strategy != "one_for_one" or self.auto_shutdown != "never"
        ):
            return "template: a pool is one_for_one, has no other children, and no auto_shutdown"
        twice = [child for child, count in Counter(child.id for child in self.children).items() if count > 1]
        if twice:
            return f"children: the id {twice[0]!r} is used twice"
        faults = [self.objection_to(child) for child in (*self.children, *([self.template] if self.template else []))]
        return next((f"children: {fault}" for fault in faults if fault is not None), None)

    def objection_to(self, child: ChildSpec) -> str | None:
        """Return why this supervisor cannot have a child; None if it can."""
        if child.significant and self.auto_shutdown == "never":
            return f"{child.id!r} is significant, but auto_shutdown is 'never'"
        return None


class SupervisorOptions(TypedDict, total=False):
    """The options of a supervisor; see `SupervisorSpec` for what each means and its default."""

    strategy: Strategy
    intensity: int | None
    period: float
    auto_shutdown: AutoShutdown
    children: Sequence[ChildSpec]
    template: ChildSpec | None
    backoff: Backoff | None
    reset_after: float
    sequential: bool
