"""Actor-model supervision for queue-polling loops, on Pykka."""

from __future__ import annotations

from loopwarden.actors import (
    HealthCheckRequest,
    HealthStatus,
    Heartbeat,
    LoopActor,
    LoopRef,
    LoopState,
    MailboxLoop,
    MainLoop,
    ProcessRequest,
    Runnable,
    ShutdownConfirmRequest,
    ShutdownRequest,
    ShutdownResult,
    SupportsProcess,
    SupportsRun,
    Ticket,
    beat,
    check_health,
    wait_all,
)
from loopwarden.mailbox import open_mailbox

__all__ = [
    # Loops
    "Heartbeat",
    "LoopActor",
    "LoopRef",
    "LoopState",
    "MailboxLoop",
    "MainLoop",
    "Runnable",
    "SupportsProcess",
    "SupportsRun",
    "beat",
    # Mailboxes
    "open_mailbox",
    # Tickets
    "Ticket",
    "check_health",
    "wait_all",
    # Control messages and their answers
    "HealthCheckRequest",
    "HealthStatus",
    "ProcessRequest",
    "ShutdownConfirmRequest",
    "ShutdownRequest",
    "ShutdownResult",
]
