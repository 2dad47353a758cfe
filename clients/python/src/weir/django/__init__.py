"""Weir for Django: a backend of Django Tasks that enqueues on Django's own connection, and a command that works.

    INSTALLED_APPS = [..., "weir.django"]
    TASKS = {"default": {"BACKEND": "weir.django.WeirBackend"}}

    python manage.py weir_work -q default=8

Django Tasks are part of Django 6.0; for older versions install the package django-tasks. Tasks of a weir.Weir can be
enqueued on Django's connections without any of this: `welcome.enqueue(connection, account=7)`.
"""

from .backend import WeirBackend
from .work import around_jobs, make_app

__all__ = ["WeirBackend", "around_jobs", "make_app"]
