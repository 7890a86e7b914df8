"""`fleet`: which processes share a mailbox of a server, and what each of them has in hand."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, final

from loopwarden.mailbox.redis._scripts import base_of

if TYPE_CHECKING:
    from loopwarden.mailbox.redis._store import RedisStore

__all__ = ["Fleet", "FleetMember", "HeldMessage", "MailboxState", "read_fleet"]

#: What may be done with a mailbox: all; send only; receive only.
MailboxState: TypeAlias = Literal["running", "paused", "draining"]


@final
@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A message that somebody has in hand."""

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


def read_fleet(store: RedisStore, name: str) -> Fleet:
    """Return who shares a mailbox now; nothing is changed by it.

    Raises:
        MailboxConnectionError: if the server cannot be reached.
    """
    base = base_of(name)
    now, state, *found = store.call(name, "fleet", base, ())
    held = _held_by_member(store, name, base, now)
    members: list[FleetMember] = []
    for index in range(0, len(found), 3):
        member, seen, about = found[index].decode(), float(found[index + 1]), _about(found[index + 2])
        members.append(
            FleetMember(
                id=member,
                host=str(about.get("host", "")),
                pid=int(about.get("pid", 0)),
                version=str(about.get("version", "")),
                python=str(about.get("python", "")),
                last_seen=max(0.0, (now - seen) / 1000),
                held=tuple(held.pop(member, ())),
            )
        )
    others = sorted((each for messages in held.values() for each in messages), key=lambda each: each.lease_left)
    members.sort(key=lambda each: (each.host, each.pid, each.id))
    return Fleet(name, cast("MailboxState", state.decode() or "running"), tuple(members), tuple(others))


def _held_by_member(store: RedisStore, name: str, base: str, now: int) -> dict[str, list[HeldMessage]]:
    found: dict[int, tuple[str, HeldMessage]] = {}  # a message may be seen twice
    cursor = "0"
    while True:
        at, birth, *rows = store.call(name, "held", base, (cursor,))
        for index in range(0, len(rows), 3):
            place, due, hold = rows[index : index + 3]
            count, _, holder, _ = hold.decode(errors="replace").split(":", 3)
            left = max(0.0, (float(due) - now) / 1000)
            found[int(place)] = holder, HeldMessage(f"{birth.decode()}-{place.decode()}", int(count), left)
        cursor = at.decode()
        if cursor == "0":
            break
    held: dict[str, list[HeldMessage]] = {}
    for _, (holder, message) in sorted(found.items()):
        held.setdefault(holder, []).append(message)
    return held


def _about(raw: bytes) -> dict[str, Any]:
    try:
        about: Any = json.loads(raw)
    except ValueError:
        return {}
    return cast("dict[str, Any]", about) if isinstance(about, dict) else {}
