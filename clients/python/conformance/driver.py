"""The driver of the conformance suite: it uses the client as an application would. ../../conformance/README.md describes what it reads and writes."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from datetime import datetime
from typing import Any

import psycopg
import psycopg_pool

import weir
from weir.errors import chain, sqlstate
from weir.line import Unanswered

VIA = os.environ["WEIR_VIA"]
SQL = VIA == "sql"
URL = os.environ.get("DATABASE_URL", "")
FEATURES = ["transactions", "complete", "lease", "retry"] if SQL else []
POOL = int(os.environ.get("WEIR_POOL", "4"))
KINDS = {"22": "invalid", "23": "invalid", "54": "invalid", "55": "invalid", "42": "denied", "WR": "lost"}
HUB = {"bad_request": "invalid", "limit": "invalid", "not_found": "not_found", "denied": "denied", "unauthorized": "denied"}


class NotFound(Exception):
    pass


def tell(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def code_of(error: BaseException) -> str:
    for e in chain(error):
        if isinstance(e, weir.HubError):
            return HUB.get(e.code, "unavailable" if e.code in ("unavailable", "draining") else "other")
        if isinstance(e, NotFound):
            return "not_found"
        if isinstance(e, weir.Lost):
            return "lost"
        if isinstance(e, weir.Invalid):
            return "invalid"
    state = sqlstate(error)
    if state == "42501":
        return "denied"
    if state is not None and state[:2] in KINDS:
        return KINDS[state[:2]]
    if isinstance(error, (psycopg.OperationalError, psycopg_pool.PoolTimeout, OSError, asyncio.TimeoutError, Unanswered)):
        return "unavailable"
    return "other"


class Driver:
    def __init__(self) -> None:
        self.app = weir.Weir(URL if SQL else None, hub=os.environ.get("WEIR_HUB_URL"), pool_size=POOL)
        self.pool: Any = None
        self.transactions: dict[int, Any] = {}
        self.runs: dict[int, tuple[weir.Job, asyncio.Future[dict[str, Any]]]] = {}
        self.subscriptions: dict[int, tuple[weir.Subscription, asyncio.Task[None]]] = {}
        self.worker: weir.Worker | None = None
        self.last = 0

    def number(self) -> int:
        self.last += 1
        return self.last

    async def run(self) -> None:
        if SQL:
            self.pool = psycopg_pool.AsyncConnectionPool(URL, min_size=0, max_size=POOL, open=False, timeout=10, kwargs={"prepare_threshold": None})
            await self.pool.open()
        tell({"event": "hello", "client": "python", "via": VIA, "features": [*FEATURES, "flows", "subscribe", "retry_after", "log", "publish"]})
        reader = asyncio.StreamReader(limit=64 << 20)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            command = json.loads(line)
            do = getattr(self, "do_" + command["do"], None)
            try:
                if do is None:
                    tell({"n": command["n"], "error": {"code": "unknown", "message": command["do"]}})
                else:
                    tell({"n": command["n"], "ok": await do(**{k: v for k, v in command.items() if k not in ("n", "do")}) or {}})
            except Exception as e:
                tell({"n": command["n"], "error": {"code": code_of(e), "message": f"{type(e).__name__}: {e}"}})
        os._exit(0)

    # Enqueue.

    def new(self, queue: str, kind: str, args: Any = None, run_at: str | None = None, unique: Any = None, **options: Any) -> weir.NewJob:
        at = datetime.fromisoformat(run_at.replace("Z", "+00:00")) if run_at else None
        rule = weir.Unique(**unique) if unique is not None else None
        return self.app.new(kind, args, queue=queue, run_at=at, unique=rule, **options)

    def place(self, tx: int | None) -> Any:
        return self.app if tx is None else self.transactions[tx]

    async def do_enqueue(self, tx: int | None = None, **job: Any) -> Any:
        done = await self.app.enqueue(self.place(tx), self.new(**job))
        return {"id": done.id, "duplicate": done.duplicate}

    async def do_enqueue_many(self, jobs: list[Any], tx: int | None = None) -> Any:
        done = await self.app.enqueue_many(self.place(tx), [self.new(**j) for j in jobs])
        return {"jobs": [{"id": d.id, "duplicate": d.duplicate} for d in done]}

    async def do_begin(self) -> Any:
        tx = self.number()
        self.transactions[tx] = await self.pool.getconn()
        await self.transactions[tx].execute("SELECT 1")  # begins a transaction
        return {"tx": tx}

    async def do_sql(self, tx: int, sql: str) -> None:
        await self.transactions[tx].execute(sql)

    async def do_commit(self, tx: int) -> None:
        conn = self.transactions.pop(tx)
        try:
            await conn.commit()
        finally:
            await self.pool.putconn(conn)

    async def do_rollback(self, tx: int) -> None:
        conn = self.transactions.pop(tx)
        try:
            await conn.rollback()
        finally:
            await self.pool.putconn(conn)

    # Work.

    async def do_work(self, queues: dict[str, int], kinds: list[str], lease: float = 30, timeout: float = 3600, stop_timeout: float = 25) -> None:
        self.app.tasks.clear()
        for kind in kinds:
            self.app.task(kind=kind)(self.handle)  # type: ignore[call-overload]
        worker = self.worker = self.app.worker(queues, lease=lease, timeout=timeout, stop_timeout=stop_timeout)
        task = asyncio.create_task(worker.run())
        await worker.wait_started(task)
        self.working = asyncio.create_task(self.tell_end(task))

    async def tell_end(self, task: asyncio.Task[None]) -> None:
        try:
            await task
        except Exception as e:
            tell({"event": "stopped", "error": {"code": code_of(e), "message": str(e)}})
        else:
            tell({"event": "stopped"})

    async def do_stop(self) -> None:
        if self.worker is not None:
            self.worker.stop()

    async def handle(self, job: weir.Job, **args: Any) -> Any:
        run = self.number()
        ends = asyncio.get_running_loop().create_future()
        self.runs[run] = (job, ends)
        fields = {f: getattr(job, f) for f in ("id", "queue", "priority", "kind", "args", "meta", "key", "flow", "attempt", "max_attempts")}
        tell({"event": "job", "run": run, "job": {**fields, "enqueued_at": job.enqueued_at.isoformat()}})
        try:
            end = await ends
        except asyncio.CancelledError:
            tell({"event": "interrupted", "run": run, "reason": job.interrupted.reason})
            raise
        finally:
            del self.runs[run]
        match end["how"]:
            case "return":
                return end.get("output")
            case "raise":
                raise RuntimeError(end["error"])
            case "fail":
                raise weir.Fail(end["error"])
            case "retry_after":
                raise weir.RetryAfter(end["delay"], end["error"])
            case "snooze":
                raise weir.Snooze(end["delay"])
            case "complete":
                await self.complete(job, **end)

    async def complete(self, job: weir.Job, sql: str, then: str, output: Any = None, error: str = "", **_: Any) -> None:
        try:
            async with self.pool.connection() as conn, conn.transaction():
                await conn.execute(sql)
                await job.complete_tx(conn, output)
                if then != "commit":
                    raise RuntimeError(error or "rolled back")
        except RuntimeError:
            if then != "rollback":
                raise

    def job_of(self, run: int) -> weir.Job:
        if run not in self.runs:
            raise NotFound(f"there is no run {run}")
        return self.runs[run][0]

    async def do_end(self, run: int, **end: Any) -> None:
        self.job_of(run)
        ends = self.runs[run][1]
        if ends.done():
            raise NotFound(f"run {run} ends already")
        ends.set_result(end)

    async def do_progress(self, run: int, percent: float, message: str) -> None:
        self.job_of(run).progress(percent, message)

    async def do_log(self, run: int, text: str) -> None:
        self.job_of(run).log(text)

    async def do_set_checkpoint(self, run: int, checkpoint: Any, tx: int | None = None) -> None:
        if tx is None:
            self.job_of(run).set_checkpoint(checkpoint)
        else:
            await self.job_of(run).set_checkpoint_tx(self.transactions[tx], checkpoint)

    async def do_checkpoint(self, run: int) -> Any:
        return {"checkpoint": await self.job_of(run).checkpoint()}

    # Look and operate.

    async def do_job(self, id: int) -> Any:
        found = await self.app.job(id)
        if found is None:
            raise NotFound(f"there is no job {id}")
        return {"job": {f: v.isoformat() if isinstance(v := getattr(found, f), datetime) else v for f in found.__slots__}}

    async def do_cancel(self, id: int) -> Any:
        state = await self.app.cancel(id)
        if state is None:
            raise NotFound(f"there is no job {id}")
        return {"state": "running" if state == "requested" else state}

    async def do_retry(self, id: int) -> Any:
        state = await self.app.retry(id)
        if state is None:
            raise NotFound(f"there is no job {id}")
        return {"state": state}

    # Publish and subscribe.

    async def do_publish(self, channel: str, payload: str, tx: int | None = None) -> None:
        await self.app.publish_tx(self.place(tx), channel, payload)

    async def do_subscribe(self, channels: list[str], after: str | None = None) -> Any:
        number, messages = self.number(), self.app.subscribe(*channels, position=after)
        await messages.__aenter__()
        self.subscriptions[number] = (messages, asyncio.create_task(self.follow(number, messages)))
        return {"subscription": number}

    async def follow(self, number: int, messages: weir.Subscription) -> None:
        async for m in messages:
            if isinstance(m, weir.Gap):
                tell({"event": "gap", "subscription": number, "reason": m.reason, "position": m.position})
            else:
                payload = {"payload": m.payload} if isinstance(m.payload, str) else {"payload_base64": base64.b64encode(m.payload).decode()}
                tell({"event": "message", "subscription": number, "channel": m.channel, "position": m.position, **payload})

    async def do_unsubscribe(self, subscription: int) -> None:
        messages, task = self.subscriptions.pop(subscription)
        await messages.close()
        task.cancel()


if __name__ == "__main__":
    import logging

    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    asyncio.run(Driver().run())
