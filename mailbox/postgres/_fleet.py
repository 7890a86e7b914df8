"""`read_fleet`: which processes share a mailbox of a database, and what each of them has in hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from loopwarden.mailbox._fleet import Fleet, HeldMessage, MailboxState, read_about
from loopwarden.mailbox.postgres._connection import to_integer

if TYPE_CHECKING:
    from loopwarden.mailbox.postgres._store import PostgresStore

__all__ = ["read_fleet"]

_MEMBERS = (
    b"SELECT m.holder, m.seen, m.about, loopwarden.time(NULL) FROM loopwarden.members m"
    b" WHERE m.mailbox = $1::int4 ORDER BY m.holder"
)
_STATE = b"SELECT a.birth, m.state FROM loopwarden.about a, loopwarden.mailboxes m WHERE m.number = $1::int4"
_HELD = (
    b"SELECT m.place, m.count, m.due, m.holder, loopwarden.time($2::int8) FROM loopwarden.messages m"
    b" WHERE m.mailbox = $1::int4 AND m.due > loopwarden.time($2::int8) AND m.receipt IS NOT NULL ORDER BY m.place"
)


def read_fleet(store: PostgresStore, name: str, box: int | None) -> Fleet:
    """Return who shares a mailbox now; nothing is changed by it.

    Raises:
        MailboxConnectionError: if the server cannot be reached.
    """
    if box is None:
        return Fleet(name, "running", (), ())
    [(birth, state)] = store.again(name, _STATE, box)
    held: dict[str, list[HeldMessage]] = {}
    for place, count, due, holder, now in store.again(name, _HELD, box, store.now()):
        left = max(0.0, (to_integer(due) - to_integer(now)) / 1000)
        message = HeldMessage(f"{(birth or b'').decode()}-{to_integer(place)}", to_integer(count), left)
        held.setdefault((holder or b"").decode(), []).append(message)
    members = [
        read_about(
            (holder or b"").decode(),
            (to_integer(now) - to_integer(seen)) / 1000,
            about or b"{}",
            tuple(held.pop((holder or b"").decode(), ())),
        )
        for holder, seen, about, now in store.again(name, _MEMBERS, box)
    ]
    members.sort(key=lambda each: (each.host, each.pid, each.id))
    others = sorted((each for messages in held.values() for each in messages), key=lambda each: each.lease_left)
    return Fleet(name, cast("MailboxState", (state or b"").decode() or "running"), tuple(members), tuple(others))
