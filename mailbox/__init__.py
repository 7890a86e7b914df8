"""At-least-once queues: the contract and its back ends."""

from __future__ import annotations

from loopwarden.mailbox._contract import (
    Capabilities,
    DeadLetters,
    Mailbox,
    MailboxStats,
    Reaped,
    SupportsDeadLetterWatch,
    SupportsExtendMany,
    SupportsStats,
    SupportsWaitedUntil,
    SupportsWaitVisible,
)
from loopwarden.mailbox._dead_letter import DeadLetter, DeadLetterNotice
from loopwarden.mailbox._lease import LeaseExtender
from loopwarden.mailbox._message import Message, Record, Settler
from loopwarden.mailbox._open import list_mailboxes, open_mailbox
from loopwarden.mailbox._token import Token
from loopwarden.mailbox.memory._mailbox import InMemoryMailbox
from loopwarden.mailbox.sqlite._mailbox import SqliteMailbox

__all__ = [
    # The contract
    "Capabilities",
    "DeadLetter",
    "DeadLetterNotice",
    "DeadLetters",
    "Mailbox",
    "MailboxStats",
    "Message",
    "Reaped",
    "Record",
    "Settler",
    "SupportsDeadLetterWatch",
    "SupportsExtendMany",
    "SupportsStats",
    "SupportsWaitVisible",
    "SupportsWaitedUntil",
    "Token",
    # Leases
    "LeaseExtender",
    # Back ends
    "InMemoryMailbox",
    "SqliteMailbox",
    "list_mailboxes",
    "open_mailbox",
]
