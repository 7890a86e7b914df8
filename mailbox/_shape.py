"""`shape_of`: which bodies of a type surely come back from JSON as they are, as a question that costs next to nothing.

It is made once, from the type's schema, and written as the source of one function, as in `dataclasses`: a call for each
field takes as long as all the rest. A yes is certain; a no means that it must be tried. A type of which it cannot be
told has no shape: one with validators or serializers of its own, with constraints, with a union, with private
attributes, or of anything but what JSON itself has.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeAlias, cast, final

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import CodeType

    #: Says yes if a value surely comes back as it is.
    Shape: TypeAlias = "Callable[[Any], bool]"
    _Schema: TypeAlias = "Mapping[str, Any]"

__all__ = ["HIGH", "LOW", "shape_of"]

#: Numbers between these are written and read by every JSON library; longer ones are tried.
_LOWEST, _HIGHEST = -(2**63), 2**63
#: Nearly all numbers are between these, which the interpreter compares in one step.
LOW, HIGH = -(2**30) + 1, 2**30 - 1
#: Levels of lists and dicts that are looked through; deeper ones are tried, and 200 cannot be read.
_DEEP = 50
#: Loops of a type in one another, of which Python has twenty in a function; deeper ones are tried.
_MAX_LOOPS = 16
#: Lines of a type's question; one that needs more is tried.
_MAX_LINES = 5_000
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
    if schema["type"] in _ATOMS and schema.keys() <= _TYPE:
        return _ATOMS[schema["type"]]
    question = _Question()
    return question.shape() if question.ask(schema, "value", {}, _DEEP) else None


@final
class _Question:
    """The source of a function that returns False at the first thing that is not sure to come back."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._indent = 2
        self._loops = 0
        self._numbers = 0
        self._names: dict[str, Any] = {
            "LOW": LOW,
            "HIGH": HIGH,
            "LOWEST": _LOWEST,
            "HIGHEST": _HIGHEST,
            "is_whole": _is_whole,
            "is_json": _is_json,
        }

    def shape(self) -> Shape:
        """Return the function."""
        # A field that is not there was left out by `model_construct`.
        head, tail = "def is_sure(value):\n try:\n", " except KeyError:\n  return False\n return True\n"
        source = head + "".join(f"{line}\n" for line in self._lines) + tail
        exec(_compiled(source), self._names)  # noqa: S102  nothing in it is from outside but names of fields, quoted
        return cast("Shape", self._names["is_sure"])

    def ask(self, schema: _Schema, value: str, definitions: Mapping[str, _Schema], depth: int) -> bool:
        """Write what is to be asked of the variable ``value``; false if it cannot be told."""
        kind = schema["type"]
        is_harmless = kind in _HARMLESS and schema.keys() - _TYPE <= _HARMLESS[kind]
        if depth == 0 or not is_harmless or len(self._lines) > _MAX_LINES:
            return False
        if kind in _UNSURE:
            self._refuse_if(_UNSURE[kind].format(value))
            return True
        return _ASK[kind](self, schema, value, definitions, depth - 1)

    def ask_definitions(self, schema: _Schema, value: str, definitions: Mapping[str, _Schema], depth: int) -> bool:
        inner = {each["ref"]: each for each in schema["definitions"]}
        return self.ask(schema["schema"], value, {**definitions, **inner}, depth)

    def ask_reference(self, schema: _Schema, value: str, definitions: Mapping[str, _Schema], depth: int) -> bool:
        # One that refers to itself gets no shape: the depth ends it.
        target = definitions.get(schema["schema_ref"])
        return target is not None and self.ask(target, value, definitions, depth)

    def ask_default(self, schema: _Schema, value: str, definitions: Mapping[str, _Schema], depth: int) -> bool:
        return self.ask(schema["schema"], value, definitions, depth)  # what is written is all there when it is read

    def ask_nullable(self, schema: _Schema, value: str, definitions: Mapping[str, _Schema], depth: int) -> bool:
        return self._ask_inside(f"if {value} is not None:", schema["schema"], value, definitions, depth)

    def ask_list(self, schema: _Schema, value: str, definitions: Mapping[str, _Schema], depth: int) -> bool:
        each = self._new("each")
        self._refuse_if(f"type({value}) is not list")
        return self._ask_each(f"for {each} in {value}:", schema.get("items_schema"), each, definitions, depth)

    def ask_dict(self, schema: _Schema, value: str, definitions: Mapping[str, _Schema], depth: int) -> bool:
        keys = schema.get("keys_schema", _ANY)
        if keys["type"] not in {"any", "str"} or not keys.keys() <= _TYPE:
            return False
        key, each = self._new("key"), self._new("each")
        self._refuse_if(f"type({value}) is not dict")
        self._write(f"for {key} in {value}:")
        self._indent += 1
        self._refuse_if(_UNSURE["str"].format(key))
        self._indent -= 1
        loop = f"for {each} in {value}.values():"
        return self._ask_each(loop, schema.get("values_schema"), each, definitions, depth)

    def ask_model(self, schema: _Schema, value: str, definitions: Mapping[str, _Schema], depth: int) -> bool:
        inner = schema["schema"]
        if not _is_plain_model(schema):
            return False
        cls, held = self._new("cls"), self._new("held")
        self._names[cls] = schema["cls"]
        self._refuse_if(f"type({value}) is not {cls}")  # a subclass has more than is written
        self._write(f"{held} = {value}.__dict__")
        self._refuse_if(f"len({held}) != {len(inner['fields'])}")
        for name, field in inner["fields"].items():
            each = self._new("each")
            self._write(f"{each} = {held}[{name!r}]")
            is_harmless = field.keys() - _TYPE <= _HARMLESS["model-field"]
            if not is_harmless or not self.ask(field["schema"], each, definitions, depth):
                return False
        return True

    def _ask_each(
        self, loop: str, schema: _Schema | None, each: str, definitions: Mapping[str, _Schema], depth: int
    ) -> bool:
        self._loops += 1
        is_asked = self._loops < _MAX_LOOPS and self._ask_inside(loop, schema or _ANY, each, definitions, depth)
        self._loops -= 1
        return is_asked

    def _ask_inside(
        self, block: str, schema: _Schema, value: str, definitions: Mapping[str, _Schema], depth: int
    ) -> bool:
        self._write(block)
        self._indent += 1
        is_asked = self.ask(schema, value, definitions, depth)
        self._indent -= 1
        return is_asked

    def _refuse_if(self, condition: str) -> None:
        self._write(f"if {condition}: return False")

    def _write(self, line: str) -> None:
        self._lines.append(" " * self._indent + line)

    def _new(self, noun: str) -> str:
        """Return a name that was not used before."""
        self._numbers += 1
        return f"{noun}_{self._numbers}"


