"""What a worker does with attempts: outcomes, interruption, timeouts, progress, completion in a transaction."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from conftest import attends, state, until
from test_enqueue import async_engine, libpq_url

import weir
import weir.guard
import weir.hub_source
import weir.line
import weir.testing
from weir.text import message_of


async def test_what_a_function_returns_or_raises_is_how_its_job_ends(app: weir.Weir, queue: str, caplog: Any) -> None:
    @app.task(queue=queue)
    async def texts() -> str:
        return "a\x00b\ud800✓"

    @app.task(queue=queue)
    def numbers(n: int) -> dict[str, Any]:
        return {"n": n, "thread": threading.current_thread().name.startswith("weir")}

    @app.task(queue=queue)
    async def raises() -> None:
        raise ValueError("no\x00 mailbox")

    @app.task(queue=queue)
    async def gives_up() -> None:
        raise weir.Fail("no such account")

    @app.task(queue=queue)
    async def snoozes() -> None:
        raise weir.Snooze(timedelta(hours=1))

    @app.task(queue=queue)
    async def waits() -> None:
        raise weir.RetryAfter(3600, "busy")

    @app.task(queue=queue, retry=weir.Retry(attempts=3, delay=1000, give_up=(KeyError,)))
    async def retries(final: bool) -> None:
        raise KeyError("k") if final else OSError("gone")

    @app.task(queue=queue)
    def exits() -> None:
        raise SystemExit(3)

    @app.task(queue=queue)
    async def huge() -> str:
        return "x" * 1_048_577

    @app.task(queue=queue)
    async def unwritable() -> object:
        return object()

    async with app:
        names = [texts, raises, gives_up, snoozes, waits, exits, huge, unwritable]
        ids = [(await t.using(max_attempts=1 if t in (raises, exits, unwritable) else 5).enqueue(app)).id for t in names]
        ids.append((await numbers.enqueue(app, 10**30)).id)
        ids += [(await retries.enqueue(app, f)).id for f in (False, True)]
        ended = await weir.testing.drain(app)
        assert len(ended) == len(ids)
        found = [await app.job(i) for i in ids]
        assert all(found)
        text, raised, gave_up, snoozed, waiting, exited, large, odd, number, again, final = (j for j in found if j)
        assert (text.state, text.output) == ("completed", "a\ufffdb\ufffd✓")
        assert raised.state == "failed"
        assert raised.error is not None
        assert raised.error.startswith("Traceback (most recent call last):")
        assert raised.error.endswith("ValueError: no\ufffd mailbox")
        assert "runner.py" not in raised.error  # only the frames of the application
        assert (gave_up.state, gave_up.attempt) == ("failed", 1)
        assert (snoozed.state, snoozed.attempt) == ("scheduled", 1)
        assert (waiting.state, waiting.attempt) == ("scheduled", 2)
        assert exited.state == "failed"
        assert (large.state, len(large.output or "")) == ("completed", 1_048_576)  # cut
        assert f"the output of job {large.id} (huge) has 1048577 bytes, and is cut to 1048576" in caplog.text
        assert odd.state == "failed"
        assert number.result() == {"n": 10**30, "thread": True}
        assert (again.state, again.attempt) == ("scheduled", 2)
        assert again.run_at is not None
        assert 700 < (again.run_at - again.enqueued_at).total_seconds() < 1300  # type: ignore[operator]
        assert final.state == "failed"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"queues": "mail"}, r"queues are 'mail': pass a dict of how many jobs of each run at once, such as \{'mail': 8\}"),
        ({"queues": {"mail": "8"}}, "the number of slots of queue 'mail' is '8': 1 to 10,000"),
        ({"queues": {"mail": 0}}, "the number of slots of queue 'mail' is 0"),
        ({"queues": {"": 1}}, "the name of a queue is ''"),
        ({"queues": {"mail": 1}, "lease": "x"}, "lease is 'x': pass a number of seconds"),
        ({"queues": {"mail": 1}, "lease": 400}, "lease is 400 s: a worker's lease is 1 second to 5 minutes"),
        ({"queues": {"mail": 1}, "timeout": "60"}, "timeout is '60': pass a number of seconds"),
        ({"queues": {"mail": 1}, "stop_timeout": None}, "stop_timeout is None: pass a number of seconds"),
    ],
)
async def test_a_worker_that_cannot_be_is_refused(app: weir.Weir, given: dict[str, Any], said: str) -> None:
    with pytest.raises(weir.Invalid, match=said):
        app.worker(**given)
    with pytest.raises(weir.Invalid, match=said):
        async with app.working(**given):
            pass
    if len(given) == 1:
        with pytest.raises(weir.Invalid, match=said):
            await weir.testing.drain(app, **given)


async def test_jobs_and_queues_that_no_task_is_for_are_named_in_the_log(app: weir.Weir, queue: str, look: Any, caplog: Any) -> None:
    @app.task(queue=queue)
    async def known() -> None: ...

    async with app:
        other = [(await app.enqueue(app, app.new(kind, queue=queue))).id for kind in ("resize", "resize", "rotate")]
        job = await known.enqueue(app)
        ended = await weir.testing.drain(app, {queue: 1, "mial": 1})
    assert look(job.id).state == "completed"
    # For workers that have a handler: after a second, or two.
    assert [(look(i).state in ("scheduled", "available"), look(i).attempt) for i in other] == [(True, 1)] * 3
    assert [e.outcome for e in ended] == ["completed"]
    said = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert [sum(f"no handler for kind {kind} in this worker" in s for s in said) for kind in ("resize", "rotate")] == [1, 1]
    assert f"no task of the app is in queue 'mial', but in '{queue}': if it is misspelt, nothing will come" in said


@pytest.mark.parametrize("way", ["sql", "hub"])
async def test_a_queue_that_never_had_a_job_is_named_in_the_log(way: str, url: str, queue: str, request: Any, caplog: Any) -> None:
    app = weir.Weir(url) if way == "sql" else weir.Weir(hub=request.getfixturevalue("hub"))

    @app.task(queue=queue)
    async def known() -> None: ...

    def warned() -> list[str]:
        return [r.message for r in caplog.records if r.levelname == "WARNING" and f'no job was ever enqueued to queue "{queue}"' in r.message]

    async with app, app.working({queue: 1}):
        await until(lambda: bool(warned()))
    assert len(warned()) == 1


class Odd(Exception):
    """An error that can't be compared, shown or told from others."""

    def __str__(self) -> str:
        raise OSError


