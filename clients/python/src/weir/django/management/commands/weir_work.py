"""python manage.py weir_work"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from weir.cli import queues_of as queues_given
from weir.django.work import make_app, queues_of
from weir.errors import Invalid, is_refusal, line_of


class Command(BaseCommand):  # type: ignore[misc]
    help = "Works the tasks of this project until SIGTERM or SIGINT: then it lets running ones end, and releases the others."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("-q", "--queue", action="append", default=[], metavar="QUEUE=N", help="work this queue, N of its jobs at once")
        parser.add_argument("--backend", default="default", help="which entry of TASKS (default: default)")
        parser.add_argument("--lease", type=float, default=30.0, help="seconds of silence after which others get the jobs (default: 30)")
        parser.add_argument("--stop-timeout", type=float, default=25.0, help="seconds that jobs have to end after SIGTERM (default: 25)")
        parser.add_argument("--no-chores", action="store_true", help="leave the chores to other workers")

    def handle(self, **options: Any) -> None:
        self._log(options["verbosity"])
        alias = options["backend"]
        try:
            queues = queues_given(options["queue"]) or dict.fromkeys(queues_of(alias), 10)
            worker = make_app(alias).worker(queues, lease=options["lease"], stop_timeout=options["stop_timeout"], chores=not options["no_chores"])
        except (Invalid, TypeError) as e:
            raise CommandError(str(e)) from e
        worker.exit_on_lapse = True
        try:
            asyncio.run(worker.run_until_signalled())
        except Exception as e:
            if not is_refusal(e):
                raise
            raise CommandError(line_of(e)) from e

    def _log(self, verbosity: int) -> None:
        """Shows what the worker does, also if the settings say nothing of its logger."""
        logger = logging.getLogger("weir")
        if not logger.hasHandlers():
            handler = logging.StreamHandler(self.stderr._out)
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
            logger.addHandler(handler)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO if verbosity > 0 else logging.WARNING)
        failures = logging.getLogger("weir.jobs")
        if failures.level == logging.NOTSET and verbosity < 2:
            failures.setLevel(logging.WARNING)
