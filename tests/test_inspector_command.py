"""`layerrope inspect` from the outside: tables, one JSON document, exit codes, files, many models."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inspector_files import growing, layered, smollm2_tensors, write_folder

from layerrope import cli
from layerrope.inspector.survey import survey_models

NAME = "model.layers.{l}.input_layernorm.weight"
LLAMA = {"model_type": "llama"}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "good", layered(NAME, growing(8, 16)), LLAMA)


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """A model with one of each: NaN, Inf, all zeros, all ones."""
    tensors = layered(NAME, growing(8, 16, seed=1))
    broken = [np.full(16, np.nan), np.full(16, -np.inf), np.zeros(16), np.ones(16)]
    for layer, values in enumerate(broken, start=2):
        tensors[NAME.replace("{l}", str(layer))] = values
    return write_folder(tmp_path / "bad", tensors, LLAMA)


def run(*words: Any) -> int:
    return cli.main(["inspect", *map(str, words)])


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))


def test_tables_verdict_and_cost_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write_folder(tmp_path / "smollm2", smollm2_tensors(), LLAMA)) == 0
    printed = capsys.readouterr().out
    for piece in ("0.1038", "0.42", "0.20 to 0.61", "89.5", "38.9", "0.2609", "0.072%", "llama norms multiply"):
        assert piece in printed
    assert "nothing fetched" in printed
    assert max(map(len, printed.splitlines()[5:])) <= 80


# -------------------------------------------------------------------------------------------------------- WSH-1
def test_check_names_each_fault_and_exits_with_one(good: Path, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--check", good) == 0
    assert "every norm is finite" in " ".join(capsys.readouterr().err.split())
    assert run("--check", good, bad) == 1
    printed = capsys.readouterr().out
    for layer, word in enumerate(("NaN", "Inf", "all zeros", "all ones"), start=2):
        assert any(word in line and f" {layer} " in line for line in printed.splitlines())
    assert "layers.1.input" not in printed


def test_check_in_json_lists_the_same(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--check", "--json", bad) == 1
    faults = document(capsys)["models"][0]["faults"]
    assert [(f["layer"], f["fault"]) for f in faults] == [
        (2, "NaN"),
        (3, "Inf"),
        (4, "all zeros"),
        (5, "all ones"),
    ]
    assert all(f["name"] == NAME.replace("{l}", str(f["layer"])) for f in faults)


def test_two_models_are_compared_by_role_and_depth(good: Path, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(good, bad) == 0
    printed = capsys.readouterr().out
    assert "Side by side" in printed
    assert "by role and depth" in printed
    assert run("--json", good, bad) == 0
    both = document(capsys)
    assert both["schema_version"] == 1
    assert len(both["models"]) == 2
    rows = both["comparison"]["layers"]
    assert [(r["layer"], r["its_layer"]) for r in rows] == [(i, i) for i in range(8)]
    assert rows[2]["its_rms"] is None  # NaN there
    assert rows[5]["its_rms"] == 1


# -------------------------------------------------------------------------------------------------------- REP-2
def test_broken_values_leave_strict_json_and_whole_charts(bad: Path, tmp_path: Path) -> None:
    assert run(bad, "--html", tmp_path / "r.html", "--png", tmp_path / "r.png", "--csv", tmp_path / "r.csv") == 0
    page = (tmp_path / "r.html").read_text()
    body = page.split('<script type="application/json" id="spec-0">')[1].split("</script>")[0]
    spec = json.loads(body, parse_constant=lambda c: pytest.fail(c))
    values = [row["rms"] for row in spec["data"]["values"]]
    assert [v is None for v in values] == [False, False, True, True, True, False, False, False]  # 0 has no logarithm
    assert "Broken, untouched or missing tensors" in page
    assert "NaN" not in (tmp_path / "r.csv").read_text().replace(",NaN\n", ",\n")


@pytest.mark.parametrize("layers", [1, 2])
def test_one_layer_or_two_make_a_page_too(tmp_path: Path, layers: int) -> None:
    folder = write_folder(tmp_path / "m", layered(NAME, growing(layers, 8)), LLAMA)
    assert run(folder, "--html", tmp_path / "r.html", "--png", tmp_path / "png") == 0
    assert (tmp_path / "png" / "size.png").stat().st_size > 1000


# --------------------------------------------------------------------------------------------------- the rest
def test_json_is_one_document_and_progress_goes_elsewhere(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(good, "--json", "--save", tmp_path / "g.npz", "--html", tmp_path / "r.html") == 0
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert captured.err.count("wrote") == 2
    assert (tmp_path / "g.npz").exists()


def test_every_layer_is_printed_when_asked(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(good, "--layers") == 0
    assert "Every layer" in capsys.readouterr().out


def test_no_number_is_ever_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "a_rather_long.prefix.of_some_tower.{l}.a_norm_with_a_long_name.weight"
    tensors = layered(name, growing(4, 16) * np.float32(1.23456e-7))
    tensors |= layered(name.replace("weight", "bias"), -growing(4, 16) * np.float32(1.23456e-5))
    folder = write_folder(tmp_path / "m", tensors, {"model_type": "unheard_of"})
    assert run(folder, "--layers") == 0
    printed = capsys.readouterr().out
    table = printed[printed.index("Every layer") :]
    assert "(more columns)" in table
    assert max(map(len, table.splitlines())) <= 80
    for part in ("gain", "bias"):
        assert sum(f" {part} " in line for line in table.splitlines()) >= 8  # each row under both groups of columns
    numbers = re.findall(r"(?<=\s)-?\d\S*", table)
    assert not [n for n in numbers if "…" in n]
    expected = f"{float(np.sqrt(np.mean(tensors[name.replace('{l}', '0')].astype(float) ** 2))):.3e}"
    assert expected in table


def test_long_names_keep_both_ends() -> None:
    from layerrope.inspector.printing import shortened

    assert shortened("unknown:model.layers.*.input_layernorm", 20) == "unknown…ut_layernorm"
    assert shortened("short", 20) == "short"


def test_the_swept_angle_is_printed_with_its_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write_folder(tmp_path / "m", layered(NAME, growing(12, 64)), LLAMA)) == 0
    assert re.search(r"\(\d+ to \d+\) +(within|outside)", capsys.readouterr().out)


def test_the_difference_from_the_first_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = growing(8, 16)
    for name, factor in (("a", 1.0), ("b", 1.5), ("c", 1.5)):
        write_folder(tmp_path / name, layered(NAME, rows * np.float32(factor)), LLAMA)
    assert run(tmp_path / "a", tmp_path / "b", tmp_path / "c") == 0
    printed = capsys.readouterr().out
    assert "Against a, over all layers" in printed
    assert printed.count("1.500 to 1.500") == 2


@pytest.mark.parametrize(
    ("words", "piece"),
    [
        ([], "name at least one model"),
        (["--survey", "x"], "not both"),
        (["./no/such/folder"], "no such file"),
        (["a", "b", "--save", "x.npz"], "exactly one"),
        (["--nonsense"], "unknown flag"),
        (["x", "--png", "foo.JPG"], "name a .png file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    words: list[str], piece: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert piece in said


def test_a_page_that_cannot_be_written_is_one_line(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(good, "--html", tmp_path / "file" / "r.html") == 2
    assert "cannot write" in capsys.readouterr().err


def test_the_survey_goes_on_past_what_it_cannot_reach(
    good: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import layerrope.inspector
    from layerrope.errors import InputError

    real, reachable = layerrope.inspector.inspect, {m["id"] for m in survey_models()[3:6]}

    def look(model: str, **options: Any) -> Any:
        if model not in reachable:
            raise InputError(f"{model} cannot be reached: no network")
        return real(good, shuffles=options["shuffles"])

    monkeypatch.setattr(layerrope.inspector, "inspect", look)
    assert run("--survey", "--shuffles", 2, "--json") == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["models"]) == 3
    assert captured.err.count("not reached") == 13
    assert captured.err.count("no network") == 1
    assert captured.err.count("for the same reason") == 12
    reachable.clear()
    assert run("--survey") == 2
    assert "none of the survey" in capsys.readouterr().err


def test_the_survey_lists_sixteen_models_of_nine_families() -> None:
    models = survey_models()
    assert len({m["id"] for m in models}) == 16
    assert len({m["family"] for m in models}) == 9


def test_an_ordinary_checkpoint_needs_no_torch(good: Path) -> None:
    code = (
        "import sys; from layerrope import cli; "
        f"code = cli.main(['inspect', {str(good)!r}, '--json', '--html', {str(good / 'r.html')!r}]); "
        "heavy = {'torch', 'transformers', 'pandas'} & set(sys.modules); sys.exit(code or (9 if heavy else 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_terminal_only_output_needs_no_charts(good: Path) -> None:
    code = (
        "import sys; from layerrope import cli; "
        f"code = cli.main(['inspect', {str(good)!r}]); "
        "heavy = {'torch', 'altair', 'polars'} & set(sys.modules); sys.exit(code or (9 if heavy else 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
