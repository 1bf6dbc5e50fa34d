"""Lessons as tests need them: where they lie, and the maker of their pages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
LESSONS = ROOT / "lessons"


def script(path: Path) -> ModuleType:
    """A Python file outside the package, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


lesson_pages = script(ROOT / "benchmarks" / "lesson_pages.py")
