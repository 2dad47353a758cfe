"""Messages of channels, from a hub, in order and without loss."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from conftest import until
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

import weir


async def take(messages: weir.Subscription[Any], n: int) -> list[Any]:
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


async def test_a_database_that_a_hub_does_not_have_is_an_error() -> None:
    """At once: with the URL of a hub of several databases, a name may be misspelt."""
    body = b'{"code": "unknown_database", "error": "no database that is served here has the name \\"ap\\""}'

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        hub = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/databases/ap"
        with pytest.raises(weir.HubError) as e:
            await asyncio.wait_for(weir.subscribe(hub, "a").__aenter__(), 60)
    assert e.value.code == "unknown_database"


async def test_a_subscription_begins_with_the_last_messages(hub: str, url: str, queue: str) -> None:
    app = weir.Weir(url, hub=hub)
    async with app, app.subscribe(f"{queue}.*") as before:
        for i in range(5):
            await app.publish(f"{queue}.{i % 2}", str(i))
        await take(before, 5)
        async with app.subscribe(f"{queue}.0", f"{queue}.1", last=2) as messages:
            assert [m.payload for m in messages.history.messages] == ["1", "2", "3", "4"]
            assert messages.history.messages[-1].channel == f"{queue}.0"
            assert messages.history.complete
            messages._socket.transport.abort()  # it goes on where it was, and begins no second time
            await app.publish(f"{queue}.0", "5")
            assert [m.payload for m in await take(messages, 1)] == ["5"]
            assert len(messages.history.messages) == 4
        with pytest.raises(weir.Invalid, match="not both"):
            app.subscribe(queue, last=2, position=before.position)
        with pytest.raises(weir.Invalid, match="last is 1001"):
            app.subscribe(queue, last=1001)


@asynccontextmanager
async def between(hub: str) -> AsyncIterator[tuple[str, list[Any], list[ServerConnection]]]:
    """Passes on what clients and the hub say, and sends each frame of the list after one of the hub's. None: these are added to it instead."""
    frames: list[Any] = []
    clients: list[ServerConnection] = []

    async def talk(client: ServerConnection) -> None:
        clients.append(client)
        assert client.request is not None
        async with connect(
            hub.replace("http", "ws") + client.request.path, subprotocols=[client.subprotocol] if client.subprotocol else None
        ) as there:

            async def ask() -> None:
                with suppress(ConnectionClosed):
                    async for frame in client:
                        await there.send(frame)
                await there.close()

            asking = asyncio.create_task(ask())
            with suppress(ConnectionClosed):
                async for frame in there:
                    if frames and frames[0] is None:
                        frames.append(frame)
                        continue
                    await client.send(frame)
                    if frames:
                        await client.send(frames.pop(0))
            await client.close()
            await asking

    async with serve(talk, "127.0.0.1", 0, subprotocols=["weir.v1", "weir.work.v1"]) as server:  # type: ignore[list-item]
        yield f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", frames, clients


@pytest.mark.parametrize("frame", ["no JSON", "[1]", '{"type": "message"}'])
async def test_a_subscription_goes_on_after_a_frame_that_it_does_not_understand(hub: str, url: str, queue: str, frame: str) -> None:
    async with between(hub) as (address, frames, _), weir.Weir(url, hub=hub) as app:
        frames.append(frame)
        async with weir.subscribe(address, queue) as messages:
            await app.publish(queue, "1")
            assert [m.payload for m in await take(messages, 1)] == ["1"]


async def test_a_worker_goes_on_after_a_frame_that_it_does_not_understand(hub: str, queue: str) -> None:
    async with between(hub) as (address, frames, clients):
        app = weir.Weir(hub=address)
        ran = asyncio.Event()

        @app.task(queue=queue)
        async def run() -> None:
            ran.set()

        frames.append("no JSON")
        async with app.working({queue: 1}), weir.Weir(hub=hub) as other:
            await until(lambda: len(clients) == 2, "a second session")
            await run.enqueue(other)
            await asyncio.wait_for(ran.wait(), 60)


async def test_a_subscription_that_is_cancelled_while_it_begins_leaves_no_connection(hub: str, queue: str) -> None:
    async with between(hub) as (address, frames, clients):
        frames.append(None)

        async def begin() -> None:
            async with weir.subscribe(address, queue):
                raise AssertionError("it began without an answer")

        beginning = asyncio.create_task(begin())
        await until(lambda: len(frames) > 1, "the answer of the hub, which is not passed on")
        beginning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beginning
        await asyncio.wait_for(clients[0].wait_closed(), 60)
