try:
    from django.tasks import task  # Django 6.0
except ImportError:
    from django_tasks import task

from django.db import connection
from django.db.models import F

import weir

from .models import Order


@task(queue_name="mail")
def confirm(order: int) -> str:
    Order.objects.filter(id=order).update(confirmed=F("confirmed") + 1)
    return f"confirmed {order}"


@task(takes_context=True)
async def greet(context, name: str) -> dict:
    return {"hello": name, "attempt": context.attempt}


@task(queue_name="mail")
def fails(text: str) -> None:
    raise weir.Fail(text)


@task
def confirm_once(order: int) -> None:
    """The change of the order and the end of the job commit together."""
    with weir.current_job().completing(connection):
        Order.objects.filter(id=order).update(confirmed=F("confirmed") + 1)
