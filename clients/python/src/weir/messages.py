"""What a subscription receives."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    """A message. `position` is None if it was not logged: then it is delivered at most once."""

    channel: str
    payload: str | bytes
    position: str | None

    def json(self) -> Any:
        """The payload, if it is JSON."""
        return json.loads(self.payload)


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages after `after` up to `position` may be missing: reload what you show. `reason`: truncated, slow, or unknown."""

    after: str
    position: str
    reason: str


@dataclass(frozen=True, slots=True)
class History:
    """The last messages before a subscription began, in the order of the log. `complete`: as many as it asked for, or there are no older ones."""

    messages: list[Message] = field(default_factory=list)
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """A user on a channel, and what the user's token says that others may know."""

    user: str
    info: Any = None


@dataclass(frozen=True, slots=True)
class Presence:
    """Who has joined and left a channel since the last one, and how many are there now. After very many changes it has only the count."""

    channel: str
    joined: list[Member]
    left: list[str]
    count: int


@dataclass(frozen=True, slots=True)
class Members:
    """Members of a channel, by name, up to 1,000, and the count of all. `next`: pass it as `after` for more; None: there are no more."""

    users: list[Member]
    count: int
    next: str | None


def message(frame: dict[str, Any]) -> Message:
    """A message from what a hub sends."""
    payload = base64.b64decode(frame["payload_base64"]) if "payload_base64" in frame else frame.get("payload", "")
    return Message(frame["channel"], payload, frame.get("position"))


def presence(frame: dict[str, Any]) -> Presence:
    """A change of the members of a channel from what a hub sends."""
    return Presence(frame["channel"], _users(frame.get("joined")), list(frame.get("left") or ()), frame["count"])


def members(body: dict[str, Any]) -> Members:
    """The members of a channel from what a hub answers."""
    return Members(_users(body.get("users")), body["count"], body.get("next") or None)


def _users(found: list[dict[str, Any]] | None) -> list[Member]:
    return [Member(each["user"], each.get("info")) for each in found or ()]
