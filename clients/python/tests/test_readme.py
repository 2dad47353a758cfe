"""The examples of README.md run as they are written, in their order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import token_for

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)


# Calls what an example only defines.
ENTERS = """
async def enters() -> None:
    hub = weir.Weir(hub=os.environ["WEIR_TOKEN_HUB_URL"], token=os.environ["ADA"])
    async with hub.subscribe("room.*") as heard:  # a pattern makes nobody a member
        await hub.publish("room.readme", "hello")
        await asyncio.wait_for(anext(heard), 60)  # from now on, it is one of the last: what has just been published may still be on its way
    await asyncio.wait_for(enter(hub, "room.readme"), 60)


asyncio.run(enters())
"""


@pytest.mark.skipif("WEIR_HUB_URL" not in os.environ, reason="WEIR_HUB_URL names no hub")
def test_the_examples_of_the_readme_run(tmp_path: Path, db: Any, token_hub: str) -> None:
    assert len(BLOCKS) == 14
    (shop, *rest, tests) = BLOCKS
    django = next(b for b in rest if b.startswith("INSTALLED_APPS"))
    (tmp_path / "shop.py").write_text(shop)
    done = subprocess.run(
        [sys.executable, "-m", "weir.cli", "enqueue", "shop:app", "welcome", '{"account": 7}'], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    program = "\n".join([shop, *(b for b in rest if b != django), ENTERS])
    (tmp_path / "program.py").write_text(program)
    db.execute("CREATE TABLE IF NOT EXISTS balance (account bigint, amount bigint)")
    env = {**os.environ, "ADA": token_for("ada")}
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "orders.new {'order': 7}" in done.stdout
    assert "hello\n[Member(user='ada', info=None)]" in done.stdout
    (tmp_path / "test_shop.py").write_text("import os\nimport psycopg\nfrom shop import app, welcome\n" + tests)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_shop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout
