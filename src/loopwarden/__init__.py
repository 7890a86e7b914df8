"""Actor-model supervision for queue-polling loops, on Pykka."""

from __future__ import annotations

from loopwarden.actors import (
    DLQConsumer,
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
    stop_asked,
    wait_all,
)
from loopwarden.mailbox import Mailbox, Message, Token, open_mailbox
from loopwarden.supervision import (
    ChildRef,
    ChildSpec,
    DaemonScope,
    ExitCode,
    ReaperActor,
    Supervisor,
    SupervisorRef,
    WatchdogActor,
    WhichChildrenRequest,
    daemon_scope,
)

__all__ = [
    # Loops
    "DLQConsumer",
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
    "stop_asked",
    # Mailboxes
    "Mailbox",
    "Message",
    "Token",
    "open_mailbox",
    # Supervision
    "ChildRef",
    "ChildSpec",
    "DaemonScope",
    "ExitCode",
    "ReaperActor",
    "Supervisor",
    "SupervisorRef",
    "WatchdogActor",
    "daemon_scope",
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
    "WhichChildrenRequest",
]
