"""Who is let in, over what, and where a password is seen: nowhere."""

from __future__ import annotations

import logging
import re
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from private_server import SentinelServer, Server, free_port
from redis.exceptions import NoPermissionError
from redis_servers import need

from loopwarden import open_mailbox
from loopwarden.errors import InvalidParameterError, MailboxConnectionError
from loopwarden.mailbox import RedisMailbox, list_mailboxes
from loopwarden.mailbox.redis import _store
from loopwarden.mailbox.redis._address import PASSWORD, USERNAME, parse
from loopwarden.mailbox.redis._scripts import SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Callable

Jobs = RedisMailbox[Any, Any]
DOCS = Path(__file__).resolve().parents[3] / "docs"
SECRET = "s3cret/@#"  # noqa: S105  of servers that live as long as a test
QUOTED = "s3cret%2F%40%23"


@pytest.fixture
def guarded(make_server: Callable[..., Server]) -> Server:
    return make_server("--requirepass", SECRET, password=SECRET)


def with_password(server: Server, login: str) -> str:
    return server.url.replace("://", f"://{login}@")


def use(jobs: Jobs) -> None:
    """Do everything that is done with a mailbox."""
    jobs.send_many(["a", "b", "c"], headers={"of": "many"})
    jobs.send("d", dedup_id="d", delay=0.001)
    [first] = jobs.receive()
    first.extend_visibility(600)
    first.acknowledge()
    [second, third] = jobs.receive(max_messages=2)
    second.nack(error="once more")
    third.dead_letter("broken")
    assert jobs.dead_letters.peek()[0].reason == "broken"
    assert jobs.dead_letters.redrive() == 1
    assert jobs.stats().ready == 3
    assert jobs.wait_visible(20)
    jobs.pause()
    jobs.resume()
    assert len(jobs.fleet().members) == 1
    jobs.reap()
    assert jobs.purge() == 3
    assert jobs.receive(wait_time_seconds=0.01) == []


