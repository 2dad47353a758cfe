"""What an attempt has said about itself and is not stored yet."""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from typing import Any

MAX_LINES, MAX_LINE, MAX_BYTES = 1000, 4096, 262144  # of an attempt, as in the Go library
LINES_AT_ONCE = 200  # that weir.progress takes


class Report:
    """Collects progress, checkpoint and log lines, from whichever thread the function runs in."""

    __slots__ = ("_bytes", "_dropped", "_fields", "_lines", "_lock", "_total", "stored")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fields: dict[str, Any] = {}
        self._lines: list[dict[str, str]] = []
        self._total = self._bytes = self._dropped = 0
        self.stored: dict[str, Any] = {}  # the newest checkpoint, once it was taken

    def set(self, **fields: Any) -> None:
        """Replaces what these were."""
        with self._lock:
            self._fields.update(fields)

    def add_line(self, line: str, level: str) -> None:
        """Adds a line to the log, unless there are too many."""
        line = line[:MAX_LINE]
        with self._lock:
            if self._total >= MAX_LINES - 1 or self._bytes + len(line) > MAX_BYTES:
                self._dropped += 1
                return
            self._total += 1
            self._bytes += len(line)
            self._lines.append({"at": datetime.now(timezone.utc).isoformat(), "level": level.upper()[:20], "text": line})

    def take(self, last: bool) -> list[dict[str, Any]]:
        """Entries for weir.progress, without the token, of what is new. last: nothing follows."""
        with self._lock:
            fields, lines = self._fields, self._lines
            if last and self._dropped:
                lines.append(
                    {
                        "level": "WARN",
                        "text": f"{self._dropped} further lines were dropped: a job's log has at most {MAX_LINES} lines and {MAX_BYTES} characters",
                    }
                )
                self._dropped = 0
            if not fields and not lines:
                return []
            self._fields, self._lines = {}, []
            if "checkpoint" in fields:
                self.stored["checkpoint"] = fields["checkpoint"]
        if fields.get("message", "") is None:
            del fields["message"]
        entries = [{"log": lines[i : i + LINES_AT_ONCE]} for i in range(0, len(lines), LINES_AT_ONCE)] or [{}]
        entries[-1].update(fields)
        return entries

    def newest_checkpoint(self) -> tuple[bool, Any]:
        """Whether this attempt has set a checkpoint, and which."""
        with self._lock:
            for found in (self._fields, self.stored):
                if "checkpoint" in found:
                    return True, found["checkpoint"]
        return False, None
