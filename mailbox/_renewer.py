"""`LeaseRenewer`: keeps the leases of what workers have in hand, for as long as each of them shows signs of life."""

from __future__ import annotations

import logging
import math
import weakref
from typing import TYPE_CHECKING, Any, Protocol, final

from loopwarden._log import describe, report
from loopwarden.errors import MailboxConnectionError, MessageFinalizedError, ReceiptHandleExpiredError
from loopwarden.mailbox._contract import SupportsExtendMany

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from loopwarden.clock import Clock, Timer
    from loopwarden.mailbox._message import Message

__all__ = ["Holder", "LeaseRenewer", "renewer_of"]

#: What is left of a lease when it is due for renewal.
DUE = 1 / 2
#: What is left of a lease when it is renewed with others that are due, so that all of them come to be due together.
EARLY = 3 / 4
#: What is left of a lease at the least when a timer rings that need not be set anew for it.
ENOUGH = 3 / 8
#: After which part of a lease a renewal that failed is tried again.
AGAIN = 1 / 8


class Holder(Protocol):
    """A worker, as one sees it who renews its leases; read on any thread."""

    @property
    def lease(self) -> float:
        """The seconds that it receives messages for."""
        ...

    @property
    def lease_ends(self) -> float:
        """When the leases of what it holds end, in monotonic seconds."""
        ...

    def held(self) -> Sequence[Message[Any, Any]]:
        """Return what it holds, if it shows signs of life; otherwise nothing."""
        ...

    @property
    def may_go_on(self) -> bool:
        """True if it shows no sign of life, and what it holds would still be kept if it showed one."""
        ...

    def renewed(self, until: float) -> None:
        """Take note that the leases of what it holds end then."""
        ...

    def lost(self, messages: Sequence[Message[Any, Any]], why: str) -> None:
        """Take note that the leases of some of what it held are over."""
        ...


@final
class LeaseRenewer:
    """Renews the leases of all workers of one mailbox in this process, by one call for all of them.

    There is a timer only while a worker holds something. What the store does may block, so it is called on a thread of
    its own, and the next timer is set when that call is over.

    Args:
        source: The mailbox.
        clock: The time.
    """

    def __init__(self, source: object, clock: Clock) -> None:
        self._source = _weakly(source)
        self._name = str(getattr(source, "name", ""))
        self._clock = clock
        self._lock = clock.blocking.lock()  # guards _holders, _alarm, _rings_at and _timer together
        self._holders: dict[Holder, None] = {}
        # There from the setting of a timer until its call is over.
        self._alarm: object = None
        # When the timer rings; always in time while a call is under way, because then it is looked what is next. Looked
        # at without the lock, by each worker after each receive. The worker first shows what it holds and then looks; a
        # call does it in the other order.
        self._rings_at = math.inf
        self._has_failed = False  # so that it is told once how it stands with the mailbox
        self._timer: Timer | None = None

    @property
    def clock(self) -> Clock:
        """The time it lives by."""
        return self._clock

    def join(self, holder: Holder) -> None:
        """Begin to renew what a worker holds."""
        with self._lock:
            self._holders[holder] = None

    def leave(self, holder: Holder) -> None:
        """Renew nothing for a worker any more."""
        with self._lock:
            self._holders.pop(holder, None)
            if self._holders:
                return
            timer = self._forget_alarm()
        if timer is not None:
            timer.cancel()
        self._set_if_needed()  # another worker may have come meanwhile, and seen an alarm

    def received(self, holder: Holder) -> None:
        """Take note that a worker holds something; called after each receive, so it does next to nothing."""
        # Not only if there is no timer: that of a lease which lasts longer would ring too late.
        if holder.lease_ends - holder.lease * ENOUGH < self._rings_at:
            self._set(holder.lease * DUE)

    def _forget_alarm(self) -> Timer | None:
        """Be without a timer; return the one to be cancelled. Under the lock."""
        timer, self._timer = self._timer, None
        self._alarm, self._rings_at = None, math.inf
        return timer

    def _set(self, seconds: float) -> None:
        """Have what is due renewed after so many seconds, if that is not done sooner anyway."""
        alarm = object()
        rings_at = self._clock.monotonic() + seconds
        with self._lock:
            if rings_at >= self._rings_at or not self._holders:
                return
            later = self._forget_alarm()
            self._alarm, self._rings_at = alarm, rings_at
        if later is not None:
            later.cancel()
        try:
            timer = self._clock.call_later(seconds, lambda: self._ring(alarm))
        except RuntimeError as error:
            with self._lock:
                if self._alarm is alarm:
                    self._forget_alarm()
            text = "could not start a timer, so the leases of messages of %r are not renewed"
            report(logging.WARNING, text, self._name, error=error)
            return
        with self._lock:
            is_wanted = self._alarm is alarm
            if is_wanted:
                self._timer = timer
        if not is_wanted:  # the last worker has left meanwhile, or one has come whose lease ends sooner
            timer.cancel()

    def _set_if_needed(self, failed: Collection[Holder] = ()) -> None:
        """Set a timer if something is held; for what could not be renewed just now it is one for another try.

        So it is for a worker that shows no sign of life: it may be seen to show one before its lease ends.
        """
        now = self._clock.monotonic()
        dues: list[float] = []
        for each in self._joined():
            if each.may_go_on or (each in failed and each.held()):
                dues.append(each.lease * AGAIN)
            elif each.held():
                dues.append(max(0.0, each.lease_ends - each.lease * DUE - now))
        if dues:
            self._set(min(dues))

    def _joined(self) -> tuple[Holder, ...]:
        with self._lock:
            return tuple(self._holders)

    def _ring(self, alarm: object) -> None:
        """Have the leases renewed; on the clock's thread, which must not block."""
        try:
            self._clock.blocking.start_thread(lambda: self._renew(alarm), f"{self._name}-renewal")
        except RuntimeError as error:
            if not self._has_failed:
                self._has_failed = True
                text = "could not start a thread to renew the leases of messages of %r, retrying"
                report(logging.WARNING, text, self._name, error=error)
            holders = self._joined()
            with self._lock:
                is_current = self._alarm is alarm
                if is_current:
                    self._forget_alarm()
            if is_current:
                self._set_if_needed(holders)

    def _renew(self, alarm: object) -> None:
        failed: Collection[Holder] = ()
        with self._lock:
            if self._alarm is not alarm:
                return
            self._rings_at = -math.inf
        try:
            source = self._source()
            if source is not None:
                failed = self._renew_what_is_due(source)
        finally:
            with self._lock:
                is_current = self._alarm is alarm
                if is_current:
                    self._forget_alarm()
            if is_current:
                self._set_if_needed(failed)

    def _renew_what_is_due(self, source: object) -> list[Holder]:
        """Renew the leases of whatever needs it; return for whom that failed."""
        now = self._clock.monotonic()
        due: dict[float, list[tuple[Holder, Sequence[Message[Any, Any]]]]] = {}
        for holder in self._joined():
            if holder.lease_ends - now <= holder.lease * EARLY and (held := holder.held()):
                due.setdefault(holder.lease, []).append((holder, held))
        failed: list[Holder] = []
        for lease, holders in due.items():
            found, errors = _extend(source, [each for _, held in holders for each in held], lease)
            over = set(map(id, found))
            not_done: list[tuple[Holder, Sequence[Message[Any, Any]]]] = []
            for holder, held in holders:
                missed = [each for each in held if id(each) in errors]
                if missed:
                    not_done.append((holder, missed))
                else:
                    holder.renewed(now + lease)
                lost = [each for each in held if id(each) in over and not each.is_finalized]
                if lost:
                    holder.lost(lost, "it ended before it could be renewed")
            if not_done:
                failed += [holder for holder, _ in not_done]
                self._tell_failure(not_done, next(iter(errors.values())))
            else:
                self._has_failed = False
        return failed

    def _tell_failure(self, holders: list[tuple[Holder, Sequence[Message[Any, Any]]]], error: BaseException) -> None:
        now = self._clock.monotonic()
        if not self._has_failed:
            self._has_failed = True
            text = "could not renew the leases of %d messages of %r, retrying: %s"
            report(logging.WARNING, text, sum(len(held) for _, held in holders), self._name, describe(error))
        for holder, held in holders:
            if holder.lease_ends <= now:
                holder.lost(held, f"the mailbox was unavailable for all of its {holder.lease:g} s: {describe(error)}")

    def __repr__(self) -> str:
        return f"<LeaseRenewer of {self._name!r}, {len(self._holders)} workers>"


