"""What programs ask of Weir beside working: each as one statement, and over HTTP where a hub can do it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from . import text
from .calls import Call, Request, array, given, one
from .errors import Invalid
from .options import NAME, JobOptions


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The answer to an enqueue: the job's id, and whether it is an earlier job of which this one would be a duplicate."""

    id: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job that has not been enqueued yet. `args` is its JSON."""

    kind: str
    args: str
    options: JobOptions

    @property
    def queue(self) -> str:
        """The queue it will be in."""
        return self.options.queue or "default"

    def to_json(self, by_clock: bool) -> dict[str, Any]:
        """As weir.enqueue_many takes it. by_clock: a delay becomes a time by this machine's clock."""
        o = self.options
        run_at = o.at
        if by_clock and o.after is not None:
            run_at = (datetime.now(timezone.utc) + timedelta(seconds=o.after)).isoformat()
        found: dict[str, Any] = {
            "queue": text.named(self.queue, "queue", NAME),
            "kind": text.named(self.kind, "kind", NAME),
            "args": json.loads(self.args),
            "priority": o.priority,
            "run_at": run_at,
            "max_attempts": o.max_attempts,
            "meta": None if o.meta is None else dict(o.meta),
            "key": o.key,
            "flow": o.flow,
            "once": o.once,
            "unique": o.uniqueness.to_json() if o.uniqueness else None,
        }
        return {name: value for name, value in found.items() if value is not None}


def enqueue(job: NewJob) -> Call[Enqueued]:
    """Enqueues one job."""
    o, u = job.options, job.options.uniqueness
    named: dict[str, tuple[object, str]] = {
        "queue": (text.named(job.queue, "queue", NAME), "text"),
        "kind": (text.named(job.kind, "kind", NAME), "text"),
        "args": (job.args, "jsonb"),
        "priority": (o.priority, "integer"),
        "max_attempts": (o.max_attempts, "integer"),
        "meta": (None if o.meta is None else text.dumps(dict(o.meta), "meta"), "jsonb"),
        "key": (None if o.key is None else text.checked(o.key, "key"), "text"),
    }
    if u is None:
        named |= {"flow": (o.flow, "bigint"), "once": (None if o.once is None else text.checked(o.once, "once"), "text")}
        what = "weir.enqueue({})"
    else:
        rule = u.to_json()
        named |= {
            "unique_key": (None if u.key is None else text.checked(u.key, "unique.key"), "text"),
            "fields": (array(u.fields), "text[]"),
            "until": (u.until, "text"),
            "within": (rule.get("within"), "interval"),
            "replace": (u.replace, "boolean"),
            "wait": (u.wait, "boolean"),
        }
        what = "e.id, e.duplicate FROM weir.enqueue_unique({}) e"
    arguments, params = [], []
    for name, (value, as_type) in named.items():
        place, param = given(value, as_type)
        arguments.append(f"{name} => {place}")
        params.append(param)
    if o.after is None:
        place, param = given(o.at, "timestamptz")
    else:
        place, param = given(o.after, "double precision")
        place = f"now() + make_interval(secs => {place})"  # by the database's clock
    arguments.append(f"run_at => {place}")
    params.append(param)

    def convert(rows: list[Sequence[Any]]) -> Enqueued:
        return Enqueued(int(rows[0][0]), bool(rows[0][1]) if u is not None else False)

    request = Request("POST", "/v1/jobs", job.to_json(by_clock=True), _enqueued_one, is_keyed=True)
    return Call("SELECT " + what.format(", ".join(arguments)), tuple(params), convert, request)


def _enqueued_one(body: Any) -> Enqueued:
    return _enqueued_many(body)[0]


def _enqueued_many(body: Any) -> list[Enqueued]:
    return [Enqueued(int(j["id"]), bool(j.get("duplicate", False))) for j in body["jobs"]]


