from __future__ import annotations

import errno
import http.client
import json
import logging
import os
import resource
import selectors
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from background import in_background
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwarden import Token
from loopwarden._ticket import Ticket, wait_all, write
from loopwarden.clock import SystemClock
from loopwarden.supervision import DaemonScope, Probe, ProbeAnswer, ProbeServer
from loopwarden.supervision.health._http import MAX_REQUEST_BYTES
from loopwarden.supervision.health._server import REST
from loopwarden.testing import FakeClock, FaultyBlocking, Hold, wait_no_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

#: So that no connection has a real deadline.
pytestmark = pytest.mark.usefixtures("clock")

#: Real seconds that only matter when a test fails.
PATIENCE = 60.0

GET = b"GET /health/live HTTP/1.0\r\n\r\n"


def yes(probe: Probe) -> ProbeAnswer:
    return ProbeAnswer(probe=probe, ok=True, reasons=(), loops=3)


def no(probe: Probe) -> ProbeAnswer:
    return ProbeAnswer(probe=probe, ok=False, reasons=("loop 'größe' is starting",), loops=1)


@contextmanager
def serving(
    answer: Callable[[Probe], ProbeAnswer] = yes, *, port: int = 0, **options: Any
) -> Generator[ProbeServer, None, None]:
    """Open a server, whose end a failing test does not wait for without limit."""
    with DaemonScope(PATIENCE) as scope:
        server = ProbeServer(answer, port=port, **options)
        scope.spawn(server.serve, name="health")
        yield server


def connect(server: ProbeServer) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=PATIENCE)


def ask(server: ProbeServer, path: str = "/health/live", method: str = "GET", **fields: Any) -> tuple[int, Any, bytes]:
    client = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE)
    try:
        client.request(method, path, **fields)
        response = client.getresponse()
        return response.status, response.headers, response.read()
    finally:
        client.close()


def read_all(client: socket.socket) -> bytes:
    received = b""
    while more := client.recv(65_536):
        received += more
    return received


def say(server: ProbeServer, request: bytes) -> bytes:
    """Send all, say that this was all, and return everything that comes back."""
    with connect(server) as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        return read_all(client)


