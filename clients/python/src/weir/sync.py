"""What is awaited on an app, for programs that are not async."""

from __future__ import annotations

import atexit
import threading
from typing import TYPE_CHECKING, TypeVar

from . import operations
from .calls import Call
from .operations import JobInfo

if TYPE_CHECKING:
    from .app import Weir
    from .pool import SyncPool

T = TypeVar("T")


class Sync:
    """`app.sync`: the methods that are awaited on the app, and a place to enqueue in a transaction of its own."""

    def __init__(self, app: Weir) -> None:
        self._app = app
        self._pool: SyncPool | None = None
        self._lock = threading.Lock()

    def job(self, id: int) -> JobInfo | None:
        """As Weir.job."""
        return self._call(operations.look(id))

    def cancel(self, id: int) -> str | None:
        """As Weir.cancel."""
        return self._call(operations.cancel(id))

    def retry(self, id: int) -> str | None:
        """As Weir.retry."""
        return self._call(operations.retry(id))

    def publish(self, channel: str, payload: str | bytes) -> None:
        """As Weir.publish."""
        self._call(operations.publish(channel, payload))

    def close(self) -> None:
        """Closes the connections. Calls make new ones."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _call(self, call: Call[T]) -> T:
        with self._lock:
            if self._pool is None:
                from .pool import SyncPool

                self._pool = SyncPool(self._app)
                atexit.register(self.close)
            pool = self._pool
        return pool.call(call)
