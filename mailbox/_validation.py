"""The ranges of what a caller may ask for, checked in one place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from loopwarden._arguments import MAX_VISIBILITY, is_number, is_whole
from loopwarden._log import describe
from loopwarden.errors import InvalidParameterError
from loopwarden.mailbox._token import Token

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")
M = TypeVar("M")

__all__ = [
    "DEDUP_WINDOW",
    "MAX_WAIT",
    "check_bodies",
    "check_dedup_id",
    "check_headers",
    "check_id",
    "check_ids",
    "check_limit",
    "check_limits",
    "check_loop",
    "check_messages",
    "check_name",
    "check_new_name",
    "check_receive",
    "check_reply_to",
    "check_run",
    "check_seconds",
    "check_text",
    "check_token",
    "hide_password",
    "refuse_letter",
]

_SCHEME = re.compile(r"[A-Za-z+]*:?/*")
#: What stands where a URL has its hosts; and hosts as they are to be, each with a port or without.
_PLACES = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/*([^/?#]*)")
_HOSTS = re.compile(r"((\[[0-9A-Fa-f:.]+\]|[^\s:,\[\]]+)(:\d{0,5})?(,|$))*")
_QUERY = re.compile(r"\?[^#]*")
#: Seconds that a poll may wait, as in SQS.
MAX_WAIT = 20
#: Seconds in which a second message with the same dedup id is not sent, as in SQS.
DEDUP_WINDOW = 300.0
#: The highest bound there is, if there is one: what PostgreSQL counts with has four bytes.
MAX_LIMIT = 2**31 - 1
#: Messages that one receive may return.
MAX_BATCH = 1_000
#: Workers of one loop: a process has room for some thousand threads in all.
MAX_WORKERS = 10_000
#: Seconds that a loop leases a message for, at least: with none, each is delivered again while it is worked on.
LEAST_LEASE = 1.0


def check_seconds(mailbox: str, parameter: str, value: float, most: float = MAX_VISIBILITY) -> None:
    """Refuse what is not a number of seconds from 0 to ``most``."""
    if not is_number(value) or not 0 <= value <= most:
        raise InvalidParameterError(mailbox, parameter, value, f"a number of seconds from 0 to {most:g}")


def check_whole(mailbox: str, parameter: str, value: int, most: int) -> None:
    """Refuse what is not a whole number from 1 to ``most``."""
    if not is_whole(value) or not 1 <= value <= most:
        raise InvalidParameterError(mailbox, parameter, value, f"a whole number from 1 to {most}")


def check_limits(mailbox: str, max_deliveries: int | None, max_size: int | None) -> None:
    """Check what a mailbox is bounded by; None is no bound."""
    for parameter, value in (("max_deliveries", max_deliveries), ("max_size", max_size)):
        if value is not None:
            check_whole(mailbox, parameter, value, MAX_LIMIT)


def check_token(mailbox: str, token: Token | None) -> None:
    """Refuse what is no token, and not None either."""
    if token is not None and type(token) is not Token:
        raise InvalidParameterError(mailbox, "token", token, "a Token, or None")


def check_receive(mailbox: str, max_messages: int, visibility_timeout: float, wait_time_seconds: float) -> None:
    """Check all numbers that a receive takes."""
    check_whole(mailbox, "max_messages", max_messages, MAX_BATCH)
    check_seconds(mailbox, "visibility_timeout", visibility_timeout)
    check_seconds(mailbox, "wait_time_seconds", wait_time_seconds, MAX_WAIT)


def check_loop(
    mailbox: str,
    *,
    concurrency: int,
    prefetch: int,
    visibility_timeout: float,
    wait_time_seconds: float,
    longest_lease: float,
) -> None:
    """Check all that a loop over a mailbox takes."""
    check_whole(mailbox, "concurrency", concurrency, MAX_WORKERS)
    check_whole(mailbox, "prefetch", prefetch, MAX_BATCH)
    check_run(mailbox, visibility_timeout, wait_time_seconds)
    check_seconds(mailbox, "longest_lease", longest_lease)


def check_run(
    mailbox: str, visibility_timeout: float, wait_time_seconds: float, max_iterations: int | None = None
) -> None:
    """Check how a loop polls; one that ends by itself need not wait."""
    if not is_number(visibility_timeout) or not LEAST_LEASE <= visibility_timeout <= MAX_VISIBILITY:
        why = "with a shorter lease, messages come back while they are worked on"
        expected = f"a number of seconds from {LEAST_LEASE:g} to {MAX_VISIBILITY}: {why}"
        raise InvalidParameterError(mailbox, "visibility_timeout", visibility_timeout, expected)
    if max_iterations is not None:
        check_whole(mailbox, "max_iterations", max_iterations, 2**63)
        check_seconds(mailbox, "wait_time_seconds", wait_time_seconds, MAX_WAIT)
    elif not is_number(wait_time_seconds) or not 0 < wait_time_seconds <= MAX_WAIT:
        why = "with 0 a loop that has nothing to do would use up a processor"
        expected = f"a number of seconds of more than 0, up to {MAX_WAIT} ({why})"
        raise InvalidParameterError(mailbox, "wait_time_seconds", wait_time_seconds, expected)


def check_text(mailbox: str, parameter: str, value: str | None, *, or_none: bool = False) -> None:
    """Refuse what is no string: an exception, for instance, of which only the text can be kept."""
    if (value is None and or_none) or isinstance(value, str):
        return
    raise InvalidParameterError(mailbox, parameter, value, "a string, such as repr(error)" + or_none * ", or None")


def check_headers(mailbox: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of ``headers``, all of whose names and values must be strings."""
    if not isinstance(headers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
        raise InvalidParameterError(mailbox, "headers", headers, "a mapping of strings to strings")
    copy = dict(headers)
    for name, value in copy.items():
        if type(name) is not str or type(value) is not str:
            raise InvalidParameterError(mailbox, f"headers[{name!r}]", value, "a string named by a string")
    return copy


def check_bodies(mailbox: str, bodies: Iterable[T]) -> Iterable[T]:
    """Return the bodies; a single one that could be taken for a list of its letters is refused."""
    if isinstance(bodies, str | bytes | bytearray) or not hasattr(bodies, "__iter__"):
        raise InvalidParameterError(mailbox, "bodies", bodies, "a list of bodies; for a single one there is send()")
    return bodies


def check_reply_to(mailbox: str, reply_to: object) -> Any:
    """Return where replies go: a mailbox, the name of one, or None."""
    if reply_to is None or callable(getattr(reply_to, "send", None)):
        return reply_to
    if type(reply_to) is str and reply_to and reply_to.isprintable() and "://" not in reply_to:
        return reply_to
    what = "a mailbox of the same store, its name (no URL), or None"
    raise InvalidParameterError(mailbox, "reply_to", reply_to, what)


def check_ids(mailbox: str, message_ids: Iterable[str]) -> list[str]:
    """Return the ids as a list; a single id is not a list of its letters."""
    if isinstance(message_ids, str | bytes | type) or not hasattr(message_ids, "__iter__"):
        raise InvalidParameterError(mailbox, "message_ids", message_ids, "a list of ids")
    ids = list(message_ids)
    for each in ids:
        check_id(mailbox, "message_ids", each)
    return ids


def check_id(mailbox: str, parameter: str, message_id: str) -> None:
    """Refuse what is no id."""
    if not isinstance(message_id, str) or not _is_writable(message_id):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
        raise InvalidParameterError(mailbox, parameter, message_id, "the id of a message, a string")


def check_messages(mailbox: str, messages: Iterable[M]) -> list[M]:
    """Return deliveries as a list; before one of them is touched, all are looked at."""
    given: object = messages  # a caller may have no types
    if isinstance(given, str | bytes | Mapping | type) or not hasattr(given, "__iter__"):
        raise InvalidParameterError(mailbox, "messages", messages, "a list of messages")
    listed = list(messages)
    for each in listed:
        if not hasattr(type(each), "acknowledge"):
            raise InvalidParameterError(mailbox, "messages", each, "messages that were received, all of them")
    return listed


def check_limit(mailbox: str, limit: int) -> None:
    """Refuse what does not say how many."""
    if not is_whole(limit) or not 0 <= limit < 2**63:
        raise InvalidParameterError(mailbox, "limit", limit, "a whole number from 0 on")


def check_dedup_id(mailbox: str, dedup_id: str | None) -> None:
    """Refuse what cannot be told apart from others: it must be a non-empty string that can be written, or None."""
    if dedup_id is not None and (type(dedup_id) is not str or not dedup_id or not _is_writable(dedup_id)):
        raise InvalidParameterError(mailbox, "dedup_id", dedup_id, "a non-empty string")


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate, as file names may have
        return False
    return True


def check_name(name: str) -> str:
    """Return ``name``, which must be a non-empty string without control characters."""
    if type(name) is not str or not name or not name.isprintable():
        raise InvalidParameterError(describe(name), "name", name, "a non-empty printable string")
    return name


def check_new_name(name: str) -> str:
    """Return the name of a mailbox to be opened, which must not be that of another one's dead letters."""
    if check_name(name).endswith(":dead"):
        expected = "one that does not end in ':dead': that is where a mailbox has its dead letters"
        raise InvalidParameterError(name, "name", name, expected)
    return name


def refuse_letter(mailbox: str, message_id: str) -> InvalidParameterError:
    """Return the error for a dead letter that is to become one."""
    expected = "a message that is not yet a dead letter: acknowledge it, give it back, or redrive it"
    return InvalidParameterError(mailbox, "message", message_id, expected)


def hide_password(url: object) -> str:
    """Return a URL, or what was taken for one, without what may be a password: before a host, or in a query.

    What stands behind a colon, and is no port, may be one too: a host may have been forgotten.
    """
    text = str(url)
    if text.startswith(("sqlite:///", "memory:")):  # which have no host
        return text
    login, at, host = text.rpartition("@")
    scheme = _SCHEME.match(login)
    if at:
        return _QUERY.sub("?…", f"{scheme[0] if scheme else ''}***@{host}")
    places = _PLACES.match(text)
    if places is not None and ":" in places[1] and not _HOSTS.fullmatch(places[1]):
        return f"{text[: text.index(':', places.start(1))]}:***"  # and no more: a password may have a / or a #
    return _QUERY.sub("?…", text)