def enqueue_many(jobs: Sequence[NewJob]) -> Call[list[Enqueued]]:
    """Enqueues up to 10,000 jobs in one statement, all or none."""
    if len(jobs) > 10_000:
        raise Invalid(f"{len(jobs)} jobs in one call, at most 10,000 are allowed: call enqueue_many several times in one transaction")
    plain = [j for j in jobs if j.options.uniqueness is None]
    unique = [j for j in jobs if j.options.uniqueness is not None]
    columns, params = [], []
    # The delay is added by the database, whose clock counts.
    at = """CASE WHEN e.job -> 'after' IS NULL THEN e.job ELSE e.job - 'after'
    || jsonb_build_object('run_at', now() + make_interval(secs => CAST(e.job ->> 'after' AS double precision))) END"""
    if plain or not jobs:
        place, param = given(_entries(plain), "jsonb")
        columns.append(
            f"""to_json(weir.enqueue_many((SELECT coalesce(jsonb_agg({at} ORDER BY e.nr), '[]')
  FROM jsonb_array_elements({place}) WITH ORDINALITY e(job, nr))))"""
        )
        params.append(param)
    if unique:
        place, param = given(_entries(unique), "jsonb")
        columns.append(
            f"""(SELECT json_agg(json_build_array(u.id, u.duplicate) ORDER BY u.nr) FROM (
  SELECT e.nr, r.id, r.duplicate
  FROM (SELECT e.nr, {at} AS job FROM jsonb_array_elements({place}) WITH ORDINALITY e(job, nr) ORDER BY e.nr OFFSET 0) e
  CROSS JOIN LATERAL jsonb_to_record(e.job) j(queue text, kind text, args jsonb, priority integer, run_at timestamptz,
    max_attempts integer, meta jsonb, key text, "unique" jsonb)
  CROSS JOIN LATERAL jsonb_to_record(j."unique") q(key text, fields text[], until text, within interval, replace boolean, wait boolean)
  CROSS JOIN LATERAL weir.enqueue_unique(queue => j.queue, kind => j.kind, args => j.args, unique_key => q.key,
    fields => q.fields, until => q.until, within => q.within, replace => q.replace, wait => q.wait, priority => j.priority,
    run_at => j.run_at, max_attempts => j.max_attempts, meta => j.meta, key => j.key) r) u)"""
        )
        params.append(param)

    def convert(rows: list[Sequence[Any]]) -> list[Enqueued]:
        results: list[Any] = json.loads(rows[0][0])
        plains = iter([Enqueued(int(i)) for i in results.pop(0)] if plain else [])
        uniques = iter([Enqueued(int(i), bool(d)) for i, d in results.pop(0)] if unique else [])
        return [next(plains if j.options.uniqueness is None else uniques) for j in jobs]

    request = Request("POST", "/v1/jobs", [j.to_json(by_clock=True) for j in jobs], _enqueued_many, is_keyed=True)
    return Call(f"SELECT CAST(json_build_array({', '.join(columns)}) AS text)", tuple(params), convert, request)


