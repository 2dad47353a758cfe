"""Jobs are enqueued in the transaction of a connection of every library, and with it rolled back."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm

import weir
import weir.calls
import weir.operations
import weir.testing
from weir.line import plain

TZ = timezone(timedelta(hours=5, minutes=45))


def libpq_url(url: str, driver: str) -> str:
    return plain(url).replace("postgres://", "postgresql://").replace("postgresql://", f"postgresql+{driver}://").replace("?sslmode=disable", "")


@contextmanager
def with_psycopg(url: str) -> Any:
    with psycopg.connect(url, prepare_threshold=None, row_factory=psycopg.rows.dict_row) as conn:  # the application's own factory does not matter
        yield conn, conn


@contextmanager
def with_sqlalchemy(url: str) -> Any:
    engine = sqlalchemy.create_engine(libpq_url(url, "psycopg"), connect_args={"prepare_threshold": None})
    with engine.connect() as conn:
        yield conn, conn
    engine.dispose()


@contextmanager
def with_session(url: str) -> Any:
    engine = sqlalchemy.create_engine(libpq_url(url, "psycopg"), connect_args={"prepare_threshold": None})
    with sqlalchemy.orm.Session(engine) as session:
        yield session, session
    engine.dispose()


@asynccontextmanager
async def with_async_psycopg(url: str) -> Any:
    async with await psycopg.AsyncConnection.connect(url, prepare_threshold=None) as conn:
        yield conn, conn


class AsyncpgTransaction:
    def __init__(self, conn: Any) -> None:
        self.transaction = conn.transaction()

    async def commit(self) -> None:
        await self.transaction.commit()

    async def rollback(self) -> None:
        await self.transaction.rollback()


@asynccontextmanager
async def with_asyncpg(url: str) -> Any:
    conn = await asyncpg.connect(url, statement_cache_size=0)
    transaction = AsyncpgTransaction(conn)
    await transaction.transaction.start()
    yield conn, transaction
    await conn.close()


def async_engine(url: str, driver: str) -> Any:
    args = {"prepare_threshold": None} if driver == "psycopg" else {"statement_cache_size": 0, "prepared_statement_cache_size": 0}
    return sqlalchemy.ext.asyncio.create_async_engine(libpq_url(url, driver), connect_args=args)


@asynccontextmanager
async def with_async_sqlalchemy(url: str) -> Any:
    engine = async_engine(url, "psycopg")
    async with engine.connect() as conn:
        yield conn, conn
    await engine.dispose()


@asynccontextmanager
async def with_async_session(url: str) -> Any:
    engine = async_engine(url, "asyncpg")
    async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session:
        yield session, session
    await engine.dispose()


SYNC = [with_psycopg, with_sqlalchemy, with_session]
ASYNC = [with_async_psycopg, with_asyncpg, with_async_sqlalchemy, with_async_session]


def tasks(app: weir.Weir, queue: str) -> Any:
    @app.task(queue=queue)
    async def remind(account: int, text: str = "") -> None: ...

    return remind


def options(queue: str) -> dict[str, Any]:
    at = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=TZ)
    return {"queue": queue, "priority": 3, "run_at": at, "key": "acme", "max_attempts": 7, "meta": {"trace": "é✓"}}


def check(found: list[weir.JobInfo], ids: list[int], queue: str) -> None:
    by_id = {j.id: j for j in found}
    full, plain_, later, first, many = (by_id[i] for i in ids)
    assert (full.kind, full.queue, full.args) == ("remind", queue, {"account": 7, "text": 'a "b" \\ % : ✓ 😀'})
    assert (full.priority, full.key, full.max_attempts, full.meta) == (3, "acme", 7, {"trace": "é✓"})
    assert full.run_at == datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=TZ)
    assert (plain_.args, plain_.priority, plain_.run_at, plain_.max_attempts) == ({"account": 8}, 2, None, 25)
    assert later.run_at is not None
    assert timedelta(minutes=59) < later.run_at - datetime.now(timezone.utc) < timedelta(minutes=61)
    assert first.args == {"account": 10}
    assert many.args == {"account": 11}


@pytest.mark.parametrize("connect", SYNC)
def test_a_job_is_enqueued_with_the_transaction(connect: Any, app: weir.Weir, queue: str, url: str, look: Any) -> None:
    remind = tasks(app, queue)
    with connect(url) as (conn, tx):
        full = remind.using(**options(queue)).enqueue(conn, account=7, text='a "b" \\ % : ✓ 😀')
        plain_ = remind.enqueue(conn, 8)
        later = remind.using(delay=timedelta(hours=1)).enqueue(conn, 9)
        first = remind.using(unique=weir.Unique(fields=["account"])).enqueue(conn, 10)
        again = remind.using(unique=weir.Unique(fields=["account"])).enqueue(conn, 10)
        assert (first.duplicate, again.duplicate, again.id) == (False, True, first.id)
        many = app.enqueue_many(conn, [remind.new(11), remind.using(unique=weir.Unique(fields=["account"])).new(10), remind.using(delay=60).new(12)])
        assert [m.duplicate for m in many] == [False, True, False]
        check(weir.testing.enqueued(conn), [full.id, plain_.id, later.id, first.id, many[0].id], queue)
        app.publish_tx(conn, "orders.new", "42")
        tx.commit()
        lost = remind.enqueue(conn, 12)
        tx.rollback()
    assert look(full.id).state == "scheduled"
    assert look(plain_.id).state == "available"
    assert look(lost.id) is None


@pytest.mark.parametrize("connect", ASYNC)
async def test_a_job_is_enqueued_with_the_transaction_that_is_awaited(connect: Any, app: weir.Weir, queue: str, url: str) -> None:
    remind = tasks(app, queue)
    async with connect(url) as (conn, tx):
        full = await remind.using(**options(queue)).enqueue(conn, account=7, text='a "b" \\ % : ✓ 😀')
        plain_ = await remind.enqueue(conn, 8)
        later = await remind.using(delay=timedelta(hours=1)).enqueue(conn, 9)
        first = await remind.using(unique=weir.Unique(fields=["account"])).enqueue(conn, 10)
        again = await remind.using(unique=weir.Unique(fields=["account"])).enqueue(conn, 10)
        assert (first.duplicate, again.duplicate, again.id) == (False, True, first.id)
        many = await app.enqueue_many(conn, [remind.new(11), remind.using(unique=weir.Unique(fields=["account"])).new(10)])
        assert [m.duplicate for m in many] == [False, True]
        check(await weir.testing.enqueued(conn), [full.id, plain_.id, later.id, first.id, many[0].id], queue)
        await app.publish_tx(conn, "orders.new", b"\x00\xff")
        await tx.commit()
    async with connect(url) as (conn, tx):
        lost = await remind.enqueue(conn, 12)
        await tx.rollback()
    async with app:
        assert (await app.job(full.id)).state == "scheduled"  # type: ignore[union-attr]
        assert (await app.job(plain_.id)).state == "available"  # type: ignore[union-attr]
        assert await app.job(lost.id) is None


async def test_an_app_enqueues_in_a_transaction_of_its_own(app: weir.Weir, queue: str, look: Any) -> None:
    remind = tasks(app, queue)
    async with app:
        one = await remind.enqueue(app, 1)
        assert look(one.id).state == "available"
    two = remind.enqueue(app.sync, 2)
    assert look(two.id).state == "available"
    assert app.sync.cancel(two.id) == "cancelled"
    assert app.sync.cancel(10**15) is None


def test_what_the_database_cannot_store_is_refused_before_it_is_sent(app: weir.Weir, queue: str, db: Any) -> None:
    remind = tasks(app, queue)
    with pytest.raises(weir.Invalid, match=r"text .*'\\x00' at 1"):
        remind.enqueue(db, 1, text="a\x00b")
    with pytest.raises(weir.Invalid, match="ud800"):
        remind.enqueue(db, 1, text="\ud800")
    with pytest.raises(weir.Invalid, match="key"):
        remind.using(key="a\x00").enqueue(db, 1)
    with pytest.raises(weir.Invalid, match="time zone"):
        remind.using(run_at=datetime(2030, 1, 1))
    with pytest.raises(weir.Invalid, match="not both"):
        remind.using(run_at=datetime(2030, 1, 1, tzinfo=timezone.utc), delay=1)
    with pytest.raises(weir.Invalid, match="JSON"):
        app.new("k", {"x": float("nan")})
    with pytest.raises(weir.Invalid, match="10,000"):
        app.enqueue_many(db, [remind.new(1)] * 10_001)
    with pytest.raises(weir.Invalid, match="connection"):
        remind.enqueue(object(), 1)  # type: ignore[call-overload]
    escaped = remind.enqueue(db, 1, text="\\u0000 is a text")
    assert db.execute("SELECT args ->> 'text' FROM weir.job_info(%s)", [escaped.id]).fetchone() == ("\\u0000 is a text",)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="blank"):
        remind.using(queue=" " + queue).enqueue(db, 1)


def test_a_time_replaces_the_delay_of_a_task(app: weir.Weir, queue: str) -> None:
    remind = tasks(app, queue).using(delay=5)
    at = datetime(2030, 1, 1, tzinfo=timezone.utc)
    assert remind.using(run_at=at).options.after is None
    assert remind.using(run_at=at).using(delay=7).options.at is None
    assert remind.using(priority=1).options.after == 5


def test_numbers_out_of_range_are_refused_with_the_range(app: weir.Weir, queue: str) -> None:
    @app.task(queue=queue)
    async def noop() -> None: ...

    for makes in (
        lambda: noop.using(priority=9),
        lambda: app.new("noop", queue=queue, priority=9),
        lambda: app.task(priority=9)(len),
    ):
        with pytest.raises(weir.Invalid, match="priority is 9: pass 1 to 4"):
            makes()
    with pytest.raises(weir.Invalid, match="retry is 0: a job has 1 to 1000"):
        app.task(retry=0)(len)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"queue": ""}, "queue is '': pass a text of 1 to 128 characters"),
        ({"queue": "q" * 129}, "queue has 129 characters, at most 128"),
        ({"queue": 7}, "queue is 7: pass a text"),
        ({"priority": "1"}, "priority is '1': pass 1 to 4"),
        ({"priority": True}, "priority is True: pass 1 to 4"),
        ({"max_attempts": "5"}, "max_attempts is '5': a job has 1 to 1000 attempts"),
        ({"delay": -1}, "delay is -1: pass a number of seconds, from 0 to ten years, or a timedelta"),
        ({"delay": "soon"}, "delay is 'soon': pass a number"),
        ({"run_at": "tomorrow"}, "run_at is 'tomorrow': pass a datetime"),
        ({"key": 7}, "key is 7: pass a text of 1 to 200"),
        ({"meta": [1]}, r"meta is \[1\]: pass a dict"),
        ({"unique": "x"}, "unique is 'x': pass True, or a weir.Unique"),
        ({"flow": "f"}, "flow is 'f': pass the number"),
        ({"once": ""}, "once is '': pass a text"),
    ],
)
def test_an_option_that_cannot_be_is_refused_where_it_is_given(app: weir.Weir, queue: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(weir.Invalid, match=said):
        tasks(app, queue).using(**given)
    with pytest.raises(weir.Invalid, match=said):
        app.new("k", **given)


@pytest.mark.parametrize(
    ("makes", "said"),
    [
        (lambda: weir.Retry(give_up=("KeyError",)), r"Retry.give_up is \('KeyError',\): pass a tuple of classes of errors, such as \(KeyError,\)"),  # type: ignore[arg-type]
        (lambda: weir.Retry(give_up=[KeyError]), "Retry.give_up is "),  # type: ignore[arg-type]
        (lambda: weir.Retry(attempts="3"), "Retry.attempts is '3'"),  # type: ignore[arg-type]
        (lambda: weir.Retry(delay=-4), "Retry.delay is -4: pass a number of seconds"),
        (lambda: weir.Retry(delay="x"), "Retry.delay is 'x'"),  # type: ignore[arg-type]
        (lambda: weir.Retry(factor=0), "Retry.factor is 0: pass a number above 0"),
        (lambda: weir.Retry(limit="1h"), "Retry.limit is '1h'"),  # type: ignore[arg-type]
        (lambda: weir.Unique(fields="account"), "Unique.fields is 'account': pass a list"),
        (lambda: weir.Unique(key="k", fields=["a"]), "leave one out"),
        (lambda: weir.Unique(until="begun"), "Unique.until is 'begun': pass 'finished' or 'started'"),  # type: ignore[arg-type]
        (lambda: weir.Unique(until="started", within=5), "leave one out"),
        (lambda: weir.Unique(within=0), "Unique.within is 0: pass more than 0 seconds"),
        (lambda: weir.Unique(within=5, replace=True), "replace"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_where_it_is_made(makes: Any, said: str) -> None:
    with pytest.raises(weir.Invalid, match=said):
        makes()


def test_a_task_is_declared_with_what_can_be(app: weir.Weir) -> None:
    assert weir.Retry(give_up=(KeyError, (OSError, ValueError)), delay=timedelta(seconds=1), limit=5).after(1, KeyError()) is not None
    for given, said in (
        ({"timeout": "60"}, "timeout of task f is '60': pass a number of seconds"),
        ({"timeout": -1}, "timeout of task f is -1"),
        ({"retry": "3"}, "retry is '3': pass a number of attempts, or a weir.Retry"),
        ({"unique": "x"}, "unique is 'x'"),
        ({"queue": ""}, "queue is ''"),
        ({"kind": ""}, "kind is ''"),
        ({"kind": "k" * 129}, "kind has 129 characters, at most 128"),
    ):

        def f() -> None: ...

        with pytest.raises(weir.Invalid, match=said):
            app.task(**given)(f)  # type: ignore[call-overload]


def test_an_argument_that_cannot_be_written_is_named(app: weir.Weir) -> None:
    class Point: ...

    def draw(n: int = 1, at: Any = None) -> None: ...

    task = app.task(draw)
    for value, said in (
        (Point(), "at of task draw: .*Point"),
        (float("nan"), "at of task draw can't be written as JSON"),
        ("a\x00", "at of task draw has"),
    ):
        with pytest.raises(weir.Invalid, match=said):
            task.new(1, value)
    draw.__annotations__["at"] = Point
    with pytest.raises(weir.Invalid, match=r"at of task other: .*Point"):
        app.task(kind="other")(draw).new(1, Point())
    with pytest.raises(weir.Invalid, match="args of resize can't be written as JSON"):
        app.new("resize", {"at": Point()})


def test_a_text_that_names_no_database_of_django_is_refused() -> None:
    program = """import weir
