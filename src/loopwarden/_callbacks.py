"""Running the callbacks of tickets: each once, whatever the others do."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from loopwarden._log import report

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["forget_callback", "run_callbacks"]

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
        try:
            callback = callbacks.pop(0)
        except IndexError:  # somebody else has popped the last one
            break
        try:
            callback(argument)
        except BaseException as error:  # noqa: BLE001  isolates user code
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                interrupt = error
            else:
                report(logging.ERROR, "a callback of a ticket raised", error=error)
    return interrupt


def forget_callback(callbacks: list[Callable[[Any], object]], callback: Callable[[Any], object]) -> None:
    """Take one out if it is still there: by identity, because the callbacks of others may claim to be equal."""
    while True:
        index = next((index for index, each in enumerate(tuple(callbacks)) if each is callback), None)
        if index is None:
            return
        try:
            if callbacks[index] is callback:
                del callbacks[index]
                return
        except IndexError:
            pass  # others pop, or forget, at this moment: it is somewhere else by now, or gone