def _entries(jobs: Sequence[NewJob]) -> str:
    entries = []
    for job in jobs:
        entry = job.to_json(by_clock=False)
        if job.options.after is not None:
            entry["after"] = job.options.after
        entries.append(entry)
    return text.dumps(entries, "jobs")


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job, as it is in the database. `error` is why the last attempt ended; `errors` has those of the last 25."""

    id: int
    state: str
    queue: str
    kind: str
    args: Any
    attempt: int
    max_attempts: int
    priority: int = 2
    meta: Any = None
    key: str | None = None
    flow: int | None = None
    enqueued_at: datetime | None = None
    run_at: datetime | None = None
    claimed_at: datetime | None = None
    finished_at: datetime | None = None
    worker: int | None = None
    cancel_requested: bool | None = None
    output: str | None = None
    error: str | None = None
    errors: Any = None
    percent: float | None = None
    message: str | None = None
    log: list[dict[str, Any]] | None = field(default=None)

    def result(self) -> Any:
        """The output, if it is JSON."""
        return None if self.output is None else text.loads(self.output)


_TIMES = ("enqueued_at", "run_at", "claimed_at", "finished_at")


def moment(value: str | None) -> datetime | None:
    """A time as PostgreSQL and hubs write it in JSON; None also for one that Python has not."""
    if value is None or "infinity" in value:
        return None
    value = value.replace("Z", "+00:00")
    if "." in value:  # before Python 3.11, a fraction has three or six digits
        head, _, tail = value.partition(".")
        digits = tail[: next((i for i, c in enumerate(tail) if not c.isdigit()), len(tail))]
        value = f"{head}.{digits[:6]:0<6}{tail[len(digits) :]}"
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        return None


def info(found: Mapping[str, Any]) -> JobInfo:
    """A job from its JSON; fields of newer servers are left out."""
    known = {name: found[name] for name in JobInfo.__slots__ if name in found}
    return JobInfo(**{**known, **{t: moment(found.get(t)) for t in _TIMES}})


def _info_or_none(rows: list[Sequence[Any]]) -> JobInfo | None:
    return info(text.loads(rows[0][0])) if rows else None


def look(job: int) -> Call[JobInfo | None]:
    """Looks one job up."""
    place, param = given(job, "bigint")
    request = Request("GET", f"/v1/jobs/{job:d}", None, lambda body: info(body.get("job", body)) if body else None)
    return Call(f"SELECT CAST(row_to_json(j) AS text) FROM weir.job_info({place}) j", (param,), _info_or_none, request)


def cancel(job: int) -> Call[str | None]:
    """Cancels one job."""
    place, param = given(job, "bigint")
    request = Request("POST", f"/v1/jobs/{job:d}/cancel", None, lambda body: body.get("state") if body else None)
    return Call(f"SELECT CAST(weir.cancel({place}) AS text)", (param,), lambda rows: "running" if one(rows) == "requested" else one(rows), request)


def retry(job: int) -> Call[str | None]:
    """Retries one job that has ended."""
    place, param = given(job, "bigint")
    return Call(f"SELECT CAST(weir.retry({place}) AS text)", (param,), one)


def publish(channel: str, payload: str | bytes) -> Call[None]:
    """Publishes one message."""
    import base64

    name, channel_param = given(text.checked(channel, "channel"), "text")
    if isinstance(payload, bytes):
        sql = f"SELECT CAST(weir.publish_bytes({name}, decode(CAST(%s AS text), 'hex')) AS text)"
        body = {"channel": channel, "payload_base64": base64.b64encode(payload).decode()}
        return Call(sql, (channel_param, payload.hex()), lambda _: None, Request("POST", "/v1/publish", body, lambda _: None))
    place, param = given(text.checked(payload, "payload"), "text")
    body = {"channel": channel, "payload": payload}
    return Call(
        f"SELECT CAST(weir.publish({name}, {place}) AS text)",
        (channel_param, param),
        lambda _: None,
        Request("POST", "/v1/publish", body, lambda _: None),
    )


def enqueued(max_rows: int) -> Call[list[JobInfo]]:
    """What the transaction has enqueued."""
    place, param = given(max_rows, "integer")
    sql = f"SELECT CAST(row_to_json(e) AS text) FROM weir.enqueued({place}) e"
    return Call(sql, (param,), lambda rows: [info(text.loads(r[0])) for r in rows])


def flow(name: str, on_done: Any, on_success: Any) -> Call[int]:
    """Begins a flow."""
    n, p1 = given(text.checked(name, "the name of a flow"), "text")
    done, p2 = given(None if on_done is None else text.dumps(on_done, "on_done"), "jsonb")
    success, p3 = given(None if on_success is None else text.dumps(on_success, "on_success"), "jsonb")
    return Call(f"SELECT weir.flow(name => {n}, on_done => {done}, on_success => {success})", (p1, p2, p3), lambda rows: int(one(rows)))


def seal(flow_id: int) -> Call[None]:
    """Says that no more jobs are added to a flow from outside."""
    place, param = given(flow_id, "bigint")
    return Call(f"SELECT CAST(weir.seal({place}) AS text)", (param,), lambda _: None)


def complete(worker: int, token: str, output: str | None) -> Call[None]:
    """Completes an attempt in the caller's transaction."""
    w, p1 = given(worker, "integer")
    t, p2 = given(token, "text")
    o, p3 = given(None if output is None else text.storable(output), "text")
    return Call(f"SELECT CAST(weir.complete({w}, {t}, {o}) AS text)", (p1, p2, p3), lambda _: None)


def set_checkpoint(worker: int, token: str, checkpoint: Any) -> Call[None]:
    """Sets an attempt's checkpoint in the caller's transaction."""
    w, p1 = given(worker, "integer")
    t, p2 = given(token, "text")
    c, p3 = given(text.dumps(checkpoint, "checkpoint"), "jsonb")
    return Call(f"SELECT CAST(weir.set_checkpoint({w}, {t}, {c}) AS text)", (p1, p2, p3), lambda _: None)


def checkpoint(job: int) -> Call[Any]:
    """The checkpoint that was set last."""
    place, param = given(job, "bigint")
    return Call(f"SELECT CAST(weir.checkpoint({place}) AS text)", (param,), lambda rows: None if one(rows) is None else text.loads(one(rows)))
