from __future__ import annotations

import contextlib
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from loopwarden import Ticket
from loopwarden.errors import SerializationError
from loopwarden.mailbox import Mailbox, SqliteMailbox
from loopwarden.mailbox.sqlite import _mailbox as module
from loopwarden.testing.contracts import MailboxContract

if TYPE_CHECKING:
    from pathlib import Path

    from loopwarden.testing import FakeClock


class TestSqliteMailbox(MailboxContract):
    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path) -> None:
        self.path = tmp_path / "mail.db"

    def make_mailbox(self, clock: FakeClock, name: str = "jobs", **options: Any) -> Mailbox[Any, Any]:
        return SqliteMailbox(self.path, name, clock=clock, **options)

    def test_sqlite_mailbox_has_all_capabilities(self, mailbox: Mailbox[Any, Any]) -> None:
        missing = {name for name in mailbox.capabilities.__slots__ if not getattr(mailbox.capabilities, name)}

        assert missing == set()

    def test_a_transaction_that_an_interrupt_has_left_open_is_undone_and_not_built_upon(self, clock: FakeClock) -> None:
        jobs: SqliteMailbox[str, None] = SqliteMailbox(self.path, "jobs", clock=clock)
        jobs.send("body")
        [message] = jobs.receive()
        with jobs._store.lock, jobs._store.connection("jobs") as database:
            database.execute("BEGIN IMMEDIATE")  # as a Ctrl-C just behind it would leave it

        message.acknowledge()
        jobs.close()

        again: SqliteMailbox[str, None] = SqliteMailbox(self.path, "jobs", clock=clock)
        assert again.approximate_count() == 0
        again.close()

    def test_full_durability_flushes_what_is_sent_and_acknowledged_and_not_the_lease(self, clock: FakeClock) -> None:
        jobs: SqliteMailbox[str, None] = SqliteMailbox(self.path, "jobs", synchronous="FULL", clock=clock)
        levels: list[int] = []

        def level() -> None:
            with jobs._store.lock, jobs._store.connection("jobs") as database:
                levels.extend(database.execute("PRAGMA synchronous").fetchone())

        jobs.send("body")
        level()
        [message] = jobs.receive()
        level()
        message.acknowledge()
        level()
        jobs.send("from a place that was set aside")
        [message] = jobs.receive()
        jobs.send("another")
        level()
        message.put_back()
        level()

        assert levels == [2, 1, 2, 2, 1]
        jobs.close()

    @pytest.mark.parametrize("of_letters", [False, True], ids=["of messages", "of letters"])
    def test_a_purge_is_flushed_too(self, clock: FakeClock, of_letters: bool) -> None:
        jobs: SqliteMailbox[str, None] = SqliteMailbox(self.path, "jobs", synchronous="FULL", clock=clock)
        jobs.send("body")
        jobs.receive()  # which is not flushed

        (jobs.dead_letters if of_letters else jobs).purge()

        with jobs._store.lock, jobs._store.connection("jobs") as database:
            assert database.execute("PRAGMA synchronous").fetchone() == (2,)
        jobs.close()

    def test_acknowledge_many_with_a_generator_that_uses_the_mailbox_does_not_deadlock(self, clock: FakeClock) -> None:
        jobs: SqliteMailbox[int, None] = SqliteMailbox(self.path, "jobs", clock=clock)
        jobs.send_many(range(3))
        received = jobs.receive(max_messages=3)

        assert jobs.acknowledge_many(message for message in received if jobs.approximate_count() == 3) == []

        jobs.close()

    def test_a_message_of_another_file_is_refused_and_touches_nothing(self, clock: FakeClock) -> None:
        ours: SqliteMailbox[str, None] = SqliteMailbox(self.path, "jobs", clock=clock)
        theirs: SqliteMailbox[str, None] = SqliteMailbox(self.path.with_name("other.db"), "jobs", clock=clock)
        ours.send("ours")
        theirs.send("theirs")
        ours.receive()
        foreign = theirs.receive()

        assert ours.acknowledge_many(foreign) == foreign

        assert ours.approximate_count() == 1
        ours.close()
        theirs.close()

    @pytest.mark.parametrize("obstacle", ["a file in the way", "a path too long"])
    def test_sqlite_mailbox_without_a_notifier_works_all_the_same(
        self, obstacle: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        folder = tmp_path / ("x" * 120 if obstacle == "a path too long" else "in the way")
        if obstacle == "a path too long":
            folder.mkdir()
        else:
            folder.write_text("not a folder")
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        jobs: SqliteMailbox[str, None] = SqliteMailbox(self.path, "jobs", clock=clock)
        waiting: Ticket[list[str]] = Ticket()

        def receive() -> None:
            waiting.complete([message.body for message in jobs.receive(wait_time_seconds=20)])

        clock.blocking.start_thread(receive, "receiver")
        clock.advance(1)

        jobs.send("body")

        assert waiting.wait(60) == ["body"]
        jobs.close()

    def test_a_body_that_no_row_has_room_for_is_refused_by_its_length(
        self, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MAX_BODY_BYTES", 1_000)  # a gigabyte would take its time
        jobs: SqliteMailbox[str, None] = SqliteMailbox(self.path, "jobs", clock=clock)

        jobs.send("x" * 998)
        with pytest.raises(SerializationError, match="too long: as JSON it has 1001 bytes"):
            jobs.send("x" * 999)
        with pytest.raises(SerializationError, match="too long"):
            jobs.send_many(["x" * 999])

        assert jobs.approximate_count() == 1
        jobs.close()

    @pytest.mark.parametrize("reopened", [False, True], ids=["while it is open", "and it is opened again"])
    def test_leases_and_delays_last_no_longer_than_half_a_day_when_the_clock_is_set_back_by_years(
        self, clock: FakeClock, reopened: bool
    ) -> None:
        jobs: SqliteMailbox[str, None] = SqliteMailbox(self.path, "jobs", clock=clock)
        jobs.send("leased")
        jobs.receive()
        jobs.send("delayed", delay=60)
        clock._wall_offset -= 10 * 365 * 86_400
        if reopened:
            jobs.close()
            jobs = SqliteMailbox(self.path, "jobs", clock=clock)

        next_due = jobs.reap().next_due
        at_once = jobs.receive()
        clock.advance(43_200)
        after_half_a_day = [message.body for _ in range(2) for message in jobs.receive()]

        assert next_due == 43_200
        assert (at_once, sorted(after_half_a_day)) == ([], ["delayed", "leased"])
        jobs.close()

    def test_a_lease_that_was_cut_is_still_good_for_its_holder(self, clock: FakeClock) -> None:
        jobs: SqliteMailbox[str, None] = SqliteMailbox(self.path, "jobs", clock=clock)
        jobs.send_many(["a", "b", "c"])
        first, second, third = jobs.receive(max_messages=3)
        clock._wall_offset -= 2 * 86_400
        with contextlib.closing(SqliteMailbox[str, None](self.path, "jobs", clock=clock)):
            pass  # which has cut the leases

        first.acknowledge()
        second.extend_visibility(10)
        third.put_back()

        assert [message.body for message in jobs.receive()] == ["c"]
        assert jobs.acknowledge_many([second]) == []
        jobs.close()

    @pytest.mark.parametrize("way", ["acknowledge", "nack", "put_back"])
    def test_a_lease_that_was_cut_by_a_little_is_still_good_hours_later(self, clock: FakeClock, way: str) -> None:
        jobs: SqliteMailbox[str, None] = SqliteMailbox(self.path, "jobs", clock=clock)
        jobs.send("a")
        [message] = jobs.receive(visibility_timeout=43_200)
        clock._wall_offset -= 3_600
        jobs.reap()  # which has cut the lease

        clock.advance(5_400)
        getattr(message, way)()

        assert jobs.approximate_count() == (0 if way == "acknowledge" else 1)
        jobs.close()
