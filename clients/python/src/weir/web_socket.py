"""WebSockets at a hub."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .errors import HubError, Unsupported

if TYPE_CHECKING:
    from .app import Token

# Refusals that no repetition mends.
FINAL = ("bad_request", "denied", "unauthorized", "origin", "host", "not_found", "unknown_database")


def is_final(error: HubError, token: Token | None) -> bool:
    """Whether no repetition mends a refusal. A function may return another token than the one that was refused."""
    return error.code in FINAL and not (error.code == "unauthorized" and callable(token))


def read(text: str | bytes) -> dict[str, Any]:
    """A frame of a hub. Raises EOFError if it is none: a connection that has gone wrong is made again."""
    try:
        found = json.loads(text)
    except ValueError as e:
        raise EOFError(f"the hub has sent {text[:200]!r}, which is not JSON") from e
    if not isinstance(found, dict):
        raise EOFError(f"the hub has sent {text[:200]!r}, want a JSON object")
    return found


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
