"""`Slice`: one part of a session's state, and what each event makes of it."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar, cast, final

from pydantic import BaseModel

from loopwarden._log import describe
from loopwarden._ticket import TicketCarrier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["DispatchResult", "Reducers", "Slice", "SliceView", "Slices", "State"]

S = TypeVar("S")
E = TypeVar("E")
S_co = TypeVar("S_co", covariant=True)


class State(Protocol):
    """All slices of a session at one moment: a mapping that never changes."""

    def __getitem__(self, kind: type[S], /) -> S:
        """Return the slice of that type; ``KeyError`` if the session has none."""
        ...

    def __contains__(self, kind: object, /) -> bool: ...

    def __iter__(self) -> Iterator[type[Any]]: ...

    def __len__(self) -> int: ...


class SliceView(Protocol[S_co]):
    """The latest value of one slice, as an attribute.

    Two views read one after the other may differ by an event in between: for several slices that agree, take
    ``session.state`` once and read them from there.
    """

    @property
    def value(self) -> S_co:
        """The slice as it is now."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Slice(Generic[S]):
    """One part of a session's state: how it begins, and what each event makes of it, as data.

    Slices and events are frozen: pydantic models, or dataclasses. A slice is known by its type, so a session has at
    most one of each.

    >>> from pydantic import BaseModel
    >>> class Added(BaseModel, frozen=True):
    ...     amount: int
    >>> class Total(BaseModel, frozen=True):
    ...     sum: int = 0
    >>> Slice(Total()).on(Added, lambda total, added: Total(sum=total.sum + added.amount))
    <Slice Total: Added>

    Raises:
        TypeError: if the slice, or an event, is not frozen.
    """

    initial: S
    reducers: Mapping[type[Any], Callable[[S, Any], S]] = field(default_factory=dict[type[Any], Any])

    def __post_init__(self) -> None:
        if not _is_frozen(type(self.initial)):
            raise TypeError(f"a slice must be a frozen pydantic model or dataclass, got {describe(self.initial)}")
        for event, reducer in self.reducers.items():
            self._check(event, reducer)

    @property
    def kind(self) -> type[S]:
        """What it is known by."""
        return type(self.initial)

    def on(self, event: type[E], reducer: Callable[[S, E], S]) -> Slice[S]:
        """Return a slice that also has a reducer for events of exactly that type.

        The reducer runs on the session's actor and must be a pure function: it is called again when the journal is
        replayed. It returns the new slice, or the one it was given if nothing changes.

        Raises:
            TypeError: if the event is not frozen, or the reducer is no plain function.
            ValueError: if there is a reducer for that event.
        """
        self._check(event, reducer)
        if event in self.reducers:
            raise ValueError(f"slice {self.kind.__name__} has two reducers for {event.__name__}")
        return Slice(self.initial, {**self.reducers, event: reducer})

    def _check(self, event: object, reducer: object) -> None:
        if not isinstance(event, type) or not _is_frozen(cast("type[Any]", event)):
            raise TypeError(
                f"slice {self.kind.__name__}: an event must be a frozen pydantic model or dataclass,"
                f" got {describe(event)}"
            )
        name = cast("type[Any]", event).__name__
        if issubclass(cast("type[Any]", event), TicketCarrier):
            raise TypeError(f"slice {self.kind.__name__}: {name} is a request, which a session answers, not an event")
        if not callable(reducer) or inspect.iscoroutinefunction(reducer) or inspect.isgeneratorfunction(reducer):
            raise TypeError(
                f"slice {self.kind.__name__}: the reducer for {name} must be a plain function, got {describe(reducer)}"
            )

    def __repr__(self) -> str:
        return f"<Slice {self.kind.__name__}: {', '.join(event.__name__ for event in self.reducers)}>"


def _is_frozen(kind: type[Any]) -> bool:
    if issubclass(kind, BaseModel):
        return bool(kind.model_config.get("frozen"))
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


#: The slices of a session by their types; the values are immutable.
Slices: TypeAlias = "dict[type[Any], Any]"
Reducer: TypeAlias = "Callable[[Any, Any], Any]"
Applier: TypeAlias = "Callable[[Slices, object], tuple[type[Any], ...]]"


class DispatchResult(NamedTuple):
    """What became of an event: its place in the order of all events of the session, and the slices that it changed."""

    sequence: int
    changed: tuple[type[Any], ...]


class Reducers:
    """The reducers of all slices of a session, by the type of the event.

    Raises:
        TypeError: if something else than slices is given.
        ValueError: if there is no slice, or two slices or two events could not be told apart.
    """

    def __init__(self, session: str, slices: Iterable[Slice[Any]]) -> None:
        declared = tuple(slices)
        for each in declared:
            if not isinstance(each, Slice):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
                raise TypeError(f"session {session!r}: slices must be made by Slice(), got {describe(each)}")
        if not declared:
            raise ValueError(f"session {session!r} has no slices, so no event could change it")
        #: The slices before the first event.
        self.initial: Slices = {each.kind: each.initial for each in declared}
        table: dict[type[Any], list[tuple[type[Any], Reducer]]] = {}
        for each in declared:
            for event, reducer in each.reducers.items():
                table.setdefault(event, []).append((each.kind, reducer))
        _refuse_twins(session, "slices", [each.kind for each in declared])
        _refuse_twins(session, "events", table)
        #: What changes the slices as an event of that type says, as a whole or not at all, and returns which changed.
        #: It raises whatever a reducer raises, and ``TypeError`` if that returns something else than its slice.
        self.appliers: dict[type[Any], Applier] = {
            event: _for_one(*reducers[0]) if len(reducers) == 1 else _for_many(reducers)
            for event, reducers in table.items()
        }


def _for_one(kind: type[Any], reducer: Reducer) -> Applier:
    changed = (kind,)

    def apply(slices: Slices, event: object) -> tuple[type[Any], ...]:
        old = slices[kind]
        new = reducer(old, event)
        if new is old:
            return ()
        slices[kind] = new if type(new) is kind else _refuse(kind, event, new)
        return changed

    return apply


def _for_many(reducers: list[tuple[type[Any], Reducer]]) -> Applier:
    def apply(slices: Slices, event: object) -> tuple[type[Any], ...]:
        changes: Slices = {}
        for kind, reducer in reducers:
            old = slices[kind]
            new = reducer(old, event)
            if new is not old:
                changes[kind] = new if type(new) is kind else _refuse(kind, event, new)
        slices.update(changes)  # only now that all have returned
        return tuple(changes)

    return apply


def _refuse(kind: type[Any], event: object, new: object) -> NoReturn:
    raise TypeError(f"the reducer of {kind.__name__} for {type(event).__name__} returned {new!r}")


def _refuse_twins(session: str, what: str, kinds: Iterable[type[Any]]) -> None:
    """Raise if two types have one name: in the journal, and in a snapshot, the name is all there is."""
    twice = [name for name, count in Counter(kind.__name__ for kind in kinds).items() if count > 1]
    if twice:
        raise ValueError(f"session {session!r} has two {what} with the name {twice[0]!r}")
