"""`Notation`: how names, types, defaults and signatures of a public API are written down.

Always in the same way: wherever a thing stands, however its annotation was written, and on every version of Python. A
class of ours that is not exported has no name here, since it may be called something else tomorrow.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import sys
import types
import typing
from typing import TYPE_CHECKING, Any, final

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FunctionType

__all__ = ["PRIVATE", "PROTOCOL", "Notation"]

#: Stand for what is not exported: a class, which users can only be given, and a protocol, which they can implement.
PRIVATE, PROTOCOL = "<private>", "<protocol>"
#: Modules whose names need no prefix, because every reader knows them.
WELL_KNOWN = {"", "builtins", "collections.abc", "types", "typing", "typing_extensions"}
#: Characters of a signature; a longer one is broken, one parameter to a line.
WIDTH = 80
NOTHING = inspect.Parameter.empty


@final
class Notation:
    """The notation of one package.

    Args:
        package: Its name.
        public: The public name of each object that has one, by its identity.
    """

    def __init__(self, package: str, public: Mapping[int, str]) -> None:
        self._package = package
        self._public = public
        self._namespaces: dict[str, dict[str, Any]] = {}

    def name(self, thing: Any) -> str:
        """Return what a class or a function is called: its public name, or its own without private modules."""
        if id(thing) in self._public:
            return self._public[id(thing)]
        parts = str(getattr(thing, "__module__", None) or "builtins").split(".")
        if parts[0] == self._package:
            return PROTOCOL if getattr(thing, "_is_protocol", False) else PRIVATE
        if thing is types.TracebackType:
            return "TracebackType"  # which calls itself otherwise
        module = ".".join(part for part in parts if not part.startswith("_"))
        name = str(getattr(thing, "__qualname__", None) or getattr(thing, "_name", None) or thing)
        return name if module in WELL_KNOWN else f"{module}.{name}"

    def type(self, kind: Any) -> str:
        """Return a type; an alias is expanded, and what only a validator reads is left out."""
        if isinstance(kind, list):
            return f"[{', '.join(self.type(each) for each in kind)}]"  # pyright: ignore[reportUnknownVariableType]  of anything
        if isinstance(kind, typing.ForwardRef):
            return kind.__forward_arg__
        if isinstance(kind, typing.TypeVar | typing.ParamSpec):
            return kind.__name__
        if isinstance(kind, str | typing.ParamSpecArgs | typing.ParamSpecKwargs):
            return str(kind)
        # A model with arguments is a class of its own.
        model: dict[str, Any] = getattr(kind, "__pydantic_generic_metadata__", {})
        origin = model.get("origin") or typing.get_origin(kind)
        if origin is None:
            special = {None: "None", types.NoneType: "None", ...: "..."}
            return special[kind] if kind in special else self.name(kind)
        return self._generic(origin, model.get("args") or typing.get_args(kind))

    def _generic(self, origin: Any, arguments: tuple[Any, ...]) -> str:
        if origin is typing.Annotated:
            return self.type(arguments[0])
        if origin is typing.Literal:
            return f"Literal[{', '.join(map(repr, arguments))}]"
        shown = [self.type(each) for each in arguments]
        is_union = origin is typing.Union or origin is types.UnionType
        return " | ".join(shown) if is_union else f"{self.name(origin)}[{', '.join(shown)}]"

    def annotation(self, written: Any, module: str) -> str:
        """Return an annotation of something in ``module``, which may be a string."""
        if isinstance(written, typing.ForwardRef):
            written = written.__forward_arg__
        if isinstance(written, str):
            written = eval(written, self._namespace(module))  # noqa: S307  our own source
        return "?" if written is NOTHING else self.type(written)

    def _namespace(self, module: str) -> dict[str, Any]:
        """Return what annotations of a module may name: what it has, and what it imports for type checkers alone."""
        if module not in self._namespaces:
            namespace = self._namespaces[module] = dict(vars(sys.modules[module]))
            for node in ast.parse(inspect.getsource(sys.modules[module])).body:
                if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                    exec(compile(ast.Module(node.body, []), module, "exec"), namespace)  # noqa: S102  our own source
        return self._namespaces[module]

    def value(self, value: Any) -> str:
        """Return a default as one would write it, or three dots if users cannot."""
        if isinstance(value, enum.Enum):
            return f"{self.name(type(value))}.{value.name}"
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return repr(value)
        if isinstance(value, tuple | list | set | frozenset | dict):
            return self._collection(typing.cast("tuple[Any, ...]", value))
        if id(value) in self._public:
            return self._public[id(value)]
        if isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
            fields = (
                f"{name}={self.value(getattr(value, name))}" for name in inspect.signature(type(value)).parameters
            )
            return f"{self.name(type(value))}({', '.join(fields)})"
        return self.type(value).replace(PRIVATE, "...") if callable(value) or typing.get_origin(value) else "..."

    def _collection(self, value: tuple[Any, ...] | list[Any] | set[Any] | frozenset[Any] | dict[Any, Any]) -> str:
        shown = [self.value(each) for each in value]
        if isinstance(value, dict):
            items = zip(shown, map(self.value, value.values()), strict=True)
            return f"{{{', '.join(f'{key}: {each}' for key, each in items)}}}"
        if isinstance(value, tuple):
            return f"({', '.join(shown)}{',' if len(shown) == 1 else ''})"
        return f"{type(value).__name__}({', '.join(shown if isinstance(value, list) else sorted(shown))})"

    def signature(self, function: FunctionType, *, is_bound: bool = False, has_result: bool = True) -> str:
        """Return the parameters and the result of a function; if it is bound, without the first."""
        signature = inspect.signature(function)
        module = inspect.unwrap(function).__module__
        parameters = list(self._parameters(list(signature.parameters.values())[is_bound:], module))
        result = f" -> {self.annotation(signature.return_annotation, module)}" if has_result else ""
        line = f"({', '.join(parameters)}){result}"
        return line if len(line) <= WIDTH else "(\n" + "".join(f"    {each},\n" for each in parameters) + f"){result}"

    def _parameters(self, parameters: list[inspect.Parameter], module: str) -> Iterator[str]:
        kinds = [each.kind for each in parameters]
        for number, each in enumerate(parameters):
            if each.kind is each.KEYWORD_ONLY and not {each.VAR_POSITIONAL, each.KEYWORD_ONLY} & set(kinds[:number]):
                yield "*"
            stars = "*" * (each.kind is each.VAR_POSITIONAL) + "**" * (each.kind is each.VAR_KEYWORD)
            annotation = "" if each.annotation is NOTHING else f": {self.annotation(each.annotation, module)}"
            default = "" if each.default is NOTHING else f" = {self.value(each.default)}"
            yield f"{stars}{each.name}{annotation}{default}"
            if each.kind is each.POSITIONAL_ONLY and each.POSITIONAL_ONLY not in kinds[number + 1 :]:
                yield "/"
