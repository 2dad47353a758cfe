"""The same with functions in threads."""

import asyncio
import os
import sys

import weir

app = weir.Weir(sys.argv[1])


@app.task(queue="q")
def hello(name: str) -> str:
    return "hello, " + name


@app.task(queue="q")
def rest(job: weir.Job, seconds: float) -> None:
    if job.interrupted.wait(seconds):
        raise RuntimeError("woken")


if __name__ == "__main__":
    lease, grace = float(os.environ["WEIR_LEASE"]), float(os.environ["WEIR_GRACE"])
    worker = app.worker({"q": 8}, lease=lease, stop_timeout=grace)
    worker.exit_on_lapse = True
    asyncio.run(worker.run_until_signalled())
    os._exit(0)
