"""An attempt that a worker has claimed: from the claim until its end is recorded."""

from __future__ import annotations

import asyncio
import builtins
import textwrap
import traceback
from typing import TYPE_CHECKING, Any

from .errors import Fail, RetryAfter, Snooze
from .job import Job, Reason
from .report import Report

if TYPE_CHECKING:
    from .runner import Runner
    from .task import Handler

MAX_ERROR = 32768  # characters that are kept of a traceback
MAX_INNER = 15  # errors of a group
GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # from Python 3.11 on


class Attempt:
    """Its token, its job, and how it goes."""

    __slots__ = (
        "_report",
        "args_text",
        "begun",
        "checkpoint",
        "completes",
        "ended",
        "handler",
        "job",
        "meta_text",
        "reason",
        "runner",
        "started",
        "task",
        "token",
        "worker",
    )

    def __init__(self, runner: Runner, worker: int | None, token: str, job: Job, args_text: str | None, meta_text: str | None) -> None:
        self.runner = runner
        self.worker = worker  # None: a hub is the worker
        self.token = token
        self.job = job
        self.args_text = args_text  # not yet decoded
        self.meta_text = meta_text
        self.handler: Handler | None = None
        self.started = 0.0
        self.begun = False  # a task that has not begun can't catch that it is cancelled
        self.reason: Reason | None = None
        self.task: asyncio.Task[None] | None = None
        self.ended: dict[str, Any] | None = None  # how it ended, until that is recorded
        self.completes = False  # its function completes it in a transaction
        self.checkpoint: Any = None  # that of an earlier attempt, if a hub has sent it
        self._report: Report | None = None
        job._attempt = self

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the worker."""
        return self.runner.loop

    @property
    def report(self) -> Report:
        """What it has said about itself."""
        if self._report is None:
            self._report = Report()
            if self.runner.held.get(self.token) is self:  # else it was lost, and may have been given once more
                self.runner.reporting[self.token] = self
        return self._report

    async def load_checkpoint(self) -> Any:
        """What was set last, by this attempt or an earlier one."""
        is_set, checkpoint = self._report.newest_checkpoint() if self._report is not None else (False, None)
        return checkpoint if is_set else await self.runner.source.load_checkpoint(self)

    async def flush(self) -> None:
        """Returns when everything reported so far is stored."""
        if self._report is not None:
            await self.runner.flush_reports()

    def interrupt(self, reason: Reason) -> None:
        """Tells its function to end, once."""
        if self.reason is not None or self.ended is not None:
            return
        self.reason = reason
        self.job.interrupted.set(reason)
        if self.task is not None and self.begun:
            self.task.cancel()


def end_of(attempt: Attempt, error: BaseException, timeout: float | None) -> dict[str, Any] | None:
    """How an attempt ended whose function has raised this; None: it is released when the worker stops."""
    raised, error = error, alone(error)
    reason = attempt.reason
    if isinstance(error, Snooze) and reason != "cancelled":
        return {"outcome": "snoozed", "delay": error.seconds}
    if reason == "cancelled":
        return {"outcome": "cancelled", "error": described(raised)}
    if reason == "stopping":
        return None
    if reason == "timeout" and isinstance(error, asyncio.CancelledError):
        raised = error = TimeoutError(f"the attempt took longer than its timeout of {timeout:g} s").with_traceback(error.__traceback__)
    end: dict[str, Any] = {"outcome": "failed", "error": described(raised)}
    retry = attempt.handler.retry if attempt.handler is not None else None
    if isinstance(error, Fail) or (retry is not None and isinstance(error, retry.give_up)):
        end["final"] = True
    elif isinstance(error, RetryAfter):
        end["delay"] = error.seconds
    elif retry is not None:
        try:
            delay = retry.after(attempt.job.attempt, error)
        except Exception as e:
            end["error"] += f"\n\nretry of task {attempt.job.kind} raised:\n{described(e)}"
        else:
            if delay is not None:
                end["delay"] = delay
    return end


def alone(error: BaseException) -> BaseException:
    """The error that decides what follows: of a group with one error, such as that of an asyncio.TaskGroup in which one task has failed, the one."""
    inner = error
    while isinstance(inner, GROUP) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    return error if isinstance(inner, GROUP) else inner


def described(error: BaseException) -> str:
    """The traceback, without this package's own first frames; of a long one, both ends."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("weir.") and trace.tb_next is not None:
        trace = trace.tb_next
    try:
        lines = "".join(_formatted(traceback.TracebackException(type(error), error, trace))).rstrip()
    except Exception as e:  # a __str__ that raises
        lines = f"{type(error).__qualname__}, which can't be shown: {type(e).__qualname__}"
    if len(lines) > MAX_ERROR:
        lines = f"{lines[: MAX_ERROR // 4]}\n…\n{lines[-MAX_ERROR * 3 // 4 :]}"
    return lines


def _formatted(error: traceback.TracebackException) -> list[str]:
    """As Python does it, but a group like any other error, with those in it indented below: lists of failures look for a message that is not."""
    lines: list[str] = []
    if error.__cause__ is not None:
        lines += [*_formatted(error.__cause__), "\nThe above exception was the direct cause of the following exception:\n\n"]
    elif error.__context__ is not None and not error.__suppress_context__:
        lines += [*_formatted(error.__context__), "\nDuring handling of the above exception, another exception occurred:\n\n"]
    inner = getattr(error, "exceptions", None)
    if not inner:
        return [*lines, *error.format(chain=False)]
    first = error
    while deeper := getattr(first, "exceptions", None):
        first = deeper[0]
    message = " ".join("".join(error.format_exception_only()).splitlines())
    lines += ["Traceback (most recent call last):\n", *error.stack.format(), f"{message}: {next(first.format_exception_only())}"]
    for i, each in enumerate(inner[:MAX_INNER], 1):
        lines += textwrap.indent(f"{i} of {len(inner)}:\n" + "".join(_formatted(each)), "    ").splitlines(keepends=True)
    return lines
