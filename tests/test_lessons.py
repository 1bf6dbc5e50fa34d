"""Every lesson runs from top to bottom on a short budget, shows what it promises, and its page is up to date."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.show import Verdict, Words
from lesson_tools import LESSONS, lesson_pages

from layerrope.training.machine import threads

NAMES = [path.stem for path in lesson_pages.lessons()]


def notebook(name: str) -> Any:
    pytest.importorskip("marimo", reason="the lessons are marimo notebooks: pip install 'layerrope[lessons]'")
    return lesson_pages.load(LESSONS / f"{name}.py").app


def gpt(defs: dict[str, Any]) -> None:
    assert defs["pair"]["input"][1:] == defs["pair"]["target"][:-1]
    assert {row["part"]: row["parameters"] for row in defs["counted"]}["all"] == 237_056
    nothing, made, frequencies = (row["nats"] for row in defs["marks"])
    assert nothing == pytest.approx(5.549, abs=1e-3)
    assert 5 < made < 6.5
    assert 2.9 < frequencies < 3.3
    assert len(defs["losses"]) == 4
    assert 2 < defs["validation"] < 6
    assert defs["written"].startswith("The old man ")


def modernized(defs: dict[str, Any]) -> None:
    after = defs["after"]
    assert [row["parameters"] for row in after] == [237_056, 236_480, 232_960, 232_384]
    assert all(2 < row["validation loss, nats"] < 6 for row in after)
    assert defs["refusal"].startswith("256 positions asked for, but the model learned 64")
    assert [row["positions"] for row in defs["contexts"]] == ["0 to 63", "64 to 127", "128 to 191", "192 to 255"]


def depth(defs: dict[str, Any]) -> None:
    pre, post = defs["first_last"]
    assert pre["after the last"] > 2 * pre["stream after layer 1"]
    assert post["after the last"] == pytest.approx(1, abs=1e-3)
    assert post["gradient in layer 1"] > 10 * post["in the last layer"]
    assert pre["gradient in layer 1"] < 10 * pre["in the last layer"]
    assert len(defs["ends"]) == 4
    assert len(defs["left_out"]) == 16


def layerrope(defs: dict[str, Any]) -> None:
    assert [row["negative channels"] for row in defs["looks"]] == [54, 0, 0, 0, 0, 0]
    assert defs["compared"][0]["parameters"] - defs["compared"][1]["parameters"] == defs["saved"] == 752
    assert all(-0.6 < row["slope of the size"] < -0.4 for row in defs["learned"])
    assert defs["difference"] < 1e-4
    assert defs["proof"]["passed"]
    assert defs["proof"]["format"] == "llama"


def norms(defs: dict[str, Any]) -> None:
    assert [round(row["slope"], 2) for row in defs["grown"]] == [0.42, 0.25, 0.21, 0.17]
    assert defs["grown"][2]["law that fits best"] == "power" != defs["grown"][3]["law that fits best"]
    assert [row["share of one direction"] for row in defs["turned"]] == pytest.approx([0.9485, 0.968], abs=1e-3)
    assert defs["turned"][0]["between layers"] == "0 and 1"
    flat = defs["mirage"][-1]
    assert flat["largest true angle"] < 4.3
    assert flat["angle swept in the picture"] == pytest.approx(176, abs=1)
    assert all(row["p of the rotation"] > 0.05 for row in defs["explained"])


def scaling(defs: dict[str, Any]) -> None:
    assert defs["saving"].low < 1.6 < defs["saving"].high
    assert defs["gaps"][-1]["saving if E = 2.0"] > 1.5 * defs["gaps"][-1]["saving if E = 1.6"]
    assert [row["seeds a point"] for row in defs["coverage"]] == [1, 3]
    assert defs["fooled"]["ladders"] == 1
    assert defs["tuned"][-1]["apparent saving"] > 1.2
    assert [round(row["saving"], 1) for row in defs["baselines"]] == [3.4, 1.8]
    assert round(defs["flatter"], 1) == 1.6


def preferences(defs: dict[str, Any]) -> None:
    assert defs["exported"].proof["passed"]
    assert all(pair["chosen"] == pair["rejected"].upper() for pair in defs["learn"])
    assert not {pair["prompt"] for pair in defs["learn"]} & {pair["prompt"] for pair in defs["held_out"]}
    if defs["lacking"]:
        assert defs["tuned"] is None
        assert "effects" not in defs
        return
    assert defs["tuned"].losses[0] == pytest.approx(0.6931, abs=1e-3)
    assert defs["effects"][1]["held-out pairs ranked right"].endswith("of 32")


HOLDS: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], None]]] = {
    "01_gpt": ({"steps": 4}, gpt),
    "02_modernize": ({"steps": 2}, modernized),
    "03_depth": ({"steps": 1}, depth),
    "04_layerrope": ({"steps": 2}, layerrope),
    "05_norms": ({"shuffles": 2}, norms),
    "06_scaling": ({"draws": 1}, scaling),
    "07_preferences": ({"steps": 4}, preferences),
}
"""Lesson -> its short budget, and what must then be true of what it defines."""


def test_every_lesson_is_run() -> None:
    assert list(HOLDS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_shows_what_it_says(name: str) -> None:
    budget, holds = HOLDS[name]
    with threads(1):
        outputs, defs = notebook(name).run(defs=budget)
    holds(dict(defs))
    skipped = [value.markdown for value in outputs if isinstance(value, Words) and "**Skipped**" in value.markdown]
    assert bool(skipped) == bool(defs.get("lacking")), skipped
    verdicts = [value for value in outputs if isinstance(value, Verdict)]
    assert verdicts
    assert all(verdict.right is None for verdict in verdicts)


@pytest.mark.parametrize("name", NAMES)
def test_its_page_follows_from_it(name: str) -> None:
    path = LESSONS / f"{name}.py"
    written = (lesson_pages.PAGES / f"{name}.md").read_text(encoding="utf-8")
    bare = lesson_pages.page(path, [""] * len(list(lesson_pages.cells(path))))
    again = "out of date: python benchmarks/lesson_pages.py " + name[:2]
    assert lesson_pages.without_outputs(written) == lesson_pages.without_outputs(bare), again
    for picture in re.findall(r"\]\((images/[^)]+)\)", written):
        assert (lesson_pages.PAGES / picture).exists(), again


@pytest.mark.parametrize("name", NAMES)
def test_solutions_are_closed_until_asked_for(name: str) -> None:
    written = (lesson_pages.PAGES / f"{name}.md").read_text(encoding="utf-8")
    opened = written.count("<details")
    assert opened == written.count("</details>") == written.count("<summary>Solution</summary>") >= 1
    assert "def solve" not in re.sub(r"<details.*?</details>", "", written, flags=re.S)


def test_a_lesson_is_a_program(tmp_path: Path) -> None:
    pytest.importorskip("marimo", reason="the lessons are marimo notebooks: pip install 'layerrope[lessons]'")
    command = [sys.executable, str(LESSONS / "02_modernize.py"), "--steps", "1"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert not list(tmp_path.iterdir())


def in_the_terminal(*words: str, lessons: Path = LESSONS) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("marimo", reason="the lessons are marimo notebooks: pip install 'layerrope[lessons]'")
    command = [sys.executable, str(lessons), *words]
    return subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )


def test_a_lesson_in_the_terminal_says_what_is_wrong_with_an_answer(tmp_path: Path) -> None:
    copy = shutil.copytree(LESSONS, tmp_path / "lessons", ignore=shutil.ignore_patterns("__pycache__", "__marimo__"))
    source = (copy / "05_norms.py").read_text(encoding="utf-8")
    for empty, answer in (
        (
            "def my_angle(a, b): ...",
            "def my_angle(a, b): return np.arccos(a @ b / np.sqrt(a @ a * (b @ b)))",
        ),
        ("def my_p(real, shuffled): ...", "def my_p(real, shuffled): return np.mean(np.asarray(shuffled) >= real)"),
        ("\n@app.cell\ndef _():\n    def my_", "\n@app.cell\ndef _(np):\n    def my_"),
    ):
        assert empty in source
        source = source.replace(empty, answer)
    (copy / "05_norms.py").write_text(source, encoding="utf-8")
    done = in_the_terminal("05", "--shuffles", "2", lessons=copy)
    assert done.returncode == 0, done.stderr
    verdicts = re.findall(r"^> \*\*(.*?)\*\*", done.stdout, flags=re.M)
    assert verdicts == ["Not yet.", "Your turn.", "Not yet."], done.stdout
    assert "In radians; degrees were asked for." in done.stdout
    assert "p of the rotation" in done.stdout
    assert "## Exercise 1: the true angle" in done.stdout
    assert "def solve" not in done.stdout


@pytest.mark.parametrize("words", [(), ("99",), ("0",), ("",)])
def test_another_name_than_a_lesson_s_gives_the_list(words: tuple[str, ...]) -> None:
    done = in_the_terminal(*words)
    assert done.returncode == 1
    assert done.stderr.count("python lessons 0") == len(NAMES)


def exercises() -> list[Any]:
    """(check, solution) of every exercise in code of every lesson: check_NAME and solve_NAME in one file."""
    files = sorted(path.stem for path in (LESSONS / "kit").glob("*.py") if path.stem not in ("__init__", "show"))
    kits = [importlib.import_module(f"kit.{name}") for name in files if name != "dpo_pass"]  # which needs TRL
    return [
        pytest.param(check, getattr(kit, name.replace("check_", "solve_")), id=name.removeprefix("check_"))
        for kit in kits
        for name, check in vars(kit).items()
        if name.startswith("check_") and hasattr(kit, name.replace("check_", "solve_"))
    ]


ODD = (
    0,
    np.nan,
    np.inf,
    -1.0,
    "text",
    b"bytes",
    [],
    [[1.0], [2.0, 3.0]],
    {},
    1j,
    True,
    np.zeros((2, 2, 2)),
    np.zeros(3),
    object(),
)
"""What a learner's function may give in place of an answer."""


def stops(*_: Any) -> Any:
    raise ValueError("math domain error")


@pytest.mark.parametrize(("check", "solution"), exercises())
@pytest.mark.parametrize("good", [0, 1, 2, 3, 4], ids=lambda n: f"good-{n}-times")
def test_no_check_stops_with_an_error_whatever_a_function_gives(check: Any, solution: Any, good: int) -> None:
    assert check(solution).right
    for then in (stops, *(lambda *_, odd=odd: odd for odd in ODD)):
        answers = itertools.chain([solution] * good, itertools.repeat(then))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            verdict = check(lambda *given, answers=answers: next(answers)(*given))
        assert isinstance(verdict, Verdict)
        assert good or not verdict.right
