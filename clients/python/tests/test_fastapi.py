"""A FastAPI app works jobs in its lifespan."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
from conftest import until


async def test_a_fastapi_app_enqueues_and_works(url: str) -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "fastapi"))
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
