"""Who is on a channel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import token_for
from test_subscribe import take

import weir


async def test_a_subscription_hears_who_joins_and_leaves(token_hub: str, queue: str) -> None:
    room = f"room.{queue}"

    def subscribe(user: str) -> weir.Subscription[weir.Message | weir.Gap | weir.Presence]:
        return weir.Weir(hub=token_hub, token=lambda: token_for(user, info={"is": user})).subscribe(room, presence=True)

    async def hear(messages: weir.Subscription[weir.Message | weir.Gap | weir.Presence], wanted: Callable[[weir.Presence], bool]) -> None:
        while not (isinstance(heard := (await take(messages, 1))[0], weir.Presence) and wanted(heard)):
            pass

    async with subscribe("ada") as ada:
        async with subscribe("bob"):
            await hear(ada, lambda p: weir.Member("bob", {"is": "bob"}) in p.joined and p.channel == room)
            found = await ada.members(room)
            assert ([m.user for m in found.users], found.count, found.next) == (["ada", "bob"], 2, None)
            assert [m.user for m in (await ada.members(room, after="ada")).users] == ["bob"]
        await hear(ada, lambda p: p.left == ["bob"] and p.count == 1)
        with pytest.raises(weir.HubError, match="has no presence"):
            await ada.members(queue)
