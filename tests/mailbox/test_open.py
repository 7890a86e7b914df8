from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from loopwarden import open_mailbox
from loopwarden.errors import InvalidParameterError, MailboxConnectionError
from loopwarden.mailbox import InMemoryMailbox, Mailbox, SqliteMailbox, list_mailboxes
from loopwarden.testing import Simulation

#: A file that version 0.1 has written.
OLD = Path(__file__).resolve().parent.parent / "data" / "files_0_1" / "mail.db"
#: URLs of SQLite that name no file.
NO_FILES = [
    "sqlite://host/path#jobs",
    "sqlite://mail.db#jobs",
    "sqlite:mail.db#jobs",
    "sqlite:/mail.db#jobs",
    "sqlite:///#jobs",
    "sqlite:////#jobs",
    "sqlite:///mail.db?mode=ro#jobs",
    "sqlite:",
]


def test_memory_url_of_the_same_name_is_the_same_mailbox_until_it_is_closed() -> None:
    jobs: Mailbox[str, Any] = open_mailbox("memory://jobs", body=str)

    assert isinstance(jobs, InMemoryMailbox)
    assert open_mailbox("memory://jobs") is jobs
    jobs.close()
    again: Mailbox[Any, Any] = open_mailbox("memory://jobs")
    assert again is not jobs
    again.close()


def test_memory_mailboxes_find_each_other_for_replies() -> None:
    jobs: Mailbox[str, str] = open_mailbox("memory://questions")
    answers: Mailbox[str, Any] = open_mailbox("memory://answers")
    jobs.send("question", reply_to="answers")
    [message] = jobs.receive()

    message.reply("answer")

    assert [each.body for each in answers.receive()] == ["answer"]
    jobs.close()
    answers.close()


def test_a_sqlite_url_names_a_file_and_a_mailbox_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    jobs: Mailbox[int, Any] = open_mailbox(f"sqlite:///{tmp_path}/mail%20box.db#jobs", body=int, max_deliveries=2)
    other: Mailbox[Any, Any] = open_mailbox("sqlite:///mail box.db#other")

    assert isinstance(jobs, SqliteMailbox)
    assert (jobs.name, other.name) == ("jobs", "other")
    assert [path.name for path in tmp_path.glob("*.db")] == ["mail box.db"]
    jobs.close()
    other.close()


@pytest.mark.parametrize("url", ["", "jobs", "memory://", "amqp://host/0#jobs", *NO_FILES])
def test_a_url_that_names_no_mailbox_is_refused_with_examples(url: str) -> None:
    with pytest.raises(
        InvalidParameterError,
        match=r"like memory://jobs, redis://host/0#jobs, sqlite:///mail.db#jobs or .*three slashes are relative",
    ):
        open_mailbox(url)


def test_a_type_that_cannot_be_validated_is_refused() -> None:
    class Opaque: ...

    with pytest.raises(InvalidParameterError, match="body"):
        open_mailbox("memory://opaque", body=Opaque)


def test_a_file_that_cannot_be_opened_is_one_clear_error(tmp_path: Path) -> None:
    expected = (
        rf"the folder {tmp_path}/nowhere of .* does not exist \(three slashes are relative .* four are absolute\)"
    )
    with pytest.raises(MailboxConnectionError, match=expected):
        open_mailbox(f"sqlite:///{tmp_path}/nowhere/mail.db#jobs")


def test_a_file_that_is_no_database_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "mail.db").write_bytes(b"this is not a database, but long enough to be looked at" * 100)

    with pytest.raises(MailboxConnectionError, match="not a database"):
        open_mailbox(f"sqlite:///{tmp_path}/mail.db#jobs")


def test_a_bad_durability_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="synchronous"):
        open_mailbox(f"sqlite:///{tmp_path}/mail.db#jobs", synchronous="SOMETIMES")


def test_a_sqlite_mailbox_that_is_forgotten_is_complained_about(tmp_path: Path) -> None:
    with pytest.warns(ResourceWarning, match="unclosed"):
        SqliteMailbox(tmp_path / "mail.db")._store.__del__()


@pytest.mark.parametrize("url", ["memory://jobs:dead", "sqlite:///mail.db#jobs:dead"])
def test_a_name_that_dead_letters_have_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidParameterError, match=r"name must be .* its dead letters"):
        open_mailbox(url)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value"), [("body", int), ("max_size", 1), ("max_deliveries", None), ("roundtrip", True)]
)
def test_a_memory_mailbox_that_is_open_with_something_else_is_refused_by_name(option: str, value: Any) -> None:
    jobs: Mailbox[str, Any] = open_mailbox("memory://taken", body=str, max_size=7)

    with pytest.raises(InvalidParameterError, match=f"{option} must be .* open already"):
        open_mailbox("memory://taken", **{option: value})

    assert open_mailbox("memory://taken", body=str, max_size=7, max_deliveries=5) is jobs
    jobs.close()
    again: Mailbox[Any, Any] = open_mailbox("memory://taken", **{option: value})
    assert again is not jobs
    again.close()


