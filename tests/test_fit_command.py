"""`layerrope fit` and the tables it reads: strict JSON, digits one can predict from, marked failures, hostile files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerrope import cli
from layerrope.errors import InputError
from layerrope.files import write_json
from layerrope.scaling import logsum_fit
from layerrope.scaling.law import Point, fit_scaling
from layerrope.scaling.report import FitReport, chart, saved
from layerrope.scaling.savings import compute_saving
from layerrope.scaling.table import read_points
from layerrope.studies import Ask, plan_study
from layerrope.study import write_study
from layerrope.training.run_folder import Result

FAST = ["--resamples", "50"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three schemes, five sizes of up to 1e21 FLOPs, two seeds."""
    random = np.random.default_rng(0)
    lines = ["scheme,compute,loss,seed"]
    for scheme, height in (("prenorm", 0.62), ("lns", 0.58), ("layerrope", 0.52)):
        for c in np.geomspace(1e18, 1e21, 5):
            losses = (1.8 + height * (c / 1e21) ** -0.15) * np.exp(0.002 * random.normal(size=2))
            lines += [f"{scheme},{float(c)},{loss},{seed}" for seed, loss in enumerate(losses.tolist())]
    path = tmp_path / "ladder.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert cli.main(["fit", *map(str, words), *FAST, "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def predicted(row: Mapping[str, Any], compute: float) -> float:
    return float(row["E"]) + float(row["A"]) * compute ** -float(row["alpha"])


