import asyncio
import json

import asyncpg

CHANNEL = 'Orders "new"'
QUOTED = '"Orders ""new"""'


def show(text):
    print(text, flush=True)


async def your_turn(pool):
    async with pool.acquire() as conn:  # giving it back resets it
        transaction = conn.transaction()
        await transaction.start()
        await conn.execute(f"NOTIFY {QUOTED}, 'rolled back'")
        await transaction.rollback()
        async with conn.transaction():
            await conn.execute("SELECT pg_notify($1, 'committed')", CHANNEL)
        await conn.fetch("SELECT pg_notify($1, $2)", CHANNEL, 'it\'s a "parameter" €')
    async with pool.acquire() as conn:
        assert await conn.fetchval("SELECT 1") == 1


async def listen():
    events = asyncio.Queue()
    conn = await asyncpg.connect()
    try:
        conn.add_termination_listener(lambda _: events.put_nowait(None))
        await conn.add_listener(CHANNEL, lambda _, __, channel, payload: events.put_nowait((channel, payload)))
        show("listening")
        while (event := await events.get()) is not None:
            channel, payload = event
            show(json.dumps({"channel": channel, "payload": payload}))
            if payload == "your turn":
                async with asyncpg.create_pool(min_size=1, max_size=1) as pool:
                    await your_turn(pool)
                show("done")
            if payload == "stop":
                return True
        return False
    finally:
        conn.terminate()


async def main():
    while True:
        try:
            if await listen():
                return
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            pass
        await asyncio.sleep(0.05)


asyncio.run(main())
