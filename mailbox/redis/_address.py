"""`Address`: which server a URL names, without the password in anything that is shown."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from loopwarden.errors import InvalidParameterError
from loopwarden.mailbox._validation import hide_password

__all__ = ["FORMS", "SCHEMES", "Address", "parse"]

#: The schemes of a URL, with what redis-py calls them.
SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "valkey": "redis",
    "valkeys": "rediss",
    "unix": "unix",
    "redis+unix": "unix",
    "redis+cluster": "redis",
    "rediss+cluster": "rediss",
    "redis+sentinel": "redis",
    "rediss+sentinel": "rediss",
}
FORMS = (
    "like redis://host:6379/0#jobs, rediss://user:password@host/0#jobs (TLS), unix:///run/redis.sock#jobs,"
    " redis+cluster://host1,host2#jobs or redis+sentinel://host1,host2/primary/0#jobs"
)
#: Options as other URLs have them, where a name is to be.
_OPTIONS = re.compile(r"\?.*=")
_PORTS = {"cluster": 6379, "sentinel": 26379}
#: Where a user and a password are looked for if the URL has none.
USERNAME, PASSWORD = "LOOPWARDEN_REDIS_USERNAME", "LOOPWARDEN_REDIS_PASSWORD"


@final
@dataclass(frozen=True, slots=True)
class Address:
    """Where the mailboxes are."""

    #: What redis-py takes, with the password; for a cluster and Sentinel the options of it are taken.
    url: str = field(repr=False)
    #: The same without, for logs and errors.
    shown: str
    #: "node", "cluster" or "sentinel"; then these hosts, and the name of the primary.
    kind: str = "node"
    hosts: tuple[tuple[str, int], ...] = ()
    service: str = ""


def parse(url: str) -> tuple[Address, str]:
    """Return the address in a URL, and the name of the mailbox, which may be empty.

    Raises:
        InvalidParameterError: if it is none; its text has no password.
    """
    try:
        return _parse(url)
    except InvalidParameterError:
        raise
    except ValueError:  # its text may have a part of a password
        raise _refused(url, FORMS) from None


def _parse(url: str) -> tuple[Address, str]:
    parts = urlsplit(url)
    kind = parts.scheme.partition("+")[2].replace("unix", "")
    hosts, service, database = _hosts_of(parts, kind), "", parts.path.strip("/")
    if kind == "sentinel":
        service, _, database = database.partition("/")
    if parts.scheme not in SCHEMES:
        raise _refused(url, FORMS)
    if _OPTIONS.search(parts.fragment):  # the name of a mailbox is shown
        raise _refused(
            url, "without options behind the name, which are keyword arguments: open_mailbox(url, max_size=…)"
        )
    is_socket = SCHEMES[parts.scheme] == "unix"
    if not is_socket and (not hosts or (database and not (database.isascii() and database.isdigit()))):
        raise _refused(url, FORMS)
    if is_socket and (parts.netloc.rpartition("@")[2] or not parts.path):
        raise _refused(url, FORMS)
    if (kind == "sentinel" and not service) or (kind == "cluster" and database not in {"", "0"}):
        raise _refused(url, FORMS)
    places = [f"{host}:{port}" for host, port in hosts]
    path = (
        parts.path
        if is_socket
        else "/".join(filter(None, ("", service, database or ("" if kind == "cluster" else "0"))))
    )
    path = path if is_socket or not path else f"/{path.lstrip('/')}"
    shown = f"{parts.scheme}://{','.join(places)}{path}"
    user, password = _credentials_of(parts)
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    where = f"{login}{parts.path}" if is_socket else f"{login}{places[0]}/{database}"
    query = f"?{parts.query}" if parts.query else ""
    address = Address(f"{SCHEMES[parts.scheme]}://{where}{query}", shown, kind or "node", tuple(hosts), service)
    return address, unquote(parts.fragment)


def _hosts_of(parts: SplitResult, kind: str) -> list[tuple[str, int]]:
    """Return hosts and ports; several only of a cluster, and of Sentinel.

    Raises:
        ValueError: if a port is none.
    """
    named = [each for each in parts.netloc.rpartition("@")[2].split(",") if each]
    if len(named) > 1 and not kind:
        raise ValueError("several hosts are those of a cluster or of Sentinel")
    hosts: list[tuple[str, int]] = []
    for each in named:
        place = urlsplit(f"//{each}")
        port = place.port  # raises if it is none
        if not place.hostname:
            raise ValueError("a host has no name")
        place.hostname.encode("idna")  # raises if it can be none, as the look-up of its address would
        hosts.append(
            (f"[{place.hostname}]" if ":" in place.hostname else place.hostname, port or _PORTS.get(kind, 6379))
        )
    return hosts


def _credentials_of(parts: SplitResult) -> tuple[str, str]:
    login, found, _ = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    if found and (user or password):
        return unquote(user), unquote(password)
    return os.environ.get(USERNAME, ""), os.environ.get(PASSWORD, "")


def _refused(url: str, expected: str) -> InvalidParameterError:
    shown = hide_password(url)
    text = f"a URL {expected}; in a user and a password, / is %2F, # is %23, ? is %3F and @ is %40"
    return InvalidParameterError(shown, "url", shown, text)
