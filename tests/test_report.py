"""The report of a comparison and its command: whole, strict, true to the runs; reused, stopped and continued."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from layerrope import cli
from layerrope.comparing.record import Purpose, sweep_of, write_record
from layerrope.comparing.report import read_comparison, write_picture, write_report
from layerrope.errors import InputError
from layerrope.files import read_json, write_json
from layerrope.training.run_folder import read_result

TINY = ["--tier", "micro-100k", "--steps", "6", "--batch-size", "2", "--eval-tokens", "256", "--no-compile"]
HERE = [*TINY, "--jobs", "0"]
WIDE = [*HERE, "--schemes", "prenorm", "layerrope", "--lrs", "0.003", "0.01", "1e30", "--seeds", "0", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison: two schemes, three rates of which one diverges, two seeds."""
    folder = tmp_path_factory.mktemp("compare") / "study"
    assert cli.main(["compare", *WIDE, "--out", str(folder)]) == 0
    return folder


def strictly(text: str) -> Any:
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def specs(page: str) -> list[dict[str, Any]]:
    found = re.findall(r'<script type="application/json" id="spec-\d+">(.*?)</script>', page, re.S)
    return [strictly(text) for text in found]


def test_the_record_is_strict_and_true_to_the_runs(made: Path) -> None:
    record = strictly((made / "result.json").read_text())
    assert record["schema"] == "layerrope.compare/1"
    assert len(record["runs"]) == 12
    assert {run["status"] for run in record["runs"] if run["lr"] == 1e30} == {"diverged"}
    for run in record["runs"]:
        result = read_result(made / run["key"])
        assert result is not None
        assert run["val_loss"] == result.val_loss
    row = next(row for row in record["rows"] if row["scheme"] == "layerrope")
    mine = [r["val_loss"] for r in record["runs"] if r["scheme"] == "layerrope" and r["lr"] == row["lr"]]
    assert row["val_loss"] == pytest.approx(sum(mine) / 2)
    assert (row["difference"]["n"], row["difference"]["level"], len(row["lost"])) == (2, 0.95, 2)
    assert record["command"].startswith("layerrope compare --schemes prenorm layerrope --lrs 0.003 0.01 1e+30")
    assert record["command"].endswith(f"--jobs 0 --steps 6 --out {made}")
    assert record["made_with"]["runs"][0]["torch"]


def test_the_page_is_one_file_without_network_and_shows_every_chart(made: Path) -> None:
    page = (made / "report.html").read_text()
    assert "default-src 'none'" in page
    assert not re.search(r'(src|href)="http', page)
    charts = specs(page)
    assert len(charts) == 3 + 4 + 2
    for word in ("What it cannot tell", "Diverged: ", "Every setting and its reason", "paired 95% intervals"):
        assert word in page
    losses = [row["loss"] for row in next(iter(charts[0]["datasets"].values()))]
    assert losses
    assert None not in losses


def test_the_pictures_are_there_and_not_blank(made: Path) -> None:
    pictures = sorted((made / "charts").glob("*.png"))
    names = ["final-losses", "gains-by-depth", "learning-rates", "loss-curves", "stream-by-depth"]
    assert [p.stem for p in pictures] == names
    for path in pictures:
        data = path.read_bytes()
        width, height = struct.unpack(">II", data[16:24])
        assert min(width, height) > 200
        assert len(data) > 8000


def test_a_picture_does_not_take_the_place_of_something_else(made: Path, tmp_path: Path) -> None:
    table, before = tmp_path / "runs-dark.csv", (made / "report.html").stat().st_mtime_ns
    table.write_text("scheme,loss\n")
    assert cli.main(["report", str(made), "--picture", str(tmp_path / "runs.csv")]) == 2
    assert [path.name for path in tmp_path.iterdir()] == [table.name]
    assert (made / "report.html").stat().st_mtime_ns == before, "the report is written before the clash is told"


