"""The command weir-py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from conftest import until

APP = """
import os, weir
app = weir.Weir(os.environ["DATABASE_URL"])

@app.task(queue=os.environ["QUEUE"], retry=3)
def greet(name: str = "you") -> str:
    return "hello, " + name
"""


def run(where: Path, queue: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weir.cli", *args],
        cwd=where,
        env={**os.environ, "QUEUE": queue},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_the_two_commands_run_a_job(tmp_path: Path, queue: str, look: Any) -> None:
    (tmp_path / "greeting.py").write_text(APP)
    done = run(tmp_path, queue, "enqueue", "greeting:app", "greet", '{"name": "Ada"}')
    assert done.returncode == 0, done.stderr
    job = int(done.stdout)
    worker = subprocess.Popen([sys.executable, "-m", "weir.cli", "work", "greeting:app"], cwd=tmp_path, env={**os.environ, "QUEUE": queue})
    try:
        found = await until(lambda: (j := look(job)).state == "completed" and j)
        assert (found.output, found.max_attempts) == ("hello, Ada", 3)
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0


def test_wrong_calls_say_what_to_do(tmp_path: Path, queue: str) -> None:
    (tmp_path / "greeting.py").write_text(APP)
    for args, said in (
        (["work", "nowhere:app"], "there is no module nowhere"),
        (["work", "greeting:other"], "greeting has no other"),
        (["work", "greeting:weir"], "want a weir.Weir"),
        (["work", "greeting:app", "-q", "mail=many"], "such as mail=8"),
        (["enqueue", "greeting:app", "greet", "[1]"], "want a JSON object"),
        (["enqueue", "greeting:app", "greet", "{"], "is not JSON"),
    ):
        done = run(tmp_path, queue, *args)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
    done = run(tmp_path, queue, "enqueue", "greeting:app", "greet", "--priority", "9")
    assert done.returncode == 1
    assert "priority" in done.stderr
    assert "Traceback" not in done.stderr
