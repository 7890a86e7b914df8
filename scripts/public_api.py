"""The public API as text: ``python scripts/public_api.py`` prints it, with ``--write`` it is what the test expects.

It says what a user may rely on, and nothing of where that stands. Classes go by their public names, and what a private
base class has counts as the class's own. What is inherited from other packages is left out, and so are the rules of the
contracts, which are tests.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import sys
import textwrap
import typing
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, final

from api_notation import PRIVATE, PROTOCOL, Notation
from pydantic import AliasChoices, BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["EXPECTED", "MODULES", "public_api"]

#: What the test expects.
EXPECTED = Path(__file__).resolve().parent.parent / "tests" / "data" / "public_api.txt"
#: What users import from. Something that several of them export is described in the first; the others refer to it.
MODULES = (
    "loopwarden.errors",
    "loopwarden.clock",
    "loopwarden.logs",
    "loopwarden.mailbox",
    "loopwarden.actors",
    "loopwarden.supervision",
    "loopwarden.testing",
    "loopwarden.testing.contracts",
    "loopwarden",
)
#: Special methods by which an object is used; the others are how it is made, compared, printed and copied.
SPECIAL = {
    *("__aenter__", "__aexit__", "__aiter__", "__anext__", "__await__", "__bool__", "__call__", "__contains__"),
    *("__delitem__", "__enter__", "__exit__", "__getitem__", "__iter__", "__len__", "__next__", "__setitem__"),
}
#: Beginnings of names that are left out: what is private, the rules of contracts, and what pydantic adds to a model.
HIDDEN = ("_", "test_", "model_")
#: Bases that the kind of a class, its type parameters or its members show.
IMPLIED = {"Generic", "Protocol", "abc.ABC", "dict", "object", "pydantic.main.BaseModel", "tuple"}
#: What tells kinds of classes apart.
KIND = ("__dataclass_params__", "_is_protocol", "_is_runtime_protocol")
#: What users notice of the configuration of a model.
CONFIG = ("extra", "frozen", "strict")
NOTHING = inspect.Parameter.empty


def public_api(modules: Sequence[str] = MODULES) -> str:
    """Return what ``modules``, all of one package, export."""
    description = _Description({name: importlib.import_module(name) for name in modules})
    return "\n".join(line for name in modules for line in description.module(name))


@final
class _Description:
    def __init__(self, modules: dict[str, Any]) -> None:
        self._modules = modules
        self._package = next(iter(modules)).split(".")[0]
        self._homes: dict[int, tuple[str, str]] = {}
        for module, content in modules.items():
            exports = {name: getattr(content, name) for name in sorted(content.__all__)}
            own = {name: thing for name, thing in exports.items() if getattr(thing, "__name__", name) == name}
            for name, thing in (own | exports).items():  # an alias refers to what it is another name of
                self._homes.setdefault(id(thing), (module, name))
        names = [name for _, name in self._homes.values()]
        public = {
            key: name if names.count(name) == 1 else f"{module}.{name}" for key, (module, name) in self._homes.items()
        }
        self._notation = Notation(self._package, public)

    def module(self, name: str) -> Iterator[str]:
        """Return the lines about a module: what is described elsewhere first, then everything else."""
        yield f"[{name}]"
        exports = {each: getattr(self._modules[name], each) for each in sorted(self._modules[name].__all__)}
        homes = {each: ".".join(self._homes[id(thing)]) for each, thing in exports.items()}
        yield from (f"{each} = {home}" for each, home in homes.items() if home != f"{name}.{each}")
        for each, thing in exports.items():
            if homes[each] == f"{name}.{each}":
                yield ""
                yield from self._thing(each, thing)
        yield ""

    def _thing(self, name: str, thing: Any) -> Iterator[str]:
        if isinstance(thing, type):
            yield from self._class(name, thing)
        elif isinstance(thing, FunctionType):
            yield from self._function(name, thing)
        else:
            yield f"constant {name}: {self._notation.type(type(thing))}"

    # Classes.

    def _class(self, name: str, kind: type) -> Iterator[str]:
        parameters = ", ".join(each.__name__ for each in getattr(kind, "__parameters__", ()))
        bases = ", ".join(self._bases(kind))
        yield f"{_kind(kind)} {name}" + (f"[{parameters}]" if parameters else "") + (f"({bases})" if bases else "")
        inherited = {line for base in kind.__mro__[1:] if self._is_public(base) for line in self._members(name, base)}
        yield from (textwrap.indent(line, "    ") for line in self._members(name, kind) if line not in inherited)

    def _is_ours(self, thing: Any) -> bool:
        return str(thing.__module__).split(".")[0] == self._package

    def _is_public(self, kind: type) -> bool:
        return id(kind) in self._homes

    def _own(self, kind: type) -> list[type]:
        """Return the class, and before it those private bases that no public base has."""
        public = [base for base in kind.__mro__[1:] if self._is_public(base)]
        private = [base for base in kind.__mro__[1:] if self._is_ours(base) and not self._is_public(base)]
        return [kind, *(base for base in private if not any(base in other.__mro__ for other in public))][::-1]

    def _bases(self, kind: type) -> list[str]:
        """Return the nearest ancestors that users know: public ones, and those of other packages."""
        known = [base for base in kind.__mro__[1:] if self._is_public(base) or not self._is_ours(base)]
        nearest = [base for base in known if not any(base in other.__mro__[1:] for other in known)]
        return [self._base(kind, base) for base in nearest if self._notation.name(base) not in IMPLIED]

    def _base(self, kind: type, base: type) -> str:
        """Return a base with the arguments that it was given."""
        for heir in self._own(kind):
            for written in (heir, *vars(heir).get("__orig_bases__", ())):
                model: dict[str, Any] = getattr(written, "__pydantic_generic_metadata__", {})
                if base in {typing.get_origin(written), model.get("origin")}:
                    return self._notation.type(written)
        return self._notation.type(base)

    # Members.

    def _members(self, name: str, kind: Any) -> Iterator[str]:
        """Return the lines about what a class has; ``name`` is what the class is called in them."""
        values: dict[str, Any] = {each: member.value for each, member in getattr(kind, "__members__", {}).items()}
        yield from (f"member {name}.{each} = {value!r}" for each, value in values.items())
        if issubclass(kind, BaseModel):
            config = [f"{each}={kind.model_config.get(each)!r}" for each in CONFIG if each in kind.model_config]
            yield f"config {name}: {', '.join(config)}"
        own = self._own(kind)
        types = {each: text for owner in own for each, text in self._types(owner)}
        fields = dict(self._fields(kind))
        yield from (f"field {name}.{each}: {types[each]}{default}" for each, default in fields.items() if each in types)
        made = {each: value for owner in own for each, value in vars(owner).items()}
        yield from self._constructor(name, made.get("__init__"))
        for each in sorted({*made, *types} - {*fields, *values}):
            if each in SPECIAL or not each.startswith(HIDDEN):
                yield from self._member(f"{name}.{each}", made.get(each, NOTHING), types.get(each, ""))

    def _fields(self, kind: Any) -> Iterator[tuple[str, str]]:
        """Return the fields of data, in their order, each with the text of its default."""
        if typing.is_typeddict(kind):
            yield from (
                (each, "" if each in kind.__required_keys__ else " (optional)") for each in kind.__annotations__
            )
        elif hasattr(kind, "_field_defaults"):  # a named tuple
            yield from ((each, self._default(kind._field_defaults.get(each, NOTHING))) for each in kind._fields)
        elif issubclass(kind, BaseModel):
            for each, info in kind.model_fields.items():
                default = self._default(NOTHING if info.is_required() else info.default, info.default_factory)
                alias = info.validation_alias
                names = alias.choices if isinstance(alias, AliasChoices) else [] if alias is None else [alias]
                yield each, default + (f" (given as {' or '.join(map(str, names))})" if names else "")
        elif dataclasses.is_dataclass(kind):
            for field in dataclasses.fields(kind):
                yield field.name, self._default(field.default, field.default_factory)

    def _default(self, default: Any, factory: Any = None) -> str:
        if factory is not None and factory is not dataclasses.MISSING:
            return f" = {self._notation.name(typing.get_origin(factory) or factory)}()"
        return "" if default is NOTHING or default is dataclasses.MISSING else f" = {self._notation.value(default)}"

    def _types(self, kind: type) -> Iterator[tuple[str, str]]:
        """Return the attributes that have a slot, are set by the constructor, or are annotated, with types if known."""
        slots: str | Sequence[str] = vars(kind).get("__slots__", ())
        yield from ((each, "") for each in ([slots] if isinstance(slots, str) else slots))
        functions = [each for each in vars(kind).values() if self._is_written(each)]
        for function in functions:
            if function.__name__ == "__init__":
                for each, written in _assigned(function):
                    yield each, "" if written is None else self._notation.annotation(written, function.__module__)
        # A function knows its module even if its class says that it is of another.
        module = functions[0].__module__ if functions else kind.__module__
        for each, written in inspect.get_annotations(kind).items():
            if not each.startswith(HIDDEN):
                yield each, self._notation.annotation(written, module)

    def _is_written(self, value: Any) -> bool:
        """Say whether it is a function that stands in our source, and not one that a decorator has made."""
        return isinstance(value, FunctionType) and self._is_ours(value) and value.__code__.co_filename[0] != "<"

    def _constructor(self, name: str, value: Any) -> Iterator[str]:
        """Return the constructor, with three dots if it needs what users do not have."""
        if self._is_written(value):
            needed = [each for each in inspect.signature(value).parameters.values() if each.default is NOTHING]
            types = [self._notation.annotation(each.annotation, value.__module__) for each in needed]
            is_for_users = not any(PRIVATE in each for each in types)
            yield f"def {name}" + (
                self._notation.signature(value, is_bound=True, has_result=False) if is_for_users else "(...)"
            )

    def _member(self, name: str, value: Any, annotation: str) -> Iterator[str]:
        if type(value).__name__ == "FixtureFunctionDefinition" or hasattr(value, "_pytestfixturefunction"):
            yield f"fixture {name}"
        elif isinstance(value, FunctionType):
            yield from self._function(name, value, is_bound=True)
        elif type(value) in {classmethod, staticmethod}:
            words = f"{type(value).__name__} "
            yield from self._function(name, value.__func__, words, is_bound=type(value) is classmethod)
        elif isinstance(value, property):
            yield self._property(name, value)
        elif PRIVATE not in annotation and PROTOCOL not in annotation:  # otherwise it is for us
            has_value = value is not NOTHING and not inspect.ismemberdescriptor(value)
            ending = f" = {self._notation.value(value)}" if has_value else ""
            yield f"attribute {name}" + (f": {annotation}" if annotation else "") + ending

    def _property(self, name: str, value: property) -> str:
        read = value.fget
        assert read is not None, f"{name} cannot be read"
        words = "abstract " * value.__isabstractmethod__ + "settable " * (value.fset is not None)
        result = self._notation.annotation(inspect.signature(read).return_annotation, read.__module__)
        return f"{words}property {name}: {result}"

    def _function(self, name: str, function: Any, words: str = "", *, is_bound: bool = False) -> Iterator[str]:
        if not isinstance(function, FunctionType):
            yield f"{words}{name}"  # borrowed: it may have no signature
            return
        inner: Any = inspect.unwrap(function)
        if getattr(function, "__isabstractmethod__", False):
            words = f"abstract {words}"
        if inspect.isgeneratorfunction(inner) and not inspect.isgeneratorfunction(function):
            words += "contextmanager "
        if inspect.iscoroutinefunction(function):
            words += "async "
        yield f"{words}def {name}{self._notation.signature(function, is_bound=is_bound)}"
        each: Any
        for each in typing.get_overloads(inner):
            yield f"{words}overload {name}{self._notation.signature(each, is_bound=is_bound)}"


def _kind(kind: type) -> str:
    has: dict[str, Any] = {name: getattr(kind, name, None) for name in KIND}
    words = "final " * ("__final__" in vars(kind))
    if has["_is_protocol"]:
        return words + "runtime-checkable " * bool(has["_is_runtime_protocol"]) + "protocol"
    if has["__dataclass_params__"]:
        return words + "frozen " * bool(has["__dataclass_params__"].frozen) + "dataclass"
    if typing.is_typeddict(kind):
        return f"{words}typed dict"
    nouns = {enum.Enum: "enum", BaseModel: "model", BaseException: "error", tuple: "named tuple", object: "class"}
    return words + next(noun for base, noun in nouns.items() if issubclass(kind, base))


def _assigned(constructor: FunctionType) -> Iterator[tuple[str, Any]]:
    """Return the public attributes that a constructor sets, each with its type if that can be seen."""
    parameters = inspect.signature(constructor).parameters
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(constructor)))):
        kind: Any = None
        match node:
            case ast.AnnAssign(target=ast.Attribute(value=ast.Name("self"), attr=name), annotation=annotation):
                kind = ast.unparse(annotation)
            case ast.Assign(targets=[ast.Attribute(value=ast.Name("self"), attr=name)], value=ast.Name(given)):
                kind = parameters[given].annotation if given in parameters else None
            case ast.Assign(targets=[ast.Attribute(value=ast.Name("self"), attr=name)], value=ast.Constant(constant)):
                kind = None if constant is None else type(constant)
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name("self"), attr=name)], value=ast.Call(func=ast.Name(called))
            ):
                made = constructor.__globals__.get(called)
                kind = made if isinstance(made, type) else None
            case ast.Assign(targets=[ast.Attribute(value=ast.Name("self"), attr=name)]):
                pass
            case _:
                continue
        if not name.startswith(HIDDEN):
            yield name, kind


def main() -> None:
    """Print the public API, or write it down for the test."""
    if sys.argv[1:] == ["--write"]:
        EXPECTED.write_text(public_api(), encoding="utf-8")
    else:
        print(public_api(), end="")


if __name__ == "__main__":
    main()