app = weir.Weir("postgresql://localhost/x")
@app.task
def f(): ...
for place in ("default", "postgresql://ada:secret@localhost/x"):
    try:
        f.enqueue(place)
    except weir.Invalid as e:
        print(e)
"""
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.count("Django is not configured") == 2, done.stderr
    assert "secret" not in done.stdout


def test_a_wrong_password_is_said_at_once(url: str) -> None:
    wrong = weir.Weir(psycopg.conninfo.make_conninfo(url, user="nobody_here", password="wrong"))
    began = time.monotonic()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        wrong.sync.job(1)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        asyncio.run(wrong.job(1))
    assert time.monotonic() - began < 25  # the pool's own timeout is 30 s


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have notes from Python 3.11 on")
def test_an_error_says_what_to_do(url: str, db: Any) -> None:
    role = "poor_" + uuid.uuid4().hex[:8]
    db.execute(f"CREATE ROLE {role}")
    for grant, call, needed in (
        ("", weir.operations.cancel(1), "weir_work to work"),
        ("weir_enqueue", weir.operations.cancel(1), "the role weir_work"),
        ("weir_enqueue", weir.operations.retry(1), "the role weir_operate"),
        ("weir_enqueue", weir.operations.publish("a", "b"), "the role weir_publish"),
    ):
        if grant:
            db.execute(f"GRANT {grant} TO {role}")
        with psycopg.connect(url) as conn:
            conn.execute(f"SET LOCAL ROLE {role}")
            with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
                weir.calls.execute(conn, call)
            conn.rollback()
        assert needed in refused.value.__notes__[0]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have notes from Python 3.11 on")
def test_a_missing_schema_is_said(url: str) -> None:
    try:
        conn = psycopg.connect(url, dbname="postgres")
    except psycopg.OperationalError as e:
        if "no such database" in str(e):
            pytest.skip("the pooler serves one database")
        raise
    with conn, pytest.raises(psycopg.errors.InvalidSchemaName) as missing:
        weir.calls.execute(conn, weir.operations.retry(1))
    assert "run weir migrate up" in missing.value.__notes__[0]
