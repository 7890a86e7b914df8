"""What became of messages at the end of a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from loopwarden.mailbox import Message

__all__ = ["Fate", "MessageFate", "fate_of", "merged_fates"]

#: ``done``: completed. ``returned``: not completed, and back in the queue. ``abandoned``: its worker was given up while
#: it was in hand, and it is back in the queue. ``extended``: still in hand, or the store did not take it back; it comes
#: back when its lease ends. What goes back after its last delivery is a dead letter then.
Fate: TypeAlias = Literal["done", "returned", "extended", "abandoned"]
#: Of a message that several tell of, because it went back and was taken again: the one further down is what it came to.
_WEIGHTS: dict[Fate, int] = {"returned": 0, "abandoned": 1, "extended": 2, "done": 3}


class MessageFate(BaseModel):
    """What became of one message at the end of its loop."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    message_id: str
    fate: Fate


def merged_fates(fates: Iterable[MessageFate]) -> tuple[MessageFate, ...]:
    """Return one fate of each message."""
    merged: dict[str, MessageFate] = {}
    for each in fates:
        known = merged.setdefault(each.message_id, each)
        if _WEIGHTS[each.fate] > _WEIGHTS[known.fate]:
            merged[each.message_id] = each
    return tuple(merged.values())


def fate_of(message: Message[Any, Any]) -> Fate:
    """Return what became of a message that was in hand, whoever finalised it."""
    return "extended" if not message.is_finalized else "returned" if message.is_returned else "done"
