"""Every bad value is refused where it is given, in one sentence that names the parameter, and nothing is changed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pykka
import pytest

from loopwarden import (
    Backoff,
    ChildSpec,
    DaemonScope,
    LoopGroup,
    MailboxLoop,
    OffloadPool,
    PeriodicLoop,
    ReaperActor,
    Service,
    Supervisor,
    Ticket,
    Token,
    WatchdogActor,
    WorkBudget,
    check_health,
    open_mailbox,
    wait_all,
)
from loopwarden.clock import SYSTEM_CLOCK
from loopwarden.errors import LoopwardenError
from loopwarden.mailbox import InMemoryMailbox, SqliteMailbox
from loopwarden.supervision import ProbeServer, StallPolicy, Timeouts
from loopwarden.testing import FakeClock, ProbeLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Kind = Callable[[Any], bool]
    Call = Callable[..., object]


class Real(float):
    """A number as NumPy has it."""


class Hostile:
    """It cannot be printed."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


VALUES: dict[str, Any] = {
    "None": None,
    "empty": "",
    "x": "x",
    "newline": "a\nb",
    "NUL": "a\0b",
    "surrogate": "\udc80",
    "bytes": b"",
    "minus": -1,
    "zero": 0,
    "one": 1,
    "minus-zero": -0.0,
    "half": 0.5,
    "nan": math.nan,
    "inf": math.inf,
    "minus-inf": -math.inf,
    "True": True,
    "False": False,
    "huge": 10**400,
    "largest": 1e308,
    "Decimal": Decimal(1),
    "Real": Real(2.0),
    "complex": 1j,
    "object": object(),
    "list": [],
    "list-of-one": [1],
    "list-of-text": ["x"],
    "dict": {},
    "dict-of-one": {1: 2},
    "tuple": (),
    "set": {1},
    "class": int,
    "error": ValueError("x"),
    "error-class": ValueError,
    "function": len,
    "ellipsis": ...,
    "hostile": Hostile(),
}


# Kinds of parameters: what may be accepted. What is of its kind may be refused all the same, if it is out of range.


def text(value: Any) -> bool:
    return isinstance(value, str)


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e308 <= value <= 1e308


def whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def waiting(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value <= math.inf)


def flag(value: Any) -> bool:
    return isinstance(value, bool)


def function(value: Any) -> bool:
    return callable(value)


def nothing(value: Any) -> bool:
    return value is None


def empty(value: Any) -> bool:
    """A list of things of ours: of bad values only that of none is one."""
    return isinstance(value, list | tuple) and not value


def texts(value: Any) -> bool:
    return several(value) and all(isinstance(each, str) for each in value)


