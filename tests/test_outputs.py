"""What a command writes: over its own last version, never over something else, and no output in another's way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from inspector_files import growing, layered, write_folder

from layerrope import cli
from layerrope.charts import DRAWN, save_charts
from layerrope.errors import InputError
from layerrope.files import PAGE, PNG, SVG, apart, keep_others, ready, write_atomic
from layerrope.lab import write_lab
from layerrope.page import Page, save_png, save_svg

CHART = {
    "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
    "data": {"values": [{"x": 0, "y": 1}]},
    "mark": "point",
    "encoding": {"x": {"field": "x", "type": "quantitative"}, "y": {"field": "y", "type": "quantitative"}},
}
NOTES = "what I must not lose\n"

WRITERS: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "page": (lambda path: Page("A title").write(path), PAGE),
    "lab": (write_lab, PAGE),
    "png": (lambda path: save_png(CHART, path), PNG),
    "svg": (lambda path: save_svg(CHART, path), SVG),
}


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes"
    path.write_text(NOTES)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rows = layered("model.layers.{l}.input_layernorm.weight", growing(8, 16))
    return write_folder(tmp_path / "model", rows, {"model_type": "llama"})


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "ladder.csv"
    rows = (f"{name},{10.0**c},{2 + h * 10 ** (-0.1 * c)}" for name, h in (("a", 50), ("b", 45)) for c in (17, 18, 19))
    path.write_text("\n".join(("scheme,compute,loss", *rows)) + "\n")
    return path


@pytest.mark.parametrize("kind", WRITERS)
def test_a_page_or_picture_takes_the_place_of_its_own_kind_alone(kind: str, notes: Path) -> None:
    write, starts = WRITERS[kind]
    with pytest.raises(InputError, match="holds something else, so it is not written over"):
        write(notes)
    assert notes.read_text() == NOTES
    notes.write_bytes(b"")
    for _ in range(2):  # over an empty file, and over what was written then
        write(notes)
        assert notes.read_bytes().startswith(starts)


def test_a_report_s_charts_replace_its_last_set_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "charts"
    assert save_charts({}, folder) == []
    assert not folder.exists()
    save_charts(dict.fromkeys(["kept", "gone", "taken", "linked"], CHART), folder)
    for name in ("mine", "elsewhere"):
        (folder / f"{name}.png").write_bytes(PNG)
    (folder / "taken.png").write_text(NOTES)
    (folder / "linked.png").unlink()
    (folder / "linked.png").symlink_to("elsewhere.png")
    save_charts(dict.fromkeys(["kept", "new"], CHART), folder)
    left = {"kept.png", "new.png", "mine.png", "elsewhere.png", "taken.png", "linked.png", DRAWN}
    assert {path.name for path in folder.iterdir()} == left
    save_charts({}, folder)
    assert {path.name for path in folder.iterdir()} == left - {"kept.png", "new.png"}
    assert (folder / "taken.png").read_text() == NOTES


@pytest.mark.parametrize(
    "said", ["", "{", "3", '{"a": 1}', '["../outside", 3, null, "", "in\\u0000side", ["x"]]', "[" * 9999]
)
def test_a_damaged_list_of_charts_removes_nothing(said: str, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside.png", tmp_path / "charts"
    outside.write_bytes(PNG)
    folder.mkdir()
    (folder / DRAWN).write_text(said)
    save_charts({"new": CHART}, folder)
    assert outside.exists()
    assert (folder / "new.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize("found", [b"<", PAGE[:-1], PNG, b"\0" * 20])
def test_a_start_that_only_begins_alike_is_something_else(found: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(found)
    with pytest.raises(InputError, match="something else"):
        keep_others(path, PAGE)
    assert write_atomic(path, "anything").read_text() == "anything"  # without `over` the caller answers for it


def test_outputs_that_are_in_each_other_s_way_are_told(tmp_path: Path) -> None:
    apart([tmp_path / "a", tmp_path / "b" / "c", tmp_path / "b" / "d"])
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for outputs in (["a", "b/../a"], ["a", "link"]):
        with pytest.raises(InputError, match="same name"):
            apart(tmp_path / name for name in outputs)
    for outputs in (["a", "a/b"], ["a/b/c", "a"]):
        with pytest.raises(InputError, match="a is one output and the folder of another"):
            apart(tmp_path / name for name in outputs)
    ready([(None, PNG), (None, PAGE)])


@pytest.mark.parametrize(
    "words",
    [
        ("--png", "D", "--html", "D/size.png"),
        ("--png", "D", "--csv", "D/angle.png"),
        ("--png", "D", "--save", "D/../D/size.png"),
        ("--png", "D", "--csv", "D"),
        ("--html", "page", "--csv", "page/rows.csv"),
        ("--png", "a.png", "--html", "a.png"),
    ],
    ids=" ".join,
)
def test_inspect_writes_nothing_where_two_outputs_clash(
    words: tuple[str, ...], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["inspect", str(model), "--shuffles", "0", *words]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_inspect_writes_page_pictures_and_table_into_one_folder_twice(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("--png", out, "--html", out / "page.html", "--csv", out / "rows.csv", "--save", out / "gains.npz")
    for _ in range(2):
        assert cli.main(["inspect", str(model), "--shuffles", "0", *map(str, words)]) == 0
    assert {"page.html", "rows.csv", "gains.npz", "size.png"} < {path.name for path in out.iterdir()}


@pytest.mark.parametrize("option", ["--html", "--png"])
def test_inspect_keeps_a_file_of_another_kind_and_writes_nothing_else(option: str, model: Path, notes: Path) -> None:
    folder = notes.parent / "D"
    folder.mkdir()
    kept = notes if option == "--html" else notes.rename(folder / "size.png")
    words = ("--csv", notes.parent / "rows.csv", option, kept if option == "--html" else folder)
    assert cli.main(["inspect", str(model), "--shuffles", "0", *map(str, words)]) == 2
    assert kept.read_text() == NOTES
    assert not (notes.parent / "rows.csv").exists()


@pytest.mark.parametrize("option", ["--html", "--png"])
def test_fit_does_not_write_over_its_table(
    option: str, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = table.read_bytes()
    words = ["fit", str(table), "--resamples", "0", "--whose", "b"]
    assert cli.main([*words, option, str(table)]) == 2
    assert "holds something else" in capsys.readouterr().err
    assert table.read_bytes() == before
    both = str(tmp_path / "both")
    assert cli.main([*words, "--html", both, "--png", both]) == 2
    assert not Path(both).exists()


def test_lab_keeps_what_is_no_page(notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lab", "--out", str(notes)]) == 2
    assert "choose another name" in capsys.readouterr().err
    assert notes.read_text() == NOTES


@pytest.mark.parametrize(("flag", "starts"), [("--csv", b"schema_version,"), ("--save", b"PK")])
def test_an_inspection_s_files_take_the_place_of_their_own_kind_alone(
    flag: str, starts: bytes, model: Path, notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", str(model), flag, str(notes)]) == 2
    assert "holds something else" in capsys.readouterr().err
    assert notes.read_text() == NOTES
    mine = notes.with_name("mine")
    for _ in range(2):
        assert cli.main(["inspect", str(model), flag, str(mine)]) == 0
        assert mine.read_bytes().startswith(starts)