@pytest.mark.parametrize("url", ["amqp://user:secret@host/0#jobs", "amqp://:sec@ret@host", "sqlite://u:secret@h/x"])
def test_open_mailbox_shows_no_password_in_its_error(url: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"url must be like .*\*\*\*@h") as caught:
        open_mailbox(url)

    assert "sec" not in f"{caught.value}{caught.value.value}{caught.value.mailbox}"


def test_open_mailbox_refuses_a_path_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match=r"path must be where a file can be \(File name too long\)"):
        open_mailbox(f"sqlite:///{tmp_path}/{'x' * 300}#jobs")


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.mark.parametrize("url", ["sqlite:///mail.db", "sqlite:///mail.db#"])
def test_open_mailbox_refuses_a_file_without_the_name_of_a_mailbox(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidParameterError, match=r"a mailbox's name at its end: sqlite:///mail.db#jobs, got"):
        open_mailbox(url)

    assert names_in(tmp_path) == []


def test_open_mailbox_without_create_opens_what_is_there(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mail.db#jobs"
    open_mailbox(url).close()

    with contextlib.closing(open_mailbox(url, create=False)) as jobs:
        assert jobs.send("body")


def test_open_mailbox_without_create_refuses_a_file_that_is_not_there_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidParameterError, match=rf"create must be True, because there is no file {tmp_path}/mail.db"
    ):
        open_mailbox(f"sqlite:///{tmp_path}/mail.db#jobs", create=False)

    assert names_in(tmp_path) == []


def test_open_mailbox_without_create_refuses_a_mailbox_that_is_not_there_and_makes_nothing(tmp_path: Path) -> None:
    open_mailbox(f"sqlite:///{tmp_path}/mail.db#jobs").close()

    with pytest.raises(InvalidParameterError, match=r"mail.db has no such mailbox \(it has 'jobs'\)"):
        open_mailbox(f"sqlite:///{tmp_path}/mail.db#job", create=False)

    assert list_mailboxes(f"sqlite:///{tmp_path}/mail.db") == ["jobs"]


def test_open_mailbox_without_create_refuses_a_mailbox_in_memory_that_is_not_open() -> None:
    with pytest.raises(InvalidParameterError, match="no such mailbox is open"):
        open_mailbox("memory://absent", create=False)
    jobs: Mailbox[Any, Any] = open_mailbox("memory://absent")

    assert open_mailbox("memory://absent", create=False) is jobs
    jobs.close()


def test_open_mailbox_refuses_a_create_that_is_neither_true_nor_false() -> None:
    create: Any = 0
    with pytest.raises(InvalidParameterError, match="create must be True or False"):
        open_mailbox("memory://jobs", create=create)


def test_list_mailboxes_names_them_in_order_without_their_dead_letters(tmp_path: Path) -> None:
    for name in ("packing", "billing"):
        with contextlib.closing(open_mailbox(f"sqlite:///{tmp_path}/mail.db#{name}")) as mailbox:
            mailbox.send("body")
            mailbox.receive()[0].dead_letter("why not")
    before = (tmp_path / "mail.db").read_bytes()

    assert list_mailboxes(f"sqlite:///{tmp_path}/mail.db") == ["billing", "packing"]
    assert list_mailboxes(f"sqlite:///{tmp_path}/mail.db#billing") == ["billing", "packing"]
    assert (names_in(tmp_path), (tmp_path / "mail.db").read_bytes()) == (["mail.db"], before)


def test_list_mailboxes_reads_a_file_of_version_1_and_leaves_it_as_it_was(tmp_path: Path) -> None:
    shutil.copyfile(OLD, tmp_path / "mail.db")

    assert "letter in hand" in list_mailboxes(f"sqlite:///{tmp_path}/mail.db")
    assert (tmp_path / "mail.db").read_bytes() == OLD.read_bytes()


def test_list_mailboxes_of_an_empty_file_names_none(tmp_path: Path) -> None:
    (tmp_path / "mail.db").touch()

    assert list_mailboxes(f"sqlite:///{tmp_path}/mail.db") == []
    assert (tmp_path / "mail.db").stat().st_size == 0


def test_list_mailboxes_refuses_a_file_that_is_not_there_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match=rf"there is no {tmp_path}/mail.db \(three slashes are relative"):
        list_mailboxes(f"sqlite:///{tmp_path}/mail.db")

    assert names_in(tmp_path) == []


def test_list_mailboxes_refuses_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "mail.db").write_bytes(b"this is not a database, but long enough to be looked at" * 100)

    with pytest.raises(MailboxConnectionError, match="not a database"):
        list_mailboxes(f"sqlite:///{tmp_path}/mail.db")


@pytest.mark.parametrize("url", ["", "jobs", "memory://jobs", "amqp://host/0", *NO_FILES])
def test_list_mailboxes_refuses_a_url_that_names_no_file(url: str) -> None:
    with pytest.raises(InvalidParameterError, match="three slashes are relative"):
        list_mailboxes(url)


def test_list_mailboxes_names_those_that_are_open_in_memory() -> None:
    with Simulation():
        open_mailbox("memory://packing")
        open_mailbox("memory://billing")
        open_mailbox("memory://shipping").close()

        assert list_mailboxes("memory://") == ["billing", "packing"]
