"""worker.py with async handlers, using asyncpg.

    pip install asyncpg
    python worker_asyncpg.py postgres://app@localhost/app queue
"""

import asyncio, contextlib, json, os, signal, socket, sys, time, traceback  # noqa: E401
from types import SimpleNamespace

import asyncpg

LEASE = float(os.environ.get("WEIR_LEASE", 30))  # seconds of silence after which other workers get the jobs
SLOTS = 100  # jobs that run at once
GRACE = float(os.environ.get("WEIR_GRACE", 10))  # seconds that handlers have to finish when the process is told to stop
TAKE = """SELECT event, token, id, kind, args, key, flow, attempt, max_attempts
          FROM weir.take($1, limits => $2, kinds => $3, held => $4, lost => $5, wait => make_interval(secs => $6))"""


class Final(Exception):
    """Raised by a handler: the job fails, and is not tried again."""


class Snooze(Exception):
    """Raised by a handler: the job runs again after this many seconds, without using up an attempt."""

    def __init__(self, seconds):
        self.seconds = float(seconds)


# A handler gets a job, and is cancelled with it; it returns the job's output. It may run twice for a job.
async def hello(job):
    return "hello, " + job.args["name"]


async def rest(job):
    await asyncio.sleep(job.args["seconds"])


HANDLERS = {"hello": hello, "rest": rest}


async def run(job, ends, ended):
    try:
        output = await HANDLERS[job.kind](job)
        end = {"outcome": "completed", "output": output if output is None or isinstance(output, str) else json.dumps(output)}
    except Snooze as e:
        end = {"outcome": "snoozed", "delay": e.seconds}
    except BaseException as e:
        end = {"outcome": "cancelled" if job.cancelled else "failed", "error": traceback.format_exc(), "final": isinstance(e, Final)}
    ends[job.token] = {"token": job.token, **end}
    ended.set()


async def main(url, work):
    db, worker, lost, pause, chores, stops = None, None, False, 0.1, 0.0, []
    held, ends, ended = {}, {}, asyncio.Event()  # by token: the jobs not yet recorded, and how they ended
    for s in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(s, lambda: stops.append(time.monotonic() + GRACE))
    while True:
        try:
            if not db:  # PgBouncer in transaction mode has no prepared statements
                db = await asyncpg.connect(url, statement_cache_size=0, timeout=5, command_timeout=max(LEASE / 4, 2))
                db.add_log_listener(lambda _, notice: print(notice, file=sys.stderr, flush=True))
            if not worker:
                name = f"{socket.gethostname()}:{os.getpid()}"
                worker = await db.fetchval("SELECT weir.start($1, $2, make_interval(secs => $3))", name, [work], LEASE, timeout=3600)
                print(f"worker {worker} works {work}", flush=True)
            if held:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(ended.wait(), 0.05)
                ended.clear()
            if ends:
                given = dict(ends)
                rows = await db.fetch("SELECT token, refusal, detail FROM weir.record($1, $2)", worker, json.dumps(list(given.values())))
                refused = {row["token"]: row for row in rows}
                for token in given:
                    if token in refused and refused[token]["refusal"] == "invalid":
                        ends[token] = {"token": token, "outcome": "failed", "error": refused[token]["detail"]}
                    elif token not in refused or refused[token]["refusal"] != "busy":  # lost attempts run elsewhere
                        del ends[token], held[token]
            if stops and (not held or time.monotonic() > stops[0]):
                while not await db.fetchval("SELECT weir.stop($1)", worker):
                    await asyncio.sleep(0.05)
                return
            sent, free = time.monotonic(), 0 if stops else SLOTS - len(held)
            for row in await db.fetch(TAKE, worker, [free], list(HANDLERS), list(held), lost, 0 if held or stops else 0.5):
                if row["event"] == "job":
                    job = held[row["token"]] = SimpleNamespace(**row, cancelled=False)
                    job.args = json.loads(job.args)
                    job.task = asyncio.create_task(run(job, ends, ended))
                elif not held[row["token"]].cancelled:  # the cancel is repeated until the job is recorded
                    held[row["token"]].cancelled = held[row["token"]].task.cancel()
            # A take leaves at least two thirds of the lease. When they are over the process exits, even if a handler blocks it.
            signal.setitimer(signal.ITIMER_REAL, max(sent + LEASE * 0.6 - time.monotonic(), 0.001))
            lost, pause = False, 0.1
            if time.monotonic() > chores:
                chores = time.monotonic() + 0.5
                await db.execute("CALL weir.chores()")  # not needed if Go workers run too
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, asyncio.TimeoutError) as e:
            if not worker or getattr(e, "sqlstate", None) and e.sqlstate[:2] in ("WR", "22", "42"):  # fenced, or a permanent error
                sys.exit(f"worker {worker} ends: {e}")
            print(f"worker {worker}: {e!r}", file=sys.stderr, flush=True)
            db, lost = db and db.terminate(), True
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
