"""Running the callbacks of tickets: each once, whatever the others do."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from types import MethodType
from typing import TYPE_CHECKING, Any, final

from loopwarden._log import report

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Entry", "Resolving", "forget_callback", "run_callbacks"]

#: Callbacks that complete tickets, whose callbacks complete tickets: nested deeper than this they take turns, so
#: that a chain of a thousand `map` does not end at Python's recursion limit.
_DEEPEST = 50


class _Nesting(threading.local):
    """How deep callbacks are nested on this thread, and which of them wait for the outermost."""

    depth = 0

    def __init__(self) -> None:
        self.later: list[tuple[list[Callable[[Any], object]], Any]] = []


_nesting = _Nesting()


def run_callbacks(callbacks: list[Callable[[Any], object]], argument: object) -> None:
    """Pop and call each; what they raise is logged, because the others must be called too.

    A Ctrl-C that comes meanwhile is raised at the end, on the main thread, which alone gets them.
    """
    if _nesting.depth >= _DEEPEST:
        _nesting.later.append((callbacks, argument))
        return
    interrupt: KeyboardInterrupt | None = None
    _nesting.depth += 1
    try:
        while True:
            interrupt = _pop_and_call(callbacks, argument) or interrupt
            if _nesting.depth > 1 or not _nesting.later:
                break
            callbacks, argument = _nesting.later.pop(0)
    finally:
        _nesting.depth -= 1
    if interrupt is not None:
        raise interrupt


def _pop_and_call(callbacks: list[Callable[[Any], object]], argument: object) -> KeyboardInterrupt | None:
    interrupt: KeyboardInterrupt | None = None
    while callbacks:
        first = callback = None
        try:
            first = callbacks[0]
            (callback := callbacks.pop(0))(argument)
        except BaseException as error:  # noqa: BLE001  isolates user code
            if callback is None and type(error) is IndexError:  # another thread has popped the last one
                break
            if callback is None and first is not None and not any(each is first for each in tuple(callbacks)):
                callback, is_due = first, True  # it was popped, and an interrupt came before it had its name
            else:
                is_due = callback is not None and type(callback) in _REPEATABLE
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                interrupt = error
            else:
                report(logging.ERROR, "a callback of a ticket raised", error=error)
            if is_due and callback is not None:
                with suppress(BaseException):
                    callback(argument)
    return interrupt


@final
class Resolving:
    """A callback of ours that resolves other tickets.

    It raises nothing of its own, so if something is raised, an interrupt has cut it short, and it is called again.
    """

    __slots__ = ("_resolve",)

    def __init__(self, resolve: Callable[[Any], object]) -> None:
        self._resolve = resolve

    def __call__(self, ticket: Any) -> None:
        self._resolve(ticket)


@final
class Entry:
    """A callback in its place in a list: no other is equal to it, whatever the callback itself claims."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[Any], object]) -> None:
        self.call = call

    def __call__(self, argument: Any) -> None:
        self.call(argument)


#: What may be called again if an interrupt has cut it short. A bare method is the opening of a gate: those of others
#: are in an `Entry`.
_REPEATABLE = frozenset((Resolving, MethodType))


def forget_callback(callbacks: list[Callable[[Any], object]], callback: Callable[[Any], object]) -> None:
    """Take one out if it is still there: by identity, because the callbacks of others may claim to be equal."""
    for each in tuple(callbacks):
        if each is callback or (isinstance(each, Entry) and each.call is callback):
            # One step, in which no other thread pops or forgets. The comparison runs no user code.
            with suppress(ValueError):
                callbacks.remove(each)
            return