class Odder(type):
    def __instancecheck__(cls, instance: object) -> bool:
        raise LookupError("no comparison")


async def test_an_attempt_whose_end_cannot_be_told_fails_alone(app: weir.Weir, queue: str, caplog: Any) -> None:
    class Never(metaclass=Odder): ...

    retry = weir.Retry(attempts=1, give_up=(Never,))  # type: ignore[arg-type]
    together = threading.Barrier(4)

    @app.task(queue=queue, retry=retry)
    async def fails() -> None:
        raise Odd

    @app.task(queue=queue, retry=retry)
    def fails_in_a_thread() -> None:
        together.wait(60)
        raise Odd

    @app.task(queue=queue)
    def good() -> str:
        together.wait(60)
        return "good"

    async with app:
        jobs = [(await t.enqueue(app)).id for t in (fails, fails_in_a_thread, good, good, good)]
        worker = app.worker({queue: 5})
        task = asyncio.create_task(worker.run())
        found = [await state(app, id, s) for id, s in zip(jobs, ("failed", "failed", "completed", "completed", "completed"), strict=True)]
        worker.stop()
        await asyncio.wait_for(task, 60)
    assert all("LookupError: no comparison" in (j.error or "") for j in found[:2])
    assert [j.attempt for j in found] == [1] * 5
    said = [r.message for r in caplog.records if "how its attempt goes on can't be told" in r.message]
    assert len(said) == 2


