from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import json
import os
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import weir

# Calls of a test that wait for an effect end after that, with a failure.
PATIENCE = 120.0
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def url() -> str:
    return os.environ["DATABASE_URL"]


@pytest.fixture
def hub() -> str:
    if "WEIR_HUB_URL" not in os.environ:
        pytest.skip("WEIR_HUB_URL names no hub")
    return os.environ["WEIR_HUB_URL"]


@pytest.fixture
def token_hub() -> str:
    """A hub whose clients need tokens, and whose channels room.* have presence."""
    if "WEIR_TOKEN_HUB_URL" not in os.environ:
        pytest.skip("WEIR_TOKEN_HUB_URL names no hub")
    return os.environ["WEIR_TOKEN_HUB_URL"]


def token_for(user: str, seconds: float = 3600, **weir_claims: Any) -> str:
    """A token for everything, signed as the hub wants it."""
    everything = {"subscribe": [">"], "publish": [">"], "work": [">"], "enqueue": [">"]}
    claims = {"sub": user, "exp": int(time.time() + seconds), "weir": {**everything, **weir_claims}}

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    text = part(b'{"alg":"HS256","typ":"JWT"}') + "." + part(json.dumps(claims).encode())
    return text + "." + part(hmac.new(os.environ["WEIR_TOKEN_SECRET"].encode(), text.encode(), hashlib.sha256).digest())


@pytest.fixture
def queue() -> str:
    return f"q{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def app(url: str) -> weir.Weir:
    return weir.Weir(url)


@pytest.fixture
def weir_app(app: weir.Weir) -> weir.Weir:
    return app


@pytest.fixture
def db(url: str) -> Any:
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as conn:
        yield conn


@pytest.fixture
def look(app: weir.Weir) -> Any:
    yield app.sync.job
    app.sync.close()


@pytest.fixture
def is_direct(db: Any) -> bool:
    """Whether no pooler is between the tests and the server."""
    return bool(db.execute("SELECT pg_backend_pid()").fetchone()[0] == db.info.backend_pid)


def attends(db: Any, queue: str) -> list[int]:
    """The sessions that stand for the workers of a queue."""
    found = db.execute(
        """SELECT DISTINCT l.pid FROM pg_locks l JOIN weir.workers() w ON w.id = l.objid::bigint
           WHERE l.locktype = 'advisory' AND l.classid = 1464158554 AND l.granted AND %s = ANY (w.queues)""",
        [queue],
    )
    return [pid for (pid,) in found]


async def until(holds: Callable[[], Any], what: str = "the effect") -> Any:
    """Waits for an effect in the database, for which there is no event."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = holds()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"{what} has not occurred within {PATIENCE:g} s")


async def state(app: weir.Weir, job: int, wanted: str) -> weir.JobInfo:
    """Waits until a job is in a state."""

    async def is_there() -> weir.JobInfo | None:
        found = await app.job(job)
        return found if found is not None and found.state == wanted else None

    return await until(is_there, f"job {job} {wanted}")  # type: ignore[no-any-return]
