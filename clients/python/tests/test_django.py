"""A Django project: tasks are enqueued with its transactions, run, and have results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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

    worker = subprocess.Popen([sys.executable, "manage.py", "weir_work", "-q", "mail=2", "-q", "default=2", "--lease", "5"], cwd=PROJECT)
    try:
        import asyncio

        async def ends() -> None:
            await until(lambda: all(_is_finished(r) for r in (one, two, three, four)))

        asyncio.run(ends())
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
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
