"""`difference`: where what was read is not what was written, by structure and by type.

No ``__eq__`` of other people's is believed, and hardly any is called: one that always says yes would hide a loss, and
one that ignores a field would too. Two things are the same if they are of the same type and all that they hold is the
same. What is cached in an object does not count, nor which fields of a model were set explicitly.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import ipaddress
import math
import pathlib
import re
import types
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from pydantic import BaseModel, Secret, SecretBytes, SecretStr
from pydantic_core import MultiHostUrl, Url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Difference", "difference"]

#: Types that hold nothing of other people's, so that their own comparison can be believed.
_ATOMS: tuple[type[Any], ...] = (
    str,
    int,
    bytes,
    bytearray,
    complex,
    dt.date,
    dt.time,
    dt.timedelta,
    dt.tzinfo,
    fractions.Fraction,
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    ipaddress.IPv4Interface,
    ipaddress.IPv6Interface,
    ipaddress.IPv4Network,
    ipaddress.IPv6Network,
    pathlib.PurePath,
    pathlib.PurePosixPath,
    pathlib.PureWindowsPath,
    pathlib.PosixPath,
    pathlib.WindowsPath,
    re.Pattern,
    uuid.UUID,
    range,
    Url,
    MultiHostUrl,
)
_EXACT = frozenset(_ATOMS)
#: Types of which there is one object for each value.
_IDENTICAL = (type(None), bool, type, enum.Enum, types.FunctionType, types.BuiltinFunctionType)

_ABSENT = object()
#: As `type`, which for a value of any type is of an unknown one to type checkers.
_type_of: Callable[[object], type[object]] = type


class Difference(NamedTuple):
    """The first thing that is not the same."""

    #: The way to it, such as ``.items[3].price``.
    where: str
    #: What was written there, and what was read.
    sent: Any
    read: Any

    @property
    def text(self) -> str:
        """What happens to it, as the end of a sentence that begins with the place; no values, which may be secret."""
        if self.read is _ABSENT:
            return "would be lost"
        if self.sent is _ABSENT:
            return "would be there, although it is not now"
        sent, read = _type_of(self.sent), _type_of(self.read)
        if sent is read:
            return f"is of type {sent.__name__}, and would have another value"
        return f"is of type {sent.__name__}, and would be of type {read.__name__}"


_Found: TypeAlias = Difference | None


def difference(sent: Any, read: Any) -> _Found:
    """Return the first place where ``read`` is not what ``sent`` is; None if they are the same.

    Raises:
        Exception: whatever other people's code raises on the way.
    """
    kind = _type_of(sent)
    if kind is not type(read) and not _is_one_generic(kind, _type_of(read)):
        # An int is a good float to every type checker, as in a default of 30 for a field of seconds.
        is_number = kind is int and type(read) is float and sent == read
        return None if is_number else Difference("", sent, read)
    return _comparisons(kind)(sent, read)


def _comparison_of(kind: type[object]) -> Callable[[Any, Any], _Found]:
    """Return how things of that type are compared."""
    for base, compare in _COMPARISONS:
        if issubclass(kind, base):
            return compare
    if dataclasses.is_dataclass(kind):
        return functools.partial(_attributes, names=[field.name for field in dataclasses.fields(kind)])
    return _state


_comparisons: Callable[..., Callable[[Any, Any], _Found]] = functools.lru_cache(1_024)(_comparison_of)


def _is_one_generic(kind: type[object], other: type[object]) -> bool:
    """Say whether both are the same generic model, for whatever types: pydantic takes one for the other."""
    if not issubclass(kind, BaseModel) or not issubclass(other, BaseModel):
        return False
    origins = {each.__pydantic_generic_metadata__["origin"] or each for each in (kind, other)}
    return len(origins) == 1


def _below(step: str, found: _Found) -> _Found:
    return None if found is None else found._replace(where=step + found.where)


def _identity(sent: Any, read: Any) -> _Found:
    return None if sent is read else Difference("", sent, read)


def _atom(sent: Any, read: Any) -> _Found:
    if type(sent) in _EXACT:
        return None if sent == read else Difference("", sent, read)
    base = next(each for each in _ATOMS if isinstance(sent, each))
    # By the method of the base: a subclass may compare as it likes.
    compare: Any = base.__eq__
    if compare(sent, read) is not True:
        return Difference("", sent, read)
    return _state(sent, read, but=base)


def _secret(sent: Any, read: Any) -> _Found:
    is_same = difference(sent.get_secret_value(), read.get_secret_value()) is None
    return None if is_same else Difference("", sent, read)


def _moment(sent: dt.datetime, read: dt.datetime) -> _Found:
    # The zone may come back as an offset; what it says here and now must be the same.
    is_same = dt.datetime.__eq__(sent, read) is True and sent.fold == read.fold
    return None if is_same and sent.utcoffset() == read.utcoffset() else Difference("", sent, read)


def _float(sent: float, read: float) -> _Found:
    is_same = float.__eq__(sent, read) or (math.isnan(sent) and math.isnan(read))
    return None if is_same else Difference("", sent, read)


def _decimal(sent: decimal.Decimal, read: decimal.Decimal) -> _Found:
    return None if sent.as_tuple() == read.as_tuple() else Difference("", sent, read)


def _sequence(sent: Any, read: Any) -> _Found:
    if len(sent) != len(read):
        return Difference("", sent, read)
    for place, (mine, other) in enumerate(zip(sent, read, strict=True)):
        found = difference(mine, other)
        if found is not None:
            return _below(f"[{place}]", found)
    return None


def _mapping(sent: dict[Any, Any], read: dict[Any, Any]) -> _Found:
    # JSON keeps the order, so keys need not be looked up, which would compare them their own way. Only where fields
    # have names may the order be that of the type.
    for (key, value), (other_key, other_value) in zip(sent.items(), read.items(), strict=False):
        found = difference(key, other_key)
        if found is not None and not _has_names(sent, read):
            return _below(f"[key {_shown(key)}]", found)
        if found is not None:
            return _named(sent, read, "[{!r}]")
        found = difference(value, other_value)
        if found is not None:
            return _below(f"[{_shown(key)}]", found)
    return None if len(sent) == len(read) else Difference("", sent, read)


def _has_names(*mappings: dict[Any, Any]) -> bool:
    return all(type(key) is str for each in mappings for key in each)


def _shown(key: Any) -> str:
    return repr(key) if type(key) in {str, int} else f"a {type(key).__name__}"


def _named(sent: dict[str, Any], read: dict[str, Any], step: str) -> _Found:
    for name in {**sent, **read}:
        mine, other = sent.get(name, _ABSENT), read.get(name, _ABSENT)
        is_missing = mine is _ABSENT or other is _ABSENT
        found = Difference("", mine, other) if is_missing else difference(mine, other)
        if found is not None:
            return _below(step.format(name), found)
    return None


def _set(sent: Any, read: Any) -> _Found:
    # Elements of one hash are few, so each is compared with few.
    candidates: dict[tuple[type, int], list[Any]] = {}
    for each in read:
        candidates.setdefault((_type_of(each), hash(each)), []).append(each)
    for each in sent:
        alike = candidates.get((_type_of(each), hash(each)), [])
        place = next((place for place, other in enumerate(alike) if difference(each, other) is None), None)
        if place is None:
            return Difference("", sent, read)
        del alike[place]
    return None if len(sent) == len(read) else Difference("", sent, read)


def _model(sent: BaseModel, read: BaseModel) -> _Found:
    kind = type(sent)
    found = _named(_only(sent.__dict__, kind.model_fields), _only(read.__dict__, kind.model_fields), ".{}")
    for extra in ("__pydantic_extra__", "__pydantic_private__"):
        if found is None:
            found = _named(_held(sent, extra), _held(read, extra), ".{}")
    return found


def _only(held: Mapping[str, Any], names: Any) -> dict[str, Any]:
    return {name: value for name, value in held.items() if name in names}


def _held(model: BaseModel, name: str) -> dict[str, Any]:
    return cast("dict[str, Any] | None", getattr(model, name, None)) or {}


def _attributes(sent: Any, read: Any, names: list[str]) -> _Found:
    def held(thing: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in names:
            try:
                found[name] = object.__getattribute__(thing, name)
            except AttributeError:
                continue
        return found

    return _named(held(sent), held(read), ".{}")


def _state(sent: Any, read: Any, but: type = object) -> _Found:
    """Compare all that two objects hold, but what one of their bases holds."""
    kind = _type_of(sent)
    slots: list[str] = []
    for base in kind.__mro__:
        if base not in but.__mro__:
            own: Any = base.__dict__.get("__slots__", ())
            slots += [own] if isinstance(own, str) else own
    names = [_mangled(kind, name) for name in slots if name not in {"__dict__", "__weakref__"}]
    try:
        attributes: dict[str, Any] | None = object.__getattribute__(sent, "__dict__")
    except AttributeError:
        attributes = None
    if attributes is None and not names and but is object:
        return None if (sent == read) is True else Difference("", sent, read)  # written in C: no way to look inside
    found = _attributes(sent, read, names)
    if found is not None or attributes is None:
        return found
    others: dict[str, Any] = object.__getattribute__(read, "__dict__")
    cached = {name for base in kind.__mro__ for name, each in vars(base).items() if _is_cached(each)}
    mine = {name: value for name, value in attributes.items() if name not in cached}
    return _named(mine, {name: value for name, value in others.items() if name not in cached}, ".{}")


def _is_cached(attribute: object) -> bool:
    return type(attribute) is functools.cached_property


def _mangled(kind: type, name: str) -> str:
    """Return the name that an attribute has for others."""
    if not name.startswith("__") or name.endswith("__"):
        return name
    owner = next(base for base in kind.__mro__ if f"_{base.__name__.lstrip('_')}{name}" in base.__dict__)
    return f"_{owner.__name__.lstrip('_')}{name}"


#: What is compared how, the first that fits; dataclasses, and what is none of these, come after.
_COMPARISONS: tuple[tuple[Any, Callable[[Any, Any], _Found]], ...] = (
    (_IDENTICAL, _identity),
    (float, _float),
    (decimal.Decimal, _decimal),
    (dt.datetime, _moment),
    (_ATOMS, _atom),
    ((list, tuple, collections.deque), _sequence),
    (dict, _mapping),
    ((set, frozenset), _set),
    (BaseModel, _model),
    ((SecretStr, SecretBytes, Secret), _secret),
)
