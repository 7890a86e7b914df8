"""`Reducers`: what an event makes of the slices of a session; it knows neither threads nor files."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from loopwarden._log import describe
from loopwarden.actors.session._slice import Slice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["DispatchResult", "Reducers", "Slices"]

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
