"""What a worker over a hub takes for a sign that its jobs are still its own. The hub is one of the test's own."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from conftest import until
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

import weir
import weir.clock

LEASE = 3000.0  # so the worker sends no ping during a test


class Hub:
    """Sessions, and what else occurs, in their order."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.session: ServerConnection
        self.address = ""
        self.refused: set[str] = set()  # tokens that it does not know

    async def serve(self, session: ServerConnection) -> None:
        hello = json.loads(await session.recv())
        await session.send(json.dumps({"type": "opened", "worker": "W", "lease": LEASE}))
        self.session = session
        self.heard.put_nowait(("opened", hello["held"]))
        try:
            async for text in session:
                frame = json.loads(text)
                if frame["type"] == "record":
                    results = [{"token": end["token"], "recorded": True} for end in frame["ends"]]
                    for result in results:
                        if result["token"] in self.refused:
                            result.update(recorded=False, refusal="invalid", detail="unknown")
                            self.heard.put_nowait(("refused", result["token"]))
                    await session.send(json.dumps({"type": "recorded", "id": frame["id"], "results": results}))
                elif frame["type"] == "progress":
                    self.heard.put_nowait(("reported", frame["entries"]))
                    await session.send(json.dumps({"type": "reported", "id": frame["id"], "results": []}))
                elif frame["type"] == "stop":
                    await session.send(json.dumps({"type": "stopped", "id": frame["id"]}))
        except ConnectionClosed:
            pass

    async def give(self, *numbers: int) -> None:
        job = {"queue": "mail", "priority": 2, "kind": "run", "args": {}, "attempt": 1, "max_attempts": 1, "enqueued_at": "2026-11-26T03:00:00Z"}
        await self.session.send(json.dumps({"type": "jobs", "jobs": [{**job, "token": f"T{n}", "id": n} for n in numbers]}))

    async def unreachable(self) -> None:
        raise OSError("unreachable")

    async def next(self) -> tuple[str, Any]:
        return await asyncio.wait_for(self.heard.get(), 60)


@pytest.fixture
async def lone_hub() -> AsyncIterator[Hub]:
    hub = Hub()
    async with serve(hub.serve, "127.0.0.1", 0, subprotocols=[Subprotocol("weir.work.v1")]) as server:
        hub.address = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        yield hub


