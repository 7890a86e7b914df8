"""`LeaseQueue`: messages in their order, with their leases: data and arithmetic, no lock and no clock."""

from __future__ import annotations

import heapq
import math
from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol, final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from loopwarden.mailbox._message import FreshMessage

__all__ = ["Entry", "LeaseQueue"]

_NO_HEADERS: Mapping[str, str] = {}
#: So few stale entries are not worth a look.
_FEW = 64


@final
class Entry:
    """A message in the queue."""

    __slots__ = (
        "body",
        "count",
        "delayed",
        "due",
        "error",
        "headers",
        "id",
        "receipt",
        "reply_to",
        "sent_at",
        "sequence",
        "stamp",
    )

    def __init__(self, message_id: str, body: Any, sent_at: float) -> None:
        #: Its place in the order; given when it is put in the queue.
        self.sequence = 0
        self.id = message_id
        self.body = body
        self.sent_at = sent_at
        #: How often it was delivered, not counting what was put back.
        self.count = 0
        #: Which delivery is the lease; raised when a lease begins and when it ends, so that no handle is good twice.
        self.receipt = 0
        #: When its lease or its delay ends; infinite while it is visible.
        self.due = math.inf
        #: Whether it is delayed, and not leased, until it is due.
        self.delayed = False
        #: Which entry of the queue's heap is its own; 0 if none is.
        self.stamp = 0
        self.error: str | None = None
        self.headers: Mapping[str, str] = _NO_HEADERS
        self.reply_to: Any = None


class FirstLease(Protocol):
    """The first delivery of a fresh message, which stands in the queue itself until an entry is needed."""

    due: float
    record: Any


def _entry(fresh: FreshMessage | Entry) -> Entry:
    if isinstance(fresh, Entry):
        return fresh
    sequence, message_id, body, sent_at = fresh
    entry = Entry(message_id, body, sent_at)
    entry.sequence = sequence
    return entry


def _place(fresh: FreshMessage | Entry) -> int:
    return fresh.sequence if isinstance(fresh, Entry) else fresh[0]


def _sent_at(fresh: FreshMessage | Entry) -> float:
    return fresh.sent_at if isinstance(fresh, Entry) else fresh[3]


