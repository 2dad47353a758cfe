"""An app whose workers are killed: each job adds a row in the transaction that completes it, or counts its runs outside of it."""

from __future__ import annotations

import asyncio
import os

import psycopg

import weir

app = weir.Weir(os.environ["DATABASE_URL"])
QUEUE = os.environ.get("QUEUE", "killed")


@app.task(queue=QUEUE)
async def effect(job: weir.Job, n: int) -> None:
    async with (
        await psycopg.AsyncConnection.connect(os.environ["DATABASE_URL"], prepare_threshold=None, autocommit=True) as conn,
        job.completing(conn),
    ):
        await conn.execute("INSERT INTO killed_effect VALUES (%s)", [n])
        await asyncio.sleep(0.01)


@app.task(queue=QUEUE)
def in_thread(job: weir.Job, n: int) -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], prepare_threshold=None, autocommit=True) as conn, job.completing(conn):
        conn.execute("INSERT INTO killed_effect VALUES (%s)", [n])


@app.task(queue=QUEUE)
async def plain(n: int) -> str:
    await asyncio.sleep(0.01)
    return str(n)


@app.task(queue=QUEUE)
async def hang() -> None:
    await asyncio.Event().wait()
