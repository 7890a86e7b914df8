"""`open_mailbox`: a mailbox by its URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload
from urllib.parse import unquote, urlsplit

from loopwarden._blocking import SYSTEM
from loopwarden.errors import InvalidParameterError
from loopwarden.mailbox._in_memory import InMemoryMailbox
from loopwarden.mailbox._sqlite import SqliteMailbox

if TYPE_CHECKING:
    from loopwarden.mailbox._contract import Mailbox

__all__ = ["open_mailbox"]

T = TypeVar("T")
R = TypeVar("R")

_lock = SYSTEM.lock()  # guards _in_memory
_in_memory: dict[str, InMemoryMailbox[Any, Any]] = {}


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
        InvalidParameterError: if the URL names no mailbox that can be opened.
    """
    parts = urlsplit(url)
    if parts.scheme == "memory" and parts.netloc:
        return _open_in_memory(unquote(parts.netloc + parts.path), body, options)
    if parts.scheme == "sqlite" and parts.path and not parts.netloc:
        name = unquote(parts.fragment) or "default"
        return SqliteMailbox(unquote(parts.path), name, body=body, reply=reply, **options)
    raise InvalidParameterError(url, "url", url, "like memory://jobs or sqlite:///path/to/file#jobs")


def _open_in_memory(name: str, body: Any, options: dict[str, Any]) -> InMemoryMailbox[Any, Any]:
    with _lock:
        known = _in_memory.get(name)
        if known is None or known.closed:
            known = _in_memory[name] = InMemoryMailbox(name, body=body, resolver=_find, **options)
        return known


def _find(name: str) -> InMemoryMailbox[Any, Any] | None:
    with _lock:
        return _in_memory.get(name)
