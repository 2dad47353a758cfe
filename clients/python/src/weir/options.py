"""How a job is enqueued, and how it is tried again."""

from __future__ import annotations

import math
import numbers
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Literal

from . import text
from .errors import Invalid, seconds

NAME = 128  # characters of a queue's name, and of a kind, as weir._check_job allows them
YEAR = 366 * 86400.0


@dataclass(frozen=True)
class Unique:
    """Enqueue a job only if it is no duplicate of another. docs/unique.md has the rules.

    By default, jobs of a queue are duplicates if kind and args are equal. `key`: if this text is equal, instead.
    `fields`: if these fields of args are. `until`: how long the earlier job counts. `within`: for so long after it was
    enqueued, instead. `replace`: the new job replaces earlier ones that wait. `wait`: first wait for transactions that
    enqueue the same.
    """

    key: str | None = None
    fields: Sequence[str] | None = None
    until: Literal["finished", "started"] | None = None
    within: timedelta | float | None = None
    replace: bool = False
    wait: bool = False

    def __post_init__(self) -> None:
        if self.key is not None:
            text.named(self.key, "Unique.key", 1000)
        if self.fields is not None and (isinstance(self.fields, str) or not all(isinstance(f, str) for f in self.fields)):
            raise Invalid(f"Unique.fields is {self.fields!r}: pass a list of names of args, such as ['account']")
        if self.key is not None and self.fields is not None:
            raise Invalid("Unique has a key, which alone decides, and fields: leave one out")
        if self.until not in (None, "finished", "started"):
            raise Invalid(f"Unique.until is {self.until!r}: pass 'finished' or 'started'")
        if self.within is not None and not 0 < seconds(self.within, "Unique.within") <= YEAR:
            raise Invalid(f"Unique.within is {self.within!r}: pass more than 0 seconds, and at most a year")
        if self.until is not None and self.within is not None:
            raise Invalid("Unique has until and within: leave one out")
        if self.replace and (self.within is not None or self.until == "finished"):
            raise Invalid("Unique has replace, which goes with until='started' alone: a job is replaced as long as it has not started")

    def to_json(self) -> dict[str, Any]:
        """As weir.enqueue_many and hubs take it."""
        found: dict[str, Any] = {
            "key": self.key,
            "fields": None if self.fields is None else list(self.fields),
            "until": self.until,
            "within": None if self.within is None else f"{seconds(self.within, 'Unique.within')!r} seconds",
            "replace": self.replace or None,
            "wait": self.wait or None,
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Retry:
    """How a task's jobs are tried again after a failure.

    `attempts`: how many they have, 25 by default. `delay`: seconds before the next attempt, or a function of the number
    of the failed attempt and its error that returns them; each further delay is `factor` times as long, up to `limit`,
    and up to a quarter shorter or longer. Without a delay, the retry rules and the backoff of the queue decide
    (docs/failures.md): 1, 2, 4, 8 … seconds, up to an hour. `give_up`: errors after which no further attempt is made.
    """

    attempts: int | None = None
    delay: float | timedelta | Callable[[int, BaseException], float | timedelta | None] | None = None
    factor: float = 2.0
    limit: float | timedelta = 3600.0
    give_up: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.attempts is not None:
            number(self.attempts, "Retry.attempts", "a job has 1 to 1000 attempts", 1, 1000)
        if self.delay is not None and not callable(self.delay):
            seconds(self.delay, "Retry.delay")
        if isinstance(self.factor, bool) or not isinstance(self.factor, numbers.Real) or not 0 < self.factor < math.inf:
            raise Invalid(f"Retry.factor is {self.factor!r}: pass a number above 0, such as 2")
        seconds(self.limit, "Retry.limit")
        if not all(isinstance(c, type) for c in _flat(self.give_up)):
            raise Invalid(f"Retry.give_up is {self.give_up!r}: pass a tuple of classes of errors, such as (KeyError,)")

    def after(self, attempt: int, error: BaseException) -> float | None:
        """Seconds until the next attempt; None: as the database says."""
        if self.delay is None:
            return None
        if callable(self.delay):
            asked = self.delay(attempt, error)
            return None if asked is None else seconds(asked, "Retry.delay")
        most = seconds(self.limit, "Retry.limit")
        # From 64 attempts on, every factor above 1 has long exceeded the limit, and the power would overflow.
        grown = seconds(self.delay, "Retry.delay") * self.factor ** min(attempt - 1, 64)
        return min(grown, most) * random.uniform(0.75, 1.25)


@dataclass(frozen=True)
class JobOptions:
    """What can be said about a job when it is enqueued; None means the default."""

    queue: str | None = None
    priority: int | None = None
    run_at: datetime | None = None
    delay: timedelta | float | None = None
    key: str | None = None
    unique: Unique | bool | None = None
    max_attempts: int | None = None
    meta: Mapping[str, Any] | None = None
    flow: int | None = None
    once: str | None = None

    def __post_init__(self) -> None:
        for value, what, most in ((self.queue, "queue", NAME), (self.key, "key", 200), (self.once, "once", 1000)):
            if value is not None:
                text.named(value, what, most)
        if self.priority is not None:
            number(self.priority, "priority", "pass 1 to 4", 1, 4)
        if self.max_attempts is not None:
            number(self.max_attempts, "max_attempts", "a job has 1 to 1000 attempts", 1, 1000)
        if self.flow is not None:
            number(self.flow, "flow", "pass the number that app.flow has returned", 1, 1 << 63)
        if self.meta is not None and not isinstance(self.meta, Mapping):
            raise Invalid(f"meta is {self.meta!r}: pass a dict")
        if self.unique is not None and not isinstance(self.unique, (bool, Unique)):
            raise Invalid(f"unique is {self.unique!r}: pass True, or a weir.Unique")
        if self.run_at is not None and not isinstance(self.run_at, datetime):
            raise Invalid(f"run_at is {self.run_at!r}: pass a datetime that has a time zone")
        if self.run_at is not None and self.delay is not None:
            raise Invalid("a job has a run_at or a delay, not both")
        if self.run_at is not None and self.run_at.utcoffset() is None:
            raise Invalid(
                f"run_at is {self.run_at.isoformat()}, which has no time zone: "
                "pass one that has, such as datetime.now(timezone.utc) + timedelta(hours=1)"
            )
        if self.delay is not None:
            seconds(self.delay, "delay")
        if self.unique and (self.flow is not None or self.once is not None):
            raise Invalid("a job that is a member of a flow can't be unique: see once")

    def over(self, other: JobOptions) -> JobOptions:
        """These options, and those of the other that are not set here."""
        mine = {f.name: getattr(self, f.name) for f in fields(self)}
        if mine["run_at"] is not None or mine["delay"] is not None:  # one replaces the other
            other = JobOptions(**{**{f.name: getattr(other, f.name) for f in fields(other)}, "run_at": None, "delay": None})
        return JobOptions(**{n: v if v is not None else getattr(other, n) for n, v in mine.items()})

    @property
    def uniqueness(self) -> Unique | None:
        """The rule for duplicates, if there is one."""
        return Unique() if self.unique is True else self.unique or None

    @property
    def at(self) -> str | None:
        """run_at with its offset, as the database and hubs read it whatever their own time zone."""
        return None if self.run_at is None else self.run_at.isoformat()

    @property
    def after(self) -> float | None:
        """The delay in seconds."""
        return None if self.delay is None else seconds(self.delay, "delay")


def number(value: object, what: str, wanted: str, least: int, most: int) -> None:
    """Refuses what is no whole number from least to most."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not least <= int(value) <= most:
        raise Invalid(f"{what} is {value!r}: {wanted}")


def _flat(given: object) -> Iterator[object]:
    """What isinstance takes: a class, or a tuple of such."""
    if isinstance(given, tuple):
        for each in given:
            yield from _flat(each)
    else:
        yield given
