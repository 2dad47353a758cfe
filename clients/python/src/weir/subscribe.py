"""Receives the messages of channels from a hub: docs/websocket-sse.md describes channels, positions and gaps."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import random
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .errors import HubError, Invalid, Unsupported

if TYPE_CHECKING:
    from .app import Token

log = logging.getLogger("weir")

SILENCE = 60.0  # seconds after which a connection is dead: the hub sends heartbeats every 25
# Refusals that no repetition mends.
FINAL = ("bad_request", "denied", "unauthorized", "origin", "host", "not_found")


@dataclass(frozen=True, slots=True)
class Message:
    """A message. `position` is None if it was not logged: then it is delivered at most once."""

    channel: str
    payload: str | bytes
    position: str | None

    def json(self) -> Any:
        """The payload, if it is JSON."""
        return json.loads(self.payload)


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages after `after` up to `position` may be missing: reload what you show. `reason`: truncated, slow, or unknown."""

    after: str
    position: str
    reason: str


class Subscription:
    """Messages and gaps, in order, over connections that are made again as often as necessary.

        async with app.subscribe("orders.*") as messages:  # from here on, nothing is missed
            async for message in messages: ...

    `position` is that of the newest message: keep it with what you have made of the messages, and pass it to go on from there.
    """

    def __init__(
        self, hub: str, channels: Iterable[str], *, token: Token | None = None, position: str | None = None, skip_if_slow: bool = False
    ) -> None:
        if not hub.startswith(("http://", "https://")):
            raise Invalid(f"hub is {hub!r}, want a URL such as https://hub.example.com")
        self._url = hub.rstrip("/").replace("http", "ws", 1) + "/v1/ws" + ("?slow=skip" if skip_if_slow else "")
        self._channels = list(channels)
        if not self._channels:
            raise Invalid("subscribe to at least one channel or pattern, such as 'orders.*'")
        self._token = token
        self.position = position
        self._socket: Any = None
        self._is_closed = False

    async def __aenter__(self) -> Subscription:
        await self._connected()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends it; an iteration ends too."""
        self._is_closed = True
        await self._disconnect()

    def __aiter__(self) -> AsyncIterator[Message | Gap]:
        return self

    async def __anext__(self) -> Message | Gap:
        from websockets.exceptions import ConnectionClosed

        while not self._is_closed:
            await self._connected()
            try:
                text = await asyncio.wait_for(self._socket.recv(), SILENCE)
            except (ConnectionClosed, OSError, asyncio.TimeoutError) as e:
                if not self._is_closed:
                    log.info("subscription: connects again: %s", e or type(e).__name__)
                await self._disconnect()
                continue
            found = self._read(json.loads(text))
            if found is not None:
                return found
        raise StopAsyncIteration

    def _read(self, frame: dict[str, Any]) -> Message | Gap | None:
        kind = frame.get("type")
        if kind == "message":
            self.position = frame.get("position") or self.position
            payload = base64.b64decode(frame["payload_base64"]) if "payload_base64" in frame else frame.get("payload", "")
            return Message(frame["channel"], payload, frame.get("position"))
        if kind == "gap":
            self.position = frame["to"]
            return Gap(frame["from"], frame["to"], frame["reason"])
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
                await self._disconnect()
                if e.code in FINAL:
                    raise
                log.warning("subscription: %s", e)
            except (OSError, asyncio.TimeoutError, EOFError) as e:
                await self._disconnect()
                log.warning("subscription: %s: %s", self._url, e or type(e).__name__)
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, 5)

    async def _connect(self) -> None:
        self._socket = await open_socket(self._url, self._token, "weir.v1")
        ask: dict[str, Any] = {"type": "subscribe", "id": 1, "channels": self._channels}
        if self.position is not None:
            ask["position"] = self.position
        from websockets.exceptions import ConnectionClosed

        try:
            await self._socket.send(json.dumps(ask))
            frame = json.loads(await asyncio.wait_for(self._socket.recv(), SILENCE))
        except ConnectionClosed as e:
            raise EOFError(str(e)) from e
        if frame.get("type") != "subscribed":
            self._read(frame)  # raises what it says
            raise EOFError(f"the hub answered {frame.get('type')!r} to a subscription")
        # The position of subscribed is where a subscription without one begins; one that resumes has the older messages before it.
        if self.position is None:
            self.position = frame.get("position")

    async def _disconnect(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()


def subscribe(hub: str, *channels: str, token: Token | None = None, position: str | None = None, skip_if_slow: bool = False) -> Subscription:
    """Receives the messages of channels and patterns from a hub."""
    return Subscription(hub, channels, token=token, position=position, skip_if_slow=skip_if_slow)


async def open_socket(url: str, token: Token | None, protocol: str, pings: bool = True) -> Any:
    """Opens a WebSocket at a hub. Raises HubError if the hub refuses."""
    try:
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.typing import Subprotocol
    except ImportError as e:
        raise Unsupported("connections to a hub need websockets: pip install 'weir-pg[http]'") from e
    from .hub import bearer, refusal

    try:
        headers = await bearer(token)
    except Exception as e:  # whatever its libraries raise, it may have a token later; a connection that was lost is not the end of what it carried
        raise HubError(0, "unavailable", f"the function that returns the token raised {type(e).__name__}: {e}") from e
    try:
        return await connect(
            url,
            additional_headers=headers,
            subprotocols=[Subprotocol(protocol)],
            max_size=64 << 20,
            open_timeout=10,
            close_timeout=2,
            compression=None,
            ping_interval=20 if pings else None,
        )
    except InvalidStatus as e:
        raise refusal(e.response.status_code, bytes(e.response.body or b"")) from e
    except WebSocketException as e:
        raise EOFError(str(e)) from e