class Cells(HTMLParser):
    """The rows of every table of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_the_json_and_the_page_predict_the_fitted_points(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(capsys, table, "--html", tmp_path / "fit.html", "--png", tmp_path / "fit.png")
    page = (tmp_path / "fit.html").read_text()
    cells = Cells()
    cells.feed(page[: page.index("<script")])
    head = next(row for row in cells.rows if "alpha" in row)
    printed = {row[0]: dict(zip(head, row, strict=True)) for row in cells.rows if len(row) == len(head) and row != head}
    for point in found["points"]:
        curve, compute = found["curves"][point["scheme"]], point["compute"]
        fitted = point["loss"] / np.exp(point["log_residual"])
        (h,), (a,), (at,), (big,) = (curve[k] for k in ("heights", "exponents", "at", "amplitudes"))
        assert curve["e"] + h * (compute / at) ** -a == pytest.approx(fitted, abs=1e-9)
        assert curve["e"] + big * compute**-a == pytest.approx(fitted, abs=1e-9)
        assert predicted(printed[point["scheme"]], compute) == pytest.approx(fitted, abs=1e-3)
    assert (tmp_path / "fit.png").read_bytes()[:4] == b"\x89PNG"


def test_the_record_says_how_the_fit_was_found(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, table)
    assert found["schema"] == "layerrope.fit/1"
    assert found["converged"]
    assert found["searches"][0]["starts"] > 50
    assert [s["baseline"] for s in found["savings"]] == ["lns", "prenorm"]
    assert (found["resamples"], found["resamples_failed"]) == (50, 0)
    assert found["command"] == f"layerrope fit {table} --resamples 50"


def test_several_tables_are_one_and_a_run_in_both_counts_once(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = table.read_text().splitlines()
    (tmp_path / "a.csv").write_text("\n".join(lines[:20]) + "\n")
    (tmp_path / "b.csv").write_text("\n".join([lines[0], *lines[10:]]) + "\n")
    both = run(capsys, tmp_path / "a.csv", tmp_path / "b.csv")
    assert both["curves"] == run(capsys, table)["curves"]
    assert both["command"].startswith(f"layerrope fit {tmp_path / 'a.csv'} {tmp_path / 'b.csv'} --resamples")


def test_the_terminal_says_it_in_words(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fit", str(table), *FAST, "--no-shared-e", "--target", "2.6"]) == 0
    words = capsys.readouterr().out
    assert "an E for each scheme" in words
    assert words.count("starts ended at the best objective") == 3
    first = next(line for line in words.splitlines() if line.startswith("- "))
    assert re.match(
        r"- Compute saved against lns at a loss of 2\.6000: layerrope \d\.\d\dx \(95% interval .*\)\.", first
    )


def test_the_command_of_a_fit_has_every_digit_of_its_numbers(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, table, "--e", "1.7123456789")
    assert found["command"] == f"layerrope fit {table} --e 1.7123456789 --resamples 50"


def test_a_search_that_did_not_converge_is_marked_and_fails(
    table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logsum_fit, "STEPS", 1)
    assert cli.main(["fit", str(table), "--resamples", "0"]) == 1
    words = capsys.readouterr().out
    assert words.count("NOT CONVERGED") >= 5


def test_the_paper_s_arithmetic_is_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    paper = Path(__file__).parent / "data" / "scaling" / "layerrope-1b.csv"
    asked = ["--schemes", "layerrope", "--e", "1.81", "--against", "8.3e20", "2.431"]
    (saving,) = run(capsys, paper, *asked)["savings"]
    assert round(saving["ratio"], 1) == 3.4
    assert saving["compute"] == pytest.approx(2.42e20)


def test_a_target_far_from_every_loss_of_a_flat_curve_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = tmp_path / "flat.csv"
    shapes = (("prenorm", 1.5, 8e-4), ("layerrope", 1.2, 9e-4))
    points = [(s, c, 1.5 + a * (c / 1e20) ** -p) for s, a, p in shapes for c in (1e18, 1e19, 1e20, 1e21)]
    flat.write_text("\n".join(["scheme,compute,loss", *(f"{s},{c},{loss}" for s, c, loss in points)]) + "\n")
    found = run(capsys, flat, "--e", "1.5", "--target", "20")
    assert not found["savings"]
    assert "at no compute one can name" in found["notes"][-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.csv"], "no such table"),
        ([], "no table to fit|source"),
        (["{table}", "--form", "pow"], "did you mean power"),
        (["{table}", "--schemes", "layerope"], "did you mean layerrope"),
        (["{table}", "--whose", "x"], "unknown scheme of the table"),
        (["{table}", "--baselines", "x"], "unknown scheme of the table"),
        (["{table}", "--seed", "-1"], "seed of the resamples is a whole number from 0"),
        (["{table}", "--resamples", "-1"], "at least 0"),
        (["{table}", "--resamples", "1000000000"], "at most 100,000"),
        (["{table}", "--target", "nan"], "--target takes positive numbers"),
        (["{table}", "--against", "inf", "2.4"], "--against takes positive numbers"),
        (["{table}", "--against", "1e20", "nan"], "--against takes positive numbers"),
        (["{table}", "--form", "chinchilla"], "no positive n_params"),
        (["{folder}"], "holds no study"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    words: list[str], said: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [w.format(table=table, folder=table.parent) for w in words]
    assert cli.main(["fit", *given]) == 2
    shown = capsys.readouterr()
    assert re.search(said, shown.err)
    assert shown.err.count("\n") == 1
    assert not shown.out


# -------------------------------------------------------------------------------------------------------------- tables
def points_of(tmp_path: Path, text: str | bytes) -> Any:
    path = tmp_path / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_points(path)


def test_each_size_counts_at_its_best_rate_and_lost_runs_are_said(tmp_path: Path) -> None:
    points, notes = points_of(
        tmp_path,
        "\ufeffscheme,flops,val_loss,lr,seed,status,other\n"
        "a,1e18,3.0,0.1,0,done,x\na,1e18,2.9,0.1,1,done,x\na,1e18,2.0,0.2,0,done,x\na,1e18,,0.2,1,diverged,x\n"
        "a,1e18,8.0,0.1,2,done,x\n"
        "a,1e19,2.5,0.2,0,done,x\na,1e19,2.6,0.1,0,done,x\na,1e20,9.9,0.1,0,failed,x\n",
    )
    assert [(p.compute, p.loss, p.seed) for p in points] == [
        (1e18, 3.0, "0"),
        (1e18, 2.9, "1"),
        (1e18, 8.0, "2"),
        (1e19, 2.5, "0"),
    ]
    assert notes == [
        "2 runs at other learning rates than the best of their size were left out.",
        "2 runs did not reach their end and are no points.",
    ]


def test_runs_of_one_size_that_are_no_seeds_of_each_other_are_said(tmp_path: Path) -> None:
    """A law over both starts of the embedding would take the better of the two for a better rate."""
    ask = Ask(scale="tiny", schemes=("prenorm", "lns"), sizes=("tiny-8", "tiny-12"), seeds=(0, 1), lrs=(0.1, 0.2))
    for stds, told in (((0.1,), 0), ((0.1, 0.2), 4)):
        folder = tmp_path / str(len(stds))
        study = plan_study("ladder", replace(ask, embed_stds=stds)).first()
        write_study(study, folder)
        for run in study.runs:
            ended = Result("done", run.key, 6, 96, 3.0 - run.config.lr, 3.0, None, 3.0, 6, 1.0, 100.0, 5000, None)
            write_json(folder / run.key / "result.json", asdict(ended))
        said = [note for note in read_points(folder)[1] if "differ in more than" in note]
        assert [note.split()[0] for note in said] == [str(told)] * bool(told)


def test_a_table_s_best_rate_is_the_comparison_s(tmp_path: Path) -> None:
    """Equally good rates: the lowest. A run without a rate is of one more; runs of no seed are all judged."""
    head = "scheme,compute,loss,lr,seed\n"
    tied = points_of(tmp_path, head + "a,1e18,3.0,0.2,0\na,1e18,3.5,0.2,1\na,1e18,3.5,0.1,0\na,1e18,3.0,0.1,1\n")[0]
    assert [p.loss for p in tied] == [3.5, 3.0]
    unsaid = points_of(tmp_path, head + "a,1e18,3.0,0.2,0\na,1e18,2.5,,0\n")[0]
    assert [p.loss for p in unsaid] == [2.5]
    unnamed = points_of(tmp_path, head + "a,1e18,2.0,0.1,\na,1e18,4.0,0.1,\na,1e18,2.5,0.2,\n")[0]
    assert [p.loss for p in unnamed] == [2.5]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no rows"),
        ("scheme,compute,loss\n", "has no rows"),
        ("compute,loss\n1,2\n", "lacks a column scheme"),
        ("scheme,compute\na,2\n", "lacks a column loss"),
        ("scheme,compute,loss\na,1e18,x\n", "line 2: loss is 'x', not a number"),
        ("scheme,compute,loss\na,1e18,3\n,1,2\n", "line 3: no scheme"),
        ("scheme,compute,loss\na,1,nan\n", "no run that reached its end"),
        ("scheme,compute,loss\na,1,3\na,1,-2\n", "line 3: a loss of -2 is no cross-entropy"),
        ("scheme,compute,loss\na,nan,3\n", "line 2: compute is nan, not a positive number"),
        ("scheme,compute,loss\na,-1,3\n", "line 2: compute is -1, not a positive number"),
        ("scheme,compute,loss,lr\na,1,3,0\n", "line 2: lr is 0, not a positive number"),
        ("scheme,compute,loss\na,1,3,8\n", "line 2: more cells than the header has"),
        ("scheme,compute,loss,loss\na,1,3,8\n", "columns loss and loss"),
        ("scheme,compute,loss,Val_Loss\na,1,3,8\n", "columns loss and Val_Loss"),
        ("scheme;compute;loss\na;1;3\n", "separated by commas"),
        ("scheme,compute,loss,status\na,1,3,finished\n", "line 2: status is 'finished'"),
        (b"\xff\xfe\x00scheme", "not a readable CSV"),
        ("scheme,compute,loss\n\n\na,1e18,3\n\na,x,3\n", "line 6: compute is 'x'"),
        ('scheme,compute,loss\n"a\nb",1e18,3\na,x,3\n', "line 4: compute is 'x'"),
        ('scheme,compute,loss\na,1e18,3\n"a,1e19,3\na,1e20,3\n', "not a readable CSV table .unexpected end of data"),
    ],
)
def test_tables_that_are_none(text: str | bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        points_of(tmp_path, text)


def test_empty_lines_and_nameless_columns_are_left_alone(tmp_path: Path) -> None:
    points, notes = points_of(tmp_path, "\n,scheme,compute,loss\n\n0.5,a,1e18,3.0\n0.1,a,1e19,2.5\n\n")
    assert [(p.compute, p.loss, p.seed) for p in points] == [(1e18, 3.0, ""), (1e19, 2.5, "")]
    assert notes == []


def test_where_nobody_saves_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for scheme, said in (("lns", "--whose"), ("layerrope", "--baselines")):
        rows = "".join(f"{scheme},{10.0**k},{2 + 10 ** (1 - k / 10)}\n" for k in range(10, 15))
        (tmp_path / "t.csv").write_text("scheme,compute,loss\n" + rows)
        found = run(capsys, tmp_path / "t.csv", "--resamples", 0)
        assert found["savings"] == []
        assert sum("No saving: " in note and said in note for note in found["notes"]) == 1


def test_a_scheme_whose_name_ends_like_a_model_from_elsewhere_is_none() -> None:
    points = [
        Point(s, 2 + a * 10 ** (-k / 10), 10.0**k) for s, a in (("my FLOPs", 3), ("layerrope", 2)) for k in range(5)
    ]
    saving = compute_saving(fit_scaling(points), "layerrope", "my FLOPs", resamples=None)
    assert saved([saving])[0].startswith("Compute saved against my FLOPs at the loss of its largest model, ")


def test_a_saving_that_its_own_runs_deny_is_not_drawn() -> None:
    sizes = [10.0**k for k in range(18, 22)]
    plain = [Point("prenorm", 1.8 + 0.9 * (c / 1e19) ** -0.15, c) for c in sizes]
    bent = [Point("layerrope", p.loss - 0.05, p.compute) for p in plain[:-1]] + [Point("layerrope", 2.5, 1e21)]
    fit = fit_scaling([*plain, *bent])
    saving = compute_saving(fit, "layerrope", "prenorm", resamples=None)
    assert saving.denied == pytest.approx((1e21, 2.5))
    drawn = json.dumps(chart(FitReport(fit, None, [saving], (), "", "")).to_dict())
    assert f"layerrope {saving.ratio:.2f}x" not in drawn
    agreed = json.dumps(chart(FitReport(fit, None, [replace(saving, denied=None)], (), "", "")).to_dict())
    assert f"layerrope {saving.ratio:.2f}x" in agreed


def test_runs_that_nothing_tells_apart_count_as_seeds_and_are_said(tmp_path: Path) -> None:
    head, rest = "scheme,compute,loss", "a,1e12,3.5\na,1e12,3.1\na,1e13,3.0\n"
    assert points_of(tmp_path, f"{head}\n{rest}")[1] == [
        "1 sizes have several runs of the same seed, or of none; they are taken as seeds. Were they trained at several"
        " learning rates, give a column lr."
    ]
    again = "scheme,compute,loss,seed\na,1e12,3.5,0\na,1e12,3.5,0\na,1e12,3.1,1\n"
    assert points_of(tmp_path, again)[1] == []


def test_names_and_status_are_read_as_people_write_them(tmp_path: Path) -> None:
    points, notes = points_of(tmp_path, 'Scheme, FLOPs,loss,status\n" x\ny ",1e12,3.5,Done\nz,1e12,,DIVERGED\n')
    assert [p.scheme for p in points] == ["x y"]
    assert notes == ["1 runs did not reach their end and are no points."]
