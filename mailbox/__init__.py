"""At-least-once queues: the contract and its back ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loopwarden._lazy import lazy
from loopwarden.mailbox._codec import Codec
from loopwarden.mailbox._contract import (
    Capabilities,
    DeadLetters,
    Mailbox,
    MailboxStats,
    Reaped,
    SupportsDeadLetterWatch,
    SupportsExtendMany,
    SupportsPauseWatch,
    SupportsStats,
    SupportsTransactions,
    SupportsWaitedUntil,
    SupportsWaitVisible,
    SupportsWarnings,
)
from loopwarden.mailbox._dead_letter import DeadLetter, DeadLetterNotice, paced
from loopwarden.mailbox._lease import LeaseExtender
from loopwarden.mailbox._message import Message, Record, Settler
from loopwarden.mailbox._open import fleet, list_mailboxes, open_mailbox
from loopwarden.mailbox._token import Token
from loopwarden.mailbox._validation import (
    check_bodies,
    check_dedup_id,
    check_headers,
    check_id,
    check_ids,
    check_limit,
    check_limits,
    check_messages,
    check_new_name,
    check_receive,
    check_reply_to,
    check_seconds,
    check_token,
)
from loopwarden.mailbox.memory._mailbox import InMemoryMailbox

if TYPE_CHECKING:
    from loopwarden.mailbox._fleet import Fleet, FleetMember, HeldMessage
    from loopwarden.mailbox._move import Moved, move
    from loopwarden.mailbox.postgres._mailbox import PostgresMailbox
    from loopwarden.mailbox.redis._mailbox import RedisMailbox
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
    "SupportsPauseWatch",
    "SupportsStats",
    "SupportsTransactions",
    "SupportsWaitVisible",
    "SupportsWarnings",
    "SupportsWaitedUntil",
    "Token",
    # Leases
    "LeaseExtender",
    # Back ends
    "InMemoryMailbox",
    "PostgresMailbox",
    "RedisMailbox",
    "SqliteMailbox",
    "Moved",
    "list_mailboxes",
    "move",
    "open_mailbox",
    # For a back end of one's own: bodies, the rate of a redrive, and the arguments of every call
    "Codec",
    "paced",
    "check_bodies",
    "check_dedup_id",
    "check_headers",
    "check_id",
    "check_ids",
    "check_limit",
    "check_limits",
    "check_messages",
    "check_new_name",
    "check_receive",
    "check_reply_to",
    "check_seconds",
    "check_token",
    # Mailboxes that processes of many machines share
    "Fleet",
    "FleetMember",
    "HeldMessage",
    "fleet",
]

# A process pays for the back end that it uses: sqlite3 is a good part of what one in memory would import, and the
# clients of servers, which are extras, take as long to import as all the rest.
__getattr__, __dir__ = lazy(
    __name__,
    {
        "loopwarden.mailbox._fleet": "Fleet FleetMember HeldMessage",
        "loopwarden.mailbox._move": "Moved move",
        "loopwarden.mailbox.postgres._mailbox": "PostgresMailbox",
        "loopwarden.mailbox.redis._mailbox": "RedisMailbox",
        "loopwarden.mailbox.sqlite._mailbox": "SqliteMailbox",
    },
)
