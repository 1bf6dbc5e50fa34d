"""The exercises of lesson 5: the angle, the picture, the p-value; each usual mistake has its diagnosis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kit import norms
from kit.norms import check_angle, check_p, check_picture
from lesson_answers import assert_told, wrong_answers

from layerrope.inspector.angles import angles
from layerrope.inspector.mds import picture, pure_scaling_picture


def cosine(a: Any, b: Any) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


ANGLES = {
    "returns nothing": lambda a, b: None,
    "One number": lambda a, b: a,
    "In radians": lambda a, b: np.arccos(cosine(a, b)),
    "That is the cosine": cosine,
    "One less the cosine": lambda a, b: 1 - cosine(a, b),
    "means were taken out": lambda a, b: norms.solve_angle(a - a.mean(), b - b.mean()),
    "arcsin": lambda a, b: np.degrees(np.arcsin(cosine(a, b))),
    "Divide by both": lambda a, b: np.degrees(np.arccos(np.clip(a @ b / (a @ a), -1, 0.99))),
    "differs from the arc": lambda a, b: 2 * norms.solve_angle(a, b),
}


def svd(rows: Any, centred: bool = True) -> Any:
    u, s, _ = np.linalg.svd(rows - centred * rows.mean(0), full_matrices=False)
    return u, s


def axes(rows: Any, first: int, last: int | None, power: float = 1.0, centred: bool = True) -> Any:
    u, s = svd(rows, centred)
    return u[:, first:last] * s[first:last] ** power


PICTURES = {
    "returns nothing": lambda rows: None,
    "Two coordinates": lambda rows: axes(rows, 0, 3),
    "Not centred": lambda rows: axes(rows, 0, 2, centred=False),
    "one length each": lambda rows: axes(rows, 0, 2, power=0),
    "Scaled by eigenvalues": lambda rows: axes(rows, 0, 2, power=2),
    "largest axis is missing": lambda rows: axes(rows, 1, 3),
    "smallest axes": lambda rows: axes(rows, -2, None),
    "centroid is not": lambda rows: 1 + axes(rows, 0, 2),
    "principal axes": lambda rows: rows[:, :2],
}


def share(real: float, shuffled: list[float], top: int = 1, bottom: int = 1) -> float:
    return (top + sum(v >= real for v in shuffled)) / (bottom + len(shuffled))


PS = {
    "returns nothing": lambda real, s: None,
    "add it to both": lambda real, s: share(real, s, 0, 0),
    "into the numerator": lambda real, s: share(real, s, 0, 1),
    "but not below": lambda real, s: share(real, s, 1, 0),
    "other tail: p is the share that does as well or better, here": lambda real, s: (1 + sum(v < real for v in s)) / 10,
    "other tail": lambda real, s: sum(v < real for v in s) / 9,
    "One less p": lambda real, s: 1 - share(real, s),
    "percentage": lambda real, s: 100 * share(real, s),
    "three of ten": lambda real, s: 0.5,
    "ties": lambda real, s: (1 + sum(v > real for v in s)) / (1 + len(s)),
}


@wrong_answers((check_angle, ANGLES), (check_picture, PICTURES), (check_p, PS))
def test_a_wrong_answer_is_told_what_is_wrong(check: Any, says: str, answer: Any) -> None:
    assert_told(check, says, answer)


@pytest.mark.parametrize(
    ("check", "solution"),
    [(check_angle, norms.solve_angle), (check_picture, norms.solve_picture), (check_p, norms.solve_p)],
)
def test_the_solution_passes(check: Any, solution: Any) -> None:
    assert check(solution).right


def test_the_solutions_are_what_the_package_computes() -> None:
    rows = norms.smollm2()["MLP read"]
    assert norms.solve_angle(rows[0], rows[-1]) == pytest.approx(angles(rows).first_to_last)
    ours, theirs = norms.solve_picture(rows), picture(rows).points
    assert np.allclose(np.abs(ours), np.abs(theirs))
    largest, drawn = pure_scaling_picture()
    flat = norms.growing()
    assert angles(flat).largest == pytest.approx(largest)
    assert np.allclose(np.abs(norms.solve_picture(flat)), np.abs(drawn.points))


def test_the_data_is_what_its_readme_says() -> None:
    assert {site: rows.shape for site, rows in norms.smollm2().items()} == {
        "attention read": (30, 576),
        "MLP read": (30, 576),
    }
    said = (norms.DATA.parent / "README.md").read_text(encoding="utf-8")
    assert "Apache License 2.0" in said
    assert "SmolLM2-135M-Instruct" in said
