"""The app that INSTALLED_APPS names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.apps import AppConfig, apps
from django.core import checks

from .backend import WeirBackend
from .names import PACKAGE, task_backends


class WeirConfig(AppConfig):  # type: ignore[misc]
    name = "weir.django"
    label = "weir"
    verbose_name = "Weir"

    def ready(self) -> None:
        if PACKAGE == "django_tasks" and not apps.is_installed(PACKAGE):  # else it checks its backends by itself
            checks.register(check_backends)


def check_backends(**_: Any) -> Iterable[checks.CheckMessage]:
    """What `manage.py check` says of Weir's entries of TASKS."""
    for backend in task_backends.all():
        if isinstance(backend, WeirBackend):
            yield from backend.check()
