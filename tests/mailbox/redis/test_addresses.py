"""URLs that lead nowhere: what is told of them, how soon, and without their passwords."""

from __future__ import annotations

import socket
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from loopwarden.errors import InvalidParameterError, MailboxConnectionError
from loopwarden.mailbox import RedisMailbox, fleet, list_mailboxes, open_mailbox
from loopwarden.mailbox._validation import hide_password
from loopwarden.mailbox.redis import _link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Where no server listens; with a user, and with a password of which no part is to be seen.
NO_SERVER = "127.0.0.1:1"
PARTS = ("s3cret", "p4ss", "tail", "12345")
URLS = {
    "upper-case": f"REDIS://:s3cret@{NO_SERVER}/0#jobs",
    "one slash": f"redis:/:s3cret@{NO_SERVER}/0#jobs",
    "other scheme": f"http://:s3cret@{NO_SERVER}/0#jobs",
    "no scheme": f":s3cret@{NO_SERVER}/0#jobs",
    "hash": f"redis://:p4ss#tail@{NO_SERVER}/0#jobs",
    "slash": f"redis://:p4ss/tail@{NO_SERVER}/0#jobs",
    "question mark": f"redis://u:p4ss?tail@{NO_SERVER}/0#jobs",
    "bracket": f"redis://:p4ss[tail@{NO_SERVER}/0#jobs",
    "at": f"redis://:p4ss@tail@{NO_SERVER}/0#jobs",
    "half a surrogate": f"redis://:s3cret\udcff@{NO_SERVER}/0#jobs",
    "query": f"redis://{NO_SERVER}/0?password=s3cret#jobs",
    "query and no number": f"redis://{NO_SERVER}/abc?password=s3cret#jobs",
    "query and no name": f"redis://{NO_SERVER}/0?password=s3cret",
    "unknown option": f"redis://:s3cret@{NO_SERVER}/0?foo=1#jobs",
    "unknown option of a cluster": f"redis+cluster://:s3cret@{NO_SERVER}/0?foo=1#jobs",
    "unknown option of Sentinel": f"redis+sentinel://:s3cret@{NO_SERVER}/main/0?foo=1#jobs",
    "no number for an option": f"redis://:s3cret@{NO_SERVER}/0?socket_timeout=abc#jobs",
    "no such check of certificates": f"rediss://:s3cret@{NO_SERVER}/0?ssl_cert_reqs=foo#jobs",
    "port too high": "redis://:s3cret@127.0.0.1:99999/0#jobs",
    "NUL in the host": "redis://:s3cret@a b\x00:1/0#jobs",
    "host too long": f"redis://:s3cret@{'a' * 70}.x:1/0#jobs",
    "NUL in the path": "unix://:s3cret@/run/a%00b#jobs",
    "number too high": f"redis://:s3cret@{NO_SERVER}/99999999999999999999#jobs",
    "no host": "redis://user:s3cret/0#jobs",
    "no host and no user": "redis://:s3cret#jobs",
    "no host and a number": "redis://:12345#jobs",
    "no host and a slash": "redis://user:p4ss/tail#jobs",
    "no host and a hash": "redis://user:p4ss#tail",
    "no host and a question mark": "redis://user:p4ss?tail#jobs",
    "no host of a cluster": "redis+cluster://user:s3cret#jobs",
    "no host of Sentinel": "redis+sentinel://user:s3cret/main/0#jobs",
    "no host of another scheme": "amqp://user:s3cret/0#jobs",
    "no host and one slash": "redis:/user:s3cret/0#jobs",
    "no host and a socket": "unix://user:s3cret/run/redis.sock#jobs",
    "colon for the at": "redis://user:s3cret:6379/0#jobs",
    "colon for the at, and several hosts": "redis+cluster://user:s3cret:6379,host:6380#jobs",
    "option behind the name": f"redis://{NO_SERVER}/0#jobs?max_size=s3cret",
    "value of an option of TLS": f"rediss://{NO_SERVER}/0?ssl_cert_reqs=s3cret#jobs",
    "value of an option of TLS without it": f"redis://{NO_SERVER}/0?ssl_cert_reqs=s3cret#jobs",
    "value of an unknown option": f"redis://{NO_SERVER}/0?foo=s3cret#jobs",
    "no server": f"redis://u:s3cret@{NO_SERVER}/0#jobs",
    "no TLS": f"rediss://u:s3cret@{NO_SERVER}/0#jobs",
    "no cluster": f"redis+cluster://u:s3cret@{NO_SERVER}#jobs",
    "no Sentinel": f"redis+sentinel://u:s3cret@{NO_SERVER}/main/0#jobs",
}


@pytest.mark.parametrize("use", [RedisMailbox, open_mailbox, list_mailboxes, fleet])
@pytest.mark.parametrize("url", URLS.values(), ids=URLS)
def test_url_that_leads_nowhere_is_refused_without_any_part_of_its_password(
    use: Callable[[str], object], url: str
) -> None:
    with pytest.raises((InvalidParameterError, MailboxConnectionError)) as caught:
        use(url)

    told = f"{caught.value!r} {caught.value} {caught.value.__cause__!r} {caught.value.__cause__}"
    logged = "".join(traceback.format_exception(caught.value))
    assert not [part for part in PARTS if part in told or part in logged]


@pytest.mark.parametrize(
    "url",
    ["redis://host:6379/0#jobs", "redis://host#jobs", "redis://host:/0#jobs", "redis://[::1]:6379/0#jobs", "redis:///0",
     "redis+cluster://host1:7000,host2,10.0.0.1:7001#jobs", "redis+sentinel://host1,host2:26379/main/0#jobs",
     "unix:///run/a:b.sock#jobs", "unix:///run/redis.sock", "amqp://host:5672/0#a:b", "sqlite:///mail.db#jobs",
     "sqlite:////var/a:b.db#jobs?max_size=3", "sqlite:mail.db", "memory://jobs:dead", "jobs", "", "/run/a:b"],
)  # fmt: skip
def test_url_without_a_password_is_shown_as_it_is(url: str) -> None:
    assert hide_password(url) == url


def test_option_that_redis_py_does_not_take_is_told_by_its_name() -> None:
    with pytest.raises(InvalidParameterError, match=r"this one has socket_timeout, foo, got 'redis://127.0.0.1:1/0'"):
        open_mailbox(f"redis://{NO_SERVER}/0?socket_timeout=1&foo=1#jobs")


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A server that takes connections and says nothing; no client waits for it for long."""
    monkeypatch.setitem(_link._IMPATIENT, "socket_timeout", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        yield silent


def count_connections(listener: socket.socket) -> int:
    """Count who has connected since it was asked last."""
    count = 0
    with suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
            count += 1
    return count


def test_sentinel_that_says_nothing_is_asked_once_by_each_call(silent: socket.socket) -> None:
    url = f"redis+sentinel://127.0.0.1:{silent.getsockname()[1]}/main/0#jobs"

    with pytest.raises(MailboxConnectionError):
        open_mailbox(url)
    asked_by_open = count_connections(silent)
    with pytest.raises(MailboxConnectionError):
        list_mailboxes(url)

    assert (asked_by_open, count_connections(silent)) == (1, 1)


def test_sentinels_that_refuse_are_told_in_few_words() -> None:
    url = "redis+sentinel://user:s3cret@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/main/0"

    with pytest.raises(MailboxConnectionError, match="No master found for 'main'") as caught:
        RedisMailbox(url, "jobs")

    assert len(str(caught.value)) <= 400
