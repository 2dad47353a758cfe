"""Begins a transaction on a connection of the application's, or a savepoint if one has begun."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import Any

from .calls import _asyncpg, _django, _django_alias, _psycopg, _psycopg_async, _runner, _sqlalchemy, _sqlalchemy_async, django_connection
from .errors import Unsupported


def begin(place: Any) -> Any:
    """A context manager that commits at its end, or rolls back after an error."""
    runner = _runner(place)
    if runner in (_psycopg, _psycopg_async, _asyncpg):
        return place.transaction()
    if runner is _sqlalchemy:
        return _with_sqlalchemy(place)
    if runner is _sqlalchemy_async:
        return _with_sqlalchemy_async(place)
    if runner in (_django, _django_alias):
        if isinstance(place, str):
            place = django_connection(place)
        from django.db import transaction

        return transaction.atomic(using=place.alias)
    raise Unsupported("pass a connection or a session that a transaction can be begun on")


# In SQLAlchemy, a session that has run a query is in a transaction that it began by itself. To commit that is what is
# meant; only a transaction that was begun by name has its own end.
@contextmanager
def _with_sqlalchemy(place: Any) -> Any:
    if not place.in_transaction():
        with place.begin():
            yield
        return
    if not _by_itself(place):
        with place.begin_nested():
            yield
        return
    try:
        yield
    except BaseException:
        place.rollback()
        raise
    place.commit()


@asynccontextmanager
async def _with_sqlalchemy_async(place: Any) -> Any:
    if not place.in_transaction():
        async with place.begin():
            yield
        return
    if not _by_itself(getattr(place, "sync_session", None) or getattr(place, "sync_connection", None)):
        async with place.begin_nested():
            yield
        return
    try:
        yield
    except BaseException:
        await place.rollback()
        raise
    await place.commit()


def _by_itself(place: Any) -> bool:
    # Only a session tells how its transaction began. What a connection has run since may wait for its owner's commit.
    origin = getattr(getattr(place.get_transaction(), "origin", None), "name", None)
    return bool(origin == "AUTOBEGIN")
