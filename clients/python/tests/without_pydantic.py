"""The package where nothing but psycopg is installed: python_test.go runs this in such an environment."""

from __future__ import annotations

import asyncio
import enum
import importlib.util
import json
from dataclasses import dataclass, field
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, NewType, TypedDict
from uuid import UUID

import pytest
from conftest import until

import weir

Account = NewType("Account", int)


class Size(enum.Enum):
    SMALL = "small"


class Address(TypedDict):
    city: str
    since: datetime


@dataclass
class Item:
    name: str
    price: Decimal


@dataclass
class Order:
    id: UUID
    size: Size
    at: datetime
    items: list[Item]
    address: Address
    account: Account = Account(1)
    note: str | None = None
    tags: dict[str, int] = field(default_factory=dict)


class Point:
    """A class that only a library such as pydantic could read."""

    def __init__(self, x: int) -> None:
        self.x = x


NOW = datetime(2026, 11, 26, 12, tzinfo=timezone.utc)
ORDER = Order(UUID(int=7), Size.SMALL, NOW, [Item("cup", Decimal("1.20"))], {"city": "Bonn", "since": NOW}, Account(3), "soon", {"a": 1})


def test_nothing_else_is_installed() -> None:
    for name in ("pydantic", "httpx", "websockets", "asyncpg", "sqlalchemy", "django"):
        assert importlib.util.find_spec(name) is None, f"{name} is installed"


async def test_jobs_run_with_dataclasses_and_plain_dicts(app: weir.Weir, queue: str, look: Any) -> None:
    seen: list[Any] = []
    done = asyncio.Event()

    @app.task(queue=queue)
    async def pack(order: Order) -> Order:
        seen.append(order)
        return order

    @app.task(queue=queue)
    async def count(found: dict[str, Any], at: datetime, more: list[Item]) -> dict[str, int]:
        seen.append((found, at, more))
        done.set()
        return {"n": len(found)}

    packed = await pack.enqueue(app, ORDER)
    counted = await count.enqueue(app, found={"a": {"b": [1, None]}}, at=NOW, more=[Item("pot", Decimal(2))])
    async with app.working({queue: 1}):
        await asyncio.wait_for(done.wait(), 60)
    assert seen == [ORDER, ({"a": {"b": [1, None]}}, NOW, [Item("pot", Decimal(2))])]
    assert json.loads(look(packed.id).output)["items"] == [{"name": "cup", "price": "1.20"}]
    assert json.loads(look(counted.id).output) == {"n": 1}
    with pytest.raises(weir.Invalid, match="address lacks 'since'"):
        pack.new(Order(UUID(int=7), Size.SMALL, NOW, [], {"city": "Bonn"}))  # type: ignore[typeddict-item]


async def test_what_only_a_model_can_do_says_what_to_install(app: weir.Weir, queue: str, look: Any) -> None:
    @app.task(queue=queue, retry=1)
    async def draw(at: Point) -> None: ...

    with pytest.raises(weir.Invalid, match=r"a Point has no form in JSON.*pip install 'weir-pg\[pydantic\]'"):
        draw.new(Point(1))
    job = await app.enqueue(app, app.new("draw", {"at": {"x": 1}}, queue=queue, max_attempts=1))  # as another program would
    async with app.working({queue: 1}):
        await until(lambda: look(job.id).state == "failed", "the failure")
    assert "want Point" in look(job.id).error
    assert "pip install 'weir-pg[pydantic]'" in look(job.id).error


async def test_what_needs_a_hub_says_what_to_install(app: weir.Weir) -> None:
    over = weir.Weir(hub="http://127.0.0.1:1")
    with pytest.raises(weir.Unsupported, match=r"pip install 'weir-pg\[http\]'"):
        await over.job(1)
    with pytest.raises(weir.Unsupported, match=r"pip install 'weir-pg\[http\]'"):
        async with over.subscribe("a"):
            pass
