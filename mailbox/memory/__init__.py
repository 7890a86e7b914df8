"""The mailbox that lives and dies with its process: its queue, its leases, its dead letters.

Nothing outside this folder knows how messages are kept here. Every change must keep a message in exactly one place,
even if a Ctrl-C ends it between two lines.
"""
