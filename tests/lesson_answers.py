"""Wrong answers to a lesson's exercises, each with the words of its diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

Check = Callable[[Any], Any]


def wrong_answers(*exercises: tuple[Check, Mapping[str, Any]]) -> pytest.MarkDecorator:
    """Runs a test of (check, says, answer) for every wrong answer of every exercise."""
    rows = [(check, says, answer) for check, answers in exercises for says, answer in answers.items()]
    return pytest.mark.parametrize(("check", "says", "answer"), rows)


def assert_told(check: Check, says: str, answer: Any) -> None:
    """The answer is not taken as right, and its verdict has these words."""
    verdict = check(answer)
    assert not verdict.right
    assert says in verdict.says
