"""The examples of README.md run as they are written, in their order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)


@pytest.mark.skipif("WEIR_HUB_URL" not in os.environ, reason="WEIR_HUB_URL names no hub")
def test_the_examples_of_the_readme_run(tmp_path: Path, db: Any) -> None:
    assert len(BLOCKS) == 13
    (shop, *rest, tests) = BLOCKS
    django = next(b for b in rest if b.startswith("INSTALLED_APPS"))
    (tmp_path / "shop.py").write_text(shop)
    done = subprocess.run(
        [sys.executable, "-m", "weir.cli", "enqueue", "shop:app", "welcome", '{"account": 7}'], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    program = "\n".join([shop, *(b for b in rest if b != django)])
    (tmp_path / "program.py").write_text(program)
    db.execute("CREATE TABLE IF NOT EXISTS balance (account bigint, amount bigint)")
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "orders.new {'order': 7}" in done.stdout
    (tmp_path / "test_shop.py").write_text("import os\nimport psycopg\nfrom shop import app, welcome\n" + tests)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_shop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout
