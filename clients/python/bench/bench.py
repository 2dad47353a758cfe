"""Jobs that do nothing, by Weir, Procrastinate and PgQueuer, one after the other on one server, in one process each.

    pip install -r requirements.txt
    python bench.py postgresql://localhost/a_database_for_this [jobs] [concurrency]

The database needs Weir's schema; those of the others are made. The jobs are enqueued first, and the time counts from
when a worker starts until it has recorded the last of them. Prints jobs per second, and how many times as fast Weir is.

    python bench.py URL memory 1000000

works so many jobs with Weir alone, and prints the memory of the process meanwhile.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator

ROUNDS = 3


def resident() -> float:
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith("VmRSS"))


def parts(n: int, size: int) -> Iterator[range]:
    for first in range(0, n, size):
        yield range(first, min(n, first + size))


async def weir_rate(url: str, n: int, slots: int, memory: bool = False) -> float:
    import psycopg

    import weir

    app = weir.Weir(url)
    ended = 0

    @app.task(queue="bench")
    async def nothing(i: int) -> None:
        nonlocal ended
        ended += 1
        if memory and ended % (n // 10 or 1) == 0:
            print(f"  {ended:>9,} jobs  {resident():6.1f} MiB", flush=True)

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        for part in parts(n, 10_000):
            await conn.execute(
                "SELECT weir.enqueue_many(array_fill('bench'::text, ARRAY[%(n)s]), array_fill('nothing'::text, ARRAY[%(n)s]), "
                "ARRAY(SELECT jsonb_build_object('i', i) FROM generate_series(1, %(n)s) i))",
                {"n": len(part)},
            )
    worker = app.worker({"bench": slots})
    worker.drain = True
    begin = time.monotonic()
    await worker.run()
    took = time.monotonic() - begin
    assert ended == n, f"{ended} of {n} jobs were run"
    return n / took


async def procrastinate_rate(url: str, n: int, slots: int) -> float:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    @app.task(queue="bench", pass_context=False)
    async def nothing(i: int) -> None: ...

    async with app.open_async():
        rows = await app.connector.execute_query_one_async("SELECT to_regclass('procrastinate_jobs') IS NOT NULL AS there")
        if not rows["there"]:
            await app.schema_manager.apply_schema_async()
        for part in parts(n, 1_000):
            await nothing.batch_defer_async(*[{"i": i} for i in part])
        begin = time.monotonic()
        await app.run_worker_async(queues=["bench"], concurrency=slots, wait=False, install_signal_handlers=False)
        took = time.monotonic() - begin
        left = await app.connector.execute_query_one_async("SELECT count(*) AS n FROM procrastinate_jobs WHERE status <> 'succeeded'")
        assert left["n"] == 0, left
    return n / took


async def pgqueuer_rate(url: str, n: int, slots: int) -> float:
    import asyncpg
    from pgqueuer import PgQueuer
    from pgqueuer.db import AsyncpgPoolDriver
    from pgqueuer.queries import Queries
    from pgqueuer.types import QueueExecutionMode

    async with asyncpg.create_pool(url, min_size=2) as pool:
        driver = AsyncpgPoolDriver(pool)
        queries = Queries(driver)
        if not await pool.fetchval("SELECT to_regclass('pgqueuer') IS NOT NULL"):
            await queries.install()
        for part in parts(n, 1_000):
            await queries.enqueue(["nothing"] * len(part), [None] * len(part), [0] * len(part))
        queue = PgQueuer(driver)
        ended = 0

        @queue.entrypoint("nothing")
        async def nothing(job: object) -> None:
            nonlocal ended
            ended += 1

        begin = time.monotonic()
        await queue.qm.run(batch_size=slots, mode=QueueExecutionMode.drain, max_concurrent_tasks=slots * 2)
        took = time.monotonic() - begin
        assert ended == n, f"{ended} of {n} jobs were run"
    return n / took


RATES = {"weir": weir_rate, "procrastinate": procrastinate_rate, "pgqueuer": pgqueuer_rate}


def main() -> None:
    url = sys.argv[1]
    if sys.argv[2:3] == ["memory"]:
        n = int(sys.argv[3])
        print(f"  at the start       {resident():6.1f} MiB")
        print(f"  {asyncio.run(weir_rate(url, n, 200, memory=True)):,.0f} jobs/s")
        return
    if sys.argv[2:3] and sys.argv[2] in RATES:
        print(asyncio.run(RATES[sys.argv[2]](url, int(sys.argv[3]), int(sys.argv[4]))))
        return
    n, slots = (sys.argv[2:] + ["20000", "100"][len(sys.argv) - 2 :])[:2]
    found: dict[str, list[float]] = {name: [] for name in RATES}
    for round_ in range(ROUNDS):
        for name in RATES:  # each in a process of its own, in turns
            done = subprocess.run([sys.executable, __file__, url, name, n, slots], capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{name}:\n{done.stderr[-3000:]}")
            found[name].append(float(done.stdout.split()[-1]))
            print(f"round {round_ + 1}  {name:<14} {found[name][-1]:>8,.0f} jobs/s", flush=True)
    middle = {name: sorted(rates)[len(rates) // 2] for name, rates in found.items()}
    print(f"\n{n} jobs that do nothing, {slots} at once, the median of {ROUNDS} rounds:")
    for name, rate in middle.items():
        print(f"  {name:<14} {rate:>8,.0f} jobs/s  {middle['weir'] / rate:6.1f}")


if __name__ == "__main__":
    main()
