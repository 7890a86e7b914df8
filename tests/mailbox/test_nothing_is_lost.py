"""Whatever the workers do, every message is acknowledged once or a dead letter; in the end there is nothing else."""

from __future__ import annotations

import collections
import functools
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from loopwarden import Ticket
from loopwarden._blocking import SYSTEM
from loopwarden._ticket import wait_all
from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.errors import ReceiptHandleExpiredError
from loopwarden.mailbox import InMemoryMailbox, Mailbox, Message, SqliteMailbox, Token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PRODUCERS = CONSUMERS = 8
#: A lease is over for sure so long after its end: the two clocks of the machine may differ by a little.
MARGIN = 0.05


class Held(NamedTuple):
    message: Message[int, None]
    #: From then on its receipt must be refused.
    over_at: float


class Storm:
    def __init__(self, mailbox: Mailbox[int, None], total: int, seed: int) -> None:
        self.mailbox = mailbox
        self.total = total
        self.seed = seed
        self.tokens = [Token() for _ in range(CONSUMERS)]
        self.all_done: Ticket[None] = Ticket()
        #: What was acknowledged, by whom; a list's append is one step.
        self.acknowledged: list[int] = []
        #: What happened how often, so that a storm which was none is noticed.
        self.seen: collections.Counter[str] = collections.Counter()
        self.guard = SYSTEM.lock()  # guards seen

    def run(self) -> None:
        jobs = [functools.partial(self.produce, number) for number in range(PRODUCERS)]
        jobs += [functools.partial(self.consume, number) for number in range(CONSUMERS)]
        ended: list[Ticket[None]] = [Ticket() for _ in jobs]
        for job, ticket in zip(jobs, ended, strict=True):
            SYSTEM.start_thread(functools.partial(self.work, job, ticket), job.func.__name__)
        try:
            wait_all(ended, timeout=200 if self.total <= 2_000 else 600)
        finally:
            self.end()

    def work(self, job: Callable[[], None], ticket: Ticket[None]) -> None:
        """Do a job; if it fails, nothing is waited for any longer."""
        try:
            job()
            ticket.complete(None)
        except BaseException as error:  # noqa: BLE001  the test reads it
            ticket.fail(error)
            self.end()

    def end(self) -> None:
        self.all_done.cancel()
        for token in self.tokens:
            token.stop()

    def produce(self, number: int) -> None:
        dice = random.Random(f"{self.seed} producer {number}")
        mine = list(range(number, self.total, PRODUCERS))
        while mine:
            if dice.random() < 0.5:
                self.mailbox.send(mine.pop(), delay=dice.choice([0, 0, 0.1]))
            else:
                batch = [mine.pop() for _ in range(min(len(mine), dice.randrange(1, 5)))]
                self.mailbox.send_many(batch)

    def consume(self, number: int) -> None:
        dice = random.Random(f"{self.seed} consumer {number}")
        held: list[Held] = []
        while not self.all_done.is_ready():
            lease = dice.uniform(0.2, 0.5)
            received = self.mailbox.receive(
                max_messages=dice.randrange(1, 6),
                visibility_timeout=lease,
                wait_time_seconds=0.1,
                token=self.tokens[number],
            )
            over_at = SYSTEM_CLOCK.monotonic() + lease + MARGIN
            for message in received:
                self.handle(Held(message, over_at), held, dice)
            held = self.see_to(held, dice)
            if dice.random() < 0.02:
                self.abandon(number, held)
                held = []
            if len(self.acknowledged) + self.mailbox.dead_letters.approximate_count() >= self.total:
                self.end()

    def handle(self, each: Held, held: list[Held], dice: random.Random) -> None:
        match dice.choices(
            ["acknowledge", "nack", "raise", "put back", "extend", "stall", "forget"], [60, 8, 8, 5, 5, 10, 4]
        )[0]:
            case "acknowledge":
                self.acknowledge(each)
            case "nack":
                self.attempt("nack", lambda: each.message.nack(dice.choice([0, 0.1])))
            case "raise":
                self.attempt("raise", lambda: each.message.nack(error="ValueError('raised')"))
            case "put back":
                self.attempt("put back", each.message.put_back)
            case "extend":
                if self.attempt("extend", lambda: each.message.extend_visibility(0.3)):
                    self.acknowledge(Held(each.message, SYSTEM_CLOCK.monotonic() + 0.3 + MARGIN))
            case "stall":
                held.append(each)
            case _:
                self.note("forget")

    def see_to(self, held: list[Held], dice: random.Random) -> list[Held]:
        """Acknowledge a few of those that were stalled: some in time perhaps, the others for sure too late."""
        kept: list[Held] = []
        for each in held:
            if SYSTEM_CLOCK.monotonic() >= each.over_at or dice.random() < 0.02:
                self.acknowledge(each)
            else:
                kept.append(each)
        return kept

    def abandon(self, number: int, held: list[Held]) -> None:
        """Be fenced, as a worker that hangs is, and go on as its successor."""
        fenced = self.tokens[number]
        self.tokens[number] = Token()
        fenced.fence()
        for each in held:
            self.note("fenced")
            with pytest.raises(ReceiptHandleExpiredError):
                each.message.acknowledge()

    def acknowledge(self, each: Held) -> None:
        must_be_refused = SYSTEM_CLOCK.monotonic() >= each.over_at
        if self.attempt("acknowledge", each.message.acknowledge):
            assert not must_be_refused, f"{each.message} was acknowledged after the end of its lease"
            self.acknowledged.append(each.message.body)

    def attempt(self, what: str, call: Callable[[], None]) -> bool:
        try:
            call()
        except ReceiptHandleExpiredError:
            self.note(f"{what} refused")
            return False
        self.note(what)
        return True

    def note(self, what: str) -> None:
        with self.guard:
            self.seen[what] += 1


@pytest.fixture(params=["in memory", "in sqlite"])
def mailbox(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mailbox[Any, Any]]:
    made: Mailbox[Any, Any] = (
        InMemoryMailbox("jobs", max_deliveries=5)
        if request.param == "in memory"
        else SqliteMailbox(tmp_path / "mail.db", "jobs", max_deliveries=5)
    )
    yield made
    made.close()


@pytest.mark.parametrize("total", [2_000, pytest.param(20_000, marks=pytest.mark.prove)])
def test_every_message_is_acknowledged_once_or_a_dead_letter(mailbox: Mailbox[Any, Any], total: int) -> None:
    storm = Storm(mailbox, total, seed=total)

    storm.run()

    twice = [body for body, count in collections.Counter(storm.acknowledged).items() if count > 1]
    letters: list[Any] = [letter.body for letter in mailbox.dead_letters.peek(total)]
    assert twice == []
    assert set(storm.acknowledged) & set(letters) == set()
    assert sorted([*storm.acknowledged, *letters]) == list(range(total))
    assert mailbox.approximate_count() == 0
    expected = {"acknowledge", "acknowledge refused", "nack", "raise", "put back", "extend", "forget", "fenced"}
    assert expected <= storm.seen.keys()
