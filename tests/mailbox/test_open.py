from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from loopwarden import open_mailbox
from loopwarden.errors import InvalidParameterError, MailboxConnectionError
from loopwarden.mailbox import InMemoryMailbox, Mailbox, SqliteMailbox

if TYPE_CHECKING:
    from pathlib import Path


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
    jobs: Mailbox[int, Any] = open_mailbox(f"sqlite://{tmp_path}/mail%20box.db#jobs", body=int, max_deliveries=2)
    default: Mailbox[Any, Any] = open_mailbox("sqlite:mail box.db")

    assert isinstance(jobs, SqliteMailbox)
    assert (jobs.name, default.name) == ("jobs", "default")
    assert [path.name for path in tmp_path.glob("*.db")] == ["mail box.db"]
    jobs.close()
    default.close()


@pytest.mark.parametrize("url", ["", "jobs", "memory://", "redis://host/0#jobs", "sqlite://host/path", "sqlite:"])
def test_a_url_that_names_no_mailbox_is_refused_with_examples(url: str) -> None:
    with pytest.raises(InvalidParameterError, match="like memory://jobs or sqlite:///path"):
        open_mailbox(url)


def test_a_type_that_cannot_be_validated_is_refused() -> None:
    class Opaque: ...

    with pytest.raises(InvalidParameterError, match="body"):
        open_mailbox("memory://opaque", body=Opaque)


def test_a_file_that_cannot_be_opened_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(MailboxConnectionError, match="nowhere"):
        open_mailbox(f"sqlite://{tmp_path}/nowhere/mail.db#jobs")


def test_a_file_that_is_no_database_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "mail.db").write_bytes(b"this is not a database, but long enough to be looked at" * 100)

    with pytest.raises(MailboxConnectionError, match="not a database"):
        open_mailbox(f"sqlite://{tmp_path}/mail.db#jobs")


def test_a_bad_durability_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="synchronous"):
        open_mailbox(f"sqlite://{tmp_path}/mail.db", synchronous="SOMETIMES")


def test_a_sqlite_mailbox_that_is_forgotten_is_complained_about(tmp_path: Path) -> None:
    with pytest.warns(ResourceWarning, match="unclosed"):
        SqliteMailbox(tmp_path / "mail.db")._store.__del__()


@pytest.mark.parametrize("url", ["memory://jobs:dead", "sqlite:mail.db#jobs:dead"])
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


@pytest.mark.parametrize("url", ["redis://user:secret@host/0#jobs", "redis://:sec@ret@host", "sqlite://u:secret@h/x"])
def test_open_mailbox_shows_no_password_in_its_error(url: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"url must be like .*:\*\*\*@h") as caught:
        open_mailbox(url)

    assert "sec" not in f"{caught.value}{caught.value.value}{caught.value.mailbox}"


def test_open_mailbox_refuses_a_path_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match=r"path must be where a file can be \(File name too long\)"):
        open_mailbox(f"sqlite:{tmp_path}/{'x' * 300}#jobs")
