"""`read_fleet`: which processes share a mailbox of a server, and what each of them has in hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from loopwarden.mailbox._fleet import Fleet, FleetMember, HeldMessage, MailboxState, read_about
from loopwarden.mailbox.redis._scripts import base_of

if TYPE_CHECKING:
    from loopwarden.mailbox.redis._store import RedisStore

__all__ = ["read_fleet"]


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
        member, seen, about = found[index].decode(), float(found[index + 1]), found[index + 2]
        members.append(read_about(member, (now - seen) / 1000, about, tuple(held.pop(member, ()))))
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
