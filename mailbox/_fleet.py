"""`Fleet`: which processes share a mailbox of a server, and what each of them has in hand."""

from __future__ import annotations

import json
import os
import platform
import socket
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, final

__all__ = ["Fleet", "FleetMember", "HeldMessage", "MailboxState", "about_this_process", "read_about"]

#: What may be done with a mailbox: all; send only; receive only.
MailboxState: TypeAlias = Literal["running", "paused", "draining"]


@final
@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A message that a process has in hand."""

    message_id: str
    #: How often it was delivered, this time included.
    delivery_count: int
    #: Seconds until its lease ends, unless it is renewed.
    lease_left: float


@final
@dataclass(frozen=True, slots=True)
class FleetMember:
    """A process that receives from a mailbox."""

    #: What its leases carry; another one after each start.
    id: str
    host: str
    pid: int
    #: Of Loopwarden, and of Python.
    version: str
    python: str
    #: Seconds since its last sign of life; one comes every 5 s, and after 15 s without any it is dead.
    last_seen: float
    #: What it has in hand, oldest first.
    held: tuple[HeldMessage, ...]


@final
@dataclass(frozen=True, slots=True)
class Fleet:
    """Who shares a mailbox at one moment, and what may be done with it."""

    mailbox: str
    state: MailboxState
    #: By host and process.
    members: tuple[FleetMember, ...]
    #: What is in hand without a process that is known: it ends with its lease.
    held_by_others: tuple[HeldMessage, ...]


def about_this_process() -> str:
    """Return what a process says of itself to a server."""
    return json.dumps(
        {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "python": platform.python_version(),
            "version": _version(),
        }
    )


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  takes a while, and is asked for once

    try:
        return version("loopwarden")
    except PackageNotFoundError:
        return ""


def read_about(member: str, seen: float, raw: bytes | str, held: tuple[HeldMessage, ...]) -> FleetMember:
    """Return a process as it has described itself; nothing of what another program has written."""
    try:
        read: Any = json.loads(raw)
    except ValueError:
        read = None
    about = cast("dict[str, Any]", read) if isinstance(read, dict) else {}
    return FleetMember(
        id=member,
        host=str(about.get("host", "")),
        pid=int(about.get("pid", 0)),
        version=str(about.get("version", "")),
        python=str(about.get("python", "")),
        last_seen=max(0.0, seen),
        held=held,
    )