@final
class LeaseQueue:
    """Messages that are visible, in their order, and messages that are due at some time.

    Most messages are sent, delivered once and acknowledged. Such a one is no more than a tuple while it is visible, and
    while it is leased the delivery stands for it. An entry is made of either when something else happens.

    Putting, taking and removing are O(1); what comes back, and what ends out of turn, costs O(log n). The caller
    brings the time along, and sees to it that only one thread calls at a time.

    A Ctrl-C may end any of these between two steps. So a message is put into its new place before it leaves the old
    one, and the interrupted caller calls `mend`, which takes it out of one of them.
    """

    def __init__(self, max_deliveries: int | None) -> None:
        self.max_deliveries = max_deliveries
        #: Nothing is due before this; something may be due from then on.
        self.first_due = math.inf
        #: Called, under the lock, when `first_due` is lowered; they must not block.
        self.watchers: tuple[Callable[[], object], ...] = ()
        #: Visible messages that were never away: in order, because they come in order.
        #: Tuples, and entries of those that have more to them.
        self.fresh: deque[Any] = deque()
        #: Visible messages that have come back, or were delayed.
        self.returned: list[tuple[int, Entry]] = []
        #: Most leases last equally long, so they end in the order in which they begin: these, by their sequence. Not an
        #: OrderedDict, which takes twice as long. The first of a dict may stand behind many that are gone, so it is
        #: looked for only when a lease may have ended, and once for all that have.
        self.in_turn: dict[int, FirstLease | Entry] = {}
        #: When the last of them ends, or did.
        self.last_in_turn = -math.inf
        # Leases and delays that end out of turn. An entry here is stale, and passed over, when its stamp is no longer
        # the message's.
        self._out_of_turn: list[tuple[float, int, Entry]] = []
        # What moves to the end of `in_turn`, and is in no place for a moment.
        self._moving: Entry | None = None
        self._stamps = 0
        self._stale = 0

    @property
    def size(self) -> int:
        """How many messages there are: visible, delayed and leased."""
        return len(self.fresh) + len(self.returned) + len(self.in_turn) + len(self._out_of_turn) - self._stale

    @property
    def has_visible(self) -> bool:
        """True if there is something to take."""
        return bool(self.returned or self.fresh)

    def put(self, entries: Sequence[Entry]) -> None:
        """Add new messages, visible at once; all of them or none."""
        self.fresh.extend(entries)

    def put_delayed(self, entry: Entry, due: float) -> None:
        """Add a new message that becomes visible at ``due``."""
        entry.delayed = True
        self._schedule(entry, due)

    def take(self, limit: int, due: float) -> list[Entry]:
        """Lease up to ``limit`` visible messages until ``due``; one that was delivered before comes alone."""
        taken: list[Entry] = []
        while len(taken) < limit and self.has_visible:
            is_return = bool(self.returned) and not (self.fresh and _place(self.fresh[0]) < self.returned[0][0])
            is_suspect = is_return and self.returned[0][1].count > 0
            if is_suspect and taken:
                break
            entry = self.returned[0][1] if is_return else _entry(self.fresh[0])
            self._schedule(entry, due)
            if is_return:
                heapq.heappop(self.returned)
            else:
                self.fresh.popleft()
            entry.count += 1
            entry.receipt += 1
            taken.append(entry)
            if is_suspect:
                break
        return taken

    def holds(self, entry: Entry, receipt: int, now: float) -> bool:
        """Say whether that delivery is still the message's lease."""
        return entry.receipt == receipt and now < entry.due

    def remove(self, entry: Entry) -> None:
        """Take a leased message out of the queue for good."""
        self._unschedule(entry)
        entry.receipt += 1

    def give_back(self, entry: Entry, due: float | None, count: int) -> None:
        """End a lease: the message is visible at ``due``, or now if that is None, and was delivered so often."""
        entry.count = count
        if due is None:
            heapq.heappush(self.returned, (entry.sequence, entry))
            self._unschedule(entry)
        else:
            self._schedule(entry, due)
        entry.delayed = due is not None
        entry.receipt += 1

    def is_exhausted(self, entry: Entry) -> bool:
        """Say whether it was delivered as often as it may be."""
        return self.max_deliveries is not None and entry.count >= self.max_deliveries

    def extend(self, entry: Entry, due: float) -> None:
        """Move the end of a lease."""
        self._schedule(entry, due)

    def ended(self, now: float) -> Iterator[Entry]:
        """Give the messages whose lease or delay has ended, in the order in which they did.

        Each stays where it is, and must have left before the next one is asked for.
        """
        for first in list(takewhile(lambda leased: leased.due <= now, self.in_turn.values())):
            while self._next_out_of_turn() < first.due:
                yield self._out_of_turn[0][2]
            yield self.materialize(first)
        while self._next_out_of_turn() <= now:
            yield self._out_of_turn[0][2]

    def clear(self) -> int:
        """Take everything out of the queue; return how much that was."""
        cleared = self.size
        for entry in self.entries():
            entry.receipt += 1  # so that the holder of a leased one is refused
        self.fresh.clear()
        self.returned.clear()
        self.in_turn.clear()
        self._out_of_turn.clear()
        self._stale = 0
        return cleared

    def entries(self) -> list[Entry]:
        """Return all messages in their order; O(n log n), for looking only."""
        self.fresh = deque(map(_entry, self.fresh))
        in_turn = {sequence: self.materialize(leased) for sequence, leased in list(self.in_turn.items())}
        away = {entry.sequence: entry for _, stamp, entry in self._out_of_turn if entry.stamp == stamp} | in_turn
        everything = [*map(_entry, self.fresh), *(entry for _, entry in self.returned), *away.values()]
        return sorted(everything, key=lambda entry: entry.sequence)

    def counts(self, now: float) -> tuple[int, int, int, float | None]:
        """Return how many are ready, leased and delayed, and when the oldest ready one was sent.

        Takes as long as there are messages that have been away, or are; fresh ones are in the order of their sending.
        """
        ready, leased, delayed = len(self.fresh) + len(self.returned), 0, 0
        sent = [_sent_at(self.fresh[0])] if self.fresh else []
        sent += [entry.sent_at for _, entry in self.returned]
        away: list[FirstLease | Entry] = [entry for _, stamp, entry in self._out_of_turn if entry.stamp == stamp]
        for each in (*self.in_turn.values(), *away):
            if each.due <= now:
                ready += 1
                sent.append(_sent_at(each if isinstance(each, Entry) else each.record))
            elif isinstance(each, Entry) and each.delayed:
                delayed += 1
            else:
                leased += 1
        return ready, leased, delayed, min(sent, default=None)

    def discard(self, entry: Entry) -> None:
        """Take any message out of the queue; O(n) for a visible one, which is looked at only."""
        if entry.due == math.inf:
            self.fresh = deque(each for each in self.fresh if each is not entry)
            returned = [pair for pair in self.returned if pair[1] is not entry]
            heapq.heapify(returned)
            self.returned = returned
        self.remove(entry)

    def has(self, entry: Entry) -> bool:
        """Say whether a new message was put here; O(n)."""
        return entry.stamp != 0 or entry.sequence in self.in_turn or any(each is entry for each in reversed(self.fresh))

    def mend(self) -> None:
        """Put right what an interrupted change has left; O(n log n).

        A message that is in two places has not left the first or, if it is visible in one of them, not been taken.
        Something may be due at any time until `first_due` is set again.
        """
        self.first_due = -math.inf
        returned = list({sequence: (sequence, entry) for sequence, entry in self.returned}.values())
        heapq.heapify(returned)
        self.returned = returned
        visible = {*map(_place, self.fresh), *(sequence for sequence, _ in returned)}
        leased: dict[int, FirstLease | Entry] = {
            sequence: each.record if not isinstance(each, Entry) and isinstance(each.record, Entry) else each
            for sequence, each in self.in_turn.items()
        }
        if self._moving is not None:
            leased[self._moving.sequence] = self._moving
        for due, stamp, entry in self._out_of_turn:
            if entry.stamp == stamp:
                entry.due = due
                leased[entry.sequence] = entry
        away = [(sequence, each) for sequence, each in leased.items() if sequence not in visible]
        self.in_turn = dict(sorted(away, key=lambda pair: pair[1].due))
        self.last_in_turn = next(reversed(self.in_turn.values())).due if self.in_turn else -math.inf
        self._moving = None
        for entry in (entry for _, _, entry in self._out_of_turn):
            entry.stamp = 0
        self._out_of_turn = []
        self._stale = 0
        for entry in (*self.fresh, *(entry for _, entry in returned)):
            if isinstance(entry, Entry):
                entry.due = math.inf
                entry.receipt += 1  # no delivery of a visible message is good

    def materialize(self, leased: FirstLease | Entry) -> Entry:
        """Return the entry of a leased message; from now on it stands in the queue in place of the delivery."""
        if isinstance(leased, Entry):
            return leased
        if isinstance(leased.record, Entry):
            return leased.record
        entry = _entry(leased.record)
        entry.count = entry.receipt = 1
        entry.due = leased.due
        leased.record = entry
        if entry.sequence in self.in_turn:
            self.in_turn[entry.sequence] = entry
        else:
            entry.receipt += 1  # it was acknowledged a moment ago
        return entry

    def _schedule(self, entry: Entry, due: float) -> None:
        """Let a lease or a delay begin, or end at another time."""
        stamp = entry.stamp
        entry.due = due  # first, because `mend` goes by it
        if not self.in_turn:
            self.last_in_turn = -math.inf
        if due >= self.last_in_turn:
            self.last_in_turn = due
            self._moving = entry
            self.in_turn.pop(entry.sequence, None)  # if it is there already, it moves to the end
            self.in_turn[entry.sequence] = entry
            self._moving = None
            entry.stamp = 0
        else:
            self._stamps += 1
            heapq.heappush(self._out_of_turn, (due, self._stamps, entry))
            entry.stamp = self._stamps
            self.in_turn.pop(entry.sequence, None)
        if stamp:
            self._grow_stale()
        if due < self.first_due:
            self.lower_first_due(due)

    def lower_first_due(self, due: float) -> None:
        """Note that something is due sooner than anything else, and tell who wants to know."""
        self.first_due = due
        for watcher in self.watchers:
            watcher()

    def _unschedule(self, entry: Entry) -> None:
        """End a lease or a delay, if there is one."""
        if entry.stamp:
            entry.stamp = 0
            self._grow_stale()
        else:
            self.in_turn.pop(entry.sequence, None)
        entry.due = math.inf

    def _grow_stale(self) -> None:
        self._stale += 1
        # At most half of the heap is stale, so this is O(1) amortised and a million ended leases do not pile up.
        if self._stale > _FEW and self._stale * 2 > len(self._out_of_turn):
            self._out_of_turn = [each for each in self._out_of_turn if each[2].stamp == each[1]]
            heapq.heapify(self._out_of_turn)
            self._stale = 0

    def next_due(self) -> float:
        """Return when the next lease or delay ends."""
        in_turn = next(iter(self.in_turn.values())).due if self.in_turn else math.inf
        return min(in_turn, self._next_out_of_turn())

    def _next_out_of_turn(self) -> float:
        heap = self._out_of_turn
        while heap and heap[0][2].stamp != heap[0][1]:
            heapq.heappop(heap)
            self._stale -= 1
        return heap[0][0] if heap else math.inf
