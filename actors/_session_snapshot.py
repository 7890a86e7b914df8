"""`SessionSnapshot`: the state of a session at one moment, as data that can be sent and stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from loopwarden.actors._reducers import Slices

__all__ = ["Recovery", "SessionCodec", "SessionSnapshot", "SliceSnapshot"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SliceSnapshot(_Frozen):
    """One slice, by the name of its type, and its value as JSON."""

    name: str
    value: str


class SessionSnapshot(_Frozen):
    """The state of a session after the event with number ``sequence``.

    Each session in it is consistent in itself; a child may be an event ahead of what its parent has heard of it.
    """

    name: str
    sequence: int
    slices: tuple[SliceSnapshot, ...]
    children: tuple[SessionSnapshot, ...] = ()


class Recovery(_Frozen):
    """What a session found in its journal when it was opened."""

    #: The number of the last event that the state has.
    sequence: int
    #: The number of the snapshot that it began from; 0 if there was none.
    snapshot: int
    #: How many events were replayed after that.
    replayed: int
    #: How many damaged records at the end were cut off; they had the numbers after ``sequence``.
    cut: int = 0
    #: The numbers of damaged snapshots that an older one, and the records after it, have replaced.
    damaged_snapshots: tuple[int, ...] = ()


class SessionCodec:
    """Events and slices as JSON, and back, by the names of their types; there is no pickle anywhere.

    Raises:
        TypeError: if pydantic cannot read or write one of the types.
    """

    def __init__(self, session: str, initial: Slices, events: Iterable[type[Any]]) -> None:
        self._session = session
        self._initial = initial
        self._slices: Mapping[str, tuple[type[Any], TypeAdapter[Any]]] = {
            kind.__name__: (kind, _adapter(session, kind)) for kind in initial
        }
        adapters = {kind: _adapter(session, kind) for kind in events}
        self._events = {kind.__name__: adapter for kind, adapter in adapters.items()}
        # Without the adapter in between, which takes as long as it does.
        self._writers = {kind: (kind.__name__, adapter.serializer.to_json) for kind, adapter in adapters.items()}

    def encode(self, event: object) -> tuple[str, bytes]:
        """Return the name of an event's type, and the event as JSON.

        Raises:
            ValueError: if JSON cannot carry it.
        """
        name, to_json = self._writers[type(event)]
        try:
            return name, to_json(event, warnings="error")
        except (PydanticSerializationError, UserWarning, ValueError, RecursionError) as error:
            raise ValueError(f"{name} cannot be written as JSON: {error}") from error

    def decode(self, name: str, raw: bytes) -> object:
        """Return an event.

        Raises:
            ValueError: if there is no event of that name, or it cannot be read.
        """
        adapter = self._events.get(name)
        if adapter is None:
            raise ValueError(f"no slice has a reducer for the event {name!r}")
        return _read(adapter, name, raw)

    def snapshot(self, sequence: int, slices: Mapping[type[Any], Any]) -> SessionSnapshot:
        """Return the picture of some slices.

        Raises:
            ValueError: if JSON cannot carry one of them.
        """
        pictures: list[SliceSnapshot] = []
        for name, (kind, adapter) in self._slices.items():
            try:
                value = adapter.serializer.to_json(slices[kind], warnings="error").decode()
            except (PydanticSerializationError, UserWarning, ValueError, RecursionError) as error:
                raise ValueError(f"slice {name} cannot be written as JSON: {error}") from error
            pictures.append(SliceSnapshot(name=name, value=value))
        return SessionSnapshot(name=self._session, sequence=sequence, slices=tuple(pictures))

    def slices_of(self, snapshot: SessionSnapshot) -> Slices:
        """Return the slices in a snapshot; one that it does not have is as it is before the first event.

        Raises:
            ValueError: if the session has no such slice, or it cannot be read.
        """
        slices = dict(self._initial)
        for each in snapshot.slices:
            if each.name not in self._slices:
                raise ValueError(f"session {self._session!r} has no slice {each.name!r}")
            kind, adapter = self._slices[each.name]
            slices[kind] = _read(adapter, each.name, each.value)
        return slices


def _read(adapter: TypeAdapter[Any], name: str, raw: bytes | str) -> Any:
    try:
        return adapter.validator.validate_json(raw)
    except (ValidationError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from error


def _adapter(session: str, kind: type[Any]) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(kind)
    except PydanticSchemaGenerationError as error:
        raise TypeError(f"session {session!r}: pydantic cannot write {kind.__name__} as JSON: {error}") from error
