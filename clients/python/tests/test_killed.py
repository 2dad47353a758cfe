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

from conftest import until

JOBS = 300


def start(queue: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "weir.cli", "work", "killed:app", "-q", f"{queue}=20", "--lease", "2", "--stop-timeout", "5"]
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
