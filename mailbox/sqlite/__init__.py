"""The mailbox in a SQLite file, shared by the processes of one machine.

What may change here is how messages are stored and how waiting processes are notified. What is in the file may change
only together with its version in `_schema`.
"""