def test_the_readme_s_picture_is_drawn(made: Path, tmp_path: Path) -> None:
    data = write_picture(read_comparison(made), tmp_path / "images" / "compare.png").read_bytes()
    assert data.startswith(b"\x89PNG")


def test_asking_again_trains_nothing_and_json_is_all_there_is_on_stdout(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {p: p.stat().st_mtime_ns for p in made.glob("*/metrics.jsonl")}
    assert cli.main(["compare", *WIDE, "--out", str(made), "--json"]) == 0
    said = capsys.readouterr()
    assert strictly(said.out) == strictly((made / "result.json").read_text())
    assert "start of the stream" in said.err
    assert {p: p.stat().st_mtime_ns for p in made.glob("*/metrics.jsonl")} == times


def test_the_table_is_printed_with_its_words(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(made)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"prenorm +0\.0\d+\*? +\d\.\d{4} +\d\.\d{4} +reference +[\d,]+ +117,344 +2 of 6", out)
    assert "vs prenorm" in out
    assert "It cannot tell" in out


def test_a_report_is_drawn_again_without_a_checkpoint_and_says_what_is_missing(made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    for folder in copy.glob("*/checkpoints"):
        shutil.rmtree(folder)
    record = write_report(read_comparison(copy))
    assert len(record["depth"]["notes"]) == 2
    assert "missing in the charts by depth" in (copy / "report.html").read_text()
    assert record["rows"] == strictly((made / "result.json").read_text())["rows"]


def test_an_unfinished_comparison_is_reported_as_far_as_it_is(made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    for run in read_json(made / "result.json")["runs"]:
        if run["scheme"] != "prenorm":
            shutil.rmtree(copy / run["key"])
    record = write_report(read_comparison(copy))
    assert [row["val_loss"] is None for row in record["rows"]] == [False, True]
    assert sum(run["status"] == "interrupted" for run in record["runs"]) == 6


def test_no_picture_of_an_earlier_report_is_left(made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made, copy)
    (copy / "charts" / "mine.png").write_bytes((copy / "charts" / "final-losses.png").read_bytes())
    for folder in copy.glob("*/"):
        if (folder / "checkpoints").exists():
            shutil.rmtree(folder / "checkpoints")
    write_report(read_comparison(copy))
    before, after = ({path.stem for path in (each / "charts").glob("*.png")} for each in (made, copy))
    assert before - after == {"gains-by-depth", "stream-by-depth"}
    assert after - before == {"mine"}


def test_where_everything_diverged_the_report_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--schemes", "prenorm", "lns", "--lrs", "1e30", "--out", str(tmp_path), "--json"]
    assert cli.main(["compare", *HERE, *words]) == 1
    record = strictly(capsys.readouterr().out)
    assert record["can_tell"][0] == "No run was trained to its end, so nothing is compared."
    assert "Diverged: prenorm at 1e+30 (seed 0, step 2)" in record["can_tell"][1]
    assert [row["val_loss"] for row in record["rows"]] == [None, None]
    (chart,) = specs((tmp_path / "report.html").read_text())
    crosses = next(rows for rows in chart["datasets"].values() if rows)
    assert {(row["scheme"], row["step"]) for row in crosses} == {("prenorm", 2), ("lns", 2)}
    assert cli.main(["report", str(tmp_path), "--picture", str(tmp_path / "p.png")]) == 2


def test_evaluations_on_the_way_get_a_chart(tmp_path: Path) -> None:
    words = ["--schemes", "prenorm", "--lrs", "0.01", "--eval-every", "2", "--out", str(tmp_path)]
    assert cli.main(["compare", *HERE, *words]) == 0
    charts = specs((tmp_path / "report.html").read_text())
    shown = [rows for chart in charts[:2] for rows in chart["datasets"].values()]
    assert [row["tokens"] for row in shown[1]] == [512, 1024, 1536]
    assert {row["text"] for row in shown[1]} == {"validation"}


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    text = tmp_path / "<img src=x onerror=alert(1)>.txt"
    text.write_text("A line of text that is long enough to be split into windows.\n" * 400)
    words = ["--schemes", "prenorm", "--lrs", "0.01", "--data", str(text), "--out", str(tmp_path / "out")]
    assert cli.main(["compare", *HERE, *words]) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    shown = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert "<img" not in shown
    assert "&lt;img" in shown


def test_a_record_holds_every_run_and_the_sweep_made_from_it_serves_the_next_comparison(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = read_comparison(made)
    write_record(found, tmp_path / "record", Purpose("Title", "Question?", "Doubt."))
    with open(tmp_path / "record" / "runs.csv", encoding="utf-8") as file:
        runs = list(csv.DictReader(file))
    assert [(r["scheme"], float(r["lr"]), int(r["seed"])) for r in runs] == [
        (t.scheme, t.lr, t.seed) for t in found.table.trials
    ]
    readme = (tmp_path / "record" / "README.md").read_text()
    assert all(word in readme for word in ("# Title", "Question?", "Doubt.", "layerrope compare --schemes", "| lost |"))
    assert str(made) not in readme
    pictures = re.findall(r"\]\(([\w-]+\.png)\)", readme)
    assert all((tmp_path / "record" / name).exists() for name in pictures)
    assert len(pictures) == 5

    sweep = sweep_of(found)
    assert "--out" not in sweep.command
    monkeypatch.setattr("layerrope.comparing.plan.packaged", lambda: sweep)
    words = [*HERE, "--schemes", "prenorm", "layerrope", "--seeds", "5", "--out", str(tmp_path / "next"), "--json"]
    assert cli.main(["compare", *words]) == 0
    record = strictly(capsys.readouterr().out)
    assert {row["scheme"]: row["lr"] for row in record["rows"]} == {n: s.lr for n, s in sweep.schemes.items()}
    assert {row["scheme"]: row["bracketed"] for row in record["rows"]} == {
        n: s.bracketed for n, s in sweep.schemes.items()
    }
    assert any("differences to prenorm scattered over 2 seeds" in line for line in record["can_tell"])
    assert any("on other seeds than these" in line for line in record["cannot_tell"])
    assert (tmp_path / "next" / "charts" / "learning-rates.png").exists()


# --------------------------------------------------------------------------------------------------------- the command
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--schemes", "layerop"], "did you mean layerrope"),
        (["--teir", "micro"], "did you mean --tier"),
        (["--steps", "3", "--budget", "2M"], "--steps and --budget"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--jobs", "-1"], "--jobs must be at least 0"),
        (["--threads", "0"], "--threads must be at least 1"),
        (["--device", "cuda:99"], "cuda"),
        (["--lrs", "fast"], "fast"),
    ],
)
def test_bad_arguments_are_one_line_and_write_nothing(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", *words, "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", *TINY, "--dry-run", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert "35, " in said.err  # five schemes at seven rates: no packaged sweep was made at these settings
    assert said.out == ""
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no study"):
        read_comparison(tmp_path)
    write_json(tmp_path / "config.json", {})
    assert cli.main(["compare", *HERE, "--schemes", "prenorm", "--lrs", "0.01", "--out", str(tmp_path)]) == 2


@pytest.mark.slow
def test_ctrl_c_leaves_a_state_that_the_same_command_continues(tmp_path: Path) -> None:
    words = [*TINY, "--steps", "3000", "--schemes", "prenorm", "--lrs", "0.01", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "layerrope.cli", "compare", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, preexec_fn=_hear_interrupts) as process:  # type: ignore[call-overload]
        _until(lambda: any(tmp_path.glob("*/metrics.jsonl")), 120)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "continue when the same command runs again" in err
    saved = [int(p.name.removeprefix("step-")) for p in tmp_path.glob("*/checkpoints/step-*")]
    assert len(saved) == 1
    assert 0 < saved[0] < 3000
    assert "Traceback" not in err
    assert not list(tmp_path.glob("*/result.json"))


def _hear_interrupts() -> None:
    """A suite that runs in the background passes "ignore" on to its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _until(true: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
