"""Types of bodies and bodies of these types, as chance has them: `types_and_bodies`.

Each type is made anew: models with aliases, defaults, excluded and private parts, computed fields, secrets, unions and
subclasses, dataclasses, containers and plain types, one inside the other. It needs hypothesis, so nothing imports it
but the tests that run it.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import itertools
import uuid
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    computed_field,
    create_model,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["types_and_bodies"]

#: A type, and a strategy for its values.
_Typed: TypeAlias = tuple[Any, st.SearchStrategy[Any]]
_numbers = itertools.count()


class _Suit(enum.Enum):
    HEARTS = "hearts"
    SPADES = 2


class _Level(enum.IntEnum):
    LOW = 1


class _Based(BaseModel):
    """Has a private part, and something that is computed."""

    _hidden: int = PrivateAttr(default=0)

    @computed_field
    def constant(self) -> int:
        """Be more than can be read."""
        return 7


def _bodies_of_json() -> st.SearchStrategy[Any]:
    atoms = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=4) | st.dates()
    keys = st.text(max_size=3) | st.integers(0, 3)
    return st.recursive(
        atoms,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3) | st.tuples(inner),
        max_leaves=6,
    )


_surrogates = st.text(st.characters(exclude_categories=[]), max_size=5)
_zones = st.none() | st.just(dt.UTC) | st.just(dt.timezone(dt.timedelta(hours=-3, minutes=30)))
_ATOMS: list[_Typed] = [
    (int, st.integers() | st.just(10**400)),
    (float, st.floats()),
    (bool, st.booleans()),
    (str, st.text(max_size=8) | _surrogates | st.dates().map(str)),
    (bytes, st.binary(max_size=4)),
    (type(None), st.none()),
    (complex, st.complex_numbers()),
    (decimal.Decimal, st.decimals(allow_nan=False)),
    (uuid.UUID, st.uuids()),
    (dt.date, st.dates()),
    (dt.datetime, st.datetimes(timezones=_zones)),
    (dt.time, st.times()),
    (dt.timedelta, st.timedeltas()),
    (_Suit, st.sampled_from(_Suit)),
    (_Level, st.sampled_from(_Level)),
    (SecretStr, st.text(max_size=3).map(SecretStr)),
    (Any, _bodies_of_json()),
]


def _of(generic: Any, *arguments: Any) -> Any:
    return generic[arguments]


def _containers(inner: st.SearchStrategy[_Typed]) -> st.SearchStrategy[_Typed]:
    return st.one_of(
        inner.map(_list),
        inner.map(_optional),
        inner.map(_deque),
        inner.map(_tuple),
        st.sampled_from(_ATOMS[:4]).map(_set),
        st.tuples(st.sampled_from(_ATOMS[:14]), inner).map(_mapping),
        st.lists(inner, min_size=2, max_size=3).map(_union),
        st.lists(inner, min_size=1, max_size=4).flatmap(_models),
        st.lists(inner, min_size=1, max_size=3).map(_dataclass),
    )


def _list(each: _Typed) -> _Typed:
    return _of(list, each[0]), st.lists(each[1], max_size=3)


def _optional(each: _Typed) -> _Typed:
    return _of(Union, each[0], None), st.none() | each[1]


def _deque(each: _Typed) -> _Typed:
    return _of(collections.deque, each[0]), st.lists(each[1], max_size=3).map(collections.deque)


def _tuple(each: _Typed) -> _Typed:
    return _of(tuple, each[0], ...), st.lists(each[1], max_size=3).map(tuple)


def _set(each: _Typed) -> _Typed:
    return _of(set, each[0]), st.sets(each[1], max_size=3)


def _mapping(pair: tuple[_Typed, _Typed]) -> _Typed:
    (key, keys), (value, values) = pair
    return _of(dict, key, value), st.dictionaries(keys, values, max_size=3)


def _union(members: list[_Typed]) -> _Typed:
    return _of(Union, *(each[0] for each in members)), st.one_of([each[1] for each in members])


def _dataclass(members: list[_Typed]) -> _Typed:
    fields = [(f"f{number}", each[0]) for number, each in enumerate(members)]
    made = dataclasses.make_dataclass(f"Data{next(_numbers)}", fields)
    return made, st.tuples(*(each[1] for each in members)).map(lambda values: made(*values))


#: How a field may be declared; the number is its place among the fields.
_DECLARATIONS: list[Callable[[int], dict[str, Any]]] = [
    lambda _: {},
    lambda place: {"alias": f"f{place + 1}"},  # which is the name of another
    lambda place: {"validation_alias": AliasChoices(f"a{place}", AliasPath("deep", place))},
    lambda place: {"serialization_alias": f"s{place}"},
    lambda _: {"exclude": True},
    lambda _: {"default": None},
    lambda _: {"repr": False, "frozen": True},
]
_CONFIGURATIONS: list[ConfigDict] = [
    {},
    {"extra": "forbid"},
    {"extra": "allow"},
    {"frozen": True},
    {"serialize_by_alias": True},
    {"validate_by_name": True, "validate_by_alias": False},
    {"ser_json_inf_nan": "constants"},
    {"ser_json_inf_nan": "strings"},
    {"ser_json_bytes": "base64", "val_json_bytes": "base64"},
    {"str_strip_whitespace": True},
    {"use_enum_values": True},
]


def _models(members: list[_Typed]) -> st.SearchStrategy[_Typed]:
    def make(how: tuple[list[Callable[[int], dict[str, Any]]], ConfigDict, bool, bool]) -> _Typed:
        return _model(members, *how)

    declared = st.lists(st.sampled_from(_DECLARATIONS), min_size=len(members), max_size=len(members))
    return st.tuples(declared, st.sampled_from(_CONFIGURATIONS), st.booleans(), st.booleans()).map(make)


def _model(
    members: list[_Typed],
    declared: list[Callable[[int], dict[str, Any]]],
    config: ConfigDict,
    is_based: bool,
    is_sub: bool,
) -> _Typed:
    fields: dict[str, Any] = {
        f"f{place}": (kind, Field(**how(place)))
        for place, ((kind, _), how) in enumerate(zip(members, declared, strict=True))
    }
    make: Any = create_model  # by a name that no type checker follows
    base: Any = type(f"Base{next(_numbers)}", (_Based if is_based else BaseModel,), {"model_config": config})
    made: Any = make(f"Model{next(_numbers)}", __base__=base, **fields)
    # A subclass now and then: it has one thing more than the type that the mailbox knows.
    sub: Any = make(f"Sub{next(_numbers)}", __base__=made, more=(int, 0)) if is_sub else made

    def body(drawn: tuple[tuple[Any, ...], int, bool]) -> Any:
        values, hidden, as_sub = drawn
        kind: Any = sub if as_sub else made
        one = kind.model_construct(None, **{f"f{place}": value for place, value in enumerate(values)})
        if is_based and hidden:
            one._hidden = hidden  # noqa: SLF001  that is the point
        return one

    values = st.tuples(*(each[1] for each in members))
    return made, st.tuples(values, st.sampled_from([0, 0, 0, 1]), st.booleans()).map(body)


def types_and_bodies() -> st.SearchStrategy[tuple[Any, Any]]:
    """Return a strategy for pairs of a type and a body of that type."""
    types = st.recursive(st.sampled_from(_ATOMS), _containers, max_leaves=4)
    return types.flatmap(lambda each: st.tuples(st.just(each[0]), each[1]))
