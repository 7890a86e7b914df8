"""Where probes are listened for, if the user does not say it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from loopwarden._log import describe

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ProbeHost", "find_host"]

LOOPBACK = "127.0.0.1"
#: Is there in a pod whose service account has a token.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Is set in every pod, unless its spec says ``enableServiceLinks: false`` and the cluster is an old one.
VARIABLE = "KUBERNETES_SERVICE_HOST"


class ProbeHost(NamedTuple):
    """A host to listen on, and why it is this one."""

    host: str
    why: str


def find_host(given: str | None, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> ProbeHost:
    """Return the host that was given; without one all interfaces in a pod, because its node asks from outside.

    Args:
        given: What the user has said; an empty string means all interfaces.
        environ: The environment of the process.
        account: The folder that only a pod has.

    Raises:
        TypeError: if the host is no string.
    """
    if given is not None and not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance]  a caller without types
        raise TypeError(f"health_host must be a name, an address or None, got {describe(given)}")
    if given:
        return ProbeHost(given, "as health_host says")
    if given == "":
        return ProbeHost(_everywhere(), "all interfaces, as health_host says")
    if environ.get(VARIABLE):
        return ProbeHost(_everywhere(), f"all interfaces, because {VARIABLE} is set")
    if os.path.exists(account):  # noqa: PTH110  `Path.exists` raises if it may not look, in older Pythons
        return ProbeHost(_everywhere(), f"all interfaces, because there is {account}")
    return ProbeHost(LOOPBACK, "only this machine, because this is not a pod of Kubernetes")


def _everywhere() -> str:
    """Return the address that means all interfaces: of both kinds, if one socket can have them."""
    try:
        with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True):
            return "::"
    except (OSError, ValueError):  # IPv6 is switched off, or the system cannot do both
        return "0.0.0.0"  # noqa: S104  that is what is asked for