@pytest.mark.parametrize("login", [f":{QUOTED}", f"default:{QUOTED}"])
def test_password_of_a_url_opens_a_mailbox_and_is_shown_nowhere(
    guarded: Server, login: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    jobs: Jobs = RedisMailbox(with_password(guarded, login), "jobs")

    use(jobs)

    shown = [repr(jobs), repr(jobs._store), str(jobs.capabilities), repr(jobs._store.link), caplog.text]
    jobs.close()
    assert not [each for each in shown if "s3cret" in each]


def test_wrong_password_is_told_without_it(guarded: Server, caplog: pytest.LogCaptureFixture) -> None:
    url = with_password(guarded, ":wr0ng")
    for act in (partial(list_mailboxes, url), partial(open_mailbox, f"{url}#jobs")):
        with pytest.raises(MailboxConnectionError, match=r"redis://127.0.0.1:\d+/0: .*password") as caught:
            act()
        assert "wr0ng" not in f"{caught.value!r} {caught.value.__cause__!r} {caplog.text}"


@pytest.mark.parametrize(
    "url",
    ["redis://u:s3cret@host:x/0#jobs", "redis://u:s3cret@host/zero#jobs", "redis://u:s3cret@a,b/0#jobs",
     "redis+sentinel://u:s3cret@host#jobs", "unix://u:s3cret@host/sock#jobs", "redis://u:s3cret@host/0"],
)  # fmt: skip
def test_url_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        open_mailbox(url)

    assert "s3cret" not in f"{caught.value!r} {caught.value}"


def test_user_and_password_may_come_from_the_environment(guarded: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(USERNAME, "default")
    monkeypatch.setenv(PASSWORD, SECRET)

    with_environment: Jobs = RedisMailbox(guarded.url, "jobs")

    with_environment.send("a")
    with_environment.close()


def test_password_of_a_url_goes_before_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "other")

    assert "other" not in parse("redis://:mine@host/0")[0].url


def test_client_that_is_handed_in_lends_its_settings(guarded: Server) -> None:
    with guarded.client(decode_responses=True, protocol=3) as client:
        jobs: Jobs = RedisMailbox(client, "jobs")
        use(jobs)
        jobs.close()
        assert client.ping()


def rules_of_the_documents() -> list[str]:
    found = re.search(r"ACL SETUSER worker on >secret ([^`]*)```", (DOCS / "scaling.md").read_text("utf-8"))
    assert found is not None
    return found[1].replace("\\", " ").split()


def test_access_rules_of_the_documents_name_each_command_of_the_scripts() -> None:
    called = {name for script in SCRIPTS.values() for name in re.findall(r"call\('([A-Z]+)'", script.text)}

    assert {f"+{name.lower()}" for name in called} <= set(rules_of_the_documents())


@pytest.mark.parametrize(
    "command",
    [("CLIENT", "LIST"), ("CLIENT", "KILL", "ID", "1"), ("CLIENT", "PAUSE", "1"), ("CLIENT", "UNBLOCK", "1"),
     ("CLIENT", "TRACKING", "ON"), ("CLIENT", "NO-EVICT", "ON"), ("KEYS", "*"), ("FLUSHALL",), ("GET", "loopwarden:a"),
     ("HGET", "others", "a")],
    ids=lambda command: command if isinstance(command, str) else " ".join(command[:2]),
)  # fmt: skip
def test_access_rules_of_the_documents_leave_others_alone(server: Server, command: tuple[str, ...]) -> None:
    server.call("ACL", "SETUSER", "worker", "reset", "on", ">s3cret", *rules_of_the_documents())

    login = dict(zip(("username", "password"), ("worker", "s3cret"), strict=True))
    with server.client(**login) as worker, pytest.raises(NoPermissionError):
        worker.execute_command(*command)

    server.call("ACL", "DELUSER", "worker")


#: What redis-py and the mailbox ask for, and do without: the server's settings, and to tell it which client this is.
SPARED = {"info", "client|setinfo", "client"}


def test_access_rules_of_the_documents_suffice(
    make_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_store, "CONFIRM_MILLISECONDS", 20)
    server = make_server()
    server.call("ACL", "SETUSER", "worker", "on", ">s3cret", *rules_of_the_documents())

    for url in (
        with_password(server, "worker:s3cret"),
        f"{with_password(server, 'worker:s3cret')[:-1]}1?client_name=worker",
    ):
        jobs: Jobs = RedisMailbox(url, "jobs", durability="replicated")
        with pytest.raises(MailboxConnectionError, match="only 0 of 1 replicas"):
            jobs.send("a")
        jobs.purge()
        jobs.close()
        jobs = RedisMailbox(url, "jobs")
        use(jobs)
        jobs.close()

    with server.client() as client:
        denied = {each["object"] for each in client.acl_log()}
    assert denied <= SPARED


def test_access_rules_of_the_documents_suffice_for_a_primary_that_sentinel_names(
    make_server: Callable[..., Server], server_kind: str, tmp_path: Path
) -> None:
    primary = make_server()
    primary.call("ACL", "SETUSER", "worker", "on", ">s3cret", *rules_of_the_documents())
    with SentinelServer(server_kind, tmp_path / "sentinel", primary) as sentinel:
        jobs: Jobs = RedisMailbox(with_password(sentinel, "worker:s3cret"), "jobs")
        use(jobs)
        jobs.close()

    with primary.client() as client:
        denied = {each["object"] for each in client.acl_log()}
    assert denied <= SPARED


def test_access_rules_of_the_documents_suffice_in_a_cluster(cluster: list[Server]) -> None:
    besides = re.search(r"A cluster needs\s+`([^`]*)`", (DOCS / "scaling.md").read_text("utf-8"))
    assert besides is not None
    rules = ["reset", "on", ">s3cret", *rules_of_the_documents(), *besides[1].split()]
    for each in cluster:
        each.call("ACL", "SETUSER", "worker", *rules)
        each.call("ACL", "LOG", "RESET")

    hosts = ",".join(f"127.0.0.1:{each.port}" for each in cluster)
    jobs: Jobs = RedisMailbox(f"redis+cluster://worker:s3cret@{hosts}", "jobs")
    use(jobs)
    jobs.close()

    denied: set[str] = set()
    for each in cluster:
        with each.client() as client:
            denied |= {entry["object"] for entry in client.acl_log()}
    assert denied <= SPARED


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    folder = tmp_path / "tls"
    folder.mkdir()
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",  # noqa: S607  wherever it is
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


def test_mailbox_is_opened_over_tls(certificate: Path, tmp_path: Path) -> None:
    need("redis")  # the wheel of the other has no TLS
    port = free_port()
    files = ("cert", "key", "ca-cert")
    paths = dict(zip(files, (certificate / "cert.pem", certificate / "key.pem", certificate / "cert.pem"), strict=True))
    options = [part for name, path in paths.items() for part in (f"--tls-{name}-file", str(path))]
    with Server("redis", tmp_path / "server", "--tls-port", str(port), "--tls-auth-clients", "no", *options):
        url = f"rediss://localhost:{port}/0"
        with pytest.raises(MailboxConnectionError, match="certificate verify failed"):
            RedisMailbox(url, "jobs")

        jobs: Jobs = RedisMailbox(f"{url}?ssl_ca_certs={certificate}/cert.pem", "jobs")
        use(jobs)
        jobs.close()
