"""Waiting for no longer than something may take."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float, what: Awaitable[T]) -> T:
    """Its result; raises asyncio.TimeoutError after so long.

    Before Python 3.12 asyncio.wait_for returns a result that comes in the same moment as a cancellation, which is lost: a loop around it goes on,
    and whoever waits for its end waits for ever.
    """
    if sys.version_info >= (3, 12):
        return await asyncio.wait_for(what, seconds)
    task = asyncio.ensure_future(what)
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if task.cancelled():
        raise asyncio.TimeoutError
    return task.result()