async def test_a_cancelled_job_is_interrupted(app: weir.Weir, queue: str) -> None:
    running: list[weir.Job] = []

    @app.task(queue=queue)
    async def sleeps(job: weir.Job) -> None:
        running.append(job)
        await asyncio.sleep(600)

    @app.task(queue=queue)
    def waits(job: weir.Job) -> None:
        running.append(job)
        if job.interrupted.wait(600):
            raise RuntimeError(job.interrupted.reason)

    async with app.working({queue: 2}):
        ids = [(await t.enqueue(app)).id for t in (sleeps, waits)]
        await until(lambda: len(running) == 2)
        third = await sleeps.enqueue(app)  # no slot is free
        for i in (*ids, third.id):
            await app.cancel(i)
        found = [await state(app, i, "cancelled") for i in (*ids, third.id)]
        assert {j.interrupted.reason for j in running} == {"cancelled"}
        assert "RuntimeError: cancelled" in (found[1].error or "")


async def test_an_attempt_ends_at_its_timeout(app: weir.Weir, queue: str) -> None:
    @app.task(queue=queue, timeout=0.3, retry=1)
    async def sleeps() -> None:
        await asyncio.sleep(600)

    @app.task(queue=queue, timeout=0.3, retry=1)
    def waits(job: weir.Job) -> str:
        job.interrupted.wait(600)
        return str(job.interrupted.reason)

    async with app.working({queue: 2}):
        one, two = await sleeps.enqueue(app), await waits.enqueue(app)
        assert "TimeoutError: the attempt took longer than its timeout of 0.3 s" in ((await state(app, one.id, "failed")).error or "")
        assert (await state(app, two.id, "completed")).output == "timeout"


async def test_a_worker_that_stops_lets_jobs_end_and_releases_the_others(app: weir.Weir, queue: str) -> None:
    running = 0

    @app.task(queue=queue)
    async def sleeps(seconds: float) -> None:
        nonlocal running
        running += 1
        await asyncio.sleep(seconds)

    worker = app.worker({queue: 2}, stop_timeout=2)
    async with app:
        short, long, waiting = [(await sleeps.enqueue(app, s)).id for s in (0.5, 600, 600)]
        task = asyncio.create_task(worker.run())
        await until(lambda: running == 2)
        worker.stop()
        await task
        assert (await state(app, short, "completed")).attempt == 1
        for other in (long, waiting):
            assert (await state(app, other, "available")).attempt == 1


async def test_a_worker_that_has_nothing_left_tells_its_hub_that_it_stops(hub: str, queue: str, monkeypatch: Any) -> None:
    """Even if it gives up what it had, and is stopped, while it opens its session again: so the job need not wait for the lease."""
    app = weir.Weir(hub=hub)
    attempts: asyncio.Queue[int] = asyncio.Queue()

    @app.task(queue=queue)
    async def run(job: weir.Job) -> None:
        attempts.put_nowait(job.attempt)
        if not opened.is_set():
            await asyncio.Event().wait()

    opened = asyncio.Event()
    open_socket = weir.hub_source.open_socket

    async def slowly(*args: Any, **options: Any) -> Any:
        socket = await open_socket(*args, **options)
        recv = socket.recv

        async def first() -> Any:
            frame = await recv()
            runner = worker._source._runner
            runner.interrupt_running()
            worker.stop()
            await until(lambda: not runner.running, "the end of what was interrupted")
            socket.recv = recv
            opened.set()
            return frame

        socket.recv = first
        return socket

    async with app.working({queue: 1}) as worker:
        await run.enqueue(app)
        assert await asyncio.wait_for(attempts.get(), 60) == 1
        monkeypatch.setattr(weir.hub_source, "open_socket", slowly)
        worker._source._socket.transport.abort()
        await asyncio.wait_for(opened.wait(), 60)
    monkeypatch.undo()
    async with app.working({queue: 1}):
        assert await asyncio.wait_for(attempts.get(), 60) == 1  # it was released, and has not failed


