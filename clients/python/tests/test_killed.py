"""A worker that is killed loses no job, and what its jobs do in the transactions that complete them is done once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import attends, until

JOBS = 300


def start(queue: str, lease: int = 2) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "weir.cli", "work", "killed:app", "-q", f"{queue}=20", "--lease", str(lease), "--stop-timeout", "5"]
    return subprocess.Popen(command, cwd=Path(__file__).parent, env={**os.environ, "QUEUE": queue})


async def test_a_killed_worker_loses_no_job_and_does_nothing_twice(queue: str, db: Any, url: str) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS killed_effect (n bigint)")
    db.execute("TRUNCATE killed_effect")
    db.execute("SELECT weir.enqueue(%s, 'plain', '{\"n\": 0}'), weir.set(%s, 'backoff', '100 ms')", [queue, queue])
    ids = db.execute(
        """SELECT array_agg(weir.enqueue(%s, CASE n %% 3 WHEN 0 THEN 'effect' WHEN 1 THEN 'in_thread' ELSE 'plain' END, jsonb_build_object('n', n)))
           FROM generate_series(1, %s) n""",
        [queue, JOBS],
    ).fetchone()[0]
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    workers = [start(queue), start(queue)]

    def left() -> int:
        count = db.execute("SELECT count(*) FROM unnest(%s::bigint[]) i WHERE (SELECT state FROM weir.job_info(i)) <> 'completed'", [ids]).fetchone()
        return int(count[0])

    try:
        for _ in range(8):
            await asyncio.sleep(chance.uniform(0.2, 1.5))  # at random times
            i = chance.randrange(2)
            workers[i].kill()
            workers[i].wait()
            workers[i] = start(queue)
            if not left():
                break

        def done() -> bool:
            for i, w in enumerate(workers):  # on a busy machine, a worker may lose its lease, and end
                if w.poll() is not None:
                    workers[i] = start(queue)
            return not left()

        await until(done, "the completion of all jobs")
    finally:
        for w in workers:
            w.send_signal(signal.SIGTERM)
        codes = [w.wait(30) for w in workers]
    assert all(code in (0, 75, -signal.SIGTERM) for code in codes)  # 75: it has lost its lease; the last: it was still importing
    effects = db.execute("SELECT count(*), count(DISTINCT n) FROM killed_effect").fetchone()
    assert effects == (JOBS * 2 // 3, JOBS * 2 // 3)


async def test_jobs_of_a_killed_worker_need_not_wait_for_its_lease(queue: str, db: Any, is_direct: bool) -> None:
    if not is_direct:
        pytest.skip("through a pooler, only the lease shows that a worker is dead")
    job = db.execute("SELECT weir.enqueue(%s, 'hang')", [queue]).fetchone()[0]

    def attempt() -> int:
        found = db.execute("SELECT attempt FROM weir.job_info(%s) WHERE state = 'running'", [job]).fetchone()
        return 0 if found is None else int(found[0])

    first = start(queue, lease=300)
    try:
        await until(lambda: attempt() == 1, "the first attempt")
        await until(lambda: attends(db, queue), "the worker's session")
        first.kill()
        first.wait()
        second = start(queue, lease=300)
        try:
            await until(lambda: attempt() == 2, "the second attempt, long before the lease is over")
        finally:
            second.kill()
    finally:
        first.kill()
