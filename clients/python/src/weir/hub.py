"""Requests to a hub over HTTP: docs/work-http.md describes them."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
import uuid
from typing import TYPE_CHECKING, Any, TypeVar

from .calls import Request
from .errors import HubError, Invalid, Unsupported
from .text import compact

if TYPE_CHECKING:
    from .app import Token

T = TypeVar("T")


async def bearer(token: Token | None) -> dict[str, str]:
    """The headers that carry a token."""
    found: Any = token() if callable(token) else token
    if inspect.isawaitable(found):
        found = await found
    return {"Authorization": f"Bearer {found}"} if found else {}


def refusal(status: int, body: bytes) -> HubError:
    """What a hub says when it refuses."""
    try:
        found = json.loads(body)
        return HubError(status, found["code"], found["error"], found.get("hint"))
    except (ValueError, KeyError, TypeError):
        text = body[:200].decode(errors="replace").strip()
        return HubError(status, "unavailable" if status in (502, 503, 504) else "http", f"status {status}{': ' + text if text else ''}")


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as e:
        raise Unsupported("requests to a hub need httpx: pip install 'weir-pg[http]'") from e
    return httpx


def _read(request: Request[T], response: Any) -> T:
    if response.status_code == 404 and request.path.startswith("/v1/jobs/"):
        error = refusal(404, response.content)
        if error.code == "not_found":
            return request.convert(None)
        raise error
    if response.status_code >= 300:
        raise refusal(response.status_code, response.content)
    return request.convert(response.json() if response.content else None)


def _sent(request: Request[Any], headers: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {"method": request.method, "url": request.path, "headers": headers}
    if request.is_keyed:
        headers["Idempotency-Key"] = f'"{uuid.uuid4()}"'
    if request.body is not None:
        found["content"] = compact(request.body).encode()
        headers["Content-Type"] = "application/json"
    return found


def _pauses(request: Request[Any]) -> list[float]:
    """Before each further try: of a request that may be repeated, because it changes nothing or has a key."""
    return [0.1, 0.3, 1.0, 3.0] if request.is_keyed or request.method == "GET" else []


def _may_repeat(error: HubError) -> bool:
    return error.code in ("unavailable", "draining")


class Hub:
    """Requests from one event loop."""

    def __init__(self, url: str, token: Token | None) -> None:
        self._token = token
        self._client = _httpx().AsyncClient(base_url=url, timeout=30, trust_env=False)

    async def request(self, request: Request[T]) -> T:
        """Sends it, and reads the answer."""
        sent = _sent(request, await bearer(self._token))
        is_new = False
        for pause in [*_pauses(request), None]:
            try:
                response = await self._client.request(**sent)
                if response.status_code == 401 and callable(self._token) and not is_new:
                    is_new = True
                    sent["headers"].update(await bearer(self._token))
                    response = await self._client.request(**sent)
                return _read(request, response)
            except _httpx().TransportError as e:
                error = HubError(0, "unavailable", f"{request.method} {self._client.base_url}{request.path}: {e or type(e).__name__}")
            except HubError as e:
                error = e
            if pause is None or not _may_repeat(error):
                break
            await asyncio.sleep(pause)
        raise error

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()


class SyncHub:
    """The same for threads."""

    def __init__(self, url: str, token: Token | None) -> None:
        self._token = token
        self._client = _httpx().Client(base_url=url, timeout=30, trust_env=False)

    def request(self, request: Request[T]) -> T:
        """Sends it, and reads the answer."""
        sent = _sent(request, self._bearer())
        is_new = False
        for pause in [*_pauses(request), None]:
            try:
                response = self._client.request(**sent)
                if response.status_code == 401 and callable(self._token) and not is_new:
                    is_new = True
                    sent["headers"].update(self._bearer())
                    response = self._client.request(**sent)
                return _read(request, response)
            except _httpx().TransportError as e:
                error = HubError(0, "unavailable", f"{request.method} {self._client.base_url}{request.path}: {e or type(e).__name__}")
            except HubError as e:
                error = e
            if pause is None or not _may_repeat(error):
                break
            time.sleep(pause)
        raise error

    def _bearer(self) -> dict[str, str]:
        found: Any = self._token() if callable(self._token) else self._token
        if inspect.isawaitable(found):
            raise Invalid("the function that returns the token is async: app.sync needs one that is not")
        return {"Authorization": f"Bearer {found}"} if found else {}

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()