async def test_an_idle_worker_has_a_session_that_stands_for_it_and_writes_nothing(app: weir.Weir, queue: str, db: Any, is_direct: bool) -> None:
    if not is_direct:
        pytest.skip("through a pooler, a worker renews its lease")

    @app.task(queue=queue)
    async def idle() -> None: ...

    async with app.working({queue: 1}, lease=1, chores=False) as worker:
        (session,) = await until(lambda: attends(db, queue))
        seen = set()

        def beats() -> bool:
            look = "SELECT query_start FROM pg_stat_activity WHERE pid = %s AND query LIKE '%%heartbeat%%'"
            seen.update(db.execute(look, [session]).fetchall())
            return len(seen) >= 6

        await until(beats, "six heartbeats, one in a quarter of the lease")
        words = db.execute("SELECT says FROM weir.last_word WHERE worker = %s ORDER BY no", [worker.number]).fetchall()
        assert words == [("beats",), ("attends",)]  # those of its beginning


async def test_a_session_that_stood_for_a_worker_is_made_again_and_its_jobs_run_on(app: weir.Weir, queue: str, db: Any, is_direct: bool) -> None:
    if not is_direct:
        pytest.skip("through a pooler, no session stands for a worker")
    goes_on = asyncio.Event()

    @app.task(queue=queue)
    async def waits() -> None:
        await goes_on.wait()

    async with app.working({queue: 1}):
        job = await waits.enqueue(app)
        await state(app, job.id, "running")
        (first,) = await until(lambda: attends(db, queue))
        db.execute("SELECT pg_terminate_backend(%s)", [first])
        (second,) = await until(lambda: [pid for pid in attends(db, queue) if pid != first])
        assert second != first
        goes_on.set()
        assert (await state(app, job.id, "completed")).attempt == 1


