"""Messages of channels, from a hub, in order and without loss."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest

import weir

pytestmark = pytest.mark.skipif("WEIR_HUB_URL" not in os.environ, reason="WEIR_HUB_URL names no hub")


@pytest.fixture
def hub() -> str:
    return os.environ["WEIR_HUB_URL"]


async def take(messages: weir.Subscription, n: int) -> list[Any]:
    return [await asyncio.wait_for(anext(aiter(messages)), 60) for _ in range(n)]


async def test_messages_arrive_in_order_and_a_position_resumes(hub: str, url: str, queue: str) -> None:
    app = weir.Weir(url, hub=hub)
    async with app, app.subscribe(f"{queue}.*") as messages:
        await app.publish(f"{queue}.a", "1")
        await app.publish(f"{queue}.b", b"\x00\xff")
        first, second = await take(messages, 2)
        assert (first.channel, first.payload, first.json()) == (f"{queue}.a", "1", 1)
        assert second.payload == b"\x00\xff"
        assert messages.position == second.position
        await app.publish(f"{queue}.c", "3")
        async with app.subscribe(f"{queue}.>", position=first.position) as again:
            assert [m.payload for m in await take(again, 2)] == [b"\x00\xff", "3"]


async def test_a_subscription_goes_on_after_its_connection_is_cut(hub: str, url: str, queue: str) -> None:
    app = weir.Weir(url, hub=hub)
    async with app, app.subscribe(queue) as messages:
        await app.publish(queue, "1")
        await take(messages, 1)
        messages._socket.transport.abort()
        await app.publish(queue, "2")
        assert [m.payload for m in await take(messages, 1)] == ["2"]


async def test_a_position_that_the_log_does_not_know_is_a_gap(hub: str, url: str, queue: str) -> None:
    async with weir.subscribe(hub, queue, position="1.999999999.0") as messages:
        (gap,) = await take(messages, 1)
        assert isinstance(gap, weir.Gap)
        assert gap.reason == "unknown"
        assert messages.position == gap.position


async def test_what_the_hub_refuses_is_an_error(hub: str) -> None:
    with pytest.raises(weir.HubError) as e:
        async with weir.subscribe(hub, "x" * 300):
            pass
    assert e.value.code == "bad_request"
    with pytest.raises(weir.HubError) as e:  # at once, and not after many tries: an anonymous hub does not answer to this name
        async with weir.subscribe(hub.replace("127.0.0.1", "127.1"), "a"):
            pass
    assert e.value.code == "host"
    with pytest.raises(weir.Unsupported):
        weir.Weir("postgresql://localhost/x").subscribe("a")


class Unreachable(Exception):
    """What a library raises that is no OSError, such as httpx.ConnectError."""


def failing(*which: int) -> Callable[[], str]:
    """A function for tokens whose calls of these numbers raise."""
    calls = itertools.count(1)

    def token() -> str:
        if next(calls) in which:
            raise Unreachable("the service that issues tokens is down")
        return "token"

    return token


async def test_a_subscription_waits_for_a_token(hub: str, url: str, queue: str) -> None:
    app = weir.Weir(url, hub=hub)
    async with app, weir.subscribe(hub, queue, token=failing(1, 3, 4)) as messages:
        await app.publish(queue, "1")
        await take(messages, 1)
        messages._socket.transport.abort()
        await app.publish(queue, "2")
        assert [m.payload for m in await take(messages, 1)] == ["2"]


async def test_a_worker_waits_for_a_token(hub: str, queue: str) -> None:
    app = weir.Weir(hub=hub, token=failing(1, 3, 4))

    ran: asyncio.Queue[int] = asyncio.Queue()

    @app.task(queue=queue)
    async def run(number: int) -> None:
        ran.put_nowait(number)

    async with app.working({queue: 1}) as worker, weir.Weir(hub=hub) as other:
        for i in range(2):
            await run.enqueue(other, number=i)
            assert await asyncio.wait_for(ran.get(), 60) == i
            worker._source._socket.transport.abort()
