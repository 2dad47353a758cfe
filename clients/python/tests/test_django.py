"""A Django project: tasks are enqueued with its transactions, run, and have results."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from conftest import until

PROJECT = Path(__file__).parent.parent / "examples" / "django"
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
sys.path.insert(0, str(PROJECT))


def test_a_django_project_enqueues_and_works(url: str) -> None:
    import django
    from django.db import connection, transaction

    django.setup()
    from django.core.management import call_command
    from shop.models import Order
    from shop.tasks import confirm, confirm_once, fails, greet

    call_command("migrate", verbosity=0)
    with transaction.atomic():
        order = Order.objects.create(customer="ada")
        one = confirm.enqueue(order.id)
        two = greet.using(priority=10).enqueue(name="Ada")
        three = fails.enqueue("no such order")
        four = confirm_once.enqueue(order.id)
        assert one.status == "READY"
    try:
        with transaction.atomic():
            lost = confirm.enqueue(order.id)
            raise KeyError
    except KeyError:
        pass
    assert confirm.get_result(one.id).status == "READY"
    with pytest.raises(Exception, match=lost.id) as none:
        confirm.get_result(lost.id)
    assert none.type.__name__ == "TaskResultDoesNotExist"

    worker = subprocess.Popen(
        [sys.executable, "manage.py", "weir_work", "-q", "mail=2", "-q", "default=2", "-q", "mial=1", "--lease", "5"],
        cwd=PROJECT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        import asyncio

        async def ends() -> None:
            await until(lambda: all(_is_finished(r) for r in (one, two, three, four)))

        asyncio.run(ends())
    finally:
        worker.send_signal(signal.SIGTERM)
        _, said = worker.communicate(timeout=30)
        assert worker.returncode == 0
    assert re.search(r"INFO weir: worker \d+ \(.*\) works mail \(2\), default \(2\), mial \(1\)", said)
    assert "INFO weir: worker" in said.splitlines()[-1]
    assert "has stopped" in said.splitlines()[-1]
    assert "no task of the app is in queue 'mial', but in 'default', 'mail'" in said
    assert said.count("failed for good: weir.errors.Fail: no such order") == 1
    assert confirm.get_result(one.id).return_value == f"confirmed {order.id}"
    result = greet.get_result(two.id)
    assert result.return_value == {"hello": "Ada", "attempt": 1}
    assert (result.attempts, result.task.priority) == (1, 10)
    failed = fails.get_result(three.id)
    assert failed.status == "FAILED"
    assert failed.errors[0].exception_class.__name__ == "Fail"
    assert "no such order" in failed.errors[0].traceback
    order.refresh_from_db()
    assert order.confirmed == 2
    connection.close()


def _is_finished(result: Any) -> bool:
    import concurrent.futures

    def refreshed() -> bool:
        from django.db import connection

        result.refresh()
        connection.close()
        return bool(result.is_finished)

    with concurrent.futures.ThreadPoolExecutor(1) as threads:  # Django refuses queries in a thread that runs a loop
        return threads.submit(refreshed).result()


def manage(where: Path, settings: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs manage.py of the project with further settings."""
    (where / "further.py").write_text("from settings import *\n" + settings)
    return subprocess.run(
        [sys.executable, str(PROJECT / "manage.py"), *args],
        env={**os.environ, "PYTHONPATH": str(where), "DJANGO_SETTINGS_MODULE": "further", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_is_wrong_with_the_settings_is_said_by_check(tmp_path: Path) -> None:
    done = manage(tmp_path, "", "check")
    assert done.returncode == 0, done.stderr
    for settings, said in (
        ("TASKS['default']['OPTIONS'] = {'max_attemps': 3}", "OPTIONS of TASKS['default'] has 'max_attemps', which Weir does not know"),
        ("TASKS['default']['OPTIONS'] = {'max_attempts': '3'}", "max_attempts is '3': a job has 1 to 1000 attempts"),
        ("TASKS['default']['OPTIONS'] = {'database': 'other'}", "there is no database 'other'"),
        ("TASKS['default']['QUEUE'] = ['mail']", "TASKS['default'] has 'QUEUE', which does nothing"),
    ):
        done = manage(tmp_path, settings, "check", "--fail-level", "WARNING")
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_a_worker_that_is_refused_says_what_to_do_in_a_line(tmp_path: Path, url: str, db: Any, is_direct: bool) -> None:
    if not is_direct:
        pytest.skip("a pooler knows its users from a file")
    role = "django_" + uuid.uuid4().hex[:8]
    db.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    for given, said in (
        ({"USER": role, "PASSWORD": "x"}, "grant this user the role weir_work"),
        ({"USER": role, "PASSWORD": "x", "NAME": "postgres"}, "run weir migrate up"),
        ({"USER": "no" + role, "PASSWORD": "s3cret"}, "no" + role),
    ):
        done = manage(tmp_path, f"DATABASES['default'] |= {given!r}", "weir_work", "-q", "mail=1")
        assert done.returncode == 1
        assert said in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
        assert "s3cret" not in done.stderr
