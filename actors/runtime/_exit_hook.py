"""What is still running when the interpreter exits is stopped, and complained about."""

from __future__ import annotations

import atexit
import logging
import warnings
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, cast

from loopwarden._blocking import SYSTEM
from loopwarden._forks import at_fork
from loopwarden._log import report
from loopwarden._pykka_registry import leave_to_parent
from loopwarden.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden._blocking import Blocking
    from loopwarden.actors.runtime._ref import ControlRef

__all__ = [
    "alive",
    "forget",
    "forget_all",
    "forget_pool",
    "not_stopped",
    "note_ending",
    "remember",
    "remember_pool",
    "stop_forgotten",
]

#: Seconds that what was forgotten has to end, all together: a forgotten loop may complete the message in hand, a pool
#: what it has accepted, and still neither hangs the interpreter. All our threads are daemons, and the processes of a
#: pool are killed, so after that it exits whatever they do.
EXIT_TIMEOUT = 5.0

# Actors that have been started and have not ended, by URN: those that work, and those that are about to end. The
# latter are not warned about, but still have to answer. Dicts, because their single steps are atomic.
_alive: dict[str, ControlRef] = {}
_ending: dict[str, ControlRef] = {}
# What closes each pool that is open, and the pool's name, by the pool's id; as above. Weak, or none would be dropped.
_open: dict[int, tuple[str, weakref.WeakMethod[Callable[[float], bool]]]] = {}


class _Pool(Protocol):
    def leave_to_parent(self) -> None: ...


def remember(ref: ControlRef) -> None:
    """Note that an actor was started."""
    _alive[ref.actor_urn] = ref


def note_ending(ref: ControlRef) -> None:
    """Note that an actor has nothing more to do but to tell of its end."""
    _ending[ref.actor_urn] = ref
    _alive.pop(ref.actor_urn, None)


def forget(ref: ControlRef) -> None:
    """Note that an actor has ended."""
    _alive.pop(ref.actor_urn, None)
    _ending.pop(ref.actor_urn, None)


def alive() -> list[ControlRef]:
    """Return the actors that have been started and have not ended."""
    return [*list(_alive.values()), *list(_ending.values())]


def not_stopped() -> list[ControlRef]:
    """Return those of them that were not stopped."""
    return list(_alive.values())


def forget_all(seam: Blocking) -> list[ControlRef]:
    """Forget the actors of a seam whose threads are all gone; return them."""
    refs = [ref for ref in alive() if _seam_of(ref) is seam]
    for ref in refs:
        forget(ref)
    return refs


def _seam_of(ref: ControlRef) -> Blocking:
    return ref._blocking  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  only the exit asks what it blocks on


def remember_pool(pool: object, close: Callable[[float], bool]) -> None:
    """Note that a pool was made.

    Args:
        pool: What ``close`` is a method of; it is not kept alive.
        close: Closes it within so many real seconds, and says whether all of its work is done.
    """
    key = id(pool)
    _open[key] = (str(pool), weakref.WeakMethod(close, lambda _: _open.pop(key, None)))


def forget_pool(pool: object) -> None:
    """Note that a pool was closed."""
    _open.pop(id(pool), None)


def stop_forgotten() -> None:
    """Stop every actor that is alive and close every pool, within one deadline, with a ``ResourceWarning``."""
    # In a simulation that is over no thread is left that could stop, or be waited for.
    refs, ending = (
        [ref for ref in each if not getattr(_seam_of(ref), "is_over", False)]
        for each in (not_stopped(), list(_ending.values()))
    )
    pools = [(name, close) for name, method in list(_open.values()) if (close := method()) is not None]
    if not refs and not ending and not pools:
        return
    deadline = SYSTEM_CLOCK.monotonic() + EXIT_TIMEOUT
    cut_off: list[str] = []
    try:
        names = ", ".join([*(str(ref) for ref in refs), *(name for name, _ in pools)])
        if names:
            warnings.warn(f"not stopped before exit: {names}", ResourceWarning, stacklevel=1)
    finally:  # also if warnings are errors
        for ref in refs:
            with suppress(Exception):  # as below
                ref.stop(block=False)
        for ref in (*refs, *ending):
            with suppress(Exception):  # of a simulation that is over: there is no thread any more that could end it
                if not ref.ended.wait_ready(max(0.0, deadline - SYSTEM_CLOCK.monotonic())):
                    cut_off.append(str(ref))
        # After the loops, which may need them to complete the message in hand.
        cut_off += [name for name, close in pools if not close(max(0.0, deadline - SYSTEM_CLOCK.monotonic()))]
        if cut_off:
            report(
                logging.WARNING,
                "not stopped before exit, and cut off after %g s: %s",
                EXIT_TIMEOUT,
                ", ".join(cut_off),
                actors=cut_off,
            )


def _begin_anew() -> None:
    # A child process has none of its parent's threads: what runs there is the parent's to stop, and what is asked of it
    # here is refused.
    for ref in alive():
        if _seam_of(ref) is SYSTEM:  # the seam of a test wants its scheduler, which is a thread too
            ref.leave_to_parent()
    leave_to_parent()
    for _, method in list(_open.values()):
        close = method()
        if close is not None:
            cast("_Pool", getattr(close, "__self__")).leave_to_parent()  # noqa: B009  a callable need not have it
    _alive.clear()
    _ending.clear()
    _open.clear()


atexit.register(stop_forgotten)
at_fork(in_child=_begin_anew)
