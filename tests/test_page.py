"""The page and the charts: self-contained, escaped, strict JSON, whole at zeros, gaps and single points."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
import struct
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerrope.charts import SCHEME_STYLE, embeddable, theme
from layerrope.errors import InputError
from layerrope.page import Page, json_script, save_png, save_svg, scheme_channels, scheme_style, show

HOSTILE = "</script><img src=x onerror=alert(1)>&\"'\u2028<!--\x00"


class Reader(HTMLParser):
    """Tags with their attributes, and the text inside every script, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script" and self.cdata_elem == "script":
            self.scripts.append((self.tags[-1][1], data))

    def json(self, name: str) -> Any:
        body = "".join(text for attrs, text in self.scripts if attrs.get("id") == name)
        return json.loads(body, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def line(rows: list[dict[str, Any]], scale: str = "linear") -> alt.Chart:
    y = alt.Y("loss:Q", scale=alt.Scale(type=scale))  # type: ignore[arg-type]
    return alt.Chart(pl.DataFrame(rows, infer_schema_length=None)).mark_line().encode(x="step:Q", y=y)


def values(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return next(iter(spec["datasets"].values()))


RUN = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}]


def test_a_page_names_no_address_and_allows_itself_none() -> None:
    page = Reader(Page("Title").text("words").chart(line(RUN), "caption", "alt").html())
    for tag, attrs in page.tags:
        assert not {"src", "href", "srcset", "action", "data"} & set(attrs), (tag, attrs)
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe-eval" not in policy
    code = ["".join(t for a, t in page.scripts if a is attrs) for attrs in _runnable(page)]
    hashes = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in code}
    assert hashes == set(re.findall(r"sha256-([^']+)'", policy))


def _runnable(page: Reader) -> list[dict[str, str | None]]:
    seen: list[dict[str, str | None]] = []
    for attrs, _ in page.scripts:
        if "type" not in attrs and not any(attrs is s for s in seen):
            seen.append(attrs)
    return seen


def test_the_library_is_there_once_however_many_charts_and_absent_without_any() -> None:
    one = Page("t").chart(line(RUN), "c", "a").html()
    three = Page("t").charts([(line(RUN), "c", "a")] * 3).html()
    assert len(three) - len(one) < 20_000
    assert len(Reader(three).json("spec-2")["datasets"]) == 1
    assert len(Page("t").text("words").html()) < 10_000


def test_hostile_text_stays_text_everywhere() -> None:
    rows = [{"step": 1, "loss": 1.0, HOSTILE: HOSTILE}]
    chart = line(rows).properties(title=HOSTILE)
    page = Page(HOSTILE, HOSTILE).heading(HOSTILE).text(HOSTILE).note(HOSTILE).bullets([HOSTILE]).code(HOSTILE)
    page.table(rows, HOSTILE).table(rows, HOSTILE, folded=True).chart(chart, HOSTILE, HOSTILE)
    read = Reader(page.html())
    assert "img" not in {tag for tag, _ in read.tags}
    assert not any(name.startswith("on") for _, attrs in read.tags for name in attrs)
    assert values(read.json("spec-0"))[0][HOSTILE] == HOSTILE
    assert read.json("spec-0")["title"] == HOSTILE


@given(st.recursive(st.none() | st.floats() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)))
def test_json_in_a_script_is_strict_and_cannot_end_it(value: Any) -> None:
    block = json_script("x", value)
    body = block.removeprefix('<script type="application/json" id="x">').removesuffix("</script>")
    assert not set("<>&\u2028\u2029") & set(body)
    json.loads(body, parse_constant=lambda word: pytest.fail(word))


def test_non_finite_numbers_become_null_and_the_rest_stays() -> None:
    rows = [{"step": i, "loss": v} for i, v in enumerate([1.0, math.nan, math.inf, -math.inf, 2.0])]
    spec = embeddable(line(rows))
    assert [r["loss"] for r in values(spec)] == [1.0, None, None, None, 2.0]
    raw = embeddable({"data": {"values": [{"a": math.nan}]}, "mark": "point"})
    assert raw["data"]["values"] == [{"a": None}]


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_log_axis_drops_only_what_it_cannot_show(scale: str, tmp_path: Path) -> None:
    rows = [{"step": i, "loss": v} for i, v in enumerate([1.0, 0.0, -1.0, 10.0])]
    spec = embeddable(line(rows, scale))
    kept = [1.0, None, None, 10.0] if scale == "log" else [1.0, 0.0, -1.0, 10.0]
    assert [r["loss"] for r in values(spec)] == kept
    text = save_svg(line(rows, scale), tmp_path / "c.svg").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text


def test_a_single_point_is_drawn(tmp_path: Path) -> None:
    drawn = save_svg(line(RUN[:1]), tmp_path / "one.svg").read_text()
    marks = re.findall(r'<g class="mark-symbol role-mark[^"]*"[^>]*>(.*?)</g>', drawn, re.S)
    assert any("<path" in mark for mark in marks)


