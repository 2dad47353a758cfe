"""Keeps a worker's lease while a function blocks the event loop, from a thread of its own.

An async function that computes for a minute, or calls something that blocks, keeps the loop from calling take. The
lease would be over then, and others would get the worker's jobs while they run here. So if the loop has not renewed
the lease in time, a thread sends the heartbeat, and says in the log where the loop is.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg

from .line import options, with_name

if TYPE_CHECKING:
    from .runner import Runner

log = logging.getLogger("weir")

SAFE = 2 / 3  # of a lease are left at least, from the time that a call was sent


class Guard:
    """What is known of the lease. Its thread ends with the worker."""

    def __init__(self, conninfo: str, lease: float) -> None:
        self._conninfo = conninfo
        self._lease = lease
        self._lock = threading.Lock()
        self._worker = 0
        self._sent = time.monotonic()
        self._ends = threading.Event()
        self._loop_thread = 0
        self._told = 0.0
        self.on_lapse: Callable[[], None] | None = None  # called in the thread if the loop is blocked when the lease ends

    def begin(self, loop: asyncio.AbstractEventLoop, runner: Runner) -> None:
        """Starts the thread; called in the loop's own."""
        self._loop, self._loop_thread = loop, threading.get_ident()
        self._runner = runner
        threading.Thread(target=self._watch, name="weir guard", daemon=True).start()

    def end(self) -> None:
        """Ends the thread."""
        self._ends.set()

    def renewed(self, worker: int, sent: float) -> None:
        """A call that renews the lease was sent then, and has succeeded."""
        with self._lock:
            if worker != self._worker or sent > self._sent:
                self._worker, self._sent = worker, sent

    def lapsed(self) -> bool:
        """Whether the lease may be over."""
        with self._lock:
            return bool(self._worker) and time.monotonic() > self._sent + self._lease * SAFE

    def _watch(self) -> None:
        conn: psycopg.Connection[Any] | None = None
        while not self._ends.wait(self._lease / 12):
            with self._lock:
                worker, silent = self._worker, time.monotonic() - self._sent
            if not worker or silent < self._lease / 3:
                continue
            sent = time.monotonic()
            try:
                if conn is None or conn.closed:
                    conn = psycopg.connect(with_name(self._conninfo), **{**options(self._lease), "connect_timeout": max(2, int(self._lease / 6))})
                is_fenced = conn.execute("SELECT fenced FROM weir.heartbeat(%s)", [worker]).fetchone()
                if is_fenced is not None and not is_fenced[0]:
                    self.renewed(worker, sent)
                    self._say(silent)
            except psycopg.Error as e:
                log.warning("the lease of worker %d could not be renewed: %s", worker, e)
                if conn is not None:
                    conn.close()
            if self.lapsed():
                # The loop may be blocked, so functions in threads are told from here.
                for attempt in list(self._runner.running):
                    if attempt.task is None:
                        attempt.job.interrupted.set("lost")
                if self.on_lapse is not None:
                    self.on_lapse()
        if conn is not None:
            conn.close()

    def _say(self, silent: float) -> None:
        if time.monotonic() < self._told + 30:
            return
        answers = threading.Event()
        self._loop.call_soon_threadsafe(answers.set)
        if answers.wait(0.2):  # it is only late, on a busy machine
            return
        self._told = time.monotonic()
        frame = sys._current_frames().get(self._loop_thread)
        where = "".join(traceback.format_stack(frame)[-8:]) if frame is not None else "unknown"
        log.warning(
            "the event loop has not called take for %.1f s. If a task blocks it, make it a plain function, which runs in a thread. It is at:\n%s",
            silent,
            where,
        )
