"""The embedded corpus: the files are the ones that were made, their counts hold, and a wheel carries them."""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from layerrope.text.files import CORPUS, embedded

ROOT = Path(__file__).parents[1]
MANIFEST: list[dict[str, Any]] = json.loads((CORPUS / "manifest.json").read_text())


def test_the_manifest_lists_every_file() -> None:
    assert {row["file"] for row in MANIFEST} == {path.name for path in CORPUS.glob("*.xz")}
    assert {path.name for path in CORPUS.iterdir()} >= {"SOURCES.md", "manifest.json"}


@pytest.mark.parametrize("row", MANIFEST, ids=lambda row: row["file"])
def test_a_file_is_the_one_that_was_made(row: dict[str, Any]) -> None:
    raw = (CORPUS / row["file"]).read_bytes()
    assert (len(raw), hashlib.sha256(raw).hexdigest()) == (row["bytes"], row["sha256"])
    records = [json.loads(line) for line in lzma.decompress(raw).splitlines()]
    assert len(records) == row["documents"]
    assert len({record["work"] for record in records}) == row["works"]
    assert sum(len(record["text"].encode()) for record in records) == row["text_bytes"]


def test_no_work_and_no_paragraph_is_on_both_sides() -> None:
    source = embedded()
    works, paragraphs = {}, {}
    for side in ("train", "val"):
        documents = list(source.documents(side))
        works[side] = {document.work for document in documents}
        paragraphs[side] = {p for document in documents for p in document.text.split("\n\n") if len(p) > 60}
    assert not works["train"] & works["val"]
    assert len(paragraphs["val"]) > 500
    assert not paragraphs["train"] & paragraphs["val"]


def test_every_work_has_its_source() -> None:
    sources = (CORPUS / "SOURCES.md").read_text()
    works = {document.work for side in ("train", "val") for document in embedded().documents(side)}
    rows = dict(re.findall(r"^\| (e\d+) \|.*?@ `([0-9a-f]{12})`", sources, re.M))
    assert set(rows) == works
    assert "CC0" in sources


def test_a_wheel_carries_the_corpus_and_everything_else_of_the_package(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        for path in CORPUS.iterdir():
            assert wheel.read(f"layerrope/corpus/{path.name}") == path.read_bytes()
        package = ROOT / "src"
        files = (path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc")
        assert {str(path.relative_to(package)) for path in files} <= set(wheel.namelist())
        assert "layerrope/py.typed" in wheel.namelist()
