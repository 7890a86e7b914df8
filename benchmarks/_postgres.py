"""`PostgresServer` of the scripts, kept on the cores that a benchmark leaves to it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "scripts"))

from _server import on
from private_postgres import POSTGRES_KINDS, PostgresServer, find_folder

__all__ = ["POSTGRES_KINDS", "PostgresServer", "find_folder", "start"]

#: A server that is not to lose messages; its checkpoints do not fall into a figure.
_OPTIONS = ("max_wal_size=4GB", "shared_buffers=256MB")


def start(kind: str, cores: set[int], *options: str) -> PostgresServer:
    """Start a server on these cores; it ends with its block."""
    with on(cores):  # a process begins where the one is that starts it
        return PostgresServer(kind, *_OPTIONS, *options).start()
