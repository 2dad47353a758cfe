"""A FastAPI app works jobs in its lifespan."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastapi
import httpx
import psycopg
import pytest
from conftest import state, until

import weir
import weir.sql_source
import weir.worker

EXAMPLE = Path(__file__).parent.parent / "examples" / "fastapi"


async def test_a_fastapi_app_enqueues_and_works(url: str) -> None:
    sys.path.insert(0, str(EXAMPLE))
    import main

    async with (
        main.api.router.lifespan_context(main.api),
        httpx.AsyncClient(transport=httpx.ASGITransport(main.api), base_url="http://api") as client,
    ):
        job = (await client.post("/accounts/7")).json()["job"]

        async def is_done() -> bool:
            return (await client.get(f"/jobs/{job}")).json() == {"state": "completed", "output": "welcome, 7"}

        await until(is_done)
    await main.engine.dispose()


async def test_an_app_serves_while_the_database_is_down_and_works_once_it_is_back(
    url: str, queue: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(weir.worker, "START", 0.2)
    given = psycopg.conninfo.conninfo_to_dict(url)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    app = weir.Weir(psycopg.conninfo.make_conninfo(url, host="127.0.0.1", port=port))

    @app.task(queue=queue)
    async def greet() -> str:
        return "hello"

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, to = await asyncio.open_connection(given.get("host"), given.get("port", 5432))
        await asyncio.gather(pipe(reader, to), pipe(back, writer))

    api = fastapi.FastAPI(lifespan=app.lifespan({queue: 1}))  # type: ignore[arg-type]
    async with api.router.lifespan_context(api):
        with pytest.raises(psycopg.OperationalError):
            await greet.enqueue(app)
        await until(lambda: "can't start a worker yet" in caplog.text)
        server = await asyncio.start_server(carry, "127.0.0.1", port)
        job = await greet.enqueue(app)
        await state(app, job.id, "completed")
    server.close()


async def test_what_the_database_refuses_fails_the_start(url: str, queue: str) -> None:
    app = weir.Weir(psycopg.conninfo.make_conninfo(url, user="nobody_here", password="wrong"))
    app.task(kind="noop")(lambda: None)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        async with app.lifespan({queue: 1})(None):  # type: ignore[attr-defined]
            pass


async def test_a_worker_that_ends_early_says_why(app: weir.Weir, queue: str, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    app.task(kind="noop")(lambda: None)

    async def refused(*_: Any) -> None:
        raise psycopg.errors.InsufficientPrivilege("permission denied for function take")

    async def works() -> None:
        async with app.working({queue: 1}):
            monkeypatch.setattr(weir.sql_source.SqlSource, "_take", refused)
            said = "has ended, and runs no further jobs: permission denied for function take: grant this user the role weir_work"
            await until(lambda: said in caplog.text)

    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await works()


@pytest.mark.parametrize("answers", [False, True])
def test_a_server_without_its_database_starts_and_stops(url: str, answers: bool) -> None:
    """Whether connections are refused, or nothing answers on them."""
    with socket.create_server(("127.0.0.1", 0)) as nothing:
        down = f"postgresql://ada@127.0.0.1:{nothing.getsockname()[1]}/x"
        if not answers:
            nothing.close()
        server = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "main:api", "--port", "0"],
            cwd=EXAMPLE,
            env={**os.environ, "DATABASE_URL": down},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert server.stderr is not None
        said = []
        for line in server.stderr:
            said.append(line)
            if "Uvicorn running on" in line:
                server.send_signal(signal.SIGTERM)
        assert server.wait(60) in (0, -signal.SIGTERM)
    assert "Application shutdown complete" in "".join(said)
