"""`Address`: which database a URL names, without the password in anything that is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final
from urllib.parse import unquote, urlsplit

from psycopg.conninfo import conninfo_to_dict

from loopwarden.errors import InvalidParameterError
from loopwarden.mailbox._validation import hide_password

__all__ = ["FORM", "SCHEMES", "Address", "parse"]

#: The schemes of a URL; the last is what SQLAlchemy calls psycopg.
SCHEMES = frozenset(("postgresql", "postgres", "postgresql+psycopg"))
#: Seconds that a server may take to accept a connection, unless the URL says otherwise.
CONNECT_SECONDS = 5
FORM = "like postgresql://user@host:5432/database#jobs"


@final
@dataclass(frozen=True, slots=True)
class Address:
    """Where the mailboxes are."""

    #: What libpq takes, with the password.
    conninfo: str = field(repr=False)
    #: The same without, for logs and errors.
    shown: str


def parse(url: str) -> tuple[Address, str]:
    """Return the address in a URL, and the name of the mailbox, which may be empty.

    Raises:
        InvalidParameterError: if it is none; its text has no password.
    """
    try:
        conninfo, options, name = _parse(url)
    except Exception:  # noqa: BLE001  of urllib, or of libpq: its text may have a part of a password
        shown = hide_password(url)
        expected = f"a URL {FORM}; in a user and a password, / is %2F, # is %23, ? is %3F and @ is %40"
        raise InvalidParameterError(shown, "url", shown, expected) from None
    hosts = str(options.get("host") or options.get("hostaddr") or "").split(",")
    ports = str(options.get("port") or "").split(",")
    places = [
        f"{host}:{ports[index % len(ports)]}" if ports[index % len(ports)] else host for index, host in enumerate(hosts)
    ]
    if "connect_timeout" not in options:
        conninfo += f"{'&' if '?' in conninfo else '?'}connect_timeout={CONNECT_SECONDS}"
    if len(hosts) > 1 and "target_session_attrs" not in options:  # a standby would take no message
        conninfo += f"{'&' if '?' in conninfo else '?'}target_session_attrs=read-write"
    return Address(conninfo, f"postgresql://{','.join(places)}/{options.get('dbname') or ''}"), name


def _parse(url: str) -> tuple[str, dict[str, Any], str]:
    """Return what libpq takes, what it makes of that, and the name of the mailbox."""
    parts = urlsplit(url)
    name = unquote(parts.fragment)
    server = url.partition("#")[0]
    if parts.scheme not in SCHEMES or "://" not in server or "@" in name.rpartition("/")[0]:
        raise ValueError("it is no URL of a database")
    if "@" in parts.path or parts.netloc.count("@") > 1:  # in a password, a part of which would be a host or a port
        raise ValueError("it has an @ or a / that is not quoted")
    conninfo = f"postgresql://{server.partition('://')[2]}"
    return conninfo, conninfo_to_dict(conninfo), name
