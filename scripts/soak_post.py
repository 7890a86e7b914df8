"""Who sends to a tree from outside, and takes stock when it is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, final

from soak_books import GARBLED, Stock
from soak_tree import BOXES, MAX_DELIVERIES

from loopwarden.mailbox import SqliteMailbox

if TYPE_CHECKING:
    import random
    from pathlib import Path
    from types import TracebackType

__all__ = ["Post"]

#: How often each kind is drawn; those that stall are counted out one by one.
KINDS = {
    "plain": 70,
    "pool": 15,
    "slow": 4,
    "fail": 4,
    "crash": 2,
    "crash-on": 2,
    "poison": 1.5,
    "deadly": 0.5,
    GARBLED: 1,
}
#: Seconds that a message may stay away after a retry, at most; what is away for longer is leased.
AWAY = 1.0


@final
class Post:
    """All mailboxes of a file, and what was sent to them.

    Args:
        folder: Where the file is.
        dice: Draws what is sent.
        stalls: How many messages stall the worker that has them first.
    """

    def __init__(self, folder: Path, dice: random.Random, stalls: int) -> None:
        self._folder = folder
        self._dice = dice
        self._stalls = stalls
        # Bodies of any type, so that one can be sent that the handlers' side cannot read.
        self._boxes: list[SqliteMailbox[Any, Any]] = [
            SqliteMailbox(folder / "mail.db", name, max_deliveries=MAX_DELIVERIES) for name in BOXES
        ]
        self._sent: dict[str, str] = {}

    def send(self, count: int) -> None:
        """Send so many messages, to any of the mailboxes."""
        kinds = self._dice.choices(list(KINDS), weights=list(KINDS.values()), k=count)
        if self._stalls and self._dice.random() < 0.5:
            self._stalls -= 1
            kinds[self._dice.randrange(count)] = "stall"
        for kind in kinds:
            body = len(self._sent) if kind == GARBLED else f"{kind}/{len(self._sent)}"
            self._sent[self._dice.choice(self._boxes).send(body)] = kind

    @property
    def is_all_done(self) -> bool:
        """True if nothing is in any mailbox, leased or not."""
        return all(box.approximate_count() == 0 for box in self._boxes)

    def take_stock(self) -> Stock:
        """Empty the mailboxes, and tell what there was; only when all processes have ended."""
        left: list[str] = []
        leased = 0
        for box in self._boxes:
            while messages := box.receive(max_messages=100, visibility_timeout=600, wait_time_seconds=AWAY):
                left += [message.id for message in messages]
                box.acknowledge_many(messages)
                if not box.approximate_count():
                    break
            leased += box.approximate_count()
        dead = [letter.message_id for box in self._boxes for letter in box.dead_letters.peek(len(self._sent) + 1)]
        notes = self._folder / "completed"
        completed = notes.read_text(encoding="utf-8").split() if notes.exists() else []
        return Stock(sent=self._sent, completed=completed, left=left, dead=dead, leased=leased)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        for box in self._boxes:
            box.close()
