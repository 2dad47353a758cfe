"""The command weir-py. It prints results to standard output and everything else to standard error."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import logging
import os
import sys
from typing import Any

from .app import Weir, loads
from .errors import Invalid, is_refusal, line_of


def find(path: str) -> Weir:
    """The app that `module:name` names."""
    module_name, _, name = path.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name is None or not (module_name == e.name or module_name.startswith(e.name + ".")):
            raise
        raise Invalid(f"there is no module {module_name}: name one that can be imported from {os.getcwd()}, as module:app") from e
    except KeyError as e:
        if last_module(e) != "os":
            raise
        raise Invalid(f"{module_name} needs the environment variable {e.args[0]}, which is not set") from e
    for part in (name or "app").split("."):
        if not hasattr(found, part):
            raise Invalid(f"{module_name} has no {name or 'app'}: name the weir.Weir in it, as {module_name}:app")
        found = getattr(found, part)
    if not isinstance(found, Weir):
        raise Invalid(f"{path} is a {type(found).__name__}, want a weir.Weir")
    return found


def last_module(error: BaseException) -> str:
    """The module that has raised an error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return str(trace.tb_frame.f_globals.get("__name__")) if trace is not None else ""


def queues_of(given: list[str]) -> dict[str, int] | None:
    """`mail=8` and the like."""
    queues: dict[str, int] = {}
    for each in given:
        name, separator, slots = each.rpartition("=")
        if not separator:
            name, slots = each, "10"
        if not slots.isdigit():
            raise Invalid(f"-q {each}: want a queue and how many of its jobs run at once, such as mail=8")
        if name in queues:
            raise Invalid(f"-q {each}: queue {name!r} was given before, with {queues[name]}: name each queue once")
        queues[name] = int(slots)
    return queues or None


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    p = argparse.ArgumentParser(prog="weir-py", description="Works and enqueues jobs of Weir with tasks in Python.")
    commands = p.add_subparsers(dest="command", required=True, metavar="COMMAND")
    work = commands.add_parser(
        "work",
        help="run a worker until SIGTERM",
        description="Runs a worker until SIGTERM or SIGINT: then it lets running jobs end, and releases the others.",
    )
    work.add_argument("app", help="where the app is: module:name")
    work.add_argument(
        "-q",
        "--queue",
        action="append",
        default=[],
        metavar="QUEUE=N",
        help="work this queue, N of its jobs at once (default: the queues of all tasks, 10 each)",
    )
    work.add_argument("--name", help="shown to people (default: host name and process id)")
    work.add_argument("--lease", type=float, default=30.0, metavar="S", help="seconds of silence after which others get the jobs (default: 30)")
    work.add_argument(
        "--timeout",
        type=float,
        default=3600.0,
        metavar="S",
        help="seconds that an attempt may take, unless its task says so; 0: no limit (default: 3600)",
    )
    work.add_argument("--stop-timeout", type=float, default=25.0, metavar="S", help="seconds that jobs have to end after SIGTERM (default: 25)")
    work.add_argument("--no-chores", action="store_true", help="leave the chores to other workers")
    work.add_argument("--uvloop", action="store_true", help="use uvloop, which must be installed")
    work.add_argument("-v", "--verbose", action="store_true", help="log each failed attempt, not only jobs that have failed for good")
    enqueue = commands.add_parser("enqueue", help="enqueue a job", description="Enqueues a job, and prints its id.")
    enqueue.add_argument("app", help="where the app is: module:name")
    enqueue.add_argument("kind", help="a task of the app, or with -q any kind")
    enqueue.add_argument("args", nargs="?", default="{}", help="a JSON object (default: {})")
    enqueue.add_argument("-q", "--queue", help="default: the task's")
    enqueue.add_argument("--delay", type=float, metavar="S", help="run it in so many seconds")
    enqueue.add_argument("--priority", type=int, metavar="N", help="1 (first) to 4")
    return p


def main(argv: list[str] | None = None) -> int:
    """Runs the command: 0 on success, 2 for a wrong call, 1 for anything else."""
    given = parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO if given.command == "work" else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if given.command == "work" and not given.verbose:
        logging.getLogger("weir.jobs").setLevel(logging.WARNING)
    try:
        return {"work": work, "enqueue": enqueue}[given.command](given)
    except Invalid as e:
        print(f"weir-py: {e}", file=sys.stderr)
        return 2
    except Exception as e:
        if not is_refusal(e):
            raise
        print(f"weir-py: {line_of(e, 'weir_work' if given.command == 'work' else 'weir_enqueue')}", file=sys.stderr)
        return 1


def work(given: argparse.Namespace) -> int:
    """weir-py work."""
    app = find(given.app)
    worker = app.worker(
        queues_of(given.queue),
        name=given.name,
        lease=given.lease,
        timeout=given.timeout,
        stop_timeout=given.stop_timeout,
        chores=not given.no_chores,
    )
    worker.exit_on_lapse = True
    if given.uvloop:
        import uvloop

        uvloop.install()
    asyncio.run(worker.run_until_signalled())
    sys.stderr.flush()
    # Functions in threads that did not end were released; waiting for them is what --stop-timeout was for.
    os._exit(0)


def enqueue(given: argparse.Namespace) -> int:
    """weir-py enqueue."""
    app = find(given.app)
    args = loads(given.args)
    if not isinstance(args, dict):
        raise Invalid(f"args are {given.args}: want a JSON object")
    task = app.tasks.get(given.kind)
    if task is not None:
        try:
            task.args.read(args)
        except ValueError as e:  # also pydantic's
            raise Invalid(f"task {given.kind}: {e}") from e
    elif given.queue is None:
        raise Invalid(
            f"{given.app} has no task {given.kind}, but {', '.join(sorted(app.tasks))}: for a job of another program, name its queue with -q"
        )
    job = app.new(
        given.kind,
        args,
        queue=given.queue if given.queue is not None or task is None else task.options.queue,
        delay=given.delay,
        priority=given.priority,
        max_attempts=task.options.max_attempts if task else None,
    )
    database = app.database
    if database is None:
        with contextlib.closing(app.sync):
            print(app.enqueue(app.sync, job).id)
        return 0
    from .pool import connect

    with connect(database) as conn:  # a pool would try again and again what is refused
        print(app.enqueue(conn, job).id)
    return 0


if __name__ == "__main__":
    sys.exit(main())
