"""The program that internal/workertest checks: as every worker in another language has it."""

import asyncio
import os
import sys

import weir

app = weir.Weir(sys.argv[1])


@app.task(queue="q")
async def hello(name: str) -> str:
    return "hello, " + name


@app.task(queue="q")
async def rest(seconds: float) -> None:
    await asyncio.sleep(seconds)


if __name__ == "__main__":
    lease, grace = float(os.environ["WEIR_LEASE"]), float(os.environ["WEIR_GRACE"])
    worker = app.worker({"q": 8}, lease=lease, stop_timeout=grace)
    asyncio.run(worker.run_until_signalled())