class Time:
    """The time, of which more passes than this process runs."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.skipped


@pytest.fixture
def skips(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    monkeypatch.setattr(weir.clock, "now", found)
    return found


async def test_a_job_that_waited_in_the_connection_until_its_lease_was_over_is_not_begun(lone_hub: Hub, skips: Time) -> None:
    app = weir.Weir(hub=lone_hub.address)

    @app.task(queue="mail")
    async def run(job: weir.Job) -> None:
        lone_hub.heard.put_nowait(("begun", job.id))

    async with app.working({"mail": 1}) as worker:
        assert await lone_hub.next() == ("opened", [])
        skips.skipped += LEASE * 2 / 3
        await lone_hub.give(1)
        assert await lone_hub.next() == ("begun", 1)
        await until(lambda: not worker._source._runner.held)
        skips.skipped += LEASE / 3  # what the hub has sent meanwhile says nothing about whether it hears this worker
        await lone_hub.give(2)
        assert await lone_hub.next() == ("opened", [])  # in another session, which does not name it
        await lone_hub.give(2)
        assert await lone_hub.next() == ("begun", 2)


async def test_a_job_that_runs_when_its_lease_is_over_is_interrupted_whatever_can_still_be_heard(lone_hub: Hub, skips: Time) -> None:
    app = weir.Weir(hub=lone_hub.address)

    @app.task(queue="mail")
    async def run(job: weir.Job) -> None:
        lone_hub.heard.put_nowait(("begun", job.id))
        try:
            await asyncio.Event().wait()
        finally:
            lone_hub.heard.put_nowait(("interrupted", job.interrupted.reason))

    async with app.working({"mail": 1}, stop_timeout=0):
        assert await lone_hub.next() == ("opened", [])
        await lone_hub.give(1)
        assert await lone_hub.next() == ("begun", 1)
        skips.skipped += LEASE
        assert await lone_hub.next() == ("interrupted", "lost")
        assert await lone_hub.next() == ("opened", [])  # or the hub would renew it for as long as the session is open


async def test_a_job_that_waits_for_a_slot_is_not_begun_once_its_lease_is_over(lone_hub: Hub, skips: Time) -> None:
    app = weir.Weir(hub=lone_hub.address)
    ends = asyncio.Event()

    @app.task(queue="mail")
    async def run(job: weir.Job) -> None:
        lone_hub.heard.put_nowait(("begun", job.id))
        await ends.wait()
        skips.skipped += LEASE

    async with app.working({"mail": 1}) as worker:
        assert await lone_hub.next() == ("opened", [])
        await lone_hub.give(1)
        assert await lone_hub.next() == ("begun", 1)
        await lone_hub.give(2)
        await until(lambda: "T2" in worker._source._runner.held)
        ends.set()
        assert (await lone_hub.next())[0] == "opened"


async def test_the_end_of_a_lease_is_said_once(lone_hub: Hub, skips: Time, caplog: pytest.LogCaptureFixture) -> None:
    app = weir.Weir(hub=lone_hub.address)
    loop = asyncio.get_running_loop()
    ends = threading.Event()

    @app.task(queue="mail")
    def run(job: weir.Job) -> None:
        loop.call_soon_threadsafe(lone_hub.heard.put_nowait, ("begun", job.id))
        ends.wait()  # and does not heed that it is interrupted

    async with app.working({"mail": 1000}, stop_timeout=0) as worker:
        assert await lone_hub.next() == ("opened", [])
        for number in 1, 2:  # each in a lease of its own
            await lone_hub.give(number)
            assert await lone_hub.next() == ("begun", number)
            lapses = 0
            lapse = worker._source.lapse

            def lapsed(lapse: Callable[[], None] = lapse) -> None:
                nonlocal lapses
                lapses += 1
                if lapses == 3:
                    lone_hub.heard.put_nowait(("swept", None))  # a sweep after another has found what still runs
                lapse()

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(worker._source, "lapse", lapsed)
                patch.setattr(worker._source, "_open", lone_hub.unreachable)
                skips.skipped += LEASE
                await lone_hub.give(*range(100 * number, 100 * number + 90))
                assert await lone_hub.next() == ("swept", None)
            assert [r.levelname for r in caplog.records if "others may get the jobs" in r.getMessage()] == ["ERROR"] * number
            assert await lone_hub.next() == ("opened", [])
            assert not worker._source._runner.held
        ends.set()


async def test_what_was_interrupted_does_not_end_the_reports_of_the_same_attempt_that_was_given_once_more(lone_hub: Hub, skips: Time) -> None:
    app = weir.Weir(hub=lone_hub.address)
    loop = asyncio.get_running_loop()
    runs = 0
    goes_on, ends = threading.Event(), threading.Event()

    @app.task(queue="mail")
    def run(job: weir.Job) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            loop.call_soon_threadsafe(lone_hub.heard.put_nowait, ("begun", job.id))
            goes_on.wait()  # and does not heed that it is interrupted
            job.progress(1)
        else:
            job.progress(50)
            goes_on.set()
            loop.call_soon_threadsafe(lone_hub.heard.put_nowait, ("begun", job.id))
            ends.wait()

    async with app.working({"mail": 2}):
        assert await lone_hub.next() == ("opened", [])
        await lone_hub.give(1)
        assert await lone_hub.next() == ("begun", 1)
        skips.skipped += LEASE
        assert await lone_hub.next() == ("opened", [])
        await lone_hub.give(1)
        assert await lone_hub.next() == ("begun", 1)
        assert await lone_hub.next() == ("reported", [{"token": "T1", "percent": 50}])
        ends.set()


async def test_an_attempt_that_the_hub_does_not_know_is_given_up(lone_hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    # Its database was replaced by another, such as that of a development server that was started anew.
    app = weir.Weir(hub=lone_hub.address)

    @app.task(queue="mail")
    async def run(job: weir.Job) -> None:
        lone_hub.heard.put_nowait(("begun", job.id))

    async with app.working({"mail": 2}) as worker:
        assert await lone_hub.next() == ("opened", [])
        lone_hub.refused.add("T1")
        await lone_hub.give(1)
        assert await lone_hub.next() == ("begun", 1)
        for _ in range(2):  # how the function has ended, and that this can't be recorded
            assert await lone_hub.next() == ("refused", "T1")
        await lone_hub.give(2)
        assert await lone_hub.next() == ("begun", 2)
        await until(lambda: not worker._source._runner.held)
    assert [r.levelname for r in caplog.records if "no end of the attempt can be recorded: unknown" in r.getMessage()] == ["ERROR"]


async def test_a_hub_that_cannot_work_jobs_for_a_while_keeps_the_session(lone_hub: Hub) -> None:
    app = weir.Weir(hub=lone_hub.address)

    @app.task(queue="mail")
    async def run(job: weir.Job) -> None:
        lone_hub.heard.put_nowait(("begun", job.id))

    async with app.working({"mail": 1}):
        assert await lone_hub.next() == ("opened", [])
        await lone_hub.session.send(json.dumps({"type": "error", "code": "unavailable", "error": "the hub may not work jobs"}))
        await lone_hub.give(1)
        assert await lone_hub.next() == ("begun", 1)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere another clock does")
def test_the_time_goes_on_while_the_machine_is_suspended() -> None:
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert before <= weir.clock.now() * 1e9 + 1e6
    assert weir.clock._CLOCK == time.CLOCK_BOOTTIME
