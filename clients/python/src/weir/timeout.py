"""Waiting for no longer than something may take."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from typing import TypeVar

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout

T = TypeVar("T")


async def within(seconds: float, what: Awaitable[T]) -> T:
    """Its result; raises asyncio.TimeoutError after so long.

    Before Python 3.12 asyncio.wait_for runs it in a task of its own. Of a result that comes in the same moment as a cancellation, one is lost: the
    cancellation, so that a loop around it goes on, and whoever waits for its end waits for ever; or the result, a message that nobody gets.
    """
    async with timeout(seconds):
        return await what
