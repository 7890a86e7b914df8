"""Made the files beside it, with version 0.1: ``python make.py``.

They show that later versions read what this one has written, so they are not made anew.
"""

from __future__ import annotations

import contextlib
import json
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from loopwarden.actors import EVAL_PROGRESS, EvalResult, SampleScored, Session, Slice
from loopwarden.mailbox import SqliteMailbox
from loopwarden.testing import FakeClock

HERE = Path(__file__).resolve().parent
#: Longer than a body that stands in the row of its message.
LONG = "long " * 600


class Order(BaseModel, frozen=True):
    number: int
    price: Decimal
    placed: datetime
    lines: tuple[str, ...]


class Sold(BaseModel, frozen=True):
    what: str
    price: int


class Closed(BaseModel, frozen=True):
    pass


class Till(BaseModel, frozen=True):
    total: int = 0
    is_closed: bool = False


class Goods(BaseModel, frozen=True):
    sold: tuple[str, ...] = ()


TILL = (
    Slice(Till())
    .on(Sold, lambda till, sold: Till(total=till.total + sold.price))
    .on(Closed, lambda till, _: Till(total=till.total, is_closed=True))
)
GOODS = Slice(Goods()).on(Sold, lambda goods, sold: Goods(sold=(*goods.sold, sold.what)))


def write_mailboxes(path: Path) -> dict[str, list[str]]:
    """Fill a file of mailboxes from a time on that is long ago; return the ids of what each was sent."""
    with FakeClock() as clock, contextlib.ExitStack() as stack:

        def mailbox(name: str, **options: Any) -> SqliteMailbox[Any, Any]:
            return stack.enter_context(contextlib.closing(SqliteMailbox(path, name, **options)))

        plain = mailbox("plain")
        ids = {"plain": [plain.send("first"), *plain.send_many(["second", {"third": [3, 0.5, None, True]}])]}
        clock.advance(1)
        ids["plain"].append(plain.send("naïve ✓", headers={"trace": "17", "naïveté": "✓"}))

        placed = datetime(2023, 11, 14, 22, 13, 20, 5, tzinfo=timezone(timedelta(hours=2)))
        order = Order(number=1, price=Decimal("9.90"), placed=placed, lines=("tea", "milk"))
        ids["orders"] = [mailbox("orders", body=Order).send(order)]

        ids["long"] = [mailbox("long").send(LONG, headers={"length": "3000"})]

        leased = mailbox("leased")
        ids["leased"] = leased.send_many(["in hand", "returned", "put back", "waiting"])
        _, returned, put_back = leased.receive(max_messages=3, visibility_timeout=300)
        returned.nack(60, error="ValueError: not yet")
        put_back.put_back()

        delayed = mailbox("delayed")
        ids["delayed"] = [delayed.send("later", delay=3_600), delayed.send("now")]

        ids["dedup"] = [mailbox("dedup").send("once", dedup_id="order-1")]

        mailbox("answers", body=str)
        ids["questions"] = [mailbox("questions").send("how many?", reply_to="answers", headers={"trace": "18"})]

        ids["letters"] = write_dead_letters(mailbox("letters", max_deliveries=2), clock)
        ids["unreadable"] = [mailbox("unreadable").send("no number", headers={"trace": "19"})]
        assert not mailbox("unreadable", body=int).receive()

        redriven = mailbox("redriven")
        ids["redriven"] = [redriven.send("again", headers={"trace": "20"})]
        redriven.receive()[0].dead_letter("to be redriven")
        redriven.dead_letters.redrive()

        in_hand = mailbox("letter in hand")
        ids["letter in hand"] = [in_hand.send("looked at")]
        in_hand.receive()[0].dead_letter("to be looked at")
        in_hand.dead_letters.receive(visibility_timeout=300)
    return ids


def write_dead_letters(letters: SqliteMailbox[Any, Any], clock: FakeClock) -> list[str]:
    """Let messages become dead letters, each for another reason; return their ids."""
    killed = letters.send("kills its process")
    for _ in range(2):
        letters.receive(visibility_timeout=5)
        clock.advance(5)
    letters.reap()
    failed = letters.send("fails", headers={"trace": "21"})
    for attempt in ("first", "second"):
        letters.receive()[0].nack(error=f"KeyError: {attempt}")
    refused = letters.send(LONG)
    clock.advance(1)
    letters.receive()[0].dead_letter("not for us", error="TypeError: too long")
    return [killed, failed, refused]


def write_journal(path: Path) -> str:
    """Write the journal of a session with children; return a snapshot of them all."""
    with Session.open("shop", [TILL, GOODS], journal=path, snapshot_every=4) as shop:
        for price, what in enumerate(["tea", "milk", "bread", "crème", "salt", "jam"], 1):
            shop.dispatch(Sold(what=what, price=price)).wait(60)
        early = shop.snapshot()
        shop.dispatch(Sold(what="by mistake", price=100)).wait(60)
        shop.restore(early).wait(60)
        shop.dispatch(Sold(what="rice", price=7)).wait(60)
        shop.dispatch(Closed()).wait(60)
        kiosk = shop.child("kiosk", [TILL])
        kiosk.dispatch(Sold(what="newspaper", price=2)).wait(60)
        kiosk.child("corner", [GOODS]).dispatch(Sold(what="gum", price=1)).wait(60)
        evaluation = shop.child("evaluation", [EVAL_PROGRESS])
        evaluation.dispatch(SampleScored(EvalResult[Any](sample_id="a", output={"x": 1}, score=0.5))).wait(60)
        evaluation.dispatch(SampleScored(EvalResult[Any](sample_id="b", error="ValueError: no"))).wait(60)
        return shop.snapshot().model_dump_json(indent=2)


def main() -> None:
    """Write all files."""
    ids = write_mailboxes(HERE / "mail.db")
    (HERE / "mail-ids.json").write_text(json.dumps(ids, indent=2) + "\n", encoding="utf-8")
    (HERE / "snapshot.json").write_text(write_journal(HERE / "journal.db") + "\n", encoding="utf-8")
    (HERE / "journal.db-lock").unlink()  # it says which process had the journal, and nothing else


if __name__ == "__main__":
    main()
