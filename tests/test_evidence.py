"""docs/evidence.md: every claim has an answer, what can be computed is, and the page is what the records give now."""

from __future__ import annotations

import re
import runpy
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from layerrope.commands.eval import TASK_SETS

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


RATES = ((0.005, 1.0), (0.01, 0.0), (0.02, 1.0))
"""Learning rate, and what it costs."""


def write(record: Path, name: str, losses: dict[str, list[float]]) -> None:
    """A record in which every scheme has three rates, the middle one the best, and a run a seed."""
    lines = ["scheme,budget,lr,seed,status,val_loss"]
    for scheme, values in losses.items():
        for seed, loss in enumerate(values):
            lines += [f"{scheme},100,{lr},{seed},done,{loss + worse}" for lr, worse in RATES]
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


def test_a_best_rate_at_the_edge_decides_nothing(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = sys.modules["claims"]
    monkeypatch.setattr(sys.modules[__name__], "RATES", ((0.01, 0.0), (0.02, 1.0)))
    write(record, "ablation", {"prenorm": [5.0, 5.1, 5.2], "layerrope": [4.0, 4.1, 4.2]})
    found, words = claims.compared("ablation", "layerrope", "prenorm")()
    assert found == "the budget cannot tell"
    assert "layerrope, prenorm best at the edge" in words
    assert claims.share_of_magnitude("prenorm", "layerrope", "layerrope")()[0] == "the budget cannot tell"


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
    assert "no lead is told" in answer()[1]


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ([0.001, 0.002, 0.003], "same direction at our scale"),
        ([0.2, 0.3, -0.4], "the budget cannot tell"),
        ([0.3, 0.31, 0.32], "contradicts"),
        ([0.0], "the budget cannot tell"),
    ],
)
def test_no_difference_is_shown_only_by_an_interval_without_room_for_one(
    record: Path, gaps: list[float], verdict: str
) -> None:
    base = [5.0, 5.1, 5.2][: len(gaps)]
    write(record, "ablation", {"layerrope": base, "prenorm": [b + g for b, g in zip(base, gaps, strict=True)]})
    assert sys.modules["claims"].compared("ablation", "layerrope", "prenorm", positive=False)()[0] == verdict


def write_rows(record: Path, name: str, lines: list[str]) -> None:
    (record / name).mkdir(parents=True)
    (record / name / "runs.csv").write_text("\n".join(lines) + "\n")


def test_the_best_rate_is_judged_by_every_seed_that_all_rates_share(record: Path) -> None:
    claims = sys.modules["claims"]
    rows = [("0.01", "0", 5.2), ("0.01", "1", 5.2), ("0.02", "0", 5.0), ("0.02", "1", 6.6)]
    runs = [
        {"scheme": "lns", "lr": lr, "seed": seed, "status": "done", "val_loss": str(loss)} for lr, seed, loss in rows
    ]
    assert claims.best(runs, "lns") == {"0": 5.2, "1": 5.2}
    assert claims.best(runs[:1] + runs[2:], "lns") == {"0": 5.0, "1": 6.6}  # seed 1 was not tried at 0.01
    assert claims.best(runs, "prenorm") == {}


def test_a_rate_that_lost_a_seed_is_not_the_best_one(record: Path) -> None:
    """The comparison's rule: fewest lost seeds first, then the lowest mean."""
    claims = sys.modules["claims"]
    lines = ["scheme,budget,lr,seed,status,val_loss", "layerrope,100,0.02,1,diverged,"]
    for lr, loss in ((0.005, 4.5), (0.01, 4.0), (0.02, 3.0), (0.04, 5.0)):
        lines += [f"prenorm,100,{lr},{seed},done,{4.2 + seed / 100 + (lr != 0.01)}" for seed in (0, 1)]
        lines += [f"layerrope,100,{lr},{s},done,{loss + s / 100}" for s in (0, 1) if (lr, s) != (0.02, 1)]
    write_rows(record, "ablation", lines)
    found = ("same direction at our scale", "budget 100: +0.2000 [+0.2000, +0.2000] nats over 2 seeds")
    assert claims.compared("ablation", "layerrope", "prenorm")() == found
    assert "lead +0.2000" in claims.share_of_magnitude("prenorm", "layerrope", "layerrope")()[1]