@functools.lru_cache(256)  # a type is often asked for anew: by each mailbox that is opened for a reply
def _compiled(source: str) -> CodeType:
    return compile(source, "<shape>", "exec")


_ANY: _Schema = {"type": "any"}
#: When a value of a type is not sure to come back.
_UNSURE = {
    "any": "not is_json({0})",
    "none": "{0} is not None",
    "bool": "{0} is not True and {0} is not False",
    "int": "type({0}) is not int or not (LOW < {0} < HIGH or LOWEST < {0} < HIGHEST)",
    "float": "type({0}) is not float or {0} - {0} != 0",  # nan, and the infinities
    "str": "type({0}) is not str or not ({0}.isascii() or is_whole({0}))",
}
_ASK: dict[str, Callable[[_Question, _Schema, str, Mapping[str, _Schema], int], bool]] = {
    "definitions": _Question.ask_definitions,
    "definition-ref": _Question.ask_reference,
    "default": _Question.ask_default,
    "nullable": _Question.ask_nullable,
    "list": _Question.ask_list,
    "dict": _Question.ask_dict,
    "model": _Question.ask_model,
}


def _is_plain_model(schema: _Schema) -> bool:
    """Say whether the fields are all that there is to a model, and are written and read as they are."""
    inner = schema["schema"]
    config = cast("_Schema", schema.get("config") or {})
    has_slots = any(each.__dict__.get("__slots__") for each in schema["cls"].__mro__ if each is not BaseModel)
    is_odd = has_slots or schema.get("custom_init") or schema.get("root_model") or inner["type"] != "model-fields"
    if is_odd or not inner.keys() - _TYPE <= _HARMLESS["model-fields"] or inner.get("computed_fields"):
        return False
    return config.keys() <= _HARMLESS_CONFIG and config.get("extra_fields_behavior") != "allow"


def _is_whole(text: str) -> bool:
    """Say whether a text has no half surrogates, which cannot be written."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_text(value: Any) -> bool:
    return type(value) is str and (value.isascii() or _is_whole(value))


def _is_int(value: Any) -> bool:
    return type(value) is int and _LOWEST < value < _HIGHEST


def _is_float(value: Any) -> bool:
    return type(value) is float and value - value == 0  # neither nan nor infinite


def _is_bool(value: Any) -> bool:
    return value is True or value is False


def _is_none(value: Any) -> bool:
    return value is None


def _is_json(value: Any, depth: int = _DEEP) -> bool:  # noqa: C901, PLR0912  on the spot: calls would take as long again
    kind = _type_of(value)
    if kind is dict:
        for key in value:
            if type(key) is not str or not (key.isascii() or _is_whole(key)):
                return False
        values = value.values()
    elif kind is list:
        values = value
    else:
        return _is_atom(value)
    if not depth:
        return False
    for each in values:
        kind = _type_of(each)
        if kind is str:
            if each.isascii():
                continue
        elif kind is int:
            if LOW < each < HIGH:
                continue
        elif kind is float:
            if each - each == 0:
                continue
        elif kind is bool or each is None:
            continue
        if not _is_json(each, depth - 1):
            return False
    return True


def _is_atom(value: Any) -> bool:
    if value is None or value is True or value is False:
        return True
    return _is_text(value) or _is_int(value) or _is_float(value)


_ATOMS: dict[str, Shape] = {
    "any": _is_json,
    "none": _is_none,
    "bool": _is_bool,
    "int": _is_int,
    "float": _is_float,
    "str": _is_text,
}
