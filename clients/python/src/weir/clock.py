"""The time by which leases are counted."""

from __future__ import annotations

import time

# Those who may get the jobs count on while this machine is suspended, which time.monotonic() does not do on Linux and macOS.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def now() -> float:
    """Seconds since some time in the past, whatever is done to the clock on the wall."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
