"""Tokens that a hub refuses, or that can't be had for a while, are asked for again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
from conftest import token_for
from test_subscribe import take

import weir


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


class Issuer:
    """A function for tokens: those of the first calls have expired."""

    def __init__(self, expired: int) -> None:
        self.expired = expired
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        return token_for("ada", -60 if self.calls <= self.expired else 3600)


async def test_a_refused_token_of_a_function_is_replaced(token_hub: str, queue: str) -> None:
    issuer = Issuer(2)
    app = weir.Weir(hub=token_hub, token=token_for("bob"))
    async with app, weir.subscribe(token_hub, queue, token=issuer) as messages:
        await app.publish(queue, "1")
        assert [m.payload for m in await take(messages, 1)] == ["1"]
    assert issuer.calls == 3

    issuer = Issuer(2)
    works = weir.Weir(hub=token_hub, token=issuer)
    ran = asyncio.Event()

    @works.task(queue=queue)
    async def run() -> None:
        ran.set()

    async with app, works.working({queue: 1}):
        await run.enqueue(app)
        await asyncio.wait_for(ran.wait(), 60)

    issuer = Issuer(1)
    async with weir.Weir(hub=token_hub, token=issuer) as calls:
        assert (await run.enqueue(calls)).id
    assert issuer.calls == 2
    issuer = Issuer(1)
    calls = weir.Weir(hub=token_hub, token=issuer)
    assert await asyncio.to_thread(run.enqueue, calls.sync)
    await asyncio.to_thread(calls.sync.close)
    assert issuer.calls == 2


async def test_a_refused_token_that_can_not_be_replaced_is_an_error(token_hub: str, queue: str) -> None:
    with pytest.raises(weir.HubError) as e:
        async with weir.subscribe(token_hub, queue, token=token_for("ada", -60)):
            pass
    assert e.value.code == "unauthorized"
    app = weir.Weir(hub=token_hub, token=token_for("ada", -60))

    @app.task(queue=queue)
    async def run() -> None: ...

    with pytest.raises(weir.HubError) as e:
        async with app.working({queue: 1}):
            pass
    assert e.value.code == "unauthorized"
    issuer = Issuer(1_000_000)  # a call does not ask for ever
    async with weir.Weir(hub=token_hub, token=issuer) as app:
        with pytest.raises(weir.HubError) as e:
            await app.job(1)
    assert e.value.code == "unauthorized"
    assert issuer.calls == 2
