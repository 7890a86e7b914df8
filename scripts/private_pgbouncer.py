"""A real PgBouncer in front of a private PostgreSQL, on a free port of the loopback interface, to be killed at will."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

from private_server import free_port

if TYPE_CHECKING:
    from types import TracebackType

    from private_postgres import PostgresServer

__all__ = ["Pooler", "find_pgbouncer"]

_READY = "process up"


def find_pgbouncer() -> str | None:
    """Return the program; None if it is not here. Debian has it where only root looks."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin")


@final
class Pooler:
    """A pooler that may be killed and started again on the same port.

    PgBouncer refuses to run as root; then it runs as the user that PostgreSQL does.

    Args:
        server: What it stands before.
        mode: Of its pool: ``session`` or ``transaction``.
        settings: Others, such as ``default_pool_size=2``.
    """

    def __init__(self, server: PostgresServer, mode: str, **settings: str | int) -> None:
        self.server = server
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self._root = Path(tempfile.mkdtemp(prefix="loopwarden-pgbouncer-"))  # which others than its owner may enter
        self._root.chmod(0o755)
        self._user = server.url.partition("//")[2].partition("@")[0]
        (self._root / "users").write_text(f'"{self._user}" ""\n', "utf-8")
        self._settings: dict[str, str | int] = {
            "pool_mode": mode,
            "listen_addr": "127.0.0.1",
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(self._root / "users"),
            "log_connections": 0,  # its log is read by nothing after the start
            "log_disconnections": 0,
            "log_pooler_errors": 0,
            "log_stats": 0,
            "server_login_retry": 0,  # or it would refuse for 15 s when the server was away for a moment
            **settings,
        }
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            owner = pwd.getpwnam("nobody")
            self._as = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}

    @property
    def url(self) -> str:
        """The server's database, through it."""
        return f"postgresql://{self._user}@127.0.0.1:{self.port}/postgres"

    def start(self) -> Self:
        """Start it, and return when it answers."""
        output = ""
        for _ in range(20):  # the port may be taken by others between the look and the start
            is_new = not self.port
            self.port = self.port or free_port()
            output = self._try_to_start()
            if _READY in output:
                return self
            if "ddress already in use" not in output:
                break
            if is_new:
                self.port = 0
        raise AssertionError(f"the pooler does not start: {output}")

    def _try_to_start(self) -> str:
        program = find_pgbouncer()
        assert program is not None, "there is a pgbouncer"
        host = f"host=127.0.0.1 port={self.server.port}"
        settings = "".join(f"{name} = {value}\n" for name, value in self._settings.items())
        configuration = self._root / "pgbouncer.ini"
        configuration.write_text(
            f"[databases]\n* = {host}\n[pgbouncer]\nlisten_port = {self.port}\n{settings}", "utf-8"
        )
        process = subprocess.Popen(
            [program, str(configuration)],
            **self._as,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            start_new_session=True,  # a Ctrl-C is for us
        )
        assert process.stderr is not None, "it was asked for"
        output = ""
        line: str
        for line in process.stderr:
            output += line
            if _READY in line:
                self._process = process
                return output
        process.stderr.close()
        process.wait()
        return output

    def kill(self) -> None:
        """End it as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert process.stderr is not None, "it was asked for"
            process.stderr.close()

    def close(self) -> None:
        """End it for good, with its files."""
        self.kill()
        shutil.rmtree(self._root, ignore_errors=True)

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
