"""Texts as they are sent."""

from __future__ import annotations

import json

import pytest

from weir.text import size_in_json


@pytest.mark.parametrize("of", ["a", "\x01", "é", "\u2028", "😀"])
@pytest.mark.parametrize("length", [0, 1, 499, 500, 100_000])
def test_a_text_is_not_larger_in_json_than_is_reckoned(of: str, length: int) -> None:
    # A frame that is larger than a hub takes ends the session, again and again.
    text = of * length
    assert len(json.dumps(text)) <= size_in_json(text) <= len(json.dumps(text)) + 500 * 12
