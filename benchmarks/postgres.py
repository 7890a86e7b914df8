"""Mailboxes in PostgreSQL, against the least that could do the same in the same server, in the same run.

Exits with 1 if a ratio is missed. Figures move with the machine; ratios in one run hold. Each server that is here is
started for it, with `fsync` on. What else there is for queues in it is compared where it is installed.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from _harness import ROUNDS, Report, interleaved, seconds
from _postgres import POSTGRES_KINDS, PostgresServer, find_folder, start
from _server import child, hear, pin_apart

from loopwarden import Token
from loopwarden.mailbox import PostgresMailbox

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Generator

Box = PostgresMailbox[str, None]

#: What every message carries.
BODY = 100 * "x"
RAW = f'"{BODY}"'.encode()
#: Messages of one round, by batch: a round takes some tenths of a second.
OF_A_ROUND = {1: 100, 10: 500, 100: 2_000}
CROSSINGS = 200
STOPS = 300
ENDS = 100
#: Seconds of the leases that end.
LEASE = 0.03
#: Seconds that a consumer waits: longer than what is measured takes.
POLL = 20
#: Seconds until a poll is idle: its caller waits, and the server knows.
PAUSE = 0.02
IDLE_LOOPS = 100
#: A whole poll, so that every loop asks once more in it.
IDLE_SECONDS = 20.0
#: Seconds until all loops wait.
SETTLING = 3.0
#: Most messages of one call.
MANY = 1_000
QUEUED, LEASED, GONE = 1_000_000, 100_000, 200_000
TICKS = os.sysconf("SC_CLK_TCK")


# Throughput.


class Floor:
    """The least that can send, lease and acknowledge in a table: a statement for each, by psycopg's own cursor.

    Receipts are not checked, deliveries not counted, none is woken, and what returns has no order. Its key is that of
    a mailbox, its statements are prepared, and rows are always found by the key.

    Args:
        url: The server.
    """

    _SEND = "INSERT INTO floor (mailbox, due, body) SELECT 1, 0, body FROM unnest(%b::bytea[]) body"
    _RECEIVE = """
        UPDATE floor f SET due = (extract(epoch FROM now()) * 1000)::bigint + 300000 FROM (
            SELECT ctid FROM floor WHERE mailbox = 1 AND due = 0 ORDER BY place LIMIT %b FOR UPDATE SKIP LOCKED
        ) line WHERE f.ctid = line.ctid RETURNING f.place, f.due, f.body
    """
    _ACKNOWLEDGE = """
        DELETE FROM floor WHERE ctid = ANY (array(
            SELECT (SELECT f.ctid FROM floor f WHERE f.mailbox = 1 AND f.due = given.due AND f.place = given.place)
            FROM unnest(%b::bigint[], %b::bigint[]) AS given(place, due)
        ))
    """

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self._connection.execute("DROP TABLE IF EXISTS floor")
        self._connection.execute("""
            CREATE TABLE floor (
                mailbox int, due bigint, place bigint GENERATED ALWAYS AS IDENTITY, body bytea,
                PRIMARY KEY (mailbox, due, place)
            ) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000)
        """)
        for setting in ("enable_seqscan = off", "enable_bitmapscan = off", "plan_cache_mode = force_generic_plan"):
            self._connection.execute(f"SET {setting}")
        self._cursor = self._connection.cursor(binary=True)

    def turn_over(self, batch: int) -> None:
        """Send, receive and acknowledge, with one statement of each for a batch."""
        execute = self._cursor.execute
        for _ in range(OF_A_ROUND[batch] // batch):
            execute(self._SEND, ([RAW] * batch,))
            rows = execute(self._RECEIVE, (batch,)).fetchall()
            assert len(rows) == batch, "all of them are there"
            execute(self._ACKNOWLEDGE, ([row[0] for row in rows], [row[1] for row in rows]))

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()


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
def mailbox(server: PostgresServer, name: str) -> Generator[Box]:
    """Give a mailbox that no other process uses."""
    with contextlib.closing(Box(server.url, name, body=str, max_deliveries=None)) as box:
        yield box


def throughput(report: Report, server: PostgresServer) -> None:
    """Print how near the floor a mailbox is; then without waiting for the disk, where the processors show."""
    for commit in ("on", "off"):
        server.execute(f"ALTER SYSTEM SET synchronous_commit = {commit}")
        server.execute("SELECT pg_reload_conf()")
        with mailbox(server, "throughput") as box, contextlib.closing(Floor(server.url)) as floor:
            for batch, count in OF_A_ROUND.items():
                ours, bare = partial(turn_over, box, batch), partial(floor.turn_over, batch)
                if commit == "on":
                    took, bare_took = report.faster(f"batch {batch}, to the bare floor", ours, bare, at_least=0.85)
                else:
                    took, bare_took = interleaved(ours, bare)
                    report.figure(f"batch {batch}, synchronous_commit=off, to it", f"{bare_took / took:.2f}")
                of = f"batch {batch}{'' if commit == 'on' else ', synchronous_commit=off'}: messages"
                report.figure(of, f"{count / took:,.0f}/s, floor {count / bare_took:,.0f}/s")
    server.execute("ALTER SYSTEM RESET synchronous_commit")
    server.execute("SELECT pg_reload_conf()")


def others(report: Report, _server: PostgresServer) -> None:
    """Say which others are here."""
    for other in ("procrastinate", "pgqueuer"):
        report.figure(f"beside {other}", "not installed" if find_spec(other) is None else "not measured")


# Waiting. On both sides another process receives.


def into_a_poll(report: Report, server: PostgresServer) -> None:
    """Print what it costs to wake an idle poll."""
    server.execute("DROP TABLE IF EXISTS bare")
    server.execute("CREATE TABLE bare (body text)")
    with (
        mailbox(server, "poll") as box,
        psycopg.connect(server.url, prepare_threshold=0) as connection,
        child("_postgres_receiver.py", "mailbox", server.url) as ours,
        child("_postgres_receiver.py", "listen", server.url) as bare,
    ):

        def tell(body: str) -> None:
            connection.execute("INSERT INTO bare VALUES (%s)", (body,))
            connection.execute("NOTIFY poll")
            connection.commit()

        sides: tuple[tuple[Callable[[str], object], subprocess.Popen[str]], ...] = ((box.send, ours), (tell, bare))
        rounds = [[crossing(send, receiver) for send, receiver in sides] for _ in range(1 + CROSSINGS)]
        for send, _ in sides:
            send("")
    took, bare_took = (statistics.median(side[1:]) for side in zip(*rounds, strict=True))
    report.limit("into an idle 20 s poll, in bare LISTEN/NOTIFY", took / bare_took, at_most=2)
    report.figure("into an idle 20 s poll", f"{took * 1e3:.2f} ms, bare {bare_took * 1e3:.2f} ms")


def crossing(send: Callable[[str], object], receiver: subprocess.Popen[str]) -> float:
    """Return the seconds from before a send until another process has the message."""
    time.sleep(PAUSE)  # noqa: TID251  nothing tells that a process has begun to wait
    begin = time.perf_counter()
    send(BODY)
    return float(hear(receiver)) - begin


def stops(report: Report, server: PostgresServer) -> None:
    """Print how soon a receive returns that is told to stop."""
    took: list[float] = []
    with mailbox(server, "stops") as box:

        def wait() -> None:
            box.receive(wait_time_seconds=POLL, token=token)
            took.append(time.perf_counter() - begin)

        for _ in range(STOPS):
            token = Token()
            thread = threading.Thread(target=wait)  # noqa: TID251  a bare caller
            thread.start()
            time.sleep(PAUSE)  # noqa: TID251  nothing tells that a thread has begun to wait
            begin = time.perf_counter()
            token.stop()
            thread.join()
    report.limit("from the stop of a token to the return, ms", statistics.median(took) * 1e3, at_most=0.3)


def lease_ends(report: Report, server: PostgresServer) -> None:
    """Print how late a receive is that waits for the end of a lease."""
    late: list[float] = []
    with mailbox(server, "ends") as box:
        box.send(BODY)
        for _ in range(ENDS):
            [_] = box.receive(visibility_timeout=LEASE)
            begin = time.perf_counter()  # the lease has begun in the call, by the server's time
            [message] = box.receive(wait_time_seconds=POLL)
            late.append(time.perf_counter() - begin - LEASE)
            message.put_back()
    report.limit("a lease that ends is received too late by, ms", statistics.median(late) * 1e3, at_most=5)


def idle(report: Report, server: PostgresServer) -> None:
    """Print what loops cost that wait: connections, and processor time on both sides."""
    for mailboxes in (1, IDLE_LOOPS):
        of = f"{IDLE_LOOPS} loops on {mailboxes} mailbox{'es' if mailboxes > 1 else ''}"
        with (
            psycopg.connect(server.url, autocommit=True) as watcher,
            child("_idle_mailboxes.py", server.url, str(mailboxes), str(IDLE_LOOPS), str(IDLE_SECONDS)) as loops,
        ):
            time.sleep(SETTLING)  # noqa: TID251  nothing tells that a process has begun to wait
            known = clients(watcher)
            before = {pid: processor_time(pid) for pid in known}
            assert loops.stdin is not None, "it was asked for"
            loops.stdin.write("\n")
            loops.stdin.flush()
            used = float(hear(loops))
            used_by_server = sum(processor_time(pid) - before.get(pid, 0.0) for pid in clients(watcher))
            listening = sum("loopwarden.beat" in query or "loopwarden.look_at_all" in query for query in known.values())
            later = len(clients(watcher))
            loops.stdin.close()
        report.figure(f"{of}: connections, and {IDLE_SECONDS:g} s later", f"{len(known)}, {later}")
        report.figure(f"{of}: connections that listen", str(listening))
        report.limit(f"{of}, idle: % of a core", used / IDLE_SECONDS * 100, at_most=1)
        report.limit(f"{of}, idle: % of a core of the server", used_by_server / IDLE_SECONDS * 100, at_most=1)


def clients(watcher: psycopg.Connection[Any]) -> dict[int, str]:
    """Return the connections that the server has, but the one that asks, with what each did last."""
    query = "SELECT pid, query FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    return dict(watcher.execute(query).fetchall())


def processor_time(pid: int) -> float:
    """Return the seconds of processor time that a process of the server has used; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(") ")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


# Cost by size.


def flat(report: Report, server: PostgresServer) -> None:
    """Print that the cost of a message does not depend on how many there are, nor on how many there were."""
    with contextlib.ExitStack() as stack:
        boxes = {
            name: stack.enter_context(mailbox(server, name))
            for name in ("queued-few", "queued-many", "leased-few", "leased-many", "gone")
        }
        for name, count in (("queued-few", 1_000), ("queued-many", QUEUED)):
            for _ in range(count // MANY):
                boxes[name].send_many([BODY] * MANY)
        for name, count in (("leased-few", 10), ("leased-many", LEASED)):
            for _ in range(max(count // MANY, 1)):
                boxes[name].send_many([BODY] * min(count, MANY))
                boxes[name].receive(max_messages=MANY, visibility_timeout=3_600)
        for batch in (1, 100):
            for what, large, small in (
                (f"{QUEUED:,} queued, in 1,000", "queued-many", "queued-few"),
                (f"{LEASED:,} leased, in 10", "leased-many", "leased-few"),
            ):
                ours, theirs = partial(turn_over, boxes[large], batch), partial(turn_over, boxes[small], batch)
                report.share(f"batch {batch}: {what}", ours, theirs, at_most=1.5)
        gone = boxes["gone"]
        before = {batch: rounds(gone, batch) for batch in (1, 100)}
        for _ in range(GONE // MANY):
            gone.send_many([BODY] * MANY)
            gone.acknowledge_many(gone.receive(max_messages=MANY))
        for batch in (1, 100):
            ratio = rounds(gone, batch) / before[batch]
            report.limit(f"batch {batch}: after {GONE:,} have gone through", ratio, at_most=1.5)


def rounds(box: Box, batch: int) -> float:
    """Return the median seconds of a round."""
    turn_over(box, batch)
    return statistics.median(seconds(partial(turn_over, box, batch)) for _ in range(ROUNDS))


def main() -> None:
    """Print everything."""
    report = Report()
    pinned, cores = pin_apart()
    print(f"mailboxes in PostgreSQL, {pinned}, psycopg {version('psycopg')}")
    for kind in POSTGRES_KINDS:
        if find_folder(kind) is None:
            print(f" {kind}: not here")
            continue
        with start(kind, cores) as server:
            print(f" PostgreSQL {server.execute('SHOW server_version')[0][0]}")
            for part in (throughput, others, into_a_poll, stops, lease_ends, idle, flat):
                part(report, server)
    report.exit()


if __name__ == "__main__":
    main()
