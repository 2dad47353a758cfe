"""JSON and texts as PostgreSQL takes them. It stores no NUL, no halves of surrogate pairs, no NaN and no infinity."""

from __future__ import annotations

import json
import logging
import re
from decimal import Decimal
from typing import Any

from .errors import Invalid

log = logging.getLogger("weir")

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def storable(text: str) -> str:
    """The text with U+FFFD for characters that PostgreSQL can't store, as weir.record has it."""
    return _UNSTORABLE.sub("\ufffd", text)


def checked(text: str, what: str) -> str:
    """The text, if PostgreSQL can store it."""
    if found := _UNSTORABLE.search(text):
        raise Invalid(f"{what} has the character {found[0]!r} at {found.start()}, which PostgreSQL can't store: remove it, or encode the text")
    return text


def named(value: object, what: str, most: int) -> str:
    """The text, if it is a name that the database takes."""
    if not isinstance(value, str) or not value:
        raise Invalid(f"{what} is {value!r}: pass a text of 1 to {most} characters")
    if len(value) > most:
        raise Invalid(f"{what} has {len(value)} characters, at most {most} are allowed: {value[:40]!r}…")
    return checked(value, what)


def message_of(traceback: str) -> str:
    """The line of a traceback that says what went wrong: the first after the last frame, whose lines are indented. Drivers add more below it."""
    lines = traceback.rstrip().splitlines() or [""]
    frames = [i for i, line in enumerate(lines) if line.startswith('  File "')]
    return next((line for line in lines[frames[-1] :] if line[:1].strip()), lines[-1]) if frames else lines[-1]


def dumps(value: Any, what: str) -> str:
    """The JSON of a value that becomes a jsonb."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        if "\\u0000" in text or not text.isascii():
            _check(value, what)
    except (TypeError, ValueError) as e:
        if isinstance(e, Invalid):
            raise
        raise Invalid(f"{what} can't be written as JSON: {e}") from e
    return text


def _check(value: Any, what: str) -> None:
    if isinstance(value, str):
        checked(value, what)
    elif isinstance(value, dict):
        for name, v in value.items():
            checked(str(name), f"a name in {what}")
            _check(v, f"{what}.{name}")
    elif isinstance(value, (list, tuple)):
        for i, v in enumerate(value):
            _check(v, f"{what}[{i}]")


def loads(text: str) -> Any:
    """JSON of PostgreSQL, whose numbers may have more digits than Python takes for an int: such become Decimals."""
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(text, parse_int=lambda n: int(n) if len(n) < 4000 else Decimal(n))


def compact(value: Any) -> str:
    """JSON to send, in few bytes: characters are escaped only if there are halves of surrogate pairs, which have no UTF-8."""
    found = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        found.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return found


def size_in_json(text: str | None) -> int:
    """How many bytes it takes in JSON, or a few more: a control character is written as six, and one of those beyond the first 65,536 as twelve."""
    if not text:
        return 2
    return len(text) * 12 + 2 if len(text) < 500 else len(json.dumps(text))


MAX_OUTPUT = 1 << 20  # bytes


def output_text(value: Any, of: object) -> str | None:
    """What is kept of the result of a job: a text as it is, anything else as JSON, and nothing of None; cut if it is too long."""
    if value is None:
        return None
    found = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if len(found) * 4 > MAX_OUTPUT:
        raw = found.encode("utf-8", "replace")
        if len(raw) > MAX_OUTPUT:
            log.warning("the output of %s has %d bytes, and is cut to %d", of, len(raw), MAX_OUTPUT)
            found = raw[:MAX_OUTPUT].decode("utf-8", "ignore")
    return found
