"""Mailboxes in Redis and Valkey, against the least that could do the same in the same server, in the same run.

Exits with 1 if a ratio is missed. Figures move with the machine; ratios in one run hold. Each server that is here is
started for it. `weakincentives` is compared with where it is installed.
"""

from __future__ import annotations

import contextlib
import importlib
import statistics
import threading
import time
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from _harness import Report, interleaved
from _server import KINDS, Server, child, hear, pin_apart, program

from loopwarden import Token
from loopwarden.mailbox import RedisMailbox

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Generator

Box = RedisMailbox[str, None]

HERE = Path(__file__).resolve().parent
#: What every message carries.
BODY = 100 * "x"
#: Messages of one round, by batch: a round takes a tenth of a second or so.
OF_A_ROUND = {1: 200, 10: 1_000, 100: 4_000}
#: Messages into a poll; stops of one; leases that end.
CROSSINGS = 300
STOPS = 300
ENDS = 100
#: Seconds of the leases that end.
LEASE = 0.03
#: Seconds that a consumer waits: longer than what is measured takes.
POLL = 20
#: Seconds until a poll is idle: its caller waits, and so does the notifier in the server.
PAUSE = 0.01
IDLE_LOOPS = 100
#: A whole poll, so that every loop asks once more in it.
IDLE_SECONDS = 20.0
#: Seconds until all loops wait.
SETTLING = 2.0
#: Most messages of one call.
MANY = 1_000


# Throughput.


