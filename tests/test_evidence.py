"""docs/evidence.md: every claim has an answer, what can be computed is, and the page is what the records give now."""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """The names of the script that writes the page."""
    sys.path.insert(0, str(ROOT / "results"))
    try:
        return runpy.run_path(str(ROOT / "results" / "evidence_page.py"))
    finally:
        sys.path.remove(str(ROOT / "results"))


def test_the_page_is_what_the_code_and_the_records_give(made: dict[str, Any]) -> None:
    text = made["page"]()
    assert text == (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8"), "run python results/evidence_page.py"
    verdicts = Counter(cell for line in text.splitlines() for cell in line.split(" | ")[2:3] if line.startswith("| "))
    assert verdicts["reproduced exactly"] >= 22
    assert set(verdicts) <= {*made["VERDICTS"], "verdict", "---"}


def test_every_claim_is_said_once_with_its_source_and_a_command(made: dict[str, Any]) -> None:
    claims = [claim for part in made["CLAIMS"].values() for claim in part]
    assert len(claims) >= 40
    assert len({claim.says for claim in claims}) == len(claims)
    assert all(claim.source and claim.command for claim in claims)


@pytest.fixture
def record(made: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty results folder that the claims read instead of ours."""
    monkeypatch.setitem(sys.modules["claims"].__dict__, "ROOT", tmp_path)
    return tmp_path / "results"


def write(record: Path, name: str, losses: dict[str, list[float]]) -> None:
    """A record in which every scheme has two rates, the first the better one, and a run a seed."""
    lines = ["scheme,budget,lr,seed,status,val_loss"]
    for scheme, values in losses.items():
        for seed, loss in enumerate(values):
            lines += [f"{scheme},100,{lr},{seed},done,{loss + worse}" for lr, worse in ((0.01, 0.0), (0.02, 1.0))]
    (record / name).mkdir(parents=True)
    (record / name / "runs.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ([4.00, 4.10, 4.20], "same direction at our scale"),
        ([6.00, 6.10, 6.20], "contradicts"),
        ([4.00, 5.90, 5.20], "the budget cannot tell"),
    ],
)
def test_a_lead_is_judged_by_its_interval(record: Path, losses: list[float], verdict: str) -> None:
    claims = sys.modules["claims"]
    assert claims.compared("ablation", "layerrope", "prenorm")()[0] == "not yet run"
    write(record, "ablation", {"prenorm": [5.0, 5.1, 5.2], "layerrope": losses})
    found, words = claims.compared("ablation", "layerrope", "prenorm")()
    assert found == verdict
    assert "3 seeds" in words


def test_one_seed_decides_nothing(record: Path) -> None:
    claims = sys.modules["claims"]
    write(record, "ablation", {"prenorm": [5.0], "layerrope": [1.0]})
    assert claims.compared("ablation", "layerrope", "prenorm")() == (
        "the budget cannot tell",
        "budget 100: +4.0000 nats on one seed",
    )


def test_a_share_is_only_taken_of_a_gain_that_is_there(record: Path) -> None:
    claims = sys.modules["claims"]
    answer = claims.share_of_magnitude("prenorm", "layerrope", "layerrope:rotation=off")
    base = [5.0, 5.1, 5.2]
    write(
        record, "ablation", {"prenorm": base, "layerrope": [4.0, 4.1, 4.2], "layerrope:rotation=off": [4.2, 4.3, 4.4]}
    )
    found, words = answer()
    assert found == "same direction at our scale"
    assert "80% of it" in words


def test_no_share_is_taken_of_a_loss(record: Path) -> None:
    claims = sys.modules["claims"]
    answer = claims.share_of_magnitude("prenorm", "layerrope", "layerrope:rotation=off")
    write(record, "ablation", {"prenorm": [5.0, 5.1], "layerrope": [6.0, 6.1], "layerrope:rotation=off": [5.5, 5.6]})
    assert answer()[0] == "the budget cannot tell"
    assert "no gain to divide" in answer()[1]