def several(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


def headers(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and not value)


def modelled(value: Any) -> bool:
    """What pydantic takes for a number."""
    return number(value) or isinstance(value, Decimal)


def never(_: Any) -> bool:
    return False


def or_none(kind: Kind) -> Kind:
    return lambda value: value is None or kind(value)


@dataclass
class Target:
    """Something to call with one bad value: what it is called, and the kinds of its parameters."""

    name: str
    call: Call
    kinds: dict[str, Kind]
    #: What the other parameters are.
    good: dict[str, Any] = field(default_factory=dict[str, Any])
    #: Whether what is accepted blocks: then only the others are tried.
    blocks: bool = False


@pytest.fixture
def targets(tmp_path: Path) -> Iterator[list[Target]]:
    with contextlib.ExitStack() as stack:
        clock = stack.enter_context(FakeClock())
        stack.callback(lambda: [close() for close in closes])
        closes: list[Callable[[], object]] = []

        found: list[Target] = []
        boxes: dict[str, Any] = {
            "memory": InMemoryMailbox("jobs", clock=clock),
            "sqlite": SqliteMailbox(tmp_path / "mail.db", "jobs", clock=clock),
        }
        for kind, box in boxes.items():
            closes.append(box.close)
            found += of_mailbox(kind, box)
        jobs = boxes["memory"]
        found += [
            Target(
                "InMemoryMailbox",
                then(InMemoryMailbox, "close"),
                {
                    "name": text,
                    "max_deliveries": or_none(whole),
                    "max_size": or_none(whole),
                    "resolver": or_none(function),
                    "roundtrip": flag,
                    "clock": nothing,
                },
            ),
            Target(
                "SqliteMailbox",
                then(partial(cast("Any", SqliteMailbox), tmp_path / "other.db"), "close"),
                {"name": text, "max_deliveries": or_none(whole), "max_size": or_none(whole), "clock": nothing},
            ),
            Target("open_mailbox", then(open_mailbox, "close"), {"url": text}),
            Target(
                "MailboxLoop",
                MailboxLoop,
                {
                    "source": never,
                    "handler": function,
                    "concurrency": whole,
                    "prefetch": whole,
                    "crash_on": empty,
                    "backoff": never,
                    "retry": lambda value: value is None or value == {},
                    "breaker": or_none(whole),
                    "visibility_timeout": or_none(number),
                    "wait_time_seconds": or_none(number),
                    "longest_handler": or_none(number),
                    "longest_lease": number,
                    "budget": nothing,
                    "weight": whole,
                    "clock": nothing,
                },
                {"source": jobs, "handler": print, "clock": clock},
            ),
            Target(
                "MailboxLoop.run",
                of(lambda: MailboxLoop(jobs, print, clock=clock), "run"),
                {
                    "visibility_timeout": or_none(number),
                    "wait_time_seconds": or_none(number),
                    "max_iterations": or_none(whole),
                },
                {"wait_time_seconds": 1, "max_iterations": 1},
                blocks=True,
            ),
            Target(
                "PeriodicLoop",
                PeriodicLoop,
                {
                    "fn": function,
                    "every": number,
                    "timezone": nothing,
                    "run_at_start": flag,
                    "once_per": nothing,
                    "crash_on": empty,
                    "clock": nothing,
                },
                {"fn": print, "every": 1, "clock": clock},
            ),
            Target(
                "PeriodicLoop by cron",
                PeriodicLoop,
                {"cron": never, "timezone": nothing},
                {"fn": print, "cron": "* * * * *", "clock": clock},
            ),
            Target(
                "PeriodicLoop.run",
                of(lambda: PeriodicLoop(print, every=1, clock=clock), "run"),
                {"max_iterations": or_none(whole)},
                blocks=True,
            ),
            Target("Backoff", Backoff, {"minimum": number, "maximum": number, "jitter": number}),
            Target(
                "Ticket.wait",
                of(Ticket, "wait"),
                {"timeout": waiting},
                blocks=True,
            ),
            Target("Ticket.on_ready", of(Ticket, "on_ready"), {"callback": function}),
            Target("wait_all", wait_all, {"tickets": empty, "timeout": waiting}, {"tickets": []}),
            Target("check_health", check_health, {"refs": empty, "timeout": waiting}, {"refs": []}),
            Target("Token.wait", Token().wait, {"timeout": waiting, "clock": nothing}, {"timeout": 0}, blocks=True),
            Target("WorkBudget", WorkBudget, {"limit": whole, "clock": nothing}, {"limit": 1}),
            Target("WorkBudget.share", WorkBudget(2).share, {"weight": whole}),
            Target(
                "OffloadPool",
                then(OffloadPool, "close"),
                {"name": text, "workers": lambda value: whole(value) and value < 100, "clock": nothing},
            ),
            Target(
                "ChildSpec",
                ChildSpec,
                {
                    "id": text,
                    "start": function,
                    "actor": nothing,
                    "restart": never,
                    "shutdown": or_none(lambda value: modelled(value) or value == math.inf),
                    "priority": never,
                    "significant": flag,
                    "intensity": or_none(whole),
                    "period": modelled,
                    "backoff": nothing,
                },
                {"id": "child", "start": ProbeLoop},
            ),
            Target(
                "Supervisor",
                Supervisor,
                {
                    "name": text,
                    "strategy": never,
                    "intensity": or_none(whole),
                    "period": modelled,
                    "auto_shutdown": never,
                    "children": empty,
                    "template": nothing,
                    "backoff": nothing,
                    "reset_after": modelled,
                    "sequential": flag,
                    "clock": nothing,
                },
                {"name": "root", "clock": clock},
            ),
            Target(
                "Service",
                serving,
                {
                    "tree": never,
                    "mailboxes": empty,
                    "pools": empty,
                    "signals": lambda value: empty(value) or value in ([1], {1}),
                    "health_port": or_none(lambda value: type(value) is int and 0 <= value < 2),
                    "shutdown_timeout": modelled,
                    "drain_timeout": or_none(modelled),
                    "stall_threshold": or_none(modelled),
                    "longest_handler": or_none(modelled),
                    "grace": or_none(modelled),
                    "clock": nothing,
                },
                {"tree": Supervisor("root", clock=clock), "clock": clock},
            ),
            Target(
                "LoopGroup",
                grouping,
                {
                    "loops": never,
                    "shutdown_timeout": modelled,
                    "health_port": or_none(lambda value: type(value) is int and 0 <= value < 2),
                    "watchdog_threshold": or_none(number),
                    "clock": nothing,
                },
                {"loops": [ProbeLoop()], "clock": clock},
            ),
            Target(
                "WatchdogActor",
                WatchdogActor,
                {
                    "watch": empty,
                    "stall_threshold": number,
                    "interval": number,
                    "policies": headers,
                    "max_zombies": whole,
                    "patience": number,
                    "leave": function,
                    "clock": nothing,
                },
                {"watch": [], "clock": clock},
            ),
            Target("StallPolicy", StallPolicy, {"threshold": modelled}),
            Target("ReaperActor", ReaperActor, {"mailboxes": empty, "clock": nothing}, {"mailboxes": []}),
            Target("DaemonScope", DaemonScope, {"timeout": number, "clock": nothing}),
            Target(
                "ProbeServer",
                then(partial(ProbeServer, cast("Any", print)), "close"),
                {"timeout": number, "max_connections": whole, "clock": nothing},
                {"port": 0, "clock": clock},
            ),
            Target(
                "Timeouts",
                Timeouts,
                {
                    name: or_none(modelled)
                    for name in (
                        "shutdown_timeout",
                        "drain_timeout",
                        "visibility_timeout",
                        "wait_time_seconds",
                        "grace",
                    )
                },
            ),
            Target(
                "SystemClock.call_later",
                then(SYSTEM_CLOCK.call_later, "cancel"),
                {"delay": lambda value: number(value) or value in (math.inf, -math.inf), "callback": function},
                {"delay": 1_000, "callback": print},
            ),
            Target("FakeClock.advance", clock.advance, {"seconds": number}, blocks=True),
        ]
        yield found


def then(make: Call, finish: str) -> Call:
    """Return what makes something, and ends it again."""

    def call(**given: Any) -> None:
        getattr(make(**given), finish)()

    return call


def of(make: Call, method: str) -> Call:
    """Return what calls a method of something new."""

    def call(**given: Any) -> None:
        getattr(make(), method)(**given)

    return call


def serving(**given: Any) -> None:
    service = Service(**given)
    if service.probes is not None:
        service.probes.close()


def grouping(**given: Any) -> None:
    probes = LoopGroup(**given)._service.probes
    if probes is not None:
        probes.close()


def of_mailbox(kind: str, jobs: Any) -> list[Target]:
    """Return what can be called of a mailbox."""

    def message() -> Any:
        jobs.purge()
        jobs.send("body")
        return jobs.receive()[0]

    dead = jobs.dead_letters
    return [
        Target(
            f"{kind}.send",
            jobs.send,
            {
                "reply_to": or_none(text),
                "delay": number,
                "dedup_id": or_none(text),
                "headers": headers,
                "timeout": number,
            },
            {"body": "body"},
        ),
        Target(
            f"{kind}.send_many",
            jobs.send_many,
            {"bodies": several, "headers": headers, "timeout": number},
            {"bodies": ["body"]},
        ),
        Target(
            f"{kind}.receive",
            jobs.receive,
            {"max_messages": whole, "visibility_timeout": number, "wait_time_seconds": number, "token": nothing},
            blocks=True,
        ),
        Target(
            f"{kind}.wait_visible",
            jobs.wait_visible,
            {"timeout": number, "token": nothing},
            {"timeout": 0},
            blocks=True,
        ),
        Target(f"{kind}.acknowledge_many", jobs.acknowledge_many, {"messages": empty}),
        Target(
            f"{kind}.nack",
            of(message, "nack"),
            {"visibility_timeout": number, "error": or_none(text)},
        ),
        Target(
            f"{kind}.dead_letter",
            of(message, "dead_letter"),
            {"reason": text, "error": or_none(text)},
            {"reason": "so"},
        ),
        Target(f"{kind}.extend_visibility", of(message, "extend_visibility"), {"timeout": number}),
        Target(f"{kind}.dead_letters.peek", dead.peek, {"limit": whole}),
        Target(f"{kind}.dead_letters.get", dead.get, {"message_id": text}),
        Target(
            f"{kind}.dead_letters.redrive",
            dead.redrive,
            {"message_ids": or_none(texts), "rate": or_none(number), "token": nothing},
        ),
    ]


#: What a refusal may be; pydantic's errors are of the second kind.
REFUSALS = (TypeError, ValueError, LoopwardenError)


def faults(target: Target) -> list[str]:
    """Return what is wrong with how a target takes the values."""
    found: list[str] = []
    for parameter, is_kind in target.kinds.items():
        for name, value in VALUES.items():
            is_good = is_kind(value)
            if target.blocks and is_good:
                continue
            where = f"{target.name}({parameter}={name})"
            try:
                target.call(**{**target.good, parameter: value})
            except REFUSALS as error:
                if parameter.removesuffix("s") not in str(error):  # one of several is named
                    found.append(f"{where}: {type(error).__name__} does not name it: {error}")
            except BaseException as error:  # noqa: BLE001  it is what is looked for
                found.append(f"{where}: {type(error).__name__}: {error}")
            else:
                if not is_good:
                    found.append(f"{where}: accepted")
    return found


def test_every_bad_value_is_refused_by_a_sentence_that_names_the_parameter(targets: list[Target]) -> None:
    registered = pykka.ActorRegistry.get_all()

    # As ASCII: what cannot be encoded could not be told by a test process either.
    found = [ascii(fault) for target in targets for fault in faults(target)]

    assert not found, "\n".join(found)
    assert pykka.ActorRegistry.get_all() == registered


def test_the_table_of_bad_values_is_as_large_as_it_was(targets: list[Target]) -> None:
    assert sum(len(target.kinds) for target in targets) * len(VALUES) > 4_560


@pytest.mark.parametrize("seconds", [Real(0.0), Real(0.5), 0, 0.5], ids=repr)
def test_numbers_of_a_class_of_their_own_are_numbers(seconds: float) -> None:
    jobs: InMemoryMailbox[str, Any] = InMemoryMailbox("jobs", clock=FakeClock())
    ticket: Ticket[int] = Ticket()
    ticket.complete(1)

    jobs.send("body", delay=seconds)
    jobs.receive(visibility_timeout=Real(3.0), wait_time_seconds=Real(0.0))

    assert ticket.wait(seconds) == 1
    assert not Ticket[int]().wait_ready(Real(0.0))
    assert Backoff(minimum=seconds, maximum=Real(2.0), jitter=Real(0.0)).maximum == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"visibility_timeout": 0}, "visibility_timeout must be a number of seconds from 1 to 43200"),
        ({"wait_time_seconds": 0}, "wait_time_seconds must be a number of seconds of more than 0, up to 20"),
        ({"backoff": Backoff(maximum=43_200)}, "backoff.maximum must be at most 43200 s with its jitter"),
    ],
    ids=["visibility_timeout", "wait_time_seconds", "backoff"],
)
def test_a_mailbox_loop_that_could_not_work_is_refused(options: dict[str, Any], sentence: str) -> None:
    jobs: InMemoryMailbox[str, Any] = InMemoryMailbox("jobs", clock=FakeClock())

    with pytest.raises(ValueError, match=sentence):
        MailboxLoop(jobs, print, **options)


def test_a_run_of_a_mailbox_loop_waits_unless_it_ends_by_itself() -> None:
    loop = MailboxLoop(InMemoryMailbox[str, Any]("jobs", clock=FakeClock()), print)

    with pytest.raises(ValueError, match="wait_time_seconds must be a number of seconds of more than 0"):
        loop.run(wait_time_seconds=0)
    loop.run(wait_time_seconds=0, max_iterations=1)


def test_a_watchdog_refuses_a_number_of_zombies_that_is_none() -> None:
    with pytest.raises(ValueError, match="max_zombies must be a whole number from 0 on, got nan"):
        WatchdogActor([], max_zombies=cast("Any", math.nan))
