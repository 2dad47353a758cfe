"""Weir: background jobs and publish/subscribe on PostgreSQL.

import weir

app = weir.Weir("postgresql://localhost/app")

@app.task(queue="mail")
async def welcome(account: int) -> None: ...

await welcome.enqueue(conn, account=7)  # in the transaction of conn

weir-py work module:app -q mail=8
"""

from .app import Weir
from .errors import Fail, HubError, Invalid, Lost, RetryAfter, Snooze, Unsupported, WeirError
from .job import Job, current_job
from .messages import Gap, History, Member, Members, Message, Presence
from .operations import Enqueued, JobInfo, NewJob
from .options import Retry, Unique
from .subscribe import Subscription, subscribe
from .task import Task
from .worker import Worker

__all__ = [
    "Enqueued",
    "Fail",
    "Gap",
    "History",
    "HubError",
    "Invalid",
    "Job",
    "JobInfo",
    "Lost",
    "Member",
    "Members",
    "Message",
    "NewJob",
    "Presence",
    "Retry",
    "RetryAfter",
    "Snooze",
    "Subscription",
    "Task",
    "Unique",
    "Unsupported",
    "Weir",
    "WeirError",
    "Worker",
    "current_job",
    "subscribe",
]
