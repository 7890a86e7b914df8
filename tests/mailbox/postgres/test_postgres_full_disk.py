"""The disk of a server is full: it gives what it has, loses nothing that was confirmed, and needs only room."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import psycopg
import pytest
from heard import Heard
from private_postgres import PostgresServer

from loopwarden import ChildSpec, HealthCheckRequest, MailboxLoop, Supervisor
from loopwarden._blocking import SYSTEM
from loopwarden.errors import MailboxConnectionError
from loopwarden.mailbox import PostgresMailbox

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 60.0
FULL = r"No space left on device \(53100\)"
Jobs = PostgresMailbox[Any, Any]
pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root can mount a disk, on Linux"),
]
#: It needs pages of its own, which a short one may find beside others.
LONG = os.urandom(100_000).hex()


@final
class Disk:
    """A small one, in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        """Leave no room on it."""
        with (self.folder / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(4096))

    def make_room(self) -> None:
        """Take away again what has filled it."""
        (self.folder / "ballast").unlink()


@pytest.fixture
def disk() -> Iterator[Disk]:
    folder = Path(tempfile.mkdtemp(prefix="loopwarden-disk-"))
    mount = ("mount", "-t", "tmpfs", "-o", "size=80m,mode=755", "tmpfs", str(folder))
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
        if mounted.returncode:
            pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
        try:
            yield Disk(folder)
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607  wherever it is
    finally:
        folder.rmdir()


@pytest.fixture
def own(postgres_kind: str, disk: Disk) -> Iterator[PostgresServer]:
    with PostgresServer(postgres_kind, "fsync=off", "autovacuum=off", disk=disk.folder) as own:
        yield own


@pytest.fixture
def jobs(own: PostgresServer) -> Iterator[Jobs]:
    with closing(PostgresMailbox[Any, Any](own.url, "jobs")) as jobs:
        jobs.receive()  # takes part from now on
        yield jobs


def test_full_disk_takes_no_message_and_gives_and_settles_what_it_has(disk: Disk, jobs: Jobs) -> None:
    jobs.send_many(["done", "failed", "not begun", "long", "broken"])
    disk.fill()

    with pytest.raises(MailboxConnectionError, match=FULL):
        jobs.send(LONG)
    held = jobs.receive(max_messages=5)
    held[0].acknowledge()
    held[1].nack(error="later")
    held[2].put_back()
    held[3].extend_visibility(600)
    with pytest.raises(MailboxConnectionError, match=FULL):  # of the indexes of letters there is no page yet
        held[4].dead_letter("it is broken")
    disk.make_room()
    held[4].dead_letter("it is broken")
    jobs.send(LONG)

    again = [jobs.receive()[0] for _ in range(3)]
    assert [(each.body, each.delivery_count) for each in again] == [("failed", 2), ("not begun", 1), (LONG, 1)]
    assert jobs.acknowledge_many([held[3], *again]) == []
    assert [letter.body for letter in jobs.dead_letters.peek()] == ["broken"]
    assert jobs.approximate_count() == 0


def test_loop_is_degraded_while_the_disk_is_full_and_handles_what_there_is(disk: Disk, jobs: Jobs) -> None:
    handled = SYSTEM.queue()
    jobs.send("before")
    disk.fill()

    with Supervisor.open("media", backoff=None) as media:
        with Heard("mailbox unavailable, retrying") as is_away:
            loop = media.spawn(ChildSpec(id="resize", start=lambda: MailboxLoop(jobs, lambda m: handled.put(m.body))))
            assert handled.get() == "before"
            is_away.ticket.wait(PATIENCE)  # it cannot say that it waits
        status = loop.send(HealthCheckRequest()).wait(PATIENCE)
        disk.make_room()
        jobs.send(LONG)
        assert handled.get() == LONG

    assert (status.activity, status.running) == ("degraded", True)
    assert jobs.approximate_count() == 0


def test_server_that_ends_because_it_cannot_write_its_log_has_all_that_was_confirmed_when_there_is_room(
    disk: Disk, own: PostgresServer, jobs: Jobs
) -> None:
    handled = SYSTEM.queue()
    confirmed: list[int] = []

    def send_until_that_fails() -> None:
        while True:
            jobs.send(len(confirmed))
            confirmed.append(len(confirmed))

    jobs.send_many(range(1_000, 1_010))
    disk.fill()
    with suppress(psycopg.Error):
        own.execute("SELECT pg_switch_wal()")  # so that what it writes next needs another file
    with pytest.raises(MailboxConnectionError):
        send_until_that_fails()
    own.wait()
    disk.make_room()
    own.start()

    with Supervisor.open("media", backoff=None) as media:
        media.spawn(ChildSpec(id="resize", start=lambda: MailboxLoop(jobs, lambda m: handled.put(m.body))))
        jobs.send("last")
        seen: list[Any] = []
        while "last" not in seen:
            seen.append(handled.get())
    assert set(seen) >= {*range(1_000, 1_010), *confirmed}
