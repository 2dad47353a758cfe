"""An API that enqueues jobs in the transactions of its requests, and works them in the same process.

uvicorn main:api
"""

import os
import re
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, FastAPI
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import weir

URL = os.environ["DATABASE_URL"]
engine = create_async_engine(re.sub("^postgres(ql)?:", "postgresql+psycopg:", URL), connect_args={"prepare_threshold": None})
app = weir.Weir(URL)


@app.task(queue="accounts")
async def welcome(account: int) -> str:
    return f"welcome, {account}"


# Without a process of its own for the worker. Otherwise: weir-py work main:app -q accounts=8
api = FastAPI(lifespan=app.lifespan({"accounts": 8}))


async def session() -> AsyncIterator[AsyncSession]:
    async with AsyncSession(engine) as found, found.begin():
        yield found


@api.post("/accounts/{account}")
async def sign_up(account: int, tx: Annotated[AsyncSession, Depends(session)]) -> dict[str, int]:
    job = await welcome.enqueue(tx, account=account)
    return {"job": job.id}


@api.get("/jobs/{job}")
async def show(job: int) -> dict[str, str | None]:
    found = await app.job(job)
    return {"state": found.state, "output": found.output} if found else {"state": None, "output": None}