def test_an_empty_chart_and_an_empty_table_are_no_error(tmp_path: Path) -> None:
    empty = line(RUN)
    empty.data = pl.DataFrame({"step": [], "loss": []}, schema={"step": pl.Int64, "loss": pl.Float64})
    save_png(empty, tmp_path / "empty.png")
    assert "<table>" in Page("t").table([], "nothing").table(pl.DataFrame(), "nothing").html()


def test_png_is_a_png_of_the_asked_scale_in_both_modes(tmp_path: Path) -> None:
    one = save_png(line(RUN), tmp_path / "1.png", scale=1).read_bytes()
    two = save_png(line(RUN), tmp_path / "2.png", scale=2, mode="dark").read_bytes()
    assert one[:8] == two[:8] == b"\x89PNG\r\n\x1a\n"
    (w1, h1), (w2, h2) = (struct.unpack(">II", data[16:24]) for data in (one, two))
    assert abs(w2 - 2 * w1) <= 2
    assert abs(h2 - 2 * h1) <= 2


def test_a_chart_that_would_fetch_its_data_is_refused() -> None:
    with pytest.raises(InputError, match="reads its data from"):
        Page("t").chart(alt.Chart("https://example.org/x.csv").mark_point(), "c", "a")


def test_more_rows_than_altair_usually_allows() -> None:
    rows = [{"step": i, "loss": float(i)} for i in range(6000)]
    assert len(values(embeddable(line(rows)))) == 6000


def test_one_plot_takes_the_width_of_the_page_and_grids_keep_theirs() -> None:
    single, both = line(RUN).properties(width=900), line(RUN) | line(RUN)
    page = Reader(Page("t").chart(single, "c", "a").chart(both, "c", "a").html())
    assert page.json("spec-0")["width"] == "container"
    assert "width" not in page.json("spec-1")


def test_both_themes_travel_with_the_page_and_differ() -> None:
    themes = Reader(Page("t").chart(line(RUN), "c", "a").html()).json("themes")
    assert set(themes) == {"light", "dark"}
    assert themes["light"]["background"] != themes["dark"]["background"]
    assert themes["light"] == theme("light")


def test_every_scheme_has_its_own_look_and_a_stranger_a_stable_one() -> None:
    names = [f"layerrope:beta={i}" for i in range(20)] + ["layerrope", "layerrope-peri"]
    colour, dash = (channel.to_dict() for channel in scheme_channels("scheme", names))
    lines = dict(
        zip(names, zip(colour["scale"]["range"], map(tuple, dash["scale"]["range"]), strict=True), strict=True)
    )
    assert len(set(lines.values())) == len(names)
    assert lines["layerrope"] == (scheme_style("layerrope")[0], (1, 0))
    looks = {name: scheme_style(name) for name in SCHEME_STYLE}
    assert len({(colour, tuple(dash)) for colour, dash in looks.values()}) == len(looks)
    assert scheme_style("lns+layerrope")[0] == scheme_style("lns")[0]
    strangers = [scheme_style(name)[0] for name in ("mine", "yours", "theirs")]
    assert strangers == ["#80868f", "#a2395b", "#4aa8e0"]  # the same in every process
    colour, dash = scheme_channels("scheme", ["lns", "hc"])
    assert colour.to_dict()["scale"]["range"] == [scheme_style("lns")[0], scheme_style("hc")[0]]
    assert dash.to_dict()["scale"]["domain"] == ["lns", "hc"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
        (0.0, "0"),
        (-0.0, "0"),
        (0.42205164, "0.4221"),
        (89.5496, "89.55"),
        (123456.7, "123457"),
        (1.5e9, "1.500e+09"),
        (3.1e-7, "3.100e-07"),
        (12, "12"),
        (True, "yes"),
        ((13, 24), "13, 24"),
        ("text", "text"),
    ],
)
def test_numbers_as_shown(value: Any, shown: str) -> None:
    assert show(value) == shown


def test_numeric_columns_are_aligned_and_words_are_not() -> None:
    read = Reader(Page("t").table([{"name": "a", "n": 1.0}, {"name": "b", "n": None}]).html())
    assert [attrs.get("class") for tag, attrs in read.tags if tag == "td"] == ["s", "n", "s", "n"]


def test_a_page_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        Page("t").write(tmp_path / "file" / "page.html")


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_draws_every_chart_under_the_page_s_own_policy(tmp_path: Path) -> None:
    rows = [{"step": i, "loss": float(i)} for i in range(5)]
    page = Page("t").chart(line(rows, "log"), "c", "a").chart(line(rows) | line(rows), "c", "a")
    path = page.write(tmp_path / "page.html")
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    command = [str(BROWSER), *flags.split(), f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--virtual-time-budget=5000", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert len(re.findall(r"<svg[^>]*marks", done.stdout)) == 2
    assert "could not be drawn" not in done.stdout.split("</main>")[0]
