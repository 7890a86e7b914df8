"""What is to be done when the process is forked.

The interpreter keeps what is registered with it to its very end, and with a function all that its module can reach.
Were the functions of others registered there, all of Loopwarden would have to be taken down piece by piece at exit,
which takes longer than all the rest of a shutdown. So only this module is, which imports none of ours, and lets go.
"""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Hook = Callable[[], object] | None

__all__ = ["at_fork"]

_hooks: list[tuple[Hook, Hook, Hook]] = []


def at_fork(*, before: Hook = None, in_parent: Hook = None, in_child: Hook = None) -> None:
    """Have something called on the thread that forks, as ``os.register_at_fork`` does, until the interpreter exits."""
    _hooks.append((before, in_parent, in_child))


def _call(hooks: Iterable[Hook]) -> None:
    errors: list[Exception] = []
    for hook in hooks:
        if hook is not None:
            try:
                hook()
            except Exception as error:  # noqa: BLE001  the others must be called too
                errors.append(error)
    if errors:
        raise ExceptionGroup("hooks of a fork raised", errors)  # the interpreter prints it, and goes on


os.register_at_fork(
    before=lambda: _call([each[0] for each in reversed(_hooks)]),
    after_in_parent=lambda: _call([each[1] for each in _hooks]),
    after_in_child=lambda: _call([each[2] for each in _hooks]),
)
atexit.register(_hooks.clear)
