"""Fixtures for pytest. Override `weir_app` in your conftest.py with one that returns your app:

@pytest.fixture
def weir_app():
    return app
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from . import testing
from .app import Weir


@pytest.fixture
def weir_app() -> Weir:
    """The app that is tested."""
    raise pytest.UsageError("override the fixture weir_app in your conftest.py: it returns your weir.Weir")


@pytest.fixture
def weir_enqueued() -> Callable[..., Any]:
    """`weir_enqueued(conn)`: the jobs that the transaction of a connection has enqueued; awaited if the connection is."""
    return testing.enqueued


@pytest.fixture
def weir_drain(weir_app: Weir) -> Callable[..., Any]:
    """`weir_drain()`: works the jobs of the app until none is left, and returns how each ended. Await it in async tests."""

    def drain(queues: Mapping[str, int] | None = None, *, timeout: float = 60.0) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return testing.drain_sync(weir_app, queues, timeout=timeout)
        return testing.drain(weir_app, queues, timeout=timeout)

    return drain