async def test_jobs_are_interrupted_if_nothing_can_replace_the_session_that_stood_for_their_worker(
    app: weir.Weir, queue: str, db: Any, is_direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_direct:
        pytest.skip("through a pooler, no session stands for a worker")
    reasons, begun = [], []

    @app.task(queue=queue)
    async def waits(job: weir.Job) -> None:
        begun.append(job.attempt)
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(job.interrupted.reason)

    async def silence(*_: Any) -> None:
        raise weir.line.Unanswered(TimeoutError("no answer"))

    def no_connection(*_: Any) -> None:
        raise psycopg.errors.ConnectionTimeout("no answer")

    async with app.working({queue: 1}, lease=300, stop_timeout=1):
        job = await waits.enqueue(app)
        await state(app, job.id, "running")
        sessions = await until(lambda: attends(db, queue))
        with monkeypatch.context() as m:  # the network between this worker and the server is silent
            m.setattr(weir.line.Line, "fetch", silence)
            m.setattr(weir.guard.Guard, "_connected", no_connection)
            db.execute("SELECT pg_terminate_backend(%s)", sessions)
            await until(lambda: reasons == ["lost"], "the interruption, long before the lease is over")
        await until(lambda: len(begun) == 2, "another beginning")


async def test_a_job_that_fails_for_good_is_logged_as_a_warning(app: weir.Weir, queue: str, caplog: Any) -> None:
    @app.task(queue=queue)
    async def fails(how: str) -> None:
        raise {"given up": weir.Fail("no account"), "used up": ValueError("no mailbox"), "retried": weir.RetryAfter(3600)}[how]

    async with app:
        ids = [(await fails.using(max_attempts=n).enqueue(app, how=a)).id for a, n in (("given up", 5), ("used up", 1), ("retried", 5))]
        await weir.testing.drain(app)
    said = [r.message for r in caplog.records if r.name == "weir.jobs" and r.levelname == "WARNING"]
    for id in ids[:2]:
        assert sum(f"job {id} (fails) failed for good" in s for s in said) == 1
    assert not any(f"job {ids[2]} " in s for s in said)


async def test_a_function_that_blocks_the_loop_does_not_cost_the_lease(app: weir.Weir, queue: str, caplog: Any) -> None:
    runs = 0

    @app.task(queue=queue, retry=1)
    async def blocks() -> None:
        nonlocal runs
        runs += 1
        time.sleep(5)  # noqa: ASYNC251

    async with app.working({queue: 1}, lease=1.5):
        job = await blocks.enqueue(app)
        await state(app, job.id, "completed")
    assert runs == 1
    assert any("make it a plain function" in r.message and "time.sleep(5)" in r.message for r in caplog.records)


IMPORTS = """
import asyncio, dataclasses, os, sys, weir
app, queue, ended = weir.Weir(os.environ["DATABASE_URL"]), sys.argv[1], []

@dataclasses.dataclass
class Order:
    id: int

@app.task(queue=queue)
async def run(order: Order, n: int) -> dict[str, list[Order]]:
    return {"orders": [order] * n}

async def main():
    async with app:
        given = await app.enqueue(app, app.new("run", {"order": {"id": 7}, "n": 2}, queue=queue))
        worker = app.worker({queue: 1})
        worker.on_end.append(lambda attempt: worker.stop())
        task = asyncio.create_task(worker.run())
        await worker.wait_started(task)
        before = set(sys.modules)
        await task
        print(sorted(name for name in set(sys.modules) - before), (await app.job(given.id)).output)

asyncio.run(main())
"""


def test_a_worker_that_has_started_imports_nothing_more(queue: str) -> None:
    """Imports take long on a busy machine, and its lease would be over."""
    done = subprocess.run([sys.executable, "-c", IMPORTS, queue], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == '[] {"orders":[{"id":7},{"id":7}]}\n', done.stderr


async def test_the_next_attempt_goes_on_from_the_checkpoint(app: weir.Weir, queue: str) -> None:
    seen: list[Any] = []

    @app.task(queue=queue, retry=weir.Retry(attempts=3, delay=0))
    async def imports(job: weir.Job) -> None:
        seen.append(await job.checkpoint())
        job.set_checkpoint({"row": job.attempt})
        job.progress(30 * job.attempt, "importing")
        job.log(f"attempt {job.attempt}", "warn")
        if job.attempt == 2:
            await job.flush()
        if job.attempt < 3:
            raise OSError

    @app.task(queue=queue, retry=weir.Retry(attempts=2, delay=0))
    def in_thread(job: weir.Job) -> Any:
        last = job.sync.checkpoint()
        weir.current_job().set_checkpoint([1, 2])
        job.sync.flush()
        if last is None:
            raise OSError
        return last

    async with app.working({queue: 2}):
        one, two = await imports.enqueue(app), await in_thread.enqueue(app)
        found = await state(app, one.id, "completed")
        assert seen == [None, {"row": 1}, {"row": 2}]
        assert (found.percent, found.message) == (90, "importing")
        assert [(line["level"], line["text"]) for line in found.log or []] == [("WARN", f"attempt {n}") for n in (1, 2, 3)]
        assert (await state(app, two.id, "completed")).output == "[1,2]"


COMPLETES = ["psycopg", "asyncpg", "session", "sync psycopg", "sync session"]


@pytest.mark.parametrize("library", COMPLETES)
async def test_a_job_completes_in_the_transaction_of_its_effects(library: str, app: weir.Weir, queue: str, url: str, db: Any) -> None:
    table = f"effects_{queue.replace('-', '_')}"
    db.execute(f"CREATE TABLE {table} (job bigint)")
    insert = f"INSERT INTO {table} SELECT id FROM weir.job_info({{}})"

    async def in_async(job: weir.Job, how: str) -> None:
        if library == "psycopg":
            async with await psycopg.AsyncConnection.connect(url, prepare_threshold=None) as conn, job.completing(conn, {"n": 1}):
                await conn.execute(insert.format(job.id))
                if how == "raise":
                    raise ValueError("after all")
        elif library == "asyncpg":
            conn2 = await asyncpg.connect(url, statement_cache_size=0)
            try:
                async with job.completing(conn2, {"n": 1}):
                    await conn2.execute(insert.format(job.id))
                    if how == "raise":
                        raise ValueError("after all")
            finally:
                await conn2.close()
        else:
            engine = async_engine(url, "asyncpg")
            async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session:
                await session.execute(sqlalchemy.text("SELECT 1"))  # begins a transaction
                async with job.completing(session, {"n": 1}):
                    await session.execute(sqlalchemy.text(insert.format(job.id)))
                    if how == "raise":
                        raise ValueError("after all")
            await engine.dispose()

    def in_sync(job: weir.Job, how: str) -> None:
        if library == "sync psycopg":
            with psycopg.connect(url, autocommit=True, prepare_threshold=None) as conn, job.completing(conn, {"n": 1}):
                conn.execute(insert.format(job.id))
                if how == "raise":
                    raise ValueError("after all")
            return
        engine = sqlalchemy.create_engine(libpq_url(url, "psycopg"), connect_args={"prepare_threshold": None})
        with sqlalchemy.orm.Session(engine) as session, job.completing(session, {"n": 1}):
            session.execute(sqlalchemy.text(insert.format(job.id)))
            if how == "raise":
                raise ValueError("after all")
        engine.dispose()

    if library.startswith("sync"):

        @app.task(queue=queue, kind="effect", retry=1)
        def effect(job: weir.Job, how: str) -> None:
            try:
                in_sync(job, how)
            except ValueError:
                if how != "raise":
                    raise

    else:

        @app.task(queue=queue, kind="effect", retry=1)
        async def effect(job: weir.Job, how: str) -> None:
            try:
                await in_async(job, how)
            except ValueError:
                if how != "raise":
                    raise

    async with app.working({queue: 2}):
        done, undone = await effect.enqueue(app, "commit"), await effect.enqueue(app, "raise")  # type: ignore[misc]
        assert (await state(app, done.id, "completed")).output == '{"n":1}'
        # The error was caught outside of the transaction, and the function has returned: yet nothing was done.
        assert "not committed" in ((await state(app, undone.id, "failed")).error or "")
    assert db.execute(f"SELECT array_agg(job) FROM {table}").fetchone() == ([done.id],)


async def test_completion_that_is_rolled_back_later_counts_as_a_failure(app: weir.Weir, queue: str, url: str) -> None:
    @app.task(queue=queue, retry=1)
    async def rolls_back(job: weir.Job) -> None:
        async with await psycopg.AsyncConnection.connect(url, prepare_threshold=None) as conn:
            await job.complete_tx(conn)
            await conn.rollback()

    async with app.working({queue: 1}):
        job = await rolls_back.enqueue(app)
        assert "not committed" in ((await state(app, job.id, "failed")).error or "")


async def test_a_fenced_worker_can_complete_nothing(app: weir.Weir, queue: str, url: str, db: Any) -> None:
    completed: list[int] = []

    @app.task(queue=queue)
    async def effect(job: weir.Job) -> None:
        if job.claimed.worker == worker:
            db.execute("SELECT weir.stop(%s)", [worker])
            async with await psycopg.AsyncConnection.connect(url, prepare_threshold=None) as conn:
                async with job.completing(conn):  # refused, unless the worker has noticed before and interrupted this
                    pass
                completed.append(job.id)

    async with app.working({queue: 1}) as w:
        worker = w.number
        job = await effect.enqueue(app)
        await state(app, job.id, "completed")  # by the worker that has begun again
        assert w.number != worker
    assert completed == []


async def test_around_wraps_attempts_in_their_thread(url: str, queue: str) -> None:
    import contextlib

    told: list[str] = []

    @contextlib.contextmanager
    def around(job: weir.Job) -> Any:
        told.append(f"begin {threading.current_thread() is threading.main_thread()}")
        try:
            yield
        finally:
            told.append("end")

    app = weir.Weir(url, around=[around])

    @app.task(queue=queue)
    def plain() -> None:
        told.append("run")

    async with app:
        await plain.enqueue(app)
        await weir.testing.drain(app)
    assert told == ["begin False", "run", "end"]


async def test_a_kind_without_a_task_is_left_to_others(app: weir.Weir, queue: str) -> None:
    @app.task(queue=queue)
    async def known() -> None: ...

    async with app:
        other = await app.enqueue(app, app.new("unknown", queue=queue))
        mine = await known.enqueue(app)
        ended = await weir.testing.drain(app)
        assert [e.job.id for e in ended] == [mine.id]
        found = await app.job(other.id)
        assert found is not None
        assert (found.state, found.attempt) == ("scheduled", 1)


async def test_args_that_do_not_fit_fail_their_own_job(app: weir.Weir, queue: str, db: Any) -> None:
    @app.task(queue=queue, retry=1)
    async def takes(n: int) -> None: ...

    async with app:
        large = db.execute("SELECT weir.enqueue(%s, 'takes', jsonb_build_object('n', 10::numeric ^ 5000), max_attempts => 1)", [queue]).fetchone()[0]
        lacks = await app.enqueue(app, app.new("takes", {"m": 1}, queue=queue, max_attempts=1))
        good = await takes.enqueue(app, 1)
        await weir.testing.drain(app)
        found = [await app.job(i) for i in (large, lacks.id, good.id)]
        assert [j.state for j in found if j] == ["completed", "failed", "completed"]  # a number of 5001 digits is one
        assert "which task takes does not take" in (found[1].error or "")  # type: ignore[union-attr]


async def test_a_worker_that_the_database_refuses_says_so(url: str, queue: str) -> None:
    app = weir.Weir(psycopg.conninfo.make_conninfo(url, dbname="nowhere"))

    @app.task(queue=queue)
    async def t() -> None: ...

    with pytest.raises(psycopg.OperationalError, match="nowhere"):
        await app.worker({queue: 1}).run()
    with pytest.raises(weir.Invalid, match="slots"):
        app.worker({queue: 0})
    with pytest.raises(weir.Invalid, match="lease"):
        app.worker({queue: 1}, lease=0.1)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no groups of errors")
async def test_a_group_of_errors_is_kept_like_any_other_and_one_alone_decides(app: weir.Weir, queue: str) -> None:
    async def fails(error: Exception) -> None:
        raise error

    @app.task(queue=queue)
    async def several() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails(weir.Fail("no\n  such account")))
            group.create_task(fails(ValueError("later")))

    @app.task(queue=queue, retry=1)
    async def single() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails(weir.Snooze(3600)))

    async with app.working({queue: 2}):
        ids = [(await task.enqueue(app)).id for task in (several, single)]
        failed = await state(app, ids[0], "scheduled")  # Fail was not alone
        await state(app, ids[1], "scheduled")
    error = failed.errors[-1]["error"]
    assert message_of(error) == "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions): weir.errors.Fail: no"
    assert error.startswith("Traceback (most recent call last):\n  File ")
    assert "\n    1 of 2:\n    Traceback" in error
    assert "\n    ValueError: later" in error


def test_the_message_of_a_traceback_is_found() -> None:
    begin = 'Traceback (most recent call last):\n  File "a.py", line 3, in run\n    x()\n    ^^^\n'
    for traceback, message in (
        (begin + "ValueError: no", "ValueError: no"),
        (
            begin + 'psycopg.errors.UndefinedTable: relation "a" does not exist\nLINE 1: select * from a\n               ^\n',
            'psycopg.errors.UndefinedTable: relation "a" does not exist',
        ),
        (begin + "KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n" + begin + "OSError: 2\nmore", "OSError: 2"),
        ("Error, which can't be shown: KeyError", "Error, which can't be shown: KeyError"),
        ("", ""),
    ):
        assert message_of(traceback) == message
