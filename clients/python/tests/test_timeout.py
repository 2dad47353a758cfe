"""What waits for something for no longer than it may take ends when it is told to."""

from __future__ import annotations

import asyncio

import pytest

from weir.timeout import within


async def test_a_cancellation_that_comes_with_the_result_is_not_lost() -> None:
    # A worker ends the loop that pings its hub so. If that lost it, the worker would never stop.
    answer = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(within(60, answer))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    answer.set_result("pong")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_what_comes_with_a_cancellation_is_not_lost() -> None:
    # A reader of a subscription that is cancelled between two messages must miss none.
    queue: asyncio.Queue[str] = asyncio.Queue()
    waiting = asyncio.create_task(within(60, queue.get()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    queue.put_nowait("message")
    await asyncio.sleep(0)
    waiting.cancel()
    try:
        got = await waiting
    except asyncio.CancelledError:
        got = queue.get_nowait()
    assert got == "message"


async def test_what_takes_too_long_has_ended_when_that_is_told() -> None:
    ended = False

    async def slow() -> None:
        nonlocal ended
        try:
            await asyncio.sleep(60)
        finally:
            ended = True

    with pytest.raises(asyncio.TimeoutError):
        await within(0.01, slow())
    assert ended


async def test_results_and_errors_are_passed_on() -> None:
    async def refuse() -> None:
        raise OSError("refused")

    assert await within(60, asyncio.sleep(0, "done")) == "done"
    with pytest.raises(OSError, match="refused"):
        await within(60, refuse())