def is_cut(client: socket.socket) -> bool:
    """Wait for the end; it is a reset if the server had not read everything."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def wait_for_those_that_are_answered(server: ProbeServer) -> None:
    """Return when they do not count any more: a client sees the end of its connection a little earlier."""
    for connection in tuple(server._listener._connections):
        if connection.is_answering:
            connection.done.wait(PATIENCE)


# Answers


@pytest.mark.parametrize("probe", Probe)
@pytest.mark.parametrize(("answer", "status"), [(yes, 200), (no, 503)], ids=["yes", "no"])
def test_probe_server_answers_each_probe(probe: Probe, answer: Callable[[Probe], ProbeAnswer], status: int) -> None:
    with serving(answer) as server:
        got, headers, body = ask(server, f"/health/{probe}")

    assert got == status
    assert json.loads(body) == answer(probe).model_dump(mode="json")
    assert headers["Content-Type"] == "application/json"
    assert headers["Cache-Control"] == "no-store"
    assert int(headers["Content-Length"]) == len(body)


def test_the_body_is_one_line_of_json() -> None:
    with serving() as server:
        assert ask(server)[2] == b'{"probe": "live", "ok": true, "reasons": [], "loops": 3}'


def test_probe_server_does_not_tell_the_version_of_python() -> None:
    with serving() as server:
        heads = [say(server, request) for request in (GET, b"GET / HTTP/1.0\r\n\r\n", b"?\r\n\r\n")]

    assert all(b"ython" not in head and b"\r\nServer:" not in head for head in heads)


def test_a_head_gets_the_head_of_what_a_get_gets() -> None:
    with serving(no) as server:
        got = say(server, b"GET /health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
        head = say(server, b"HEAD /health/ready HTTP/1.1\r\nHost: x\r\n\r\n")

    assert head.startswith(b"HTTP/1.0 503 ")
    assert got.partition(b"\r\n\r\n")[0] == head.partition(b"\r\n\r\n")[0]
    assert head.endswith(b"\r\n\r\n")


def test_probe_server_ignores_a_query() -> None:
    with serving() as server:
        assert ask(server, "/health/live?verbose=1")[0] == 200


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("path", ["/", "/health", "/health/", "/health/live/", "/health/LIVE", "/metrics", "//x", "*"])
def test_probe_server_answers_another_path_with_404(path: str, method: str) -> None:
    with serving() as server:
        status, headers, body = ask(server, path, method)

    assert status == 404
    assert body == (b"" if method == "HEAD" else b'{"error": "Not Found"}')
    assert int(headers["Content-Length"]) == len(b'{"error": "Not Found"}')


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "get", "FOO"])
def test_probe_server_answers_another_method_with_405(method: str) -> None:
    with serving() as server:
        status, headers, _ = ask(server, method=method)

    assert status == 405
    assert headers["Allow"] == "GET, HEAD"


def test_a_client_that_is_refused_in_the_middle_of_its_body_reads_why() -> None:
    with serving() as server:
        assert ask(server, method="POST", body=b"x" * 1_000_000)[0] == 405


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        pytest.param(b"\r\n\r\n", 400, id="blank"),
        pytest.param(b"\x85\xa0\r\n\r\n", 400, id="blank-in-latin-1"),
        pytest.param(b"nonsense\r\n\r\n", 400, id="one-word"),
        pytest.param(b"a b c d\r\n\r\n", 400, id="four-words"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\n\r\n", 400, id="tls"),
        pytest.param(b"GET /health/live HTTP/x\r\n\r\n", 400, id="no-version"),
        pytest.param(b"GET /health/live HTTP/9.0\r\n\r\n", 505, id="another-version"),
        pytest.param(b"GET /" + b"x" * MAX_REQUEST_BYTES + b" HTTP/1.0\r\n\r\n", 431, id="long-line"),
        pytest.param(b"GET / HTTP/1.0\r\n" + b"a: b\r\n" * MAX_REQUEST_BYTES, 431, id="long-head"),
        pytest.param(b"GET / HTTP/1.0\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431, id="many-headers"),
    ],
)
def test_garbage_is_refused_with_a_status(request_: bytes, status: int) -> None:
    with serving() as server:
        answer = say(server, request_)

    assert answer.startswith(f"HTTP/1.0 {status} ".encode())
    assert json.loads(answer.partition(b"\r\n\r\n")[2]).keys() == {"error"}


@pytest.mark.parametrize("request_", [GET, GET.replace(b"\r\n\r\n", b"\n\n"), GET[:-2], b"GET /health/live\r\n\r\n"])
def test_a_careless_client_is_answered_all_the_same(request_: bytes) -> None:
    with serving() as server:
        assert say(server, request_).startswith(b"HTTP/1.0 200 ")


def test_probe_server_answers_one_request_for_a_connection() -> None:
    with serving() as server:
        assert say(server, GET.replace(b"\r\n\r\n", b"\r\nConnection: keep-alive\r\n\r\n") * 2).count(b"HTTP/1.0") == 1


def test_probe_server_answers_or_drops_any_request_and_never_raises(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    line = st.sampled_from([b"GET", b"/health/live", b"HTTP/1.1", b" ", b"\r\n", b"\n", b":", b"\xff"]) | st.binary()

    @settings(max_examples=150, deadline=None)
    @given(st.lists(line, max_size=12).map(b"".join))
    def check(request: bytes) -> None:
        answer = say(server, request)
        assert answer.startswith(b"HTTP/1.0 ") if request else answer == b""

    with serving() as server:
        check()

    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_a_normal_probe_leaves_no_trace(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(no) as server:
        ask(server)
        ask(server, "/")
        connect(server).close()

    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3)], ids=["error", "exit"])
def test_probe_whose_answer_raises_is_a_500_and_is_logged_each_time(
    error: BaseException, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(probe: Probe) -> ProbeAnswer:
        if probe is Probe.READY:
            raise error
        return yes(probe)

    with serving(broken) as server:
        answers = [ask(server, f"/health/{name}")[0] for name in ("ready", "live", "ready")]
        body = ask(server, "/health/ready")[2]

    assert answers == [500, 200, 500]
    assert body == b'{"error": "the probe could not be answered"}'
    assert [record.message for record in caplog.records] == ["could not answer the ready probe"] * 3
    assert capfd.readouterr() == ("", "")


def test_probe_whose_answer_is_none_is_a_500(caplog: pytest.LogCaptureFixture) -> None:
    with serving(lambda _: "yes") as server:  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]  what is tested
        assert ask(server)[0] == 500

    assert len(caplog.records) == 1


# Slow clients, many clients


def test_probe_server_answers_all_good_clients_among_slow_ones_and_garbage() -> None:
    with serving() as server, ExitStack() as slow:
        for number in range(60):
            client = slow.enter_context(connect(server))
            client.sendall(GET[: number % len(GET)])
        garbage = [in_background(lambda: say(server, b"\x00\xff\r\n" * 10)) for _ in range(40)]

        good = [in_background(lambda: ask(server)[0]) for _ in range(200)]

        assert wait_all(good, PATIENCE) == [200] * 200
        assert all(answer.startswith(b"HTTP/1.0 400 ") for answer in wait_all(garbage, PATIENCE))


def test_probe_server_cuts_a_client_that_drips_off_at_the_deadline_of_the_whole(clock: FakeClock) -> None:
    with serving(timeout=5.0) as server, connect(server) as client:
        ask(server)  # answered after the one before it was taken
        for byte in GET[:4]:
            client.sendall(bytes([byte]))
            clock.advance(1.0)
        (connection,) = server._listener._connections
        assert not connection.done.is_ready()
        clock.advance(1.0)

        assert is_cut(client)


def test_probe_server_cuts_a_client_off_that_stays_after_a_refusal(clock: FakeClock) -> None:
    with serving() as server, connect(server) as client:
        client.sendall(b"?\r\n\r\n")
        read_all(client)
        (connection,) = server._listener._connections
        assert not connection.done.is_ready()

        clock.advance(5.0)

        connection.done.wait(PATIENCE)


def test_probe_server_cuts_the_oldest_connection_that_has_not_asked_for_one_too_many() -> None:
    with serving(max_connections=2) as server, connect(server) as first, connect(server) as second:
        first.sendall(b"G")
        second.sendall(b"G")
        with connect(server) as third:
            assert is_cut(first)

            third.sendall(GET)
            assert read_all(third).startswith(b"HTTP/1.0 200 ")
        wait_for_those_that_are_answered(server)
        second.sendall(GET[1:])
        assert read_all(second).startswith(b"HTTP/1.0 200 ")


def test_probe_server_refuses_one_connection_too_many_while_all_others_are_being_answered() -> None:
    with Hold() as hold:

        def slow(probe: Probe) -> ProbeAnswer:
            hold()
            return yes(probe)

        with serving(slow, max_connections=1) as server, connect(server) as first:
            first.sendall(GET)
            hold.wait_reached()
            with connect(server) as second:
                assert is_cut(second)

            hold.release()
            assert read_all(first).startswith(b"HTTP/1.0 200 ")


@contextmanager
def as_many_files_as_there_can_be() -> Generator[None, None, None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def crowding(server: ProbeServer, count: int) -> Generator[list[int], None, None]:
    """Hold connections open that never ask, and open each anew that is cut; yield a list with how many that were."""
    again = [0]
    near, far = socket.socketpair()
    full: Ticket[None] = Ticket()

    def crowd() -> None:
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            selector.register(near, selectors.EVENT_READ)
            for _ in range(count):
                selector.register(stack.enter_context(connect(server)), selectors.EVENT_READ)
            write(full)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is near:
                        return
                    cut = key.fileobj
                    assert isinstance(cut, socket.socket)
                    selector.unregister(cut)
                    cut.close()
                    selector.register(stack.enter_context(connect(server)), selectors.EVENT_READ)
                    again[0] += 1

    with near, far:
        crowded = in_background(crowd)
        full.wait(PATIENCE)
        try:
            yield again
        finally:
            far.send(b"\0")
            crowded.wait(PATIENCE)


@pytest.mark.parametrize(
    ("most", "crowd", "probes"), [(64, 80, 10), pytest.param(512, 700, 100, marks=pytest.mark.prove)]
)
def test_probe_server_answers_every_probe_among_connections_that_are_reopened_when_they_are_cut(
    most: int, crowd: int, probes: int
) -> None:
    with as_many_files_as_there_can_be(), serving(max_connections=most) as server, crowding(server, crowd) as again:
        assert [ask(server)[0] for _ in range(probes)] == [200] * probes
        assert again[0] > 0


def test_probe_server_closes_a_connection_that_gets_no_thread_and_serves_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused: list[str] = []

    def refuse_once(name: str) -> None:
        if name == "loopwarden-probe" and not refused:
            refused.append(name)
            raise RuntimeError("can't start new thread")

    clock = SystemClock(FaultyBlocking(before_start=refuse_once))
    with serving(clock=clock, timeout=PATIENCE) as server:
        with connect(server) as client:
            assert is_cut(client)
        assert ask(server)[0] == 200

    assert [record.message for record in caplog.records] == ["could not start a thread to answer a probe"]


def test_probe_server_closes_a_connection_that_gets_no_timer_and_serves_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused: list[str] = []

    def refuse_once(name: str) -> None:
        if name == "loopwarden-timers" and not refused:
            refused.append(name)
            raise RuntimeError("can't start new thread")

    clock = SystemClock(FaultyBlocking(before_start=refuse_once))
    with serving(clock=clock, timeout=PATIENCE) as server:
        with connect(server) as client:
            assert is_cut(client)
        assert ask(server)[0] == 200

    assert [record.message for record in caplog.records] == ["could not start a thread to answer a probe"]


@contextmanager
def no_more_files() -> Generator[None, None, None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fill: list[int] = []
    try:
        # Far below all that are in use: one that is closed meanwhile, by whatever thread, makes no room.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        with suppress(OSError):
            while True:
                fill.append(os.dup(0))
        yield
    finally:
        for each in fill:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_probe_server_rests_while_the_system_has_no_sockets_and_then_goes_on(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as server, socket.socket() as client:
        client.settimeout(PATIENCE)
        say(server, GET)  # so that it serves
        tries: list[Ticket[None]] = [Ticket() for _ in range(10)]
        accept, turns = server._listener.accept, iter(tries)

        def accept_and_tell() -> None:
            try:
                accept()
            finally:
                write(next(turns))

        monkeypatch.setattr(server._listener, "accept", accept_and_tell)
        with no_more_files():
            client.connect((server.host, server.port))
            client.sendall(GET)
            tries[0].wait(PATIENCE)
            clock.advance(REST)
            tries[1].wait(PATIENCE)  # again, in vain
        clock.advance(REST)

        assert read_all(client).startswith(b"HTTP/1.0 200 ")
        assert ask(server)[0] == 200

    assert [record.levelname for record in caplog.records] == ["WARNING"]


# Beginning and end


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_probe_server_listens_on_a_host_of_either_kind(host: str) -> None:
    try:
        with serving(host=host) as server:
            assert ask(server)[0] == 200
            assert server.url == f"http://{'[::1]' if host == '::1' else '127.0.0.1'}:{server.port}"
    except OSError as error:
        if host != "::1":
            raise
        pytest.skip(str(error))  # a machine without IPv6


def test_probe_server_listens_on_the_port_that_it_is_given() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    with serving(port=port) as server:
        assert server.port == port
        assert ask(server)[0] == 200


def test_a_port_that_is_in_use_is_named() -> None:
    with serving() as server:
        with pytest.raises(OSError, match=rf"host '127.0.0.1', port {server.port}: .*in use") as raised:
            ProbeServer(yes, port=server.port)

        assert raised.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("host", ["192.0.2.1", "no\0name", "x" * 300, "a..b"])
def test_a_host_that_is_not_of_this_machine_is_named(host: str) -> None:
    with pytest.raises(OSError, match="cannot listen for health probes on host") as raised:
        ProbeServer(yes, port=0, host=host)

    assert f"{host!r}, port 0" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("port", value) for value in (-1, 65_536, "8080", 80.0, True, None)),
        *(("host", value) for value in ("", None, 127)),
        *(("timeout", value) for value in (0, -1.0, float("nan"), float("inf"), "5")),
        *(("max_connections", value) for value in (0, 1.5, None)),
    ],
)
def test_probe_server_refuses_a_bad_value_by_name(name: str, value: object) -> None:
    options: dict[str, Any] = {"port": 0, name: value}

    with pytest.raises(ValueError, match=f"^{name} must be"):
        ProbeServer(yes, **options)


def test_probe_server_takes_connections_before_it_serves_and_answers_them_then() -> None:
    with DaemonScope(PATIENCE) as scope:
        server = ProbeServer(yes, port=0)
        with connect(server) as client:
            client.sendall(GET)
            scope.spawn(server.serve, name="health")

            assert read_all(client).startswith(b"HTTP/1.0 200 ")


def test_a_stop_leaves_no_thread_and_no_port_behind() -> None:
    with serving() as server, connect(server) as slow:
        slow.sendall(b"G")
        ask(server)
        address = (server.host, server.port)

    assert wait_no_threads() == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=PATIENCE)
    ProbeServer(yes, port=address[1]).close()


def test_probe_server_that_stops_cuts_those_that_have_not_asked_and_waits_for_those_that_are_answered() -> None:
    token = Token()
    with Hold() as hold, ExitStack() as clients:
        server = ProbeServer(lambda probe: yes(probe) if hold() else no(probe), port=0)
        served = in_background(lambda: server.serve(token))
        slow, asking = clients.enter_context(connect(server)), clients.enter_context(connect(server))
        slow.sendall(b"G")
        asking.sendall(GET)
        hold.wait_reached()  # so the one before it was taken too

        token.stop()
        assert is_cut(slow)
        assert not served.is_ready()
        hold.release()

        assert read_all(asking).startswith(b"HTTP/1.0 200 ")
        served.wait(PATIENCE)


def test_probe_server_that_stops_cuts_an_answer_that_takes_longer_than_a_second(clock: FakeClock) -> None:
    token = Token()
    with Hold() as hold:
        server = ProbeServer(lambda probe: yes(probe) if hold() else no(probe), port=0)
        served = in_background(lambda: server.serve(token))
        with connect(server) as slow, connect(server) as client:
            client.sendall(GET)
            hold.wait_reached()
            token.stop()
            assert is_cut(slow)  # which is done first, when the second has begun
            clock.advance(1.0)

            assert read_all(client) == b""
            hold.release()
        served.wait(PATIENCE)


def test_a_token_that_was_stopped_before_ends_it_at_once() -> None:
    token = Token()
    token.stop()
    server = ProbeServer(yes, port=0)

    server.serve(token)

    assert "closed" in repr(server)


def test_a_nudge_changes_nothing() -> None:
    token = Token()
    token.nudge()
    server = ProbeServer(yes, port=0)
    served = in_background(lambda: server.serve(token))
    assert ask(server)[0] == 200

    token.nudge()
    assert ask(server)[0] == 200

    token.stop()
    served.wait(PATIENCE)


def test_a_close_ends_it_and_closing_again_changes_nothing() -> None:
    server = ProbeServer(yes, port=0)
    served = in_background(lambda: server.serve(Token()))
    assert ask(server)[0] == 200

    server.close()
    served.wait(PATIENCE)
    server.close()

    with pytest.raises(ConnectionRefusedError):
        connect(server)


def test_probe_server_that_was_closed_does_not_serve() -> None:
    with ProbeServer(yes, port=0) as server:
        pass

    server.serve(Token())

    with pytest.raises(ConnectionRefusedError):
        connect(server)


def test_probe_server_can_be_served_only_once() -> None:
    with serving() as server:
        ask(server)
        with pytest.raises(RuntimeError, match="only once"):
            server.serve(Token())


def test_an_import_of_loopwarden_does_not_pay_for_http() -> None:
    program = "import sys, loopwarden; print({'http.server', 'socketserver'} & set(sys.modules))"

    ended = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)

    assert ended.stdout == "set()\n"
