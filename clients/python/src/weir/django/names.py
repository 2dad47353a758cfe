"""Django Tasks, from Django 6.0 or from the package for older versions."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

PACKAGE = "django.tasks" if find_spec("django.tasks") else "django_tasks"
try:
    task_backends: Any = import_module(PACKAGE).task_backends
except ImportError as e:
    raise ImportError("weir.django needs Django Tasks: Django 6.0, or for older versions the package django-tasks") from e

base: Any = import_module(f"{PACKAGE}.base")
signals: Any = import_module(f"{PACKAGE}.signals")
BaseTaskBackend: Any = import_module(f"{PACKAGE}.backends.base").BaseTaskBackend
TaskResultDoesNotExist: Any = import_module(f"{PACKAGE}.exceptions").TaskResultDoesNotExist
