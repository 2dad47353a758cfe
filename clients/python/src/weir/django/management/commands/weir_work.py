"""python manage.py weir_work"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from weir.cli import queues_of as queues_given
from weir.django.work import make_app, queues_of
from weir.errors import Invalid


class Command(BaseCommand):  # type: ignore[misc]
    help = "Works the tasks of this project until SIGTERM or SIGINT: then it lets running ones end, and releases the others."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("-q", "--queue", action="append", default=[], metavar="QUEUE=N", help="work this queue, N of its jobs at once")
        parser.add_argument("--backend", default="default", help="which entry of TASKS (default: default)")
        parser.add_argument("--lease", type=float, default=30.0, help="seconds of silence after which others get the jobs (default: 30)")
        parser.add_argument("--stop-timeout", type=float, default=25.0, help="seconds that jobs have to end after SIGTERM (default: 25)")
        parser.add_argument("--no-chores", action="store_true", help="leave the chores to other workers")

    def handle(self, **options: Any) -> None:
        logging.getLogger("weir").setLevel(logging.INFO if options["verbosity"] > 0 else logging.WARNING)
        alias = options["backend"]
        try:
            queues = queues_given(options["queue"]) or dict.fromkeys(queues_of(alias), 10)
            worker = make_app(alias).worker(queues, lease=options["lease"], stop_timeout=options["stop_timeout"], chores=not options["no_chores"])
        except (Invalid, TypeError) as e:
            raise CommandError(str(e)) from e
        worker.exit_on_lapse = True
        asyncio.run(worker.run_until_signalled())
