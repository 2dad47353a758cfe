"""A worker over plain SQL: "Workers in another language" of docs/operators.md as a program.

    pip install 'psycopg[binary]'
    python worker.py postgres://app@localhost/app queue

Its user needs the role weir_work. Whatever goes wrong with the database ends the process: whoever supervises it starts it
again, and the database gives the jobs that it had to others, and to it when it is back.
"""

import os
import signal
import socket
import sys
import threading
import time
from datetime import datetime, timedelta, timezone

import psycopg

LEASE = 30  # seconds of silence after which the jobs are given to others
BATCH = 10  # jobs claimed at once; what follows a slow one waits for it, so take 1 where some are
IDLE = 0.25  # seconds between two looks for work, while there is none
CHORES = ("promote", "rescue", "rotate", "rotate_later", "rotate_messages", "tidy")  # needless where Go workers run, too


# A handler gets a job's args, and returns what is kept as its output, or None. It may run twice for a job.
def hello(args):
    return "hello, " + args["name"]


def rest(args):
    time.sleep(args["seconds"])


HANDLERS = {"hello": hello, "rest": rest}


def run(kind, args, attempt, max_attempts, cancelled):
    """Runs one attempt; returns its outcome, error, output, and when the next attempt is due."""
    if cancelled:
        return "cancelled", None, None, None
    if kind not in HANDLERS:  # others may know it, or a newer version of this program; no attempt is used up
        return "released", f"no handler for {kind!r}", None, after(60)
    try:
        return "completed", None, HANDLERS[kind](args), None
    except Exception as e:
        if attempt >= max_attempts:
            return "failed", repr(e), None, None
        return "retried", repr(e), None, after(min(2**attempt, 3600))


def after(seconds):
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


def work(db, worker, queue):
    """Claims jobs, runs them, and records how they ended, until the process is told to stop."""
    chores = 0
    while not stopping.is_set():
        if time.monotonic() > chores + 0.5:
            chores = time.monotonic()
            for chore in CHORES:
                db.execute(f"SELECT weir._{chore}()")
        jobs = db.execute(
            "SELECT lane, seq, id, kind, args, attempt, max_attempts, cancelled FROM weir._claim(%s, %s, %s)",
            [worker, [queue], [BATCH]],
        ).fetchall()
        if not jobs:
            stopping.wait(IDLE)
            continue
        ends = [run(*job[3:]) for job in jobs]
        lanes, seqs, ids = (list(column) for column in list(zip(*jobs))[:3])
        outcomes, errors, outputs, due = (list(column) for column in zip(*ends))
        refused = db.execute(
            "SELECT place, refusal, detail FROM weir._record(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            [worker, lanes, seqs, [1] * len(ids), ids, outcomes, errors, outputs, due],
        ).fetchall()
        for place, refusal, detail in refused:
            print(f"job {ids[place - 1]} was not recorded: {refusal} {detail or ''}", flush=True)


def keep(url, worker):
    """Keeps the worker alive, by a connection of its own: however long a handler takes, the database hears of it."""
    try:
        # A line that says nothing fails in time (in ms; and after 10 + 3 * 3 s of silence where nothing was sent).
        silence = {"tcp_user_timeout": LEASE * 1000 // 2, "keepalives_idle": 10, "keepalives_interval": 3, "keepalives_count": 3}
        with psycopg.connect(url, autocommit=True, **silence) as db:
            with socket.socket(fileno=os.dup(db.pgconn.socket)) as mine:
                name = mine.getsockname()
            address, port = name[:2] if isinstance(name, tuple) else (None, None)  # a Unix socket has neither
            db.execute("SELECT weir.attend(%s, %s, %s, %s)", [worker, db.info.backend_pid, address, port])
            while not ended.wait(LEASE / 6):
                if db.execute("SELECT fenced FROM weir.heartbeat(%s)", [worker]).fetchone()[0]:
                    raise RuntimeError("the jobs were given to others, for this worker had been silent too long")
    except Exception as e:
        if not ended.is_set():
            print(f"worker {worker} ends: {e}", file=sys.stderr, flush=True)
            os._exit(1)  # handlers that run must not go on beside others


def main(url, queue):
    for s in (signal.SIGTERM, signal.SIGINT):
        signal.signal(s, lambda *_: stopping.set())
    with psycopg.connect(url, autocommit=True) as db:
        name = f"{socket.gethostname()}:{os.getpid()}"
        worker = db.execute("SELECT weir._start(%s, %s, %s)", [name, [queue], timedelta(seconds=LEASE)]).fetchone()[0]
        threading.Thread(target=keep, args=(url, worker), daemon=True).start()
        print(f"worker {worker} works {queue}", flush=True)
        work(db, worker, queue)
        ended.set()
        while not db.execute("SELECT weir._fence(%s, 'stopped')", [worker]).fetchone()[0]:
            time.sleep(0.1)
        while db.execute("SELECT more FROM weir._settle(%s)", [worker]).fetchone()[0]:
            pass


stopping, ended = threading.Event(), threading.Event()

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: worker.py DATABASE_URL QUEUE")
    main(*sys.argv[1:])
