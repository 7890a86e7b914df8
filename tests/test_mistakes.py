"""What people get wrong in their first week, and what they are told: one sentence, where the mistake was made.

Each mistake is an expression over the names of `desk`.
"""

from __future__ import annotations

import re
import traceback
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pykka
import pytest
from pydantic import BaseModel

import loopwarden
from loopwarden import (
    ChildSpec,
    HealthCheckRequest,
    LoopActor,
    MailboxLoop,
    Supervisor,
    Ticket,
    actors,
    mailbox,
    open_mailbox,
    supervision,
)
from loopwarden.mailbox import InMemoryMailbox

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The mistake, and the sentence without what is another one each time. ``DIR`` is the folder of the test.
MISTAKES: dict[str, str] = {
    'MailboxLoop("jobs", handle)': "TypeError: source must be a mailbox, as open_mailbox() makes one, got 'jobs'",
    "MailboxLoop(handle, jobs)": (
        "TypeError: source must be a mailbox, as open_mailbox() makes one, got <function handle>"
    ),
    "MailboxLoop(jobs, handle())": "TypeError: handle() missing 1 required positional argument: '_message'",
    "MailboxLoop(jobs, None)": "TypeError: handler must be a function of one message, got None",
    "MailboxLoop(jobs, lambda: 0)": (
        "TypeError: handler must take one argument, the message, but <function <lambda>> takes (): what else it "
        "needs can be bound by functools.partial or a lambda"
    ),
    "MailboxLoop(jobs, lambda message, context: 0)": (
        "TypeError: handler must take one argument, the message, but <function <lambda>> takes (message, context): "
        "what else it needs can be bound by functools.partial or a lambda"
    ),
    'MailboxLoop(jobs, handle_async, runs_in="thread")': (
        "ValueError: runs_in='thread' needs a plain function, but <function handle_async> is a coroutine function: "
        "leave runs_in out"
    ),
    "MailboxLoop(jobs, handle_async, prefetch=5)": (
        "ValueError: prefetch is not for coroutines, got 5: as many messages are received as workers are free"
    ),
    'MailboxLoop(jobs, handle, runs_in="process")': (
        "ValueError: runs_in must be 'thread' or 'asyncio', got 'process'"
    ),
    "MailboxLoop(closed, handle)": "ValueError: source must be an open mailbox, but 'closed' was closed: open it again",
    "MailboxLoop(jobs, handle, concurrency=0)": (
        "InvalidParameterError: mailbox 'jobs': concurrency must be a whole number from 1 to 10000, got 0"
    ),
    'MailboxLoop(jobs, handle, concurrency="4")': (
        "InvalidParameterError: mailbox 'jobs': concurrency must be a whole number from 1 to 10000, got '4'"
    ),
    "MailboxLoop(jobs, handle, prefetch=-1)": (
        "InvalidParameterError: mailbox 'jobs': prefetch must be a whole number from 1 to 1000, got -1"
    ),
    "MailboxLoop(jobs, handle, visibility_timeout=0)": (
        "InvalidParameterError: mailbox 'jobs': visibility_timeout must be a number of seconds from 1 to 43200: "
        "with a shorter lease, messages come back while they are worked on, got 0"
    ),
    "MailboxLoop(jobs, handle, wait_time_seconds=0)": (
        "InvalidParameterError: mailbox 'jobs': wait_time_seconds must be a number of seconds of more than 0, up "
        "to 20 (with 0 a loop that has nothing to do would use up a processor), got 0"
    ),
    "MailboxLoop(jobs, handle, wait_time_seconds=60)": (
        "InvalidParameterError: mailbox 'jobs': wait_time_seconds must be a number of seconds of more than 0, up "
        "to 20 (with 0 a loop that has nothing to do would use up a processor), got 60"
    ),
    "MailboxLoop(jobs, handle, backoff=None)": (
        "TypeError: backoff must be a Backoff, such as Backoff(minimum=0.5, maximum=60), got None"
    ),
    "MailboxLoop(jobs, handle, backoff=5)": (
        "TypeError: backoff must be a Backoff, such as Backoff(minimum=0.5, maximum=60), got 5"
    ),
    'MailboxLoop(jobs, handle, crash_on=("ValueError",))': (
        "TypeError: crash_on must be a tuple of exception classes, got ('ValueError',)"
    ),
    'MailboxLoop(jobs, handle, crash_on=ValueError("x"))': (
        "TypeError: crash_on must be a tuple of exception classes, got ValueError('x')"
    ),
    'MailboxLoop(jobs, handle, retry={ValueError: "later"})': (
        "TypeError: retry[ValueError] must be a Backoff, such as Backoff(minimum=0.5, maximum=60), or "
        "\"dead_letter\", got 'later'"
    ),
    'MailboxLoop(jobs, handle, retry={"ValueError": "dead_letter"})': (
        "TypeError: retry must have subclasses of Exception as its keys, got 'ValueError'"
    ),
    'MailboxLoop(jobs, handle, retry={ValueError: "dead_letter"}, crash_on=(ValueError,))': (
        "ValueError: retry and crash_on must not name the same class, got ValueError in both: crash_on ends the loop, "
        "and retry lets it go on"
    ),
    "DLQConsumer(handle, jobs)": (
        "TypeError: mailbox must be the mailbox whose dead letters are wanted, got <function handle>"
    ),
    "DLQConsumer(jobs.dead_letters, handle)": (
        "TypeError: mailbox must be the mailbox whose dead letters are wanted, got "
        "<InMemoryDeadLetters 'jobs:dead', 0 letters>"
    ),
    "DLQConsumer(jobs, None)": "TypeError: handler must be a function of one letter, got None",
    "DLQConsumer(jobs, lambda: 0)": (
        "TypeError: handler must take one argument, the letter, but <function <lambda>> takes (): what else it "
        "needs can be bound by functools.partial or a lambda"
    ),
    "AnswersLater(jobs)": (
        "TypeError: respond must be a plain function, but <function AnswersLater.respond> is a"
        " coroutine or generator function: let a plain one run it, as asyncio.run(…) does"
    ),
    "MailboxLoop(jobs, handle, breaker=0)": (
        "ValueError: breaker must be a whole number of failures from 1 on, or None, got 0"
    ),
    'MailboxLoop(jobs, handle, pass_body="yes")': "TypeError: pass_body must be True or False, got 'yes'",
    "MailboxLoop(jobs, handle, timeout=5)": (
        "ValueError: timeout is for coroutines alone, and the handler is a plain function: make it an async def"
    ),
    "MailboxLoop(jobs, handle, longest_handler=-1)": (
        "InvalidParameterError: mailbox 'jobs': longest_handler must be a number of seconds from 0 to 43200, got -1"
    ),
    "PeriodicLoop(tick)": "TypeError: give either every= or cron=, got every=None and cron=None",
    "PeriodicLoop(every=0, fn=tick)": "ValueError: every must be a number of seconds from 0.001 to 31622400, got 0",
    "PeriodicLoop(every=60, fn=tick())": "TypeError: fn must be a function without arguments, got None",
    'PeriodicLoop(every=60, cron="* * * * *", fn=tick)': (
        "TypeError: give either every= or cron=, got every=60 and cron='* * * * *'"
    ),
    'PeriodicLoop(cron="every day", fn=tick)': (
        "ValueError: cron must be an expression such as '*/5 * * * *', got 'every day': Wrong number of fields"
    ),
    "PeriodicLoop(every=60, fn=lambda message: 0)": (
        "TypeError: fn must be a function without arguments, but <function <lambda>> takes (message): what it "
        "needs can be bound by functools.partial or a lambda"
    ),
    'PeriodicLoop(every=60, fn=tick, once_per="mailbox")': (
        "TypeError: once_per must be a mailbox for this loop alone, such as "
        "open_mailbox('sqlite:////var/lib/app/mail.db#report', max_size=1), got 'mailbox'"
    ),
    "PeriodicLoop(every=60, fn=tick, once_per=jobs)": (
        "ValueError: once_per must be a mailbox that holds one message, the next tick: open 'jobs' with max_size=1, "
        "and for this loop alone; it has max_size=None"
    ),
    "PeriodicLoop(every=60, fn=tick, once_per=closed)": (
        "ValueError: once_per must be an open mailbox, but 'closed' was closed: open it again"
    ),
    "PeriodicLoop(every=60, fn=tick_async)": (
        "TypeError: fn must be a plain function, but <function tick_async> is a coroutine or generator function: "
        "let a plain one run it, as asyncio.run(…) does"
    ),
    'ChildSpec("a", make)': (
        "TypeError: ChildSpec takes its fields by name: ChildSpec(id=…, start=…, actor=…, args=…, kwargs=…, "
        "start_timeout=…, restart=…, shutdown=…, priority=…, significant=…, intensity=…, period=…, backoff=…, "
        "decide=…)"
    ),
    'ChildSpec(id="a")': "ValueError: child 'a': give either start= or actor=, got neither",
    'ChildSpec(id="a", start=make())': (
        "ValueError: child 'a': start must be a function that makes a loop: start=lambda: …, got <MailboxLoop over "
        "'jobs', 1 workers, not running>"
    ),
    'ChildSpec(id="a", start=make_async)': (
        "ValueError: child 'a': start must be a plain function, but <function make_async> is a coroutine or generator "
        "function: what it makes can be made by start=lambda: …"
    ),
    'ChildSpec(id="a", start=lambda jobs: MailboxLoop(jobs, handle))': (
        "ValueError: child 'a': start must be a function without arguments, but <function <lambda>> needs (jobs): bind "
        "what it needs by start=lambda: …"
    ),
    'ChildSpec(id="a", start=MailboxLoop)': (
        "ValueError: child 'a': start must be a function without arguments, but <class "
        "'loopwarden.actors.consumers._mailbox_loop.MailboxLoop'> needs (source, handler): bind what it needs by "
        "start=lambda: …"
    ),
    'ChildSpec(id="a", start=make, actor=Plain)': "ValueError: child 'a': give either start= or actor=, got both",
    'ChildSpec(id="a", start=make, args=(1,))': (
        "ValueError: child 'a': args, kwargs: they are for actor, but start takes no arguments"
    ),
    'ChildSpec(id="a", actor=Plain())': (
        "ValueError: child 'a': actor must be the class of a Pykka actor: actor=MyActor, args=(…), got <Plain object>"
    ),
    'ChildSpec(id="a", start=make, restart="always")': (
        "ValueError: child 'a': restart must be 'permanent', 'transient' or 'temporary', got 'always'"
    ),
    'ChildSpec(id="a", start=make, shutdown="kill")': (
        "ValueError: child 'a': shutdown must be a number of seconds from 0 on, None, or 'brutal_kill', got 'kill'"
    ),
    'ChildSpec(id="a", start=make, shutdown=-1)': (
        "ValueError: child 'a': shutdown must be a number of seconds from 0 on, None, or 'brutal_kill', got -1"
    ),
    'ChildSpec(id="", start=make)': "ValueError: child '': id must have at least 1 character, got ''",
    'ChildSpec(id="a", start=make, significant=True)': (
        "ValueError: child 'a': significant: a permanent child is always restarted, so it cannot be significant"
    ),
    'ChildSpec(id="a", start=make, intensity=3.5)': "ValueError: child 'a': intensity must be a valid integer, got 3.5",
    'ChildSpec(id="a", start=make, timeout=5)': (
        "ValueError: child 'a': there is no timeout: did you mean start_timeout?"
    ),
    'ChildSpec(id="a", start=make, priority="high")': (
        "ValueError: child 'a': priority must be 'background', 'normal' or 'critical', got 'high'"
    ),
    'Supervisor("x", children=[make()])': (
        "ValueError: supervisor 'x': children.0: a child must be a ChildSpec: ChildSpec(id=…, start=lambda: …), "
        "got <MailboxLoop over 'jobs', 1 workers, not running>"
    ),
    'Supervisor("x", children=[child, child])': "ValueError: supervisor 'x': children: the id 'a' is used twice",
    'Supervisor("x", strategy="one_for_many")': (
        "ValueError: supervisor 'x': strategy must be 'one_for_one', 'one_for_all' or 'rest_for_one', got "
        "'one_for_many'"
    ),
    'Supervisor("x", intensity=-1)': "ValueError: supervisor 'x': intensity must be greater than or equal to 0, got -1",
    'Supervisor("x", period=0)': "ValueError: supervisor 'x': period must be greater than 0, got 0",
    'Supervisor("x").spawn(child)': (
        "AttributeError: Supervisor 'x' itself has no spawn(): its ref has, which Supervisor.start(…) and `with "
        "Supervisor.open(…) as ref` return"
    ),
    "supervisor.spawn(make)": (
        "TypeError: spawn() takes a ChildSpec: ChildSpec(id=…, start=lambda: …), got <function make>"
    ),
    "supervisor.spawn(child)": "ChildExistsError: child 'a' already exists, and is up",
    "supervisor.spawn(make())": (
        "TypeError: spawn() takes a ChildSpec: ChildSpec(id=…, start=lambda: …), got <MailboxLoop over 'jobs', 1 "
        "workers, not running>"
    ),
    'supervisor.child("b")': "ChildNotFoundError: child 'b' does not exist",
    'supervisor.send("stop")': "TypeError: send() takes a Request, such as HealthCheckRequest(), got 'stop'",
    "supervisor.send(ShutdownRequest)": (
        "TypeError: send() takes a Request, such as HealthCheckRequest(), got <class "
        "'loopwarden.actors.loop._messages.ShutdownRequest'>"
    ),
    'supervisor.subscribe().wait_for("crashed")': (
        "ValueError: kind must be the kind of an event, one of started, start_failed, exited, restarting, "
        "terminated, child_gave_up, gave_up, escalated, auto_shutdown, draining, stalled, recalled, abandoned, "
        "dead_lettered; got 'crashed'"
    ),
    'LoopActor.start(make, name="x")': "TypeError: loop must have run() and shutdown(), but function has no run()",
    'LoopActor.start(MailboxLoop, name="x")': (
        "TypeError: loop must be an instance, got the class: did you mean MailboxLoop(...)?"
    ),
    'LoopActor.start(object(), name="x")': "TypeError: loop must have run() and shutdown(), but object has no run()",
    'loop.send("stop")': "TypeError: send() takes a Request, such as HealthCheckRequest(), got 'stop'",
    "loop.send(HealthCheckRequest)": (
        "TypeError: send() takes a Request, such as HealthCheckRequest(), got <class "
        "'loopwarden.actors.loop._messages.HealthCheckRequest'>"
    ),
    'loop.send(ShutdownRequest(timeout="5"))': "ValueError: timeout must be a valid number, got '5'",
    "ShutdownRequest(timeout=-1)": "ValueError: timeout must be greater than or equal to 0, got -1",
    "ShutdownRequest(5)": "TypeError: ShutdownRequest takes its fields by name: ShutdownRequest(timeout=…, reason=…)",
    "ShutdownRequest(wait=5)": "ValueError: there is no wait, but timeout, reason",
    "HealthCheckRequest(timeout=5)": "ValueError: there is no timeout",
    "ProcessRequest()": "ValueError: body is missing",
    "check_health(loop)": "TypeError: refs must be a list of refs, got a single one",
    'check_health("loop")': "TypeError: refs must be a list of refs, got 'loop'",
    "serve(make())": (
        "TypeError: tree must be a Supervisor or its ref, got <MailboxLoop over 'jobs', 1 workers, not running>"
    ),
    "serve(lambda: supervisor)": "TypeError: tree must be a Supervisor or its ref, got <function <lambda>>",
    'serve(Supervisor("x"), shutdown_timeout=-1)': "ValueError: shutdown_timeout must be greater than 0, got -1",
    'serve(Supervisor("x"), timeout=5)': "ValueError: there is no timeout: did you mean shutdown_timeout?",
    'serve(Supervisor("x"), shutdown_timeout=10, drain_timeout=20)': (
        "ValueError: drain_timeout 20 is part of shutdown_timeout 10, and cannot be longer, so messages would be "
        "given up before their drain is over: raise shutdown_timeout or lower drain_timeout"
    ),
    'serve(Supervisor("x"), shutdown_timeout=30, grace=10)': (
        "ValueError: grace 10 is shorter than shutdown_timeout 30, so the process would be killed before its "
        "shutdown is over, with messages cut in half: raise grace or lower shutdown_timeout"
    ),
    'serve(Supervisor("x"), health_port="8080")': (
        "ValueError: health_port must be a whole number from 0 to 65535, got '8080'"
    ),
    'serve(Supervisor("x"), mailboxes=jobs)': (
        "TypeError: mailboxes must be a list of objects with a close method, got <InMemoryMailbox 'jobs', 1 messages>"
    ),
    "LoopGroup(loops=[make])": "TypeError: loop must have run() and shutdown(), but function has no run()",
    "LoopGroup(loops=make())": (
        "TypeError: loops must be a list of loops, got <MailboxLoop over 'jobs', 1 workers, not running>"
    ),
    "LoopGroup(loops=[])": "ValueError: loops must be one loop or more, each of them once, got ()",
    'open_mailbox("jobs")': (
        "InvalidParameterError: mailbox 'jobs': url must be like memory://jobs, "
        "redis://host/0#jobs, sqlite:///mail.db#jobs or "
        "sqlite:////var/lib/app/mail.db#jobs (three slashes are relative to the current folder, four are "
        "absolute), got 'jobs'"
    ),
    "open_mailbox(5)": (
        "InvalidParameterError: mailbox '5': url must be a string, like memory://jobs, "
        "redis://host/0#jobs, sqlite:///mail.db#jobs or "
        "sqlite:////var/lib/app/mail.db#jobs (three slashes are relative to the current folder, four are "
        "absolute), got 5"
    ),
    'open_mailbox(Path("mail.db"))': (
        "InvalidParameterError: mailbox \"PosixPath('mail.db')\": url must be a string, like memory://jobs, "
        "redis://host/0#jobs, "
        "sqlite:///mail.db#jobs or sqlite:////var/lib/app/mail.db#jobs (three slashes are relative to the current "
        "folder, four are absolute), got PosixPath('mail.db')"
    ),
    'open_mailbox("memory://")': (
        "InvalidParameterError: mailbox 'memory://': url must be like memory://jobs, "
        "redis://host/0#jobs, sqlite:///mail.db#jobs or "
        "sqlite:////var/lib/app/mail.db#jobs (three slashes are relative to the current folder, four are "
        "absolute), got 'memory://'"
    ),
    'open_mailbox("memory://fresh?max_deliveries=1")': (
        "InvalidParameterError: mailbox 'memory://fresh?max_deliveries=1': url must be like memory://jobs, "
        "redis://host/0#jobs, "
        "sqlite:///mail.db#jobs or sqlite:////var/lib/app/mail.db#jobs (three slashes are relative to the current "
        "folder, four are absolute), got 'memory://fresh?max_deliveries=1'"
    ),
    'open_mailbox("memory://fresh#jobs")': (
        "InvalidParameterError: mailbox 'memory://fresh#jobs': url must be like memory://jobs, redis://host/0#jobs, "
        "sqlite:///mail.db#jobs or sqlite:////var/lib/app/mail.db#jobs (three slashes are relative to the current "
        "folder, four are absolute), got 'memory://fresh#jobs'"
    ),
    'open_mailbox("sqlite:///mail.db?max_size=3#jobs")': (
        "InvalidParameterError: mailbox 'sqlite:///mail.db?max_size=3#jobs': url must be like memory://jobs, "
        "redis://host/0#jobs, "
        "sqlite:///mail.db#jobs or sqlite:////var/lib/app/mail.db#jobs (three slashes are relative to the current "
        "folder, four are absolute), got 'sqlite:///mail.db?max_size=3#jobs'"
    ),
    'open_mailbox("sqlite:///mail.db#jobs?max_size=3")': (
        "InvalidParameterError: mailbox 'jobs?max_size=3': url must be a URL without options, which are keyword "
        "arguments: open_mailbox(url, max_size=…), got 'sqlite:///mail.db#jobs?max_size=3'"
    ),
    'open_mailbox("sqlite:///mail.db")': (
        "InvalidParameterError: mailbox 'sqlite:///mail.db': url must be a URL with a mailbox's name at its end: "
        "sqlite:///mail.db#jobs, got 'sqlite:///mail.db'"
    ),
    'open_mailbox("sqlite://mail.db#jobs")': (
        "InvalidParameterError: mailbox 'sqlite://mail.db#jobs': url must be like memory://jobs, redis://host/0#jobs, "
        "sqlite:///mail.db#jobs or sqlite:////var/lib/app/mail.db#jobs (three slashes are relative to the current "
        "folder, four are absolute), got 'sqlite://mail.db#jobs'"
    ),
    'open_mailbox("sqlite:///none/mail.db#jobs")': (
        "MailboxConnectionError: mailbox 'jobs': the folder DIR/none of sqlite:///none/mail.db#jobs does not exist "
        "(three slashes are relative to the current folder, four are absolute)"
    ),
    'open_mailbox("sqlite:///text.db#jobs")': (
        "MailboxConnectionError: mailbox 'text.db': DIR/text.db: file is not a database"
    ),
    'open_mailbox("sqlite:///mail.db#jobs", create=False)': (
        "InvalidParameterError: mailbox 'jobs': create must be True, because there is no file DIR/mail.db, got False"
    ),
    'open_mailbox("amqp://user:secret@host/0#jobs")': (
        "InvalidParameterError: mailbox 'amqp://***@host/0#jobs': url must be like memory://jobs, redis://host/0#jobs, "
        "sqlite:///mail.db#jobs or sqlite:////var/lib/app/mail.db#jobs (three slashes are relative to the current "
        "folder, four are absolute), got 'amqp://***@host/0#jobs'"
    ),
    'open_mailbox("memory://fresh", body=5)': (
        "InvalidParameterError: mailbox 'fresh': body must be a type that pydantic can validate, got 5"
    ),
    'open_mailbox("memory://fresh", body="Order")': (
        "InvalidParameterError: mailbox 'fresh': body must be a type that pydantic can validate, got 'Order'"
    ),
    'open_mailbox("memory://fresh", type=str)': (
        "TypeError: InMemoryMailbox.__init__() got an unexpected keyword argument 'type'"
    ),
    'open_mailbox("memory://orders", body=str)': (
        "InvalidParameterError: mailbox 'orders': body must be <class 'Order'>, with which it is open already "
        "(close it, or take another name), got <class 'str'>"
    ),
    'open_mailbox("memory://fresh", max_deliveries=0)': (
        "InvalidParameterError: mailbox 'fresh': max_deliveries must be a whole number from 1 to 2147483647, got 0"
    ),
    'open_mailbox("memory://fresh", max_size="many")': (
        "InvalidParameterError: mailbox 'fresh': max_size must be a whole number from 1 to 2147483647, got 'many'"
    ),
    'open_mailbox("sqlite:///mail.db#jobs", durability="full")': (
        "TypeError: SqliteMailbox.__init__() got an unexpected keyword argument 'durability'"
    ),
    'list_mailboxes("sqlite:///none.db")': (
        "InvalidParameterError: mailbox 'sqlite:///none.db': url must be that of a file: there is no DIR/none.db "
        "(three slashes are relative to the current folder, four are absolute), got 'sqlite:///none.db'"
    ),
    'list_mailboxes("memory://jobs")': (
        "InvalidParameterError: mailbox 'memory://jobs': url must be like memory://jobs, "
        "redis://host/0#jobs, sqlite:///mail.db#jobs or "
        "sqlite:////var/lib/app/mail.db#jobs (three slashes are relative to the current folder, four are "
        "absolute), got 'memory://jobs'"
    ),
    "jobs.send(object())": (
        "SerializationError: mailbox 'jobs': the body cannot be written as JSON: Unable to serialize unknown type: "
        "<class 'object'>; send what its type says, and JSON can carry"
    ),
    "jobs.send({1: 2})": (
        "SerializationError: mailbox 'jobs': the body would not be received as it was sent: dict[key 1] is of type "
        "int, and would be of type str; open the mailbox with body=<their type>: without one they can only be what "
        "JSON has"
    ),
    'jobs.send(float("nan"))': (
        "SerializationError: mailbox 'jobs': the body would not be received as it was sent: it is of type float, "
        "and would be of type NoneType; nan and inf need ser_json_inf_nan='constants' in the configuration of "
        "their model"
    ),
    'jobs.send("a", delay=-1)': (
        "InvalidParameterError: mailbox 'jobs': delay must be a number of seconds from 0 to 43200, got -1"
    ),
    'jobs.send("a", delay="5")': (
        "InvalidParameterError: mailbox 'jobs': delay must be a number of seconds from 0 to 43200, got '5'"
    ),
    'jobs.send("a", headers={"n": 1})': (
        "InvalidParameterError: mailbox 'jobs': headers['n'] must be a string named by a string, got 1"
    ),
    'jobs.send("a", reply_to="memory://answers")': (
        "InvalidParameterError: mailbox 'jobs': reply_to must be a mailbox of the same store, its name (no URL), "
        "or None, got 'memory://answers'"
    ),
    'jobs.send_many("abc")': (
        "InvalidParameterError: mailbox 'jobs': bodies must be a list of bodies; for a single one there is send(), "
        "got 'abc'"
    ),
    "jobs.send_many(5)": (
        "InvalidParameterError: mailbox 'jobs': bodies must be a list of bodies; for a single one there is send(), "
        "got 5"
    ),
    'orders.send("7")': (
        "SerializationError: mailbox 'orders': the body does not fit: Order: Input should be a valid dictionary or "
        "instance of Order"
    ),
    'closed.send("a")': "MailboxClosedError: mailbox 'closed': it is closed",
    "closed.receive()": "MailboxClosedError: mailbox 'closed': it is closed",
    "jobs.receive(wait_time_seconds=60)": (
        "InvalidParameterError: mailbox 'jobs': wait_time_seconds must be a number of seconds from 0 to 20, got 60"
    ),
    "jobs.receive(visibility_timeout=50_000)": (
        "InvalidParameterError: mailbox 'jobs': visibility_timeout must be a number of seconds from 0 to 43200, "
        "got 50000"
    ),
    'jobs.receive(token="x")': "InvalidParameterError: mailbox 'jobs': token must be a Token, or None, got 'x'",
    'message.nack(error=ValueError("no"))': (
        "InvalidParameterError: mailbox 'jobs': error must be a string, such as repr(error), or None, got "
        "ValueError('no')"
    ),
    "message.nack(visibility_timeout=-1)": (
        "InvalidParameterError: mailbox 'jobs': visibility_timeout must be a number of seconds from 0 to 43200, got -1"
    ),
    'message.reply("done")': (
        "ReplyNotAvailableError: mailbox 'jobs': message -1 cannot be replied to: its sender wants no reply"
    ),
    'message.extend_visibility("5")': (
        "InvalidParameterError: mailbox 'jobs': timeout must be a number of seconds from 0 to 43200, got '5'"
    ),
    'message.dead_letter(ValueError("no"))': (
        "InvalidParameterError: mailbox 'jobs': reason must be a string, such as repr(error), got ValueError('no')"
    ),
    "done.acknowledge()": "MessageFinalizedError: mailbox 'jobs': message -2 was already finalised",
    "done.nack()": "MessageFinalizedError: mailbox 'jobs': message -2 was already finalised",
    'answered.fail("no")': "TypeError: fail() takes an exception instance, got 'no'",
    'Ticket().fail("no")': "TypeError: fail() takes an exception instance, got 'no'",
    'Ticket().wait(timeout="5")': "TypeError: timeout must be a number of seconds or None, got '5'",
    "Backoff(minimum=5, maximum=1)": (
        "ValueError: minimum of a back-off must not be more than maximum, got Backoff(minimum=5, maximum=1, jitter=0.2)"
    ),
    "Backoff(jitter=2)": "ValueError: jitter of a back-off is a share from 0 to 1, got 2",
    "StallPolicy(threshold=0)": "ValueError: threshold must be greater than 0, got 0",
    'StallPolicy(last="kill")': "ValueError: last must be 'report', 'recall', 'replace' or 'exit', got 'kill'",
    "WorkBudget(0)": "ValueError: limit of 'budget' must be a whole number from 1 on, got 0",
    "pool.submit(tick_async)": (
        "TypeError: function must be a plain function, but <function tick_async> is a coroutine or generator "
        "function: let a plain one run it, as asyncio.run(…) does"
    ),
    "OffloadPool(workers=0)": "ValueError: workers of 'offload' must be a whole number from 1 to 10000, got 0",
}

