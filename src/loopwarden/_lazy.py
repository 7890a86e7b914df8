"""`lazy`: has a package import what it exports when it is asked for, and not before."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["lazy"]


def lazy(
    package: str, homes: Mapping[str, str], modules: Iterable[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return what a package has as its ``__getattr__`` and its ``__dir__``.

    Any number of threads may ask at once, and what an interrupt has left half done is done anew: Python promises that
    of imports.

    Args:
        package: Its name.
        homes: The names that it exports, by the module that each is in.
        modules: Its own modules that can be reached without being imported.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    own = frozenset(modules)

    def get(name: str) -> object:
        if name in own:
            return import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(home_of[name]), name)
        vars(sys.modules[package])[name] = value  # so that it is asked for once
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *home_of, *own})
