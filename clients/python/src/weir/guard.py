"""Keeps a worker's lease, from a thread of its own.

Where nothing is between this process and the server, the thread's session attends: it stands for the worker. As long as
it lasts, the worker is alive, and uses no transaction ids while it is idle; when the process is killed, others get its
jobs within seconds. Elsewhere, such as behind a pooler, calls of take renew the lease.

An async function that computes for a minute, or calls something that blocks, keeps the loop from calling take. The
lease would be over then, and others would get the worker's jobs while they run here. So if the loop has not renewed
the lease in time, the thread sends the heartbeat, and says in the log where the loop is.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import selectors
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg

from . import clock
from .line import options, with_name

if TYPE_CHECKING:
    from .runner import Runner

log = logging.getLogger("weir")

SAFE = 2 / 3  # of a lease are left at least, from the time that a call was sent
# After a session that stood for the worker has ended, others get the jobs in 3 seconds, unless another session does so.
# This leaves room for a step of the clock.
HASTE = 2.25
HURRY = 0.1  # seconds between two tries to attend again
ATTEND = "SELECT weir.attend(%s, %s, %s::inet, %s)"
HEARTBEAT = "SELECT fenced FROM weir.heartbeat(%s)"


class Guard:
    """What is known of the lease. Its thread ends with the worker."""

    def __init__(self, conninfo: str, lease: float) -> None:
        self._conninfo = conninfo
        self._lease = lease
        self._lock = threading.Lock()
        self._worker = 0
        self._sent = self._taken = clock.now()  # when the last call was sent that has renewed the lease; and the last one of the loop's
        self._soon: float | None = None  # when the lease ends because the session that attended has ended; None: it has not
        self._is_over = False
        self._bell, self._button = socket.socketpair()  # what the thread waits for, beside its session
        self._bell.setblocking(False)
        self._loop_thread = 0
        self._told = 0.0
        self.on_lapse: Callable[[], None] | None = None  # called in the thread if the loop is blocked when the lease ends
        # Used by the thread alone.
        self._conn: psycopg.Connection[Any] | None = None
        self._stands_for = 0  # the worker for which the session attends; 0: none
        self._may_attend = True
        self._beat_at = 0.0
        self._server: tuple[str, int] | None = None
        self._failed = False  # which the log says already

    def begin(self, loop: asyncio.AbstractEventLoop, runner: Runner) -> None:
        """Starts the thread; called in the loop's own."""
        self._loop, self._loop_thread = loop, threading.get_ident()
        self._runner = runner
        threading.Thread(target=self._watch, name="weir guard", daemon=True).start()

    def end(self) -> None:
        """Ends the thread."""
        self._is_over = True
        self._wake()

    def renewed(self, worker: int, sent: float) -> None:
        """A call of the loop's that renews the lease was sent then, and has succeeded."""
        self._taken = sent
        if self._renew(worker, sent):
            self._wake()

    def _renew(self, worker: int, sent: float) -> bool:
        with self._lock:
            is_new = worker != self._worker
            if is_new:
                self._worker, self._sent, self._soon = worker, sent, None
            elif sent > self._sent:
                self._sent = sent
                if self._soon is not None:
                    self._soon = max(self._soon, sent + HASTE)
            return is_new

    def lapsed(self) -> bool:
        """Whether the lease may be over."""
        with self._lock:
            now = clock.now()
            return bool(self._worker) and (now > self._sent + self._lease * SAFE or (self._soon is not None and now > self._soon))

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._button.send(b"!")

    def _watch(self) -> None:
        try:
            while not self._is_over:
                has_news = self._wait()
                with self._lock:
                    worker, is_due = self._worker, clock.now() > self._sent + self._lease / 3
                if self._is_over or not worker:
                    continue
                try:
                    self._tend(worker, is_due, has_news)
                except psycopg.Error as e:
                    self._lost(worker, e)
                if self.lapsed():
                    # The loop may be blocked, so functions in threads are told from here.
                    for attempt in list(self._runner.running):
                        if attempt.task is None:
                            attempt.job.interrupted.set("lost")
                    if self.on_lapse is not None and clock.now() > self._sent + self._lease * SAFE:
                        self.on_lapse()
        finally:
            self._hang_up()
            self._bell.close()
            self._button.close()

    def _wait(self) -> bool:
        """Waits until it is time to look. Returns whether the session has something to say, such as that it has ended."""
        conn = self._conn if self._stands_for else None
        with self._lock:
            seconds = HURRY if self._soon is not None else self._lease / 12
        with selectors.DefaultSelector() as selector:
            selector.register(self._bell, selectors.EVENT_READ)
            if conn is not None and not conn.closed:
                selector.register(conn.fileno(), selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(seconds)]
        if self._bell in ready:
            with contextlib.suppress(BlockingIOError):
                self._bell.recv(100)
        return ready not in ([], [self._bell])

    def _tend(self, worker: int, is_due: bool, has_news: bool) -> None:
        if self._stands_for not in (0, worker):  # the session stands for the worker that was
            self._hang_up()
            self._may_attend = True
        if not self._stands_for and self._may_attend:
            self._attend(worker)
        if has_news or is_due or (self._stands_for and clock.now() >= self._beat_at):
            self._beat(worker)
        silent = clock.now() - self._taken
        if silent > self._lease / 3:
            self._say(silent)

    def _attend(self, worker: int) -> None:
        conn = self._connected()
        end = _own_end(conn)
        sent = clock.now()
        self._may_attend = end is not None and bool(_one(conn, ATTEND, [worker, conn.info.backend_pid, *end]))
        if not self._may_attend:
            self._hang_up()
            return
        self._stands_for, self._beat_at, self._failed = worker, sent + self._lease / 4, False
        self._server = conn.info.hostaddr, conn.info.port
        with self._lock:
            if worker == self._worker:
                self._soon, self._sent = None, max(self._sent, sent)

    def _beat(self, worker: int) -> None:
        sent = clock.now()
        if not _one(self._connected(), HEARTBEAT, [worker]):  # otherwise it is fenced, as the next take says
            self._renew(worker, sent)
        self._beat_at, self._failed = sent + self._lease / 4, False

    def _connected(self) -> psycopg.Connection[Any]:
        if self._conn is None or self._conn.closed:
            self._conn = psycopg.connect(with_name(self._conninfo), **{**options(self._lease), "connect_timeout": max(2, int(self._lease / 6))})
            self._stands_for = 0
        return self._conn

    def _lost(self, worker: int, error: psycopg.Error) -> None:
        """A call has failed, or there was no connection. If a session stood for the worker, others get the jobs soon, unless the server is down."""
        stood = bool(self._stands_for)
        self._hang_up()
        is_down = not stood and self._answers(error)
        with self._lock:
            if stood:
                self._soon = clock.now() + HASTE
            elif is_down:
                self._soon = None
        if not stood and not self._failed:  # a session that has ended is made again in a moment
            self._failed = True
            log.warning("the lease of worker %d could not be renewed: %s", worker, error)

    def _answers(self, error: psycopg.Error) -> bool:
        """Whether the server has no use for connections: none listens, or it starts, stops or is full. Then nobody is fenced for the want of one."""
        if isinstance(error, psycopg.errors.ConnectionTimeout) or self._server is None:
            return False
        try:
            socket.create_connection(self._server, 1).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True  # it has said why not

    def _hang_up(self) -> None:
        conn, self._conn, self._stands_for = self._conn, None, 0
        if conn is not None:
            conn.close()

    def _say(self, silent: float) -> None:
        if clock.now() < self._told + 30:
            return
        answers = threading.Event()
        try:
            self._loop.call_soon_threadsafe(answers.set)
        except RuntimeError:  # the loop has ended, and the worker with it
            return
        if answers.wait(0.2):  # it is only late, on a busy machine
            return
        self._told = clock.now()
        frame = sys._current_frames().get(self._loop_thread)
        where = "".join(traceback.format_stack(frame)[-8:]) if frame is not None else "unknown"
        log.warning(
            "the event loop has not called take for %.1f s. If a task blocks it, make it a plain function, which runs in a thread. It is at:\n%s",
            silent,
            where,
        )


def _one(conn: psycopg.Connection[Any], sql: str, params: list[Any]) -> Any:
    row = conn.execute(sql, params).fetchone()
    return row[0] if row is not None else None


def _own_end(conn: psycopg.Connection[Any]) -> tuple[str, int] | None:
    """The address and port of this end of a connection; None over a Unix socket, which may be forwarded."""
    own = socket.socket(fileno=conn.fileno())
    try:
        if own.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        name, port = own.getsockname()[:2]
    finally:
        own.detach()  # it is the connection's
    address = ipaddress.ip_address(name.partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address), port