class Floor:
    """The least that can send, lease and acknowledge in a server: a script for each, by redis-py's plain client.

    Receipts are not checked, deliveries not counted, none is woken, and what returns has no order.

    Args:
        port: The server.
        how: Whether the scripts treat messages `one_by_one`, as they are easiest to write, or `at_once`.
    """

    def __init__(self, port: int, how: str) -> None:
        self._client: Any = redis.Redis(port=port)
        self._keys = [f"{{floor-{how}}}:{what}" for what in ("last", "line", "bodies", "leases")]
        self._send, self._receive, self._acknowledge = (
            self._client.register_script((HERE / "floor" / how / f"{name}.lua").read_text("utf-8"))
            for name in ("send", "receive", "acknowledge")
        )

    def turn_over(self, batch: int) -> None:
        """Send, receive and acknowledge, with one call of each for a batch."""
        for _ in range(OF_A_ROUND[batch] // batch):
            self._send(self._keys, [BODY] * batch)
            ids, bodies = self._receive(self._keys, [batch, 300_000])
            assert len(bodies) == batch, "all of them are there"
            self._acknowledge(self._keys, ids)

    def close(self) -> None:
        """Disconnect."""
        self._client.close()


def turn_over(box: Box, batch: int) -> None:
    """Do the same with a mailbox: by the calls for one message, or by those for many."""
    for _ in range(OF_A_ROUND[batch] // batch):
        if batch == 1:
            box.send(BODY)
            [message] = box.receive()
            message.acknowledge()
        else:
            box.send_many([BODY] * batch)
            messages = box.receive(max_messages=batch)
            assert len(messages) == batch, "all of them are there"
            box.acknowledge_many(messages)


@contextlib.contextmanager
def mailbox(server: Server, name: str) -> Generator[Box]:
    """Give a mailbox that no other process uses."""
    with contextlib.closing(Box(server.url, name, body=str, max_deliveries=None)) as box:
        yield box


def throughput(report: Report, server: Server) -> None:
    """Print how near the floor a mailbox is."""
    with (
        mailbox(server, "throughput") as box,
        contextlib.closing(Floor(server.port, "one_by_one")) as floor,
        contextlib.closing(Floor(server.port, "at_once")) as least,
    ):
        for batch, at_least in ((1, 0.75), (10, 0.9), (100, 1.1)):
            ours, bare = partial(turn_over, box, batch), partial(floor.turn_over, batch)
            took, bare_took = report.faster(f"batch {batch}, to the bare floor", ours, bare, at_least)
            count = OF_A_ROUND[batch]
            report.figure(f"batch {batch}: messages", f"{count / took:,.0f}/s, floor {count / bare_took:,.0f}/s")
            if batch > 1:
                took, least_took = interleaved(ours, partial(least.turn_over, batch))
                report.figure(f"batch {batch}, to one that treats all at once", f"{least_took / took:.2f}")


def against_weakincentives(report: Report, server: Server) -> None:
    """Print how much faster we are, where it is installed."""
    if find_spec("weakincentives") is None:
        report.figure("batch 10, to weakincentives", "not installed")
        return
    theirs: Any = importlib.import_module("weakincentives.contrib.mailbox")
    with (
        mailbox(server, "tens") as box,
        contextlib.closing(redis.Redis(port=server.port)) as client,
        contextlib.closing(theirs.RedisMailbox(name="tens", client=client, body_type=str)) as other,
    ):
        report.faster(
            "batch 10, to weakincentives", partial(turn_over, box, 10), partial(their_tens, other), at_least=5
        )


def their_tens(box: Any) -> None:
    """Send, receive and acknowledge; it has no calls for many."""
    for _ in range(OF_A_ROUND[10] // 10):
        for _ in range(10):
            box.send(BODY)
        for message in box.receive(max_messages=10, visibility_timeout=300):
            message.acknowledge()


# Waiting. On both sides another process receives: in this one a send needs no server to wake who waits.


def into_a_poll(report: Report, server: Server) -> None:
    """Print what it costs to wake an idle poll."""
    with (
        mailbox(server, "poll") as box,
        contextlib.closing(redis.Redis(port=server.port)) as client,
        child("_receiver.py", "mailbox", server.url) as ours,
        child("_receiver.py", "list", server.url) as bare,
    ):
        push: Any = partial(client.lpush, "poll")
        sides = ((box.send, ours), (push, bare))
        rounds = [[crossing(send, receiver) for send, receiver in sides] for _ in range(1 + CROSSINGS)]
        for send, _ in sides:
            send("")
    took, bare_took = (statistics.median(side[1:]) for side in zip(*rounds, strict=True))
    report.limit("into an idle 20 s poll, in raw BRPOP", took / bare_took, at_most=2.5)
    report.figure("into an idle 20 s poll", f"{took * 1e3:.2f} ms, BRPOP {bare_took * 1e3:.2f} ms")


def crossing(send: Callable[[str], object], receiver: subprocess.Popen[str]) -> float:
    """Return the seconds from before a send until another process has the message."""
    time.sleep(PAUSE)  # noqa: TID251  nothing tells that a process has begun to wait
    start = time.perf_counter()
    send(BODY)
    return float(hear(receiver)) - start


def stops(report: Report, server: Server) -> None:
    """Print how soon a receive returns that is told to stop."""
    took: list[float] = []
    with mailbox(server, "stops") as box:

        def wait() -> None:
            box.receive(wait_time_seconds=POLL, token=token)
            took.append(time.perf_counter() - start)

        for _ in range(STOPS):
            token = Token()
            thread = threading.Thread(target=wait)  # noqa: TID251  a bare caller
            thread.start()
            time.sleep(PAUSE)  # noqa: TID251  nothing tells that a thread has begun to wait
            start = time.perf_counter()
            token.stop()
            thread.join()
    report.limit("from the stop of a token to the return, ms", statistics.median(took) * 1e3, at_most=0.3)


def lease_ends(report: Report, server: Server) -> None:
    """Print how late a receive is that waits for the end of a lease."""
    late: list[float] = []
    with mailbox(server, "ends") as box:
        box.send(BODY)
        for _ in range(ENDS):
            start = time.perf_counter()
            [_] = box.receive(visibility_timeout=LEASE)
            [message] = box.receive(wait_time_seconds=POLL)
            late.append(time.perf_counter() - start - LEASE)
            message.put_back()
    report.limit("a lease that ends is received too late by, ms", statistics.median(late) * 1e3, at_most=5)


def idle(report: Report, server: Server) -> None:
    """Print what loops cost that wait: connections, and processor time on both sides."""
    for mailboxes in (1, IDLE_LOOPS):
        of = f"{IDLE_LOOPS} loops on {mailboxes} mailbox{'es' if mailboxes > 1 else ''}"
        with child("_idle_mailboxes.py", server.url, str(mailboxes), str(IDLE_LOOPS), str(IDLE_SECONDS)) as loops:
            time.sleep(SETTLING)  # noqa: TID251  nothing tells that a process has begun to wait
            known = clients(server)
            before = server_time(server)
            assert loops.stdin is not None, "it was asked for"
            loops.stdin.write("\n")
            loops.stdin.flush()
            used = float(hear(loops))
            used_by_server = server_time(server) - before
            waiting = sum("b" in each["flags"] for each in known)
            later = len(clients(server))
            loops.stdin.close()
        report.limit(f"{of}: connections that wait in the server", waiting, at_most=1)
        report.figure(f"{of}: connections, and {IDLE_SECONDS:g} s later", f"{len(known)}, {later}")
        report.limit(f"{of}, idle: % of a core", used / IDLE_SECONDS * 100, at_most=1)
        report.limit(f"{of}, idle: % of a core of the server", used_by_server / IDLE_SECONDS * 100, at_most=1)


def clients(server: Server) -> list[dict[str, str]]:
    """Return the connections that the server has, but the one that asks."""
    mine = str(server.client.client_id())
    return [each for each in server.client.client_list() if each["id"] != mine]


def server_time(server: Server) -> float:
    """Return the seconds of processor time that the server has used."""
    used: dict[str, float] = server.client.info("cpu")
    return used["used_cpu_user"] + used["used_cpu_sys"]


# Cost by size.


def flat(report: Report, server: Server) -> None:
    """Print that the cost of a message does not depend on how many there are."""
    with (
        mailbox(server, "queued-few") as few,
        mailbox(server, "queued-many") as many,
        mailbox(server, "leased-few") as few_leased,
        mailbox(server, "leased-many") as many_leased,
    ):
        for box, count in ((few, 1_000), (many, 1_000_000)):
            for _ in range(count // MANY):
                box.send_many([BODY] * MANY)
        for box, count in ((few_leased, 10), (many_leased, 100_000)):
            for _ in range(max(count // MANY, 1)):
                box.send_many([BODY] * min(count, MANY))
                box.receive(max_messages=MANY, visibility_timeout=3_600)
        for batch in (1, 100):
            for what, large, small in (
                ("1,000,000 queued, in 1,000", many, few),
                ("100,000 leased, in 10", many_leased, few_leased),
            ):
                report.share(
                    f"batch {batch}: {what}", partial(turn_over, large, batch), partial(turn_over, small, batch), 1.5
                )


def main() -> None:
    """Print everything."""
    report = Report()
    pinned, cores = pin_apart()
    print(f"mailboxes in servers, {pinned}, redis-py {version('redis')}")
    for kind in KINDS:
        path = program(kind)
        if path is None:
            print(f" {kind}: not here")
            continue
        with Server(path, cores) as server:
            print(f" {kind} {server.version}")
            for part in (throughput, against_weakincentives, into_a_poll, stops, lease_ends, idle, flat):
                part(report, server)
    report.exit()


if __name__ == "__main__":
    main()
