"""Works jobs over a session with a hub: docs/work-http.md, "WebSocket"."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import clock
from .attempt import Attempt
from .errors import HubError
from .job import Job, Reason
from .operations import moment
from .runner import Runner
from .text import compact
from .timeout import within
from .web_socket import is_final, open_socket, read

if TYPE_CHECKING:
    from .app import Token

log = logging.getLogger("weir")

ENDS, ENDS_BYTES = 1000, 4 << 20  # in one frame
REPORT = 1.0  # seconds between two frames of progress
PATIENCE = 30.0  # seconds that an answer may take
SAFE = 0.85  # of the lease, from when the last ping was sent that was answered: the hub counts from later
REPORT_BYTES = 4 << 20  # in one frame, of which the hub takes 8 MiB


class HubSource:
    """One session at a time. While it is open, the hub renews the leases of everything that it has given to it."""

    def __init__(self, hub: str, token: Token | None, name: str, kinds: list[str] | None, started: asyncio.Event) -> None:
        self._url = hub.replace("http", "ws", 1) + "/v1/work/ws"
        self._token = token
        self._name = name
        self._kinds = kinds
        self._started = started
        self._socket: Any = None
        self._worker: str | None = None
        self._calls = 0  # the hub takes the highest number for the latest call
        self._lease = 30.0
        self._seen = clock.now()  # when the session was last known to be open
        self._number = 0
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._is_quiet = False
        self._reporting = asyncio.Lock()
        self._unsent: list[dict[str, Any]] = []

    async def run(self, runner: Runner) -> None:
        self._runner = runner
        loops = [asyncio.create_task(f(), name=f"weir {f.__name__}") for f in (self._record_all, self._report_all, self._ping_all)]
        reader: asyncio.Task[None] | None = None
        pause = 0.1
        try:
            while not runner.is_done():
                if reader is None or reader.done():
                    if reader is not None:
                        await self._lost_session(reader)
                        reader = None
                    try:
                        await self._open()
                        reader = asyncio.create_task(self._read_all(), name="weir read")
                        pause = 0.1
                    except HubError as e:
                        if is_final(e, self._token):
                            raise
                        log.warning("%s", e)
                    except (OSError, EOFError, asyncio.TimeoutError) as e:
                        log.warning("%s: %s", self._url, e or type(e).__name__)
                    if reader is None:
                        await self._sleep(pause * random.uniform(0.5, 1))
                        pause = min(pause * 2, 5)
                        continue
                if runner.stopping or self._is_quiet:
                    await self._no_more_jobs()
                if self._is_quiet and not runner.held and not runner.stopping and self._socket is not None:
                    await self._socket.close()  # the next session is at another hub
                for task in loops:
                    if task.done():
                        task.result()
                await self._sleep(0.25, reader)
            await self._stop()
        finally:
            for task in [*loops, *([reader] if reader else [])]:
                task.cancel()
            await asyncio.gather(*loops, *([reader] if reader else []), return_exceptions=True)
            if self._socket is not None:
                await self._socket.close()

    async def _sleep(self, seconds: float, reader: asyncio.Task[None] | None = None) -> None:
        """Waits, but not after a slot became free, the worker was told to stop, or the session has ended."""
        self._runner.roomy.clear()
        roomy = asyncio.ensure_future(self._runner.roomy.wait())
        await asyncio.wait({roomy, reader} if reader is not None else {roomy}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        roomy.cancel()

    def lapsed(self) -> bool:
        return bool(self._worker) and clock.now() > self._seen + self._lease * SAFE

    def lapse(self) -> None:
        # The hub renews what a session has got for as long as it is open, and gives again what the next one does not name.
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.transport.abort()

    async def _ping_all(self) -> None:
        """Notices a silent connection well within the lease, and renews that: what else is heard may have been sent long ago."""
        while True:
            await asyncio.sleep(self._lease / 10)
            socket = self._socket
            if socket is None:
                continue
            sent = clock.now()
            try:
                await within(self._lease / 5, _answered(socket))
                if socket is self._socket:
                    self._seen = max(self._seen, sent)
            except asyncio.TimeoutError:
                log.warning("the hub does not answer pings: the session is opened again")
                socket.transport.abort()
            except Exception as e:
                if not _is_closed(e):
                    raise

    async def load_checkpoint(self, attempt: Attempt) -> Any:
        return attempt.checkpoint

    # The session.

    async def _open(self) -> None:
        runner = self._runner
        began = clock.now()
        socket = await open_socket(self._url, self._token, "weir.work.v1", pings=False)
        try:
            self._calls += 1
            hello: dict[str, Any] = {
                "type": "open",
                "call": self._calls,
                "name": self._name,
                "queues": {q: 0 if runner.stopping else lane.slots for q, lane in runner.lanes.items()},
                "held": list(runner.held),
            }
            if self._kinds is not None:
                hello["kinds"] = self._kinds
            if self._worker is not None:
                hello["worker"] = self._worker
            await socket.send(json.dumps(hello))
            frame = read(await within(PATIENCE, socket.recv()))
            if frame.get("type") == "error":
                raise HubError(0, frame.get("code", ""), frame.get("error", ""), frame.get("hint"))
            if frame.get("type") != "opened":
                raise EOFError(f"the hub answered {frame.get('type')!r} to open")
        except BaseException as e:
            await socket.close()
            if _is_closed(e):
                raise EOFError(str(e)) from e
            raise
        # The hub would renew what was given up meanwhile, for as long as the session is open.
        # If nothing is left to do, it is told to stop next, and releases that.
        if not runner.is_done() and not runner.held.keys() >= set(hello["held"]):
            await socket.close()
            raise EOFError("the lease was over before the session was open")
        if self._worker not in (None, frame["worker"]):
            log.warning("the hub knows worker %s no more: it is %s now", self._worker, frame["worker"])
        self._socket, self._worker, self._lease, self._is_quiet = socket, frame["worker"], float(frame["lease"]), False
        self._seen = began
        self._started.set()
        runner.ended.set()  # what was not recorded before
        log.info("worker %s (%s) works %s over %s", self._worker, self._name, ", ".join(runner.lanes), self._url)

    async def _lost_session(self, reader: asyncio.Task[None]) -> None:
        socket, self._socket = self._socket, None
        error = reader.exception() if not reader.cancelled() else None
        if isinstance(error, HubError) and is_final(error, self._token):
            raise error
        if error is not None and not _is_closed(error) and not isinstance(error, (HubError, OSError, EOFError, asyncio.TimeoutError)):
            raise error
        if not self._is_quiet:
            log.warning("the session with the hub has ended, and is opened again: %s", error)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(EOFError("the session has ended"))
        self._asked.clear()
        if isinstance(error, (HubError, EOFError)):  # the connection has not ended; what is wrong may come again and again
            if socket is not None:
                await socket.close()
            await self._sleep(random.uniform(0.5, 1))

    async def _read_all(self) -> None:
        socket = self._socket
        while True:
            frame = read(await socket.recv())
            if socket is not self._socket:
                raise EOFError("the lease was over")
            heard: Callable[[dict[str, Any]], None] | None = {
                "jobs": self._jobs,
                "cancel": self._cancel,
                "quiet": self._quiet,
                "error": self._error,
                "warning": self._warning,
            }.get(frame.get("type", ""))
            if heard is not None:
                heard(frame)
            elif (answer := self._asked.pop(frame.get("id", 0), None)) is not None and not answer.done():
                answer.set_result(frame)

    def _jobs(self, frame: dict[str, Any]) -> None:
        runner = self._runner
        for j in frame["jobs"]:
            if j["token"] in runner.held:  # it was in a frame that this session repeats
                continue
            if self._socket is None:  # the lease was over: the session was left, with all that it has brought
                return
            job = Job(
                id=int(j["id"]),
                queue=j["queue"],
                priority=j["priority"],
                kind=j["kind"],
                args=j["args"],
                meta=j.get("meta"),
                key=j.get("key"),
                flow=j.get("flow"),
                attempt=j["attempt"],
                max_attempts=j["max_attempts"],
                enqueued_at=moment(j.get("enqueued_at")),
            )
            attempt = Attempt(runner, None, j["token"], job, None, None)
            attempt.checkpoint = j.get("checkpoint")
            runner.accept(attempt)

    def _cancel(self, frame: dict[str, Any]) -> None:
        for each in frame["attempts"]:
            reason: Reason = "lost" if each.get("reason") == "lost" else "cancelled"
            self._runner.cancelled(each["token"], reason)

    def _quiet(self, _: dict[str, Any]) -> None:
        self._is_quiet = True
        self._runner.roomy.set()

    def _warning(self, frame: dict[str, Any]) -> None:
        for text in frame.get("warnings") or ():
            log.warning("%s", text)

    def _error(self, frame: dict[str, Any]) -> None:
        error = HubError(0, frame.get("code", ""), frame.get("error", ""), frame.get("hint"))
        answer = self._asked.pop(frame.get("id", 0), None)
        if answer is None:
            if "id" in frame or error.code != "unavailable":
                raise error
            log.warning("%s", error)  # the session stays, and gets jobs again once the hub can work them
            return
        if not answer.done():
            answer.set_exception(error)

    async def _ask(self, type_: str, **fields: Any) -> dict[str, Any]:
        socket = self._socket
        if socket is None:
            raise EOFError("there is no session")
        self._number += 1
        number = self._number
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            await socket.send(compact({"type": type_, "id": number, **fields}))
            return await within(PATIENCE, answer)
        except BaseException as e:
            if isinstance(e, asyncio.TimeoutError) or _is_closed(e):
                await socket.close()  # what was asked is asked again in the next session
                raise EOFError(str(e) or "no answer") from e
            raise
        finally:
            self._asked.pop(number, None)

    _slots_are_0 = None

    async def _no_more_jobs(self) -> None:
        if self._slots_are_0 is not self._socket:
            self._slots_are_0 = self._socket
            with contextlib.suppress(Exception):
                await self._socket.send(json.dumps({"type": "slots", "queues": dict.fromkeys(self._runner.lanes, 0)}))

    async def _stop(self) -> None:
        if self._socket is not None and self._worker is not None:
            try:
                await within(10, self._ask("stop"))
            except (EOFError, HubError, asyncio.TimeoutError) as e:
                log.warning("the hub did not confirm that the worker stops: %s", e)

    # Ends and reports.

    async def _record_all(self) -> None:
        runner, pause = self._runner, 0.05
        while True:
            await runner.ended.wait()
            await asyncio.sleep(0)
            runner.ended.clear()
            try:
                while runner.ends:
                    await self._record_some()
                pause = 0.05
            except (EOFError, HubError) as e:
                log.warning("ends are recorded again: %s", e)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2)
                if self._socket is not None:
                    runner.ended.set()

    async def _record_some(self) -> None:
        runner = self._runner
        batch = runner.next_ends(ENDS, ENDS_BYTES)
        try:
            if any(a.token in runner.reporting for a in batch) or self._unsent:
                await self._store()
            if not batch:
                return
            answer = await self._ask("record", ends=[a.ended for a in batch])
        except BaseException:
            runner.ends.extendleft(reversed(batch))
            raise
        for attempt, result in zip(batch, answer["results"], strict=True):
            if result.get("recorded"):
                runner.recorded(attempt)
            else:
                runner.recorded(attempt, result.get("refusal"), result.get("detail"))

    async def _report_all(self) -> None:
        while True:
            await asyncio.sleep(REPORT)
            if self._runner.reporting or self._unsent:
                with contextlib.suppress(EOFError, HubError):
                    await self._store()

    async def store_reports(self) -> None:
        while True:
            try:
                await self._store()
                return
            except EOFError:
                await asyncio.sleep(0.2)

    async def _store(self) -> None:
        async with self._reporting:
            while entries := (self._unsent or self._runner.next_reports(100)):
                self._unsent = entries
                n, size = 0, 0
                while n < len(entries) and (n == 0 or size < REPORT_BYTES):
                    size += len(compact(entries[n]).encode())
                    n += 1
                answer = await self._ask("progress", entries=entries[:n])
                self._unsent = entries[n:]
                for result in answer.get("results", []):
                    if result.get("refusal") == "invalid":
                        log.error("a report of the attempt %s can't be stored: %s", result.get("token"), result.get("detail"))


async def _answered(socket: Any) -> None:
    """Sends a ping, and waits for its answer."""
    await (await socket.ping())


def _is_closed(error: BaseException) -> bool:
    from websockets.exceptions import ConnectionClosed

    return isinstance(error, ConnectionClosed)