def _extend(
    source: object, messages: list[Message[Any, Any]], lease: float
) -> tuple[Sequence[Message[Any, Any]], dict[int, BaseException]]:
    """Renew leases; return those that are over, and by `id` of each what kept others from being renewed."""
    over: list[Message[Any, Any]] = []
    errors: dict[int, BaseException] = {}
    if isinstance(source, SupportsExtendMany):
        try:
            return source.extend_many(messages, lease), errors
        except BaseException as error:  # noqa: BLE001  a back end may be user code
            return over, dict.fromkeys(map(id, messages), error)
    for index, message in enumerate(messages):
        try:
            message.extend_visibility(lease)
        except (ReceiptHandleExpiredError, MessageFinalizedError):
            over.append(message)
        except MailboxConnectionError as error:  # for the others too, and each may take a while
            return over, errors | dict.fromkeys(map(id, messages[index:]), error)
        except BaseException as error:  # noqa: BLE001  as above
            errors[id(message)] = error
    return over, errors


def _weakly(source: object) -> Callable[[], object]:
    try:
        return weakref.ref(source)
    except TypeError:  # a class of other people's, with slots
        return lambda: source


#: The renewers of each mailbox, by its `id`: mailboxes of other people's may be equal without being the same. What
#: tells that a mailbox is gone stands beside them. `weakref.finalize` would keep it, and all that our modules can
#: reach, until the interpreter has to take them down piece by piece, so that a process of loops would end much later.
_renewers: dict[int, tuple[weakref.ref[object], list[LeaseRenewer]]] = {}


def renewer_of(source: object, clock: Clock) -> LeaseRenewer:
    """Return the renewer that all workers of a mailbox share."""
    key = id(source)
    entry = _renewers.get(key)
    if entry is None:
        try:
            ref = weakref.ref(source, lambda _: _renewers.pop(key, None))
        except TypeError:  # there is no way to know when it is gone
            return LeaseRenewer(source, clock)
        entry = _renewers.setdefault(key, (ref, []))
    _, known = entry
    for renewer in known:
        if renewer.clock is clock:
            return renewer
    renewer = LeaseRenewer(source, clock)
    known.append(renewer)
    return renewer
