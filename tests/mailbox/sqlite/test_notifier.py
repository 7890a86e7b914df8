"""The doorbell of a SQLite file, in places where others have been before."""

from __future__ import annotations

import logging
import os
import socket
import stat
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from loopwarden.actors import Session, Slice
from loopwarden.errors import JournalUnavailableError
from loopwarden.mailbox import SqliteMailbox

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEX = "0123456789abcdef"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path / "mail.db"


@pytest.fixture
def jobs(path: Path) -> Iterator[SqliteMailbox[str, None]]:
    mailbox: SqliteMailbox[str, None] = SqliteMailbox(path, "jobs", body=str)
    yield mailbox
    mailbox.close()


@dataclass(frozen=True)
class Count:
    sum: int = 0


def bell_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-bell")


def listen(mailbox: SqliteMailbox[str, None]) -> None:
    with mailbox._store.lock:
        mailbox._store.notifier.listen()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_send_deletes_nothing_behind_a_link_in_place_of_the_folder(
    path: Path, jobs: SqliteMailbox[str, None], tmp_path: Path
) -> None:
    treasure = tmp_path / "treasure"
    treasure.mkdir(mode=0o700)
    files = [treasure / name for name in ("id_ed25519", "thesis.txt", HEX)]
    for file in files:
        file.write_text("precious", encoding="utf-8")
    bell_of(path).symlink_to(treasure)

    jobs.send("hello")
    listen(jobs)

    assert [file.read_text(encoding="utf-8") for file in files] == ["precious"] * 3
    assert sorted(treasure.iterdir()) == sorted(files)
    assert jobs.approximate_count() == 1


def test_send_deletes_sockets_of_processes_that_are_gone_and_nothing_else(
    path: Path, jobs: SqliteMailbox[str, None]
) -> None:
    folder = bell_of(path)
    folder.mkdir(mode=0o700)
    gone, other, note = folder / HEX, folder / "fedcba9876543210", folder / "note.txt"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as closed,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as strange,
    ):
        here = os.open(folder, os.O_RDONLY)
        try:
            closed.bind(f"/proc/self/fd/{here}/{gone.name}" if sys.platform == "linux" else str(gone))
            strange.bind(f"/proc/self/fd/{here}/not-ours" if sys.platform == "linux" else str(folder / "not-ours"))
        finally:
            os.close(here)
    other.write_text("no socket", encoding="utf-8")
    note.write_text("no name of ours", encoding="utf-8")

    jobs.send("hello")

    assert sorted(each.name for each in folder.iterdir()) == sorted([other.name, note.name, "not-ours"])


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_receive_works_without_a_notifier_in_a_folder_that_others_may_use_and_says_so_once(
    path: Path, jobs: SqliteMailbox[str, None], mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    bell_of(path).mkdir()
    bell_of(path).chmod(mode)

    listen(jobs)
    listen(jobs)
    jobs.send("hello")

    assert [message.body for message in jobs.receive(wait_time_seconds=1)] == ["hello"]
    told = [record for record in caplog.records if "polling instead" in record.message]
    assert [record.levelno for record in told] == [logging.WARNING]
    assert list(bell_of(path).iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_receive_works_without_a_notifier_in_a_folder_of_another_user(
    path: Path, jobs: SqliteMailbox[str, None], caplog: pytest.LogCaptureFixture
) -> None:
    bell_of(path).mkdir(mode=0o700)
    os.chown(bell_of(path), 12_345, 12_345)

    listen(jobs)
    jobs.send("hello")

    assert [message.body for message in jobs.receive(wait_time_seconds=1)] == ["hello"]
    assert "belongs to another user" in caplog.text


def test_mailbox_works_where_there_is_no_place_for_a_notifier_nor_for_temporary_files(
    path: Path, jobs: SqliteMailbox[str, None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere")
    bell_of(path).write_text("in the way", encoding="utf-8")

    listen(jobs)
    jobs.send("hello")

    assert [message.body for message in jobs.receive(wait_time_seconds=1)] == ["hello"]
    assert caplog.text.count("polling instead") == 1


def test_notifier_socket_is_in_the_users_runtime_folder_if_there_is_no_place_beside_the_file(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    bell_of(path).write_text("in the way", encoding="utf-8")
    mailbox: SqliteMailbox[str, None] = SqliteMailbox(path, "jobs", body=str)
    try:
        listen(mailbox)

        [notifier] = runtime.glob("loopwarden-bells/*/*")
        assert stat.S_ISSOCK(notifier.stat().st_mode)
        assert [mode_of(notifier.parent), mode_of(notifier.parent.parent)] == [0o700, 0o700]
    finally:
        mailbox.close()
    assert list(runtime.glob("loopwarden-bells/*/*")) == []


def test_close_ends_the_thread_of_a_notifier_whose_socket_was_deleted(
    path: Path, jobs: SqliteMailbox[str, None]
) -> None:
    listen(jobs)
    for each in bell_of(path).iterdir():
        each.unlink()

    jobs.close()  # and no thread is left behind, which the fixture of all tests sees to


def test_close_leaves_no_folder_behind(path: Path, jobs: SqliteMailbox[str, None]) -> None:
    listen(jobs)
    assert mode_of(bell_of(path)) == 0o700

    jobs.close()

    assert not bell_of(path).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the path of a socket has to be short")
def test_notifier_of_a_file_with_a_long_path_is_heard(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    mailbox: SqliteMailbox[str, None] = SqliteMailbox(folder / "mail.db", "jobs", body=str)
    try:
        listen(mailbox)

        assert len(list(bell_of(folder / "mail.db").iterdir())) == 1
    finally:
        mailbox.close()


def test_file_of_a_mailbox_is_for_its_user_alone_whatever_the_umask_is(path: Path) -> None:
    before = os.umask(0)
    try:
        mailbox: SqliteMailbox[str, None] = SqliteMailbox(path, "jobs", body=str)
        mailbox.send("private")
        found = {each.name: mode_of(each) for each in path.parent.iterdir()}
        mailbox.close()
    finally:
        os.umask(before)

    assert set(found.values()) == {0o600}


@pytest.mark.parametrize("suffix", ["lock", "mark"])
def test_journal_follows_no_link_in_place_of_its_files(tmp_path: Path, suffix: str) -> None:
    target = tmp_path / "precious"
    target.write_text("content", encoding="utf-8")
    journal = tmp_path / "journal.db"
    journal.with_name(f"journal.db-{suffix}").symlink_to(target)

    with pytest.raises(JournalUnavailableError):
        Session.open("count", [Slice(Count())], journal=journal).__enter__()

    assert target.read_text(encoding="utf-8") == "content"


def test_files_of_a_journal_are_for_their_user_alone_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Session.open("count", [Slice(Count())], journal=tmp_path / "journal.db"):
            found = {each.name: mode_of(each) for each in tmp_path.iterdir()}
    finally:
        os.umask(before)

    assert set(found.values()) == {0o600}
