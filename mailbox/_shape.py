"""`shape_of`: which bodies of a type surely come back from JSON as they are, as a question that costs next to nothing.

It is made once, from the type's schema. A yes is certain; a no means that it must be tried. A type of which it cannot
be told has no shape: one with validators or serializers of its own, with constraints, with a union, with private
attributes, or of anything but what JSON itself has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    #: Says yes if a value surely comes back as it is.
    Shape: TypeAlias = "Callable[[Any], bool]"
    _Schema: TypeAlias = "Mapping[str, Any]"

__all__ = ["HIGHEST", "LOWEST", "shape_of"]

#: Numbers between these are written and read by every JSON library; longer ones are tried.
LOWEST, HIGHEST = -(2**63), 2**63
#: Levels of lists and dicts that are looked through; deeper ones are tried, and 200 cannot be read.
_DEEP = 50
#: As `type`, which for a value of any type is of an unknown one to type checkers.
_type_of: Callable[[object], type[object]] = type
_TYPE = {"type", "ref", "metadata"}
#: What else a schema may say without changing what is written or read, by its type.
_HARMLESS: dict[str, set[str]] = {
    "any": set(),
    "none": set(),
    "bool": set(),
    "int": set(),
    "float": set(),
    "str": set(),
    "nullable": {"schema"},
    "default": {"schema", "default", "default_factory", "default_factory_takes_data", "validate_default"},
    "list": {"items_schema"},
    "dict": {"keys_schema", "values_schema"},
    "definitions": {"schema", "definitions"},
    "definition-ref": {"schema_ref"},
    "model": {"cls", "config", "custom_init", "root_model", "schema", "generic_origin"},
    "model-fields": {"fields", "model_name", "computed_fields"},
    "model-field": {"schema", "validation_alias", "serialization_alias", "frozen"},
}
_HARMLESS_CONFIG = {
    "title",
    "frozen",
    "extra_fields_behavior",
    "validate_assignment",
    "populate_by_name",
    "validate_by_name",
    "validate_by_alias",
}


def shape_of(schema: _Schema) -> Shape | None:
    """Return the shape of a type that has this core schema; None if it has none."""
    return _shape(schema, {}, _DEEP)


def _shape(schema: _Schema, definitions: Mapping[str, _Schema], depth: int) -> Shape | None:  # noqa: PLR0911  one for each
    kind = schema["type"]
    if depth == 0 or not schema.keys() - _TYPE <= _HARMLESS.get(kind, set[str]()) or kind not in _HARMLESS:
        return None
    if kind in _ATOMS:
        return _ATOMS[kind]
    if kind == "definitions":
        inner = {each["ref"]: each for each in schema["definitions"]}
        return _shape(schema["schema"], {**definitions, **inner}, depth - 1)
    if kind == "definition-ref":
        # One that refers to itself gets no shape: the depth ends it.
        target = definitions.get(schema["schema_ref"])
        return None if target is None else _shape(target, definitions, depth - 1)
    if kind == "default":
        return _shape(schema["schema"], definitions, depth - 1)  # what is written is all there when it is read
    if kind == "model":
        return _model(schema, definitions, depth - 1)
    if kind in _CONTAINERS:
        key, contain = _CONTAINERS[kind]
        if kind == "dict" and not _has_plain_keys(schema):
            return None
        each = _shape(schema.get(key, {"type": "any"}), definitions, depth - 1)
        return None if each is None else contain(each)
    return None


def _has_plain_keys(schema: _Schema) -> bool:
    keys = schema.get("keys_schema", {"type": "any"})
    return keys["type"] in {"any", "str"} and keys.keys() <= _TYPE


def _model(schema: _Schema, definitions: Mapping[str, _Schema], depth: int) -> Shape | None:
    inner = schema["schema"]
    config = cast("_Schema", schema.get("config") or {})
    has_slots = any(each.__dict__.get("__slots__") for each in schema["cls"].__mro__ if each is not BaseModel)
    is_odd = has_slots or schema.get("custom_init") or schema.get("root_model") or inner["type"] != "model-fields"
    if is_odd or not inner.keys() - _TYPE <= _HARMLESS["model-fields"] or inner.get("computed_fields"):
        return None
    if not config.keys() <= _HARMLESS_CONFIG or config.get("extra_fields_behavior") == "allow":
        return None
    shapes: list[tuple[str, Shape]] = []
    for name, field in inner["fields"].items():
        is_harmless = field.keys() - _TYPE <= _HARMLESS["model-field"]
        shape = _shape(field["schema"], definitions, depth) if is_harmless else None
        if shape is None:
            return None
        shapes.append((name, shape))
    return _of_model(schema["cls"], tuple(shapes))


def _of_model(cls: type[Any], shapes: tuple[tuple[str, Shape], ...]) -> Shape:
    count = len(shapes)

    def is_sure(value: Any) -> bool:
        if type(value) is not cls:  # a subclass has more than is written
            return False
        held: dict[str, Any] = value.__dict__
        if len(held) != count:
            return False
        try:
            for name, is_sure_field in shapes:
                if not is_sure_field(held[name]):
                    return False
        except KeyError:  # made by `model_construct`
            return False
        return True

    return is_sure


def _is_text(value: Any) -> bool:
    return type(value) is str and (value.isascii() or _is_whole(value))


def _is_whole(text: str) -> bool:
    """Say whether a text has no half surrogates, which cannot be written."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_int(value: Any) -> bool:
    return type(value) is int and LOWEST < value < HIGHEST


