"""`Slice`: one part of a session's state, and what each event makes of it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, final

from pydantic import BaseModel

from loopwarden._log import describe
from loopwarden.actors.runtime._request import TicketCarrier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Slice", "SliceView", "State"]

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
