"""`SessionSnapshot`: the state of a session at one moment, as data that can be sent and stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from loopwarden._log import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from loopwarden.actors.session._slice import Slices

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
    #: How many more events were acknowledged, and are not there at all; they had the numbers after those.
    missing: int = 0
    #: The numbers of damaged snapshots that an older one, and the records after it, have replaced.
    damaged_snapshots: tuple[int, ...] = ()


_Writer: TypeAlias = "Callable[..., bytes]"
_Reader: TypeAlias = "Callable[..., Any]"


class SessionCodec:
    """Events and slices as JSON, and back, by the names of their types; there is no pickle anywhere.

    What is written is read again first, and refused unless it is equal: a later reader has nothing else.
    Fields are written by their names, not their aliases, and without what is computed.

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
        self._coders: Mapping[type[Any], tuple[str, _Writer, _Reader]] = {
            kind: (kind.__name__, adapter.serializer.to_json, adapter.validator.validate_json)
            for kind, adapter in adapters.items()
        }

    def encode(self, event: object) -> tuple[str, bytes]:
        """Return the name of an event's type, and the event as JSON.

        Raises:
            ValueError: if JSON cannot carry it, or not all of it.
        """
        name, to_json, read = self._coders[type(event)]
        return name, _faithful(name, event, to_json, read)

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
            ValueError: if JSON cannot carry one of them, or not all of it.
        """
        pictures: list[SliceSnapshot] = []
        for name, (kind, adapter) in self._slices.items():
            to_json, read = adapter.serializer.to_json, adapter.validator.validate_json
            value = _faithful(f"slice {name}", slices[kind], to_json, read)
            pictures.append(SliceSnapshot(name=name, value=value.decode()))
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


def _faithful(name: str, value: object, to_json: _Writer, read: _Reader) -> bytes:
    """Return a value as JSON that is read as the same value."""
    try:
        raw = to_json(value, warnings="error", by_alias=False, round_trip=True)
    except (PydanticSerializationError, UserWarning, ValueError, RecursionError) as error:
        raise ValueError(f"{name} cannot be written as JSON: {error}") from error
    try:
        again = read(raw, by_alias=False, by_name=True)
        is_same = bool(again == value)
    except Exception as error:  # isolates user code: validators, and what compares
        raise ValueError(f"{name} does not survive JSON, because it cannot be read again: {error}") from error
    if not is_same:
        raise ValueError(f"{name} does not survive JSON: {describe(value)} comes back as {describe(again)}")
    return raw


def _read(adapter: TypeAdapter[Any], name: str, raw: bytes | str) -> Any:
    try:
        return adapter.validator.validate_json(raw, by_alias=False, by_name=True)
    except (ValidationError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from error


def _adapter(session: str, kind: type[Any]) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(kind)
    except PydanticSchemaGenerationError as error:
        raise TypeError(f"session {session!r}: pydantic cannot write {kind.__name__} as JSON: {error}") from error
