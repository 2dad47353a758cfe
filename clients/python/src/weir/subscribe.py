"""Receives the messages of channels from a hub: docs/websocket-sse.md describes channels, positions and gaps."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload
from urllib.parse import urlencode

from .calls import Request
from .errors import HubError, Invalid
from .messages import Gap, History, Members, Message, Presence, members, message, presence
from .timeout import within
from .web_socket import is_final, open_socket, read

if TYPE_CHECKING:
    from .app import Token

log = logging.getLogger("weir")

E = TypeVar("E", bound="Message | Gap | Presence")
SILENCE = 60.0  # seconds after which a connection is dead: the hub sends heartbeats every 25
MOST_LAST = 1000


class Subscription(Generic[E]):
    """Messages and gaps, in order, over connections that are made again as often as necessary.

        async with app.subscribe("orders.*") as messages:  # from here on, nothing is missed
            async for message in messages: ...

    `position` is that of the newest message: keep it with what you have made of the messages, and pass it to go on from there.
    `history` has the `last` messages of each channel from before; the iteration has everything later.
    """

    def __init__(
        self,
        hub: str,
        channels: Iterable[str],
        *,
        token: Token | None = None,
        position: str | None = None,
        last: int = 0,
        presence: bool = False,
        skip_if_slow: bool = False,
    ) -> None:
        if not hub.startswith(("http://", "https://")):
            raise Invalid(f"hub is {hub!r}, want a URL such as https://hub.example.com")
        self._hub = hub.rstrip("/")
        self._url = self._hub.replace("http", "ws", 1) + "/v1/ws" + ("?slow=skip" if skip_if_slow else "")
        self._channels = list(channels)
        if not self._channels:
            raise Invalid("subscribe to at least one channel or pattern, such as 'orders.*'")
        if not 0 <= last <= MOST_LAST:
            raise Invalid(f"last is {last!r}: begin with 0 to {MOST_LAST:,} messages of each channel")
        if last and position is not None:
            raise Invalid("a subscription has a position, from which it goes on, or last, with which it begins, not both")
        self._token = token
        self._last = last
        self._presence = presence
        self.position = position
        self.history = History()
        self._socket: Any = None
        self._is_closed = False

    async def __aenter__(self) -> Subscription[E]:
        await self._connected()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends it; an iteration ends too."""
        self._is_closed = True
        await self._disconnect()

    async def members(self, channel: str, after: str = "") -> Members:
        """Who is on a channel that has presence (docs/presence.md). Subscribe with `presence` first: what changes later is in the iteration."""
        from .hub import Hub

        hub = Hub(self._hub, self._token)
        try:
            path = "/v1/presence?" + urlencode({"channel": channel, **({"after": after} if after else {})})
            return await hub.request(Request("GET", path, None, members))
        finally:
            await hub.close()

    def __aiter__(self) -> AsyncIterator[E]:
        return self

    async def __anext__(self) -> E:
        while not self._is_closed:
            await self._connected()
            if self._socket is None:
                break
            from websockets.exceptions import ConnectionClosed

            try:
                found = self._heard(read(await within(SILENCE, self._socket.recv())))
            except (ConnectionClosed, OSError, asyncio.TimeoutError) as e:
                if not self._is_closed:
                    log.info("subscription: connects again: %s", e or type(e).__name__)
                await self._disconnect()
            except EOFError as e:  # what it says is not understood, perhaps again and again
                log.warning("subscription: connects again: %s", e)
                await self._disconnect()
                await asyncio.sleep(random.uniform(0.5, 1))
            else:
                if found is not None:
                    return found  # type: ignore[no-any-return]
        raise StopAsyncIteration

    def _heard(self, frame: dict[str, Any]) -> Any:
        kind = frame.get("type")
        try:
            if kind == "message":
                found = message(frame)
                self.position = found.position or self.position
                return found
            if kind == "gap":
                gap = Gap(frame["from"], frame["to"], frame["reason"])
                self.position = gap.position
                return gap
            if kind == "presence":
                return presence(frame)
        except (KeyError, TypeError, ValueError) as e:
            raise EOFError(f"a frame of the hub is not understood: {str(frame)[:200]}") from e
        if kind in ("heartbeat", "subscribed"):
            self.position = frame.get("position") or self.position
        elif kind == "error":
            raise HubError(0, frame.get("code", ""), frame.get("error", ""), frame.get("hint"))
        return None

    async def _connected(self) -> None:
        pause = 0.1
        while self._socket is None and not self._is_closed:
            try:
                await self._connect()
                return
            except HubError as e:
                if is_final(e, self._token):
                    raise
                log.warning("subscription: %s", e)
            except (OSError, asyncio.TimeoutError, EOFError) as e:
                log.warning("subscription: %s: %s", self._url, e or type(e).__name__)
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, 5)

    async def _connect(self) -> None:
        socket = await open_socket(self._url, self._token, "weir.v1")
        from websockets.exceptions import ConnectionClosed

        try:
            await socket.send(json.dumps(self._request()))
            frame = read(await within(SILENCE, socket.recv()))
            if frame.get("type") != "subscribed":
                self._heard(frame)  # raises what it says
                raise EOFError(f"the hub answered {frame.get('type')!r} to a subscription")
            if self._is_closed:
                raise EOFError("the subscription was closed")
        except ConnectionClosed as e:
            raise EOFError(str(e)) from e
        except BaseException:
            await socket.close()
            raise
        self._socket = socket
        # The position of subscribed is where a subscription without one begins; one that resumes has the older messages before it.
        if self.position is None:
            self.position = frame.get("position")
            self.history = History([message(m) for m in frame.get("history") or ()], bool(frame.get("complete")))

    def _request(self) -> dict[str, Any]:
        ask: dict[str, Any] = {"type": "subscribe", "id": 1, "channels": self._channels}
        if self.position is not None:
            ask["position"] = self.position
        elif self._last:
            ask["last"] = self._last
        if self._presence:
            ask["presence"] = True
        return ask

    async def _disconnect(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()


@overload
def subscribe(
    hub: str,
    *channels: str,
    token: Token | None = None,
    position: str | None = None,
    last: int = 0,
    presence: Literal[False] = False,
    skip_if_slow: bool = False,
) -> Subscription[Message | Gap]: ...
@overload
def subscribe(
    hub: str, *channels: str, token: Token | None = None, position: str | None = None, last: int = 0, presence: bool, skip_if_slow: bool = False
) -> Subscription[Message | Gap | Presence]: ...
def subscribe(
    hub: str,
    *channels: str,
    token: Token | None = None,
    position: str | None = None,
    last: int = 0,
    presence: bool = False,
    skip_if_slow: bool = False,
) -> Any:
    """Receives the messages of channels and patterns from a hub, as Weir.subscribe does."""
    return Subscription(hub, channels, token=token, position=position, last=last, presence=presence, skip_if_slow=skip_if_slow)
