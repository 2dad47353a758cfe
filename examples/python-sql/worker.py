"""A worker over plain SQL, to copy. docs/sql.md describes the functions.

    pip install 'psycopg[binary]'
    python worker.py postgres://app@localhost/app queue

Its role needs weir_work. Run it under a supervisor that restarts it when it exits. worker_asyncpg.py is the same with async handlers.
"""

import contextlib, json, os, queue, signal, socket, sys, threading, time, traceback  # noqa: E401

import psycopg
from psycopg.rows import namedtuple_row

LEASE = float(os.environ.get("WEIR_LEASE", 30))  # seconds of silence after which other workers get the jobs
SLOTS = 8  # jobs that run at once
GRACE = float(os.environ.get("WEIR_GRACE", 10))  # seconds that handlers have to finish when the process is told to stop
# Connection options: a silent connection fails in time, and PgBouncer in transaction mode has no prepared statements.
HOW = {"autocommit": True, "prepare_threshold": None, "row_factory": namedtuple_row, "connect_timeout": 5,
       "tcp_user_timeout": int(LEASE * 250), "keepalives_idle": 5, "keepalives_interval": 1, "keepalives_count": 3}  # fmt: skip
TAKE = """SELECT event, token, id, kind, args, key, flow, attempt, max_attempts
          FROM weir.take(%s, limits => %s, kinds => %s, held => %s, lost => %s, wait => %s)"""


class Final(Exception):
    """Raised by a handler: the job fails, and is not tried again."""


class Snooze(Exception):
    """Raised by a handler: the job runs again after this many seconds, without using up an attempt."""

    def __init__(self, seconds):
        self.seconds = float(seconds)


# A handler gets a job, and an event that is set when the job is cancelled; it returns the job's output. It may run twice for a job.
def hello(job, cancelled):
    return "hello, " + job.args["name"]


def rest(job, cancelled):
    if cancelled.wait(job.args["seconds"]):
        raise Final("woken")


HANDLERS = {"hello": hello, "rest": rest}


def run(job, cancelled, ended):
    try:
        output = HANDLERS[job.kind](job, cancelled)
        end = {"outcome": "completed", "output": output if output is None or isinstance(output, str) else json.dumps(output)}
    except Snooze as e:
        end = {"outcome": "snoozed", "delay": e.seconds}
    except BaseException as e:
        end = {"outcome": "cancelled" if cancelled.is_set() else "failed", "error": traceback.format_exc(), "final": isinstance(e, Final)}
    ended.put({"token": job.token, **end})


def main(url, work):
    db, worker, lost, pause, chores, stops = None, None, False, 0.1, 0.0, []
    held, ends, ended = {}, {}, queue.SimpleQueue()  # by token: the jobs not yet recorded, and how they ended
    for s in (signal.SIGTERM, signal.SIGINT):
        signal.signal(s, lambda *_: stops.append(time.monotonic() + GRACE))
    while True:
        try:
            if not db:
                db = psycopg.connect(url, **HOW)
                db.add_notice_handler(lambda notice: print(notice.message_primary, file=sys.stderr, flush=True))
            if not worker:
                name = f"{socket.gethostname()}:{os.getpid()}"
                worker = db.execute("SELECT weir.start(%s, %s, make_interval(secs => %s))", [name, [work], LEASE]).fetchone()[0]
                print(f"worker {worker} works {work}", flush=True)
            with contextlib.suppress(queue.Empty):
                wait = 0.05 if held else 0  # wait for one end, then take the others without waiting
                while True:
                    end = ended.get(timeout=wait)
                    ends[end["token"]], wait = end, 0
            if ends:
                rows = db.execute("SELECT token, refusal, detail FROM weir.record(%s, %s)", [worker, json.dumps(list(ends.values()))])
                again = {row.token: row for row in rows if row.refusal in ("busy", "invalid")}  # lost attempts run elsewhere
                for token in list(ends):
                    if token not in again:
                        del ends[token], held[token]
                    elif again[token].refusal == "invalid":
                        ends[token] = {"token": token, "outcome": "failed", "error": again[token].detail}
            if stops and (not held or time.monotonic() > stops[0]):
                while not db.execute("SELECT weir.stop(%s)", [worker]).fetchone()[0]:
                    time.sleep(0.05)
                return
            sent, free = time.monotonic(), 0 if stops else SLOTS - len(held)
            for job in db.execute(TAKE, [worker, [free], list(HANDLERS), list(held), lost, "0" if held or stops else "0.5 s"]).fetchall():
                if job.event == "cancel":
                    held[job.token].set()
                else:
                    held[job.token] = threading.Event()
                    threading.Thread(target=run, args=[job, held[job.token], ended], daemon=True).start()
            # A take leaves at least two thirds of the lease. When they are over the process exits, because a thread can't be interrupted.
            signal.setitimer(signal.ITIMER_REAL, max(sent + LEASE * 0.6 - time.monotonic(), 0.001))
            lost, pause = False, 0.1
            if time.monotonic() > chores:
                chores = time.monotonic() + 0.5
                db.execute("CALL weir.chores()")  # not needed if Go workers run too
        except psycopg.Error as e:
            if not worker or (e.sqlstate or "")[:2] in ("WR", "22", "42"):  # fenced, or a permanent error
                sys.exit(f"worker {worker} ends: {e}")
            print(f"worker {worker}: {e.diag.message_primary or e}", file=sys.stderr, flush=True)
            db, lost = db and db.close(), True
            time.sleep(pause)
            pause = min(pause * 2, 2)


if __name__ == "__main__":
    main(*sys.argv[1:])
