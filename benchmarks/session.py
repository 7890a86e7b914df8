"""Sessions: a dispatch beside a bare tell, and a read beside a plain attribute, in the same run.

Exits with 1 if a ratio is missed. Figures move with the machine; ratios in one run hold.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _harness import Report, interleaved, pin_to_one_core, seconds

from loopwarden.actors import ControlActor, ControlRef, Session, SessionRef, Slice, SliceView, wait_all

EVENTS = 20_000
JOURNALLED = 10_000
TURNS = 20_000


@dataclass(frozen=True, slots=True)
class Added:
    """An event."""

    amount: int


@dataclass(frozen=True, slots=True)
class Total:
    """A slice."""

    sum: int = 0


TOTALS = Slice(Total()).on(Added, lambda total, added: Total(total.sum + added.amount))
KEPT = Slice(Total()).on(Added, lambda total, _: total)
ADDED = Added(1)


class Adder(ControlActor):
    """Makes the same new state of the same message, on a bare actor."""

    def __init__(self) -> None:
        super().__init__()
        self.total = Total()

    def on_receive(self, message: Any) -> Any:
        """Add."""
        self.total = Total(self.total.sum + message.amount)


class Idle(ControlActor):
    """Does nothing with what it is told."""

    def on_receive(self, message: Any) -> Any:
        """Do nothing."""


class Plain:
    """A plain object with a plain attribute."""

    def __init__(self, total: Total) -> None:
        self.value = total


def tells(ref: ControlRef) -> None:
    """One-way messages, until the last one is handled."""
    for _ in range(EVENTS):
        ref.tell(ADDED)
    ref.ask(ADDED)


def dispatches(session: SessionRef) -> None:
    """The same number of events, until the last one is answered."""
    for _ in range(EVENTS):
        session.dispatch(ADDED)
    session.dispatch(ADDED).wait()


def awaited(session: SessionRef, events: int = EVENTS) -> None:
    """The same, and every answer is taken."""
    wait_all([session.dispatch(ADDED) for _ in range(events)])


# Ten reads in each turn, so that the loop around them hardly counts.


def read_attribute(plain: Plain | SliceView[Total]) -> None:
    """Read an attribute."""
    for _ in range(TURNS):
        _ = plain.value, plain.value, plain.value, plain.value, plain.value
        _ = plain.value, plain.value, plain.value, plain.value, plain.value


def read_state(session: SessionRef) -> None:
    """Read a slice from the state."""
    for _ in range(TURNS):
        _ = session.state[Total], session.state[Total], session.state[Total], session.state[Total], session.state[Total]
        _ = session.state[Total], session.state[Total], session.state[Total], session.state[Total], session.state[Total]


def read_item(session: SessionRef) -> None:
    """Read a slice from the session."""
    for _ in range(TURNS):
        _ = session[Total], session[Total], session[Total], session[Total], session[Total]
        _ = session[Total], session[Total], session[Total], session[Total], session[Total]


def events_per_second(report: Report) -> None:
    """Print what a dispatch costs, beside a tell to an actor that adds too, and to one that does nothing."""
    session, adder, idle = Session.open("bench", [TOTALS]), Adder.start(), Idle.start()
    report.share("dispatch, in tells that add", lambda: dispatches(session), lambda: tells(adder), at_most=2)
    ours, theirs = interleaved(lambda: dispatches(session), lambda: tells(idle))
    report.figure("dispatch, in tells that do nothing", f"{ours / theirs:.2f}")
    with Session.open("kept", [KEPT]) as kept:
        ours, theirs = interleaved(lambda: dispatches(kept), lambda: tells(idle))
        report.figure("dispatch that changes nothing, in tells that do nothing", f"{ours / theirs:.2f}")
    ours, theirs = interleaved(lambda: awaited(session), lambda: tells(adder))
    report.figure("dispatch with every ticket waited for, in tells that add", f"{ours / theirs:.2f}")
    report.figure("dispatch with every ticket waited for", f"{EVENTS / ours:,.0f}/s")
    for ref in (session, adder, idle):
        ref.stop()


def journalled(report: Report) -> None:
    """Print what the journal costs."""
    for synchronous in ("NORMAL", "FULL"):
        with (
            tempfile.TemporaryDirectory() as folder,
            Session.open("bench", [TOTALS], journal=Path(folder) / "journal.db", synchronous=synchronous) as session,
        ):
            took = seconds(lambda: awaited(session, JOURNALLED))
            report.figure(f"journal, {synchronous}: events together", f"{JOURNALLED / took:,.0f}/s")
            one = seconds(lambda: [session.dispatch(ADDED).wait() for _ in range(500)])
            report.figure(f"journal, {synchronous}: one after another", f"{500 / one:,.0f}/s")


def reads(report: Report) -> None:
    """Print what reading costs."""
    plain = Plain(Total())
    with Session.open("bench", [TOTALS]) as session:
        view = session.view(Total)
        report.share("view.value, in plain attributes", lambda: read_attribute(view), lambda: read_attribute(plain), 2)
        for name, read in (("session.state[Total]", read_state), ("session[Total]", read_item)):
            ours, theirs = interleaved(lambda: read(session), lambda: read_attribute(plain))  # noqa: B023  called at once
            each = f"{ours / TURNS / 10 * 1e9:.0f} ns"
            report.figure(f"{name}, in plain attributes", f"{ours / theirs:.1f} ({each})")


def main() -> None:
    """Print everything."""
    report = Report()
    print(f"sessions, {pin_to_one_core()}")
    events_per_second(report)
    journalled(report)
    reads(report)
    report.exit()


if __name__ == "__main__":
    main()