PACKAGES: tuple[Any, ...] = (loopwarden, actors, mailbox, supervision)
#: Where a sentence may come from: our code, or the call itself.
OURS = (*(str(Path(package.__file__).resolve().parent) for package in PACKAGES), "<string>")


class Order(BaseModel):
    number: int


class Plain(pykka.ThreadingActor):
    pass


def handle(_message: object) -> None: ...


async def handle_async(_message: object) -> None: ...


async def make_async() -> None: ...


class HandlesLater:
    async def __call__(self, _message: object) -> None: ...


class AnswersLater(actors.MainLoop[Any, Any]):
    async def respond(self, request: object) -> None: ...


def tick() -> None: ...


async def tick_async() -> None: ...


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the mistakes are made with."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.db").write_text("hello " * 1_000)
    jobs: InMemoryMailbox[Any, Any] = InMemoryMailbox("jobs", body=Any)
    closed: InMemoryMailbox[Any, Any] = InMemoryMailbox("closed", body=Any)
    closed.close()
    jobs.send_many(["a", "b"])
    message, done = jobs.receive(max_messages=2)
    done.acknowledge()
    answered = Ticket[int]()
    answered.complete(1)

    def make() -> MailboxLoop[Any]:
        return MailboxLoop(jobs, handle)

    child = ChildSpec(id="a", start=make)
    public = {name: getattr(package, name) for package in PACKAGES for name in package.__all__}
    with (
        closing(jobs),
        closing(open_mailbox("memory://orders", body=Order)) as orders,
        Supervisor.open("root", children=[child]) as supervisor,
        actors.OffloadPool() as pool,
    ):
        loop = LoopActor.start(make(), name="loop")
        loop.send(HealthCheckRequest()).wait(timeout=60)
        made = (jobs, closed, orders, message, done, answered, make, child, supervisor, loop, pool)
        names = (
            "jobs",
            "closed",
            "orders",
            "message",
            "done",
            "answered",
            "make",
            "child",
            "supervisor",
            "loop",
            "pool",
        )
        yield public | globals() | dict(zip(names, made, strict=True))
        loop.stop()


def told(mistake: str, desk: dict[str, Any]) -> BaseException:
    with pytest.raises(Exception, match=r"\S") as raised:
        eval(mistake, desk)  # noqa: S307  an expression of our own table
    return raised.value


@pytest.mark.parametrize(("mistake", "sentence"), MISTAKES.items(), ids=MISTAKES)
def test_mistake_is_told_in_one_sentence_where_it_is_made(
    desk: dict[str, Any], tmp_path: Path, mistake: str, sentence: str
) -> None:
    error = told(mistake, desk)

    text = str(error).replace(str(tmp_path.resolve()), "DIR").replace(f"{__name__}.", "")
    text = re.sub(r" at 0x[0-9a-f]+|(?<=message )[0-9a-f]{8}(?=-)|desk\.<locals>\.", "", text)
    assert f"{type(error).__name__}: {text}" == sentence
    assert "\n" not in text
    assert traceback.extract_tb(error.__traceback__)[-1].filename.startswith(OURS)


def test_mistakes_with_a_file_make_no_file(desk: dict[str, Any], tmp_path: Path) -> None:
    for mistake in MISTAKES:
        if ".db" in mistake:
            told(mistake, desk)

    assert [path.name for path in tmp_path.iterdir()] == ["text.db"]