def _is_float(value: Any) -> bool:
    return type(value) is float and value - value == 0  # neither nan nor infinite


def _is_bool(value: Any) -> bool:
    return value is True or value is False


def _is_none(value: Any) -> bool:
    return value is None


def _is_json(value: Any) -> bool:
    return _is_nested(value, _DEEP)


def _is_nested(value: Any, depth: int) -> bool:
    if type(value) is str:
        return value.isascii() or _is_whole(value)
    if type(value) is int:
        return LOWEST < value < HIGHEST
    if type(value) is float:
        return value - value == 0
    kind = _type_of(value)
    if kind is dict and depth:
        return _is_nested_dict(value, depth - 1)
    if kind is list and depth:
        return _are_nested(value, depth - 1)
    return value is None or value is True or value is False


# Loops, and atoms on the spot: a generator, or a call for each, takes three times as long.


def _is_nested_dict(held: dict[Any, Any], depth: int) -> bool:
    for key, value in held.items():
        if type(key) is not str or not (key.isascii() or _is_whole(key)):
            return False
        if type(value) is str and value.isascii():
            continue
        if type(value) is int and LOWEST < value < HIGHEST:
            continue
        if not _is_nested(value, depth):
            return False
    return True


def _are_nested(values: Iterable[Any], depth: int) -> bool:
    for value in values:
        if type(value) is str and value.isascii():
            continue
        if type(value) is int and LOWEST < value < HIGHEST:
            continue
        if not _is_nested(value, depth):
            return False
    return True


def _of_list(each: Shape) -> Shape:
    def is_sure(value: Any) -> bool:
        return _type_of(value) is list and all(map(each, value))

    return is_sure


def _of_dict(each: Shape) -> Shape:
    def is_sure(value: Any) -> bool:
        return _type_of(value) is dict and all(map(_is_text, value)) and all(map(each, value.values()))

    return is_sure


def _or_none(each: Shape) -> Shape:
    return lambda value: value is None or each(value)


_ATOMS: dict[str, Shape] = {
    "any": _is_json,
    "none": _is_none,
    "bool": _is_bool,
    "int": _is_int,
    "float": _is_float,
    "str": _is_text,
}
_CONTAINERS: dict[str, tuple[str, Callable[[Shape], Shape]]] = {
    "nullable": ("schema", _or_none),
    "list": ("items_schema", _of_list),
    "dict": ("values_schema", _of_dict),
}
