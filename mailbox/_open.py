"""`open_mailbox`: a mailbox by its URL."""

from __future__ import annotations

import re
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload
from urllib.parse import unquote, urlsplit

from loopwarden._blocking import SYSTEM
from loopwarden._forks import at_fork
from loopwarden._log import describe
from loopwarden.clock import SYSTEM_CLOCK, current_clock
from loopwarden.errors import InvalidParameterError
from loopwarden.mailbox._validation import check_new_name
from loopwarden.mailbox.memory._mailbox import InMemoryMailbox
from loopwarden.mailbox.sqlite._mailbox import SqliteMailbox

if TYPE_CHECKING:
    from loopwarden.mailbox._contract import Mailbox

__all__ = ["open_mailbox"]

T = TypeVar("T")
R = TypeVar("R")

_lock = SYSTEM.lock()  # guards _in_memory
#: A mailbox, and the options that it was opened with.
_Opened: TypeAlias = tuple[InMemoryMailbox[Any, Any], dict[str, Any]]
#: What is open, by name. Each clock of a test has names of its own, which go with it: they are kept at the clock.
_in_memory: dict[str, _Opened] = {}
_AT_CLOCK = "_mailboxes_in_memory"
#: A user and a password before a host.
_PASSWORD = re.compile(r"(//[^:/?#]*):[^/?#]*@")
_DEFAULTS = {name: each.default for name, each in signature(InMemoryMailbox).parameters.items()}


@overload
def open_mailbox(url: str, *, body: type[T], reply: type[R], **options: Any) -> Mailbox[T, R]: ...


@overload
def open_mailbox(url: str, *, body: type[T], **options: Any) -> Mailbox[T, Any]: ...


@overload
def open_mailbox(url: str, *, body: Any = Any, reply: Any = Any, **options: Any) -> Mailbox[Any, Any]: ...


def open_mailbox(url: str, *, body: Any = Any, reply: Any = Any, **options: Any) -> Mailbox[Any, Any]:
    """Open a mailbox.

    ``memory://jobs`` is the same mailbox wherever it is opened in this process, until it is closed.
    ``sqlite:///var/lib/app/mail.db#jobs`` is the mailbox ``jobs`` in that file, ``sqlite:mail.db#jobs`` in a file of
    the working directory. The other options are those of `InMemoryMailbox` and `SqliteMailbox`.

    >>> jobs = open_mailbox("memory://jobs", body=str)
    >>> open_mailbox("memory://jobs") is jobs
    True
    >>> jobs.close()

    Args:
        url: Where it is.
        body: The type of the bodies.
        reply: The type of the replies.
        options: For instance ``max_deliveries``, ``max_size`` and ``clock``.

    Raises:
        InvalidParameterError: if the URL names no mailbox that can be opened, or one in memory that is open already
            with another type of bodies or of replies, or with other options; who gives none gets it as it is.
    """
    if type(url) is not str:
        raise InvalidParameterError(
            describe(url), "url", url, "a string, like memory://jobs or sqlite:///path/to/file#jobs"
        )
    parts = urlsplit(url)
    if parts.scheme == "memory" and parts.netloc:
        types = {name: kind for name, kind in (("body", body), ("reply", reply)) if kind is not Any}
        return _open_in_memory(unquote(parts.netloc + parts.path), {**types, **options})
    if parts.scheme == "sqlite" and parts.path and not parts.netloc:
        name = unquote(parts.fragment) or "default"
        return SqliteMailbox(unquote(parts.path), name, body=body, reply=reply, **options)
    shown = _PASSWORD.sub(r"\1:***@", url)  # errors are logged
    raise InvalidParameterError(shown, "url", shown, "like memory://jobs or sqlite:///path/to/file#jobs")


def _open_in_memory(name: str, asked: dict[str, Any]) -> InMemoryMailbox[Any, Any]:
    check_new_name(name)
    with _lock:
        clock = current_clock()
        names = _in_memory if clock is SYSTEM_CLOCK else vars(clock).setdefault(_AT_CLOCK, {})
        if name not in names or names[name][0].closed:
            names[name] = (InMemoryMailbox(name, resolver=partial(_find, names), **asked), asked)
        known, opened_with = names[name]
        for option, value in asked.items():
            has = opened_with.get(option, _DEFAULTS.get(option))
            if value != has:
                raise InvalidParameterError(
                    name, option, value, f"{has!r}, with which it is open already (close it, or take another name)"
                )
        return known


def _find(names: dict[str, _Opened], name: str) -> InMemoryMailbox[Any, Any] | None:
    with _lock:
        known = names.get(name)
        return None if known is None else known[0]


def _begin_anew() -> None:
    # In a child process, where another thread of the parent may have held the lock, and what was open is the parent's.
    global _lock  # noqa: PLW0603  it is the module's own
    _lock = SYSTEM.lock()
    _in_memory.clear()


at_fork(in_child=_begin_anew)
