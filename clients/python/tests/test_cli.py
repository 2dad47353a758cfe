"""The command weir-py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import until

APP = """
import os, weir
app = weir.Weir(os.environ["DATABASE_URL"])

@app.task(queue=os.environ["QUEUE"], retry=3)
def greet(name: str = "you") -> str:
    return "hello, " + name
"""


def run(where: Path, queue: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weir.cli", *args],
        cwd=where,
        env={**os.environ, "QUEUE": queue, **env},
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
        (["work", "greeting:app", "-q", "mail=8", "-q", "mail=9"], "-q mail=9: queue 'mail' was given before, with 8"),
        (["work", "greeting:app", "-q", "=8"], "the name of a queue is '': pass a text"),
        (["enqueue", "greeting:app", "greet", "-q", ""], "queue is '': pass a text"),
        (["enqueue", "greeting:app", "greet", "--delay", "-1"], "delay is -1.0: pass a number of seconds"),
        (["enqueue", "greeting:app", "greet", "[1]"], "want a JSON object"),
        (["enqueue", "greeting:app", "greet", "{"], "is not JSON"),
        (["enqueue", "greeting:app", "greet", '{"nam": "Ada"}'], "which task greet does not take"),
        (["enqueue", "greeting:app", "greet", '{"name": 7}'], "task greet: "),
        (["enqueue", "greeting:app", "great"], "has no task great, but greet: "),
        (["enqueue", "greeting:app", "greet", '{"name": "Ada"}', "--priority", "9"], "priority is 9: pass 1 to 4"),
    ):
        done = run(tmp_path, queue, *args)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
    done = run(tmp_path, queue, "enqueue", "greeting:app", "other", "-q", " q")  # which the database refuses
    assert done.returncode == 1
    assert "queue name" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_the_database_refuses_is_said_in_a_line(tmp_path: Path, queue: str, url: str, db: Any) -> None:
    if db.info.backend_pid != db.execute("SELECT pg_backend_pid()").fetchone()[0]:
        pytest.skip("a pooler knows its users from a file")
    (tmp_path / "greeting.py").write_text(APP)
    role = "cli_" + uuid.uuid4().hex[:8]
    db.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    given = psycopg.conninfo.conninfo_to_dict(url)
    unprivileged = psycopg.conninfo.make_conninfo(**{**given, "user": role, "password": "x"})
    nobody = psycopg.conninfo.make_conninfo(**{**given, "user": "no" + role, "password": "y"})
    elsewhere = psycopg.conninfo.make_conninfo(**{**given, "dbname": "postgres"})
    for url, command, said in (
        (unprivileged, ["work"], "grant this user the role weir_work"),
        (unprivileged, ["enqueue", "greet"], "grant this user the role weir_enqueue"),
        (elsewhere, ["work"], "run weir migrate up"),
        (elsewhere, ["enqueue", "greet"], "run weir migrate up"),
        (nobody, ["work"], "no" + role),
        (nobody, ["enqueue", "greet"], "no" + role),
    ):
        done = run(tmp_path, queue, command[0], "greeting:app", *command[1:], DATABASE_URL=url)
        assert done.returncode == 1, done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["work"], ["enqueue", "greet"]])
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgress://ada:s3cret@localhost/x", "begins with postgress://: want postgresql://user:password@host:5432/database"),
        ("postgres://ada:s3cret%zz@localhost/x", "can't be read: want postgresql://"),
        ("postgres://ada:5432/s3cret@localhost/x?ssl=s3cret", "has the option ssl, which PostgreSQL does not know"),
        ("postgres://ada:1s3cret/s3cret@localhost/x", "has a host or a port that can't be"),
        ("postgres://ada:pass@s3cret@localhost/x", "has a host or a port that can't be"),
        ("ada s3cret", "can't be read"),
    ],
)
def test_a_wrong_connection_string_is_refused_in_a_line_that_does_not_show_it(
    tmp_path: Path, queue: str, command: list[str], url: str, said: str
) -> None:
    (tmp_path / "greeting.py").write_text(APP)
    done = run(tmp_path, queue, command[0], "greeting:app", *command[1:], DATABASE_URL=url)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert said in line
    assert "s3cret" not in done.stderr


def test_an_app_that_lacks_a_variable_says_which(tmp_path: Path) -> None:
    (tmp_path / "greeting.py").write_text(APP)
    env = {name: value for name, value in os.environ.items() if name != "QUEUE"}
    done = subprocess.run([sys.executable, "-m", "weir.cli", "work", "greeting"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "weir-py: greeting needs the environment variable QUEUE, which is not set\n")
    (tmp_path / "other.py").write_text("{}['QUEUE']")
    assert "KeyError: 'QUEUE'" in run(tmp_path, "q", "work", "other").stderr  # which may be anything
