"""`open_mailbox` and `list_mailboxes`: mailboxes by their URL."""

from __future__ import annotations

import re
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload
from urllib.parse import SplitResult, unquote, urlsplit

from loopwarden._blocking import SYSTEM
from loopwarden._forks import at_fork
from loopwarden._log import describe
from loopwarden.clock import SYSTEM_CLOCK, current_clock
from loopwarden.errors import InvalidParameterError, MailboxConnectionError
from loopwarden.mailbox._validation import check_new_name, hide_password
from loopwarden.mailbox.memory._mailbox import InMemoryMailbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from loopwarden.mailbox._contract import Mailbox
    from loopwarden.mailbox._fleet import Fleet

__all__ = ["fleet", "list_mailboxes", "open_mailbox"]

T = TypeVar("T")
R = TypeVar("R")

_lock = SYSTEM.lock()  # guards _in_memory
#: A mailbox, and the options that it was opened with.
_Opened: TypeAlias = tuple[InMemoryMailbox[Any, Any], dict[str, Any]]
#: What is open, by name. Each clock of a test has names of its own, which go with it: they are kept at the clock.
_in_memory: dict[str, _Opened] = {}
_AT_CLOCK = "_mailboxes_in_memory"
_SLASHES = "three slashes are relative to the current folder, four are absolute"
_FORMS = (
    "like memory://jobs, redis://host/0#jobs, sqlite:///mail.db#jobs or sqlite:////var/lib/app/mail.db#jobs"
    f" ({_SLASHES})"
)
#: What the URL of a server begins with; what each of them means is known where its client is.
_REDIS = re.compile(r"(redis|valkey|rediss|valkeys|unix|rediss?\+(cluster|sentinel|unix))://", re.IGNORECASE)
_POSTGRES = re.compile(r"(postgres|postgresql|postgresql\+psycopg)://", re.IGNORECASE)
#: Options as other URLs have them, where a name is to be.
_OPTIONS = re.compile(r"\?.*=")
_DEFAULTS = {name: each.default for name, each in signature(InMemoryMailbox).parameters.items()}


@overload
def open_mailbox(url: str, *, body: type[T], reply: type[R], create: bool = True, **options: Any) -> Mailbox[T, R]: ...


@overload
def open_mailbox(url: str, *, body: type[T], create: bool = True, **options: Any) -> Mailbox[T, Any]: ...


@overload
def open_mailbox(
    url: str, *, body: Any = Any, reply: Any = Any, create: bool = True, **options: Any
) -> Mailbox[Any, Any]: ...


def open_mailbox(
    url: str, *, body: Any = Any, reply: Any = Any, create: bool = True, **options: Any
) -> Mailbox[Any, Any]:
    """Open a mailbox.

    ``memory://jobs`` is the same mailbox wherever it is opened in this process, until it is closed.
    ``sqlite:///mail.db#jobs`` is the mailbox ``jobs`` in a file of the current folder, and
    ``sqlite:////var/lib/app/mail.db#jobs`` in the file ``/var/lib/app/mail.db``. ``redis://host:6379/0#jobs`` is the
    mailbox ``jobs`` in a database of Redis or Valkey, and needs the extra ``loopwarden[redis]``. The other options are
    those of `InMemoryMailbox`, `SqliteMailbox` and `RedisMailbox`.

    >>> jobs = open_mailbox("memory://jobs", body=str)
    >>> open_mailbox("memory://jobs") is jobs
    True
    >>> jobs.close()

    Args:
        url: Where it is.
        body: The type of the bodies.
        reply: The type of the replies.
        create: False to refuse a mailbox that is not there, and make neither it nor its file.
        options: For instance ``max_deliveries``, ``max_size`` and ``clock``.

    Raises:
        InvalidParameterError: if the URL names no mailbox that can be opened, or one in memory that is open already
            with another type of bodies or of replies, or with other options; who gives none gets it as it is.
        MailboxConnectionError: if the file cannot be opened, or its folder does not exist, or the server cannot be
            reached.
        ImportError: if the mailbox is in a server, and redis-py is not installed.
    """
    if type(create) is not bool:
        raise InvalidParameterError(describe(url), "create", create, "True or False")
    parts = _split(url)
    if parts.scheme == "memory" and parts.netloc and not parts.query and not parts.fragment:
        types = {name: kind for name, kind in (("body", body), ("reply", reply)) if kind is not Any}
        return _open_in_memory(unquote(parts.netloc + parts.path), {**types, **options}, create=create)
    if _REDIS.match(url) or _POSTGRES.match(url):
        return _open_in_server(url, body, reply, options, create=create)
    return _open_in_file(url, body, reply, options, create=create)


def _open_in_file(url: str, body: Any, reply: Any, options: dict[str, Any], *, create: bool) -> Mailbox[Any, Any]:
    from loopwarden.mailbox.sqlite._mailbox import SqliteMailbox  # noqa: PLC0415  only those who use it pay for it
    from loopwarden.mailbox.sqlite._store import is_missing, read_names  # noqa: PLC0415  as above

    parts = urlsplit(url)
    path, name = _path_in(url, parts), unquote(parts.fragment)
    _check_name_in(url, parts, name)
    folder = path.absolute().parent
    if is_missing(folder):
        raise MailboxConnectionError(name, f"the folder {folder} of {url} does not exist ({_SLASHES})")
    if not create:
        _check_there(path, name, read_names(path))
    return SqliteMailbox(path, name, body=body, reply=reply, **options)


def _check_name_in(url: str, parts: SplitResult, name: str) -> None:
    shown = hide_password(url)  # errors are logged
    if not name:
        expected = f"a URL with a mailbox's name at its end: {shown.rstrip('#')}#jobs"
        raise InvalidParameterError(shown, "url", shown, expected)
    if _OPTIONS.search(parts.fragment):
        raise InvalidParameterError(
            name, "url", shown, "a URL without options, which are keyword arguments: open_mailbox(url, max_size=…)"
        )
    check_new_name(name)


def _open_in_server(url: str, body: Any, reply: Any, options: dict[str, Any], *, create: bool) -> Mailbox[Any, Any]:
    """Open a mailbox in a server, whose client is an extra: only those who use it need it."""
    names_in, parse, make = _server(url)
    name = unquote(urlsplit(url).fragment)
    parse(url)  # as a whole: without what is behind a #, a part of a password may look like a port
    _check_name_in(url, urlsplit(url), name)
    server = url.partition("#")[0]
    if not create:
        names = names_in(server)
        if name not in names:
            known = ", ".join(map(repr, names)) or "none"
            expected = f"True, because there is no such mailbox (there is {known})"
            raise InvalidParameterError(name, "create", value=False, expected=expected)
    return make(server, name, body=body, reply=reply, **options)


def _server(url: str) -> tuple[Callable[[str], list[str]], Callable[[str], object], Callable[..., Mailbox[Any, Any]]]:
    """Return what lists the mailboxes in a server, what reads its URL, and what opens one."""
    if _POSTGRES.match(url):
        from loopwarden.mailbox.postgres import _address, _mailbox  # noqa: PLC0415  an extra

        return _mailbox.names_in, _address.parse, _mailbox.PostgresMailbox
    from loopwarden.mailbox.redis import _address as address  # noqa: PLC0415  an extra
    from loopwarden.mailbox.redis import _mailbox as redis  # noqa: PLC0415  as above

    return redis.names_in, address.parse, redis.RedisMailbox


def fleet(url: str) -> Fleet:
    """Return which processes share a mailbox of a server, and what each has in hand; nothing is made there.

    Args:
        url: The mailbox, like ``redis://host:6379/0#jobs`` or ``postgresql://host/database#jobs``.

    Raises:
        InvalidParameterError: if it is no URL of a mailbox in a server.
        MailboxConnectionError: if the server cannot be reached.
    """
    if isinstance(url, str) and _POSTGRES.match(url):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
        from loopwarden.mailbox.postgres import _mailbox as postgres  # noqa: PLC0415  an extra

        return postgres.fleet_of(url)
    if isinstance(url, str) and _REDIS.match(url):  # pyright: ignore[reportUnnecessaryIsInstance]  as above
        from loopwarden.mailbox.redis import _mailbox as redis  # noqa: PLC0415  an extra

        return redis.fleet_of(url)
    shown = hide_password(url)  # errors are logged
    expected = "a URL like redis://host:6379/0#jobs or postgresql://host/database#jobs"
    raise InvalidParameterError(shown, "url", shown, expected)


def list_mailboxes(url: str) -> list[str]:
    """Return the names of the mailboxes in a file or a server, in order, without those of dead letters.

    It makes nothing.

    Args:
        url: The file, like ``sqlite:///mail.db`` in the current folder or ``sqlite:////var/lib/app/mail.db``; the
            server, like ``redis://host:6379/0``; or ``memory://`` for those that are open in this process by their URL.

    Raises:
        InvalidParameterError: if the URL names neither, there is no such file, or it is not one of mailboxes.
        MailboxConnectionError: if the file or the server cannot be read.
    """
    parts = _split(url)
    if parts.scheme == "memory" and not any(parts[1:]):
        with _lock:
            return sorted(name for name, (mailbox, _) in _names().items() if not mailbox.closed)
    if _REDIS.match(url) or _POSTGRES.match(url):
        return _server(url)[0](url)
    from loopwarden.mailbox.sqlite._store import read_names  # noqa: PLC0415  only those who use it pay for it

    path = _path_in(url, parts)
    names = read_names(path)
    if names is None:
        raise InvalidParameterError(url, "url", url, f"that of a file: there is no {path.absolute()} ({_SLASHES})")
    return names


def _split(url: str) -> SplitResult:
    if type(url) is not str:
        raise InvalidParameterError(describe(url), "url", url, f"a string, {_FORMS}")
    try:
        return urlsplit(url)
    except ValueError:  # its text may have a part of a password
        shown = hide_password(url)
        raise InvalidParameterError(shown, "url", shown, _FORMS) from None


def _path_in(url: str, parts: SplitResult) -> Path:
    """Return the path in a URL of SQLite."""
    _, _, rest = url.partition(":")
    path = unquote(parts.path[1:])
    if parts.scheme == "sqlite" and rest.startswith("///") and path.strip("/") and not parts.query:
        return Path(path)
    shown = hide_password(url)  # errors are logged
    raise InvalidParameterError(shown, "url", shown, _FORMS)


def _check_there(path: Path, name: str, names: list[str] | None) -> None:
    if names is None:
        raise InvalidParameterError(
            name, "create", value=False, expected=f"True, because there is no file {path.absolute()}"
        )
    if name not in names:
        known = ", ".join(map(repr, names)) or "none"
        raise InvalidParameterError(
            name,
            "create",
            value=False,
            expected=f"True, because {path.absolute()} has no such mailbox (it has {known})",
        )


def _names() -> dict[str, _Opened]:
    """Return what is open in memory, by name; under the lock."""
    clock = current_clock()
    names: dict[str, _Opened] = _in_memory if clock is SYSTEM_CLOCK else vars(clock).setdefault(_AT_CLOCK, {})
    return names


def _open_in_memory(name: str, asked: dict[str, Any], *, create: bool) -> InMemoryMailbox[Any, Any]:
    check_new_name(name)
    with _lock:
        names = _names()
        if name not in names or names[name][0].closed:
            if not create:
                raise InvalidParameterError(
                    name, "create", value=False, expected="True, because no such mailbox is open"
                )
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