def test_a_scheme_that_lost_every_run_was_run(record: Path) -> None:
    claims = sys.modules["claims"]
    rows = ["scheme,budget,layers,lr,seed,status,val_loss", "prenorm,100,512,0.01,0,done,4.0"]
    ours = "layerrope:beta=0,alpha=0/damped"
    rows += [f'"{name}",100,512,0.01,0,diverged,' for name in ("layerrope", "prenorm-scaledinit", ours)]
    for name in ("ablation", "depth"):
        write_rows(record, name, rows)
    untold = "the budget cannot tell"
    assert claims.compared("ablation", "layerrope", "prenorm")() == (untold, "no run of layerrope reached its end")
    assert claims.compared("ablation", "layerrope", "lns")() == ("not yet run", "")
    assert claims.share_of_magnitude("prenorm", "layerrope", "layerrope")()[0] == untold
    assert claims.better_start()[0] == untold
    assert claims.stable_at_depth("layerrope", True)() == (untold, "no run of layerrope reached its end")
    assert claims.stable_at_depth("lns", True)() == ("not yet run", "")


def test_depth_is_judged_by_the_mean_of_all_seeds(record: Path) -> None:
    """As the study's own verdict is; seed 10 comes before seed 2 as text."""
    losses = {(8, 10): 4.0, (8, 2): 4.0, (512, 10): 3.9, (512, 2): 4.4}
    lines = [f"prenorm,{layers},0.01,{seed},done,{loss}" for (layers, seed), loss in losses.items()]
    write_rows(record, "depth", ["scheme,layers,lr,seed,status,val_loss", *lines])
    verdict, words = sys.modules["claims"].stable_at_depth("prenorm", False)()
    assert verdict == "same direction at our scale"
    assert "loss 4.1500 at 512" in words


def test_every_set_of_tasks_that_a_command_names_is_known(made: dict[str, Any]) -> None:
    commands = [claim.command for part in made["CLAIMS"].values() for claim in part]
    named = re.findall(r"--tasks ([^\s-]\S*)", " ".join(commands))
    assert named
    assert set(named) <= set(TASK_SETS)


def test_rates_that_were_lost_are_in_the_sensitivity_and_at_no_edge(record: Path) -> None:
    lines = ["scheme,lr,seed,status,val_loss", "prenorm,0.01,0,done,5.1", "prenorm,0.02,0,done,5.0"]
    lines += ["prenorm,0.04,0,diverged,", "prenorm,0.08,0,interrupted,"]
    lines += [f"layerrope,{lr},0,done,{loss}" for lr, loss in ((0.01, 5.1), (0.02, 5.05), (0.04, 5.0))]
    write_rows(record, "lr", lines)
    claims = sys.modules["claims"]
    verdict, words = claims.rates_are_wider()
    assert verdict == "same direction at our scale"
    start = 8.317766
    assert f"prenorm good from 0.014 to 0.02, sensitivity {(0.1 + start - 5.0) / 3:.3f}" in words
    assert claims.best_rate_ratio() == (
        "the budget cannot tell",
        "0.04 against 0.02: 2 times, one seed, at the edge of the grid",
    )


def test_depth_is_judged_when_the_deepest_is_trained(record: Path) -> None:
    claims = sys.modules["claims"]
    lines = ["scheme,layers,lr,seed,status,val_loss"]
    lines += [f"prenorm,{depth},0.01,0,done,{5 - depth / 1000}" for depth in (8, 128)]
    write_rows(record, "depth", [*lines, "lns,512,0.01,0,done,4.0", "prenorm,512,0.01,0,interrupted,"])
    stable = claims.stable_at_depth("prenorm", True)
    assert stable() == ("the budget cannot tell", "trained to 128 of 512 layers so far")
    (record / "depth" / "runs.csv").write_text("\n".join([*lines, "prenorm,512,0.01,0,done,4.0"]) + "\n")
    assert stable()[0] == "the budget cannot tell"
    assert stable()[1].endswith("on one seed")
    (record / "depth" / "runs.csv").write_text("\n".join([*lines, "prenorm,512,0.01,0,diverged,"]) + "\n")
    assert stable()[0] == "contradicts"
    assert "no run reached its end" in stable()[1]


def test_a_ladder_is_judged_by_the_compute_it_saves(record: Path) -> None:
    claims = sys.modules["claims"]
    assert claims.saves_compute(None)()[0] == "not yet run"
    wobble = iter(range(1000))
    lines = ["scheme,lr,seed,flops,status,val_loss"]
    for scheme, height in (("prenorm", 1.0), ("lns", 0.9), ("layerrope", 0.95)):
        for size in range(12, 18):
            loss = 1.8 + height * 10 ** (-0.15 * (size - 17)) * (1 + 1e-3 * (next(wobble) * 7 % 5 - 2))
            lines.append(f"{scheme},0.01,0,1e{size},done,{loss}")
    write_rows(record, "ladder", lines)
    verdict, words = claims.saves_compute("prenorm")()
    assert verdict == "same direction at our scale"
    assert words.startswith("Compute saved against prenorm at the loss of its largest model, 2.7")
    verdict, words = claims.saves_compute(None)()
    assert verdict == "contradicts"
    assert "against lns" in words
