"""The lab page in a real browser: its numbers are the package's, its controls work by hand, and it keeps to itself."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab_pictures
import numpy as np
import pytest
import torch
from browser import Tab, browser, needs_browser
from lab_runs import HOSTILE

from layerrope import toy_stream
from layerrope.accounting import count_parameters, flops_per_token, gate_flops
from layerrope.config import ModelConfig, tier
from layerrope.gains import SITES, gain_table
from layerrope.inspector import angles, mds
from layerrope.lab import budget
from layerrope.training.trained import load_trained

pytestmark = needs_browser
ROOT = Path(__file__).parents[1]
CLOSE = {"rel": 1e-9, "abs": 1e-9}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Tab]:
    with browser() as tab:
        yield tab


@pytest.fixture(scope="module")
def file(lab_page: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "lab.html"
    path.write_text(lab_page)
    return path


@pytest.fixture
def tab(chromium: Tab, file: Path) -> Iterator[Tab]:
    """The page, opened afresh; whatever a test does with it, the console stays silent and nothing is fetched."""
    chromium.look()
    chromium.requests()
    chromium.open(file)
    yield chromium
    assert chromium.messages() == []
    asked = [url for url in chromium.requests() if not url.startswith(("data:", "about:"))]
    assert {url.split("#")[0] for url in asked} <= {file.as_uri()}


def rows(tab: Tab, chart: str, name: str) -> list[dict[str, Any]]:
    """The rows that the chart shows."""
    return tab.js("lab.Charts.view(arguments[0]).data(arguments[1])", chart, name)


def facts(tab: Tab, part: str) -> dict[str, float]:
    """The numbers above a part's charts, by name, unrounded."""
    read = "[...document.querySelectorAll(`#${arguments[0]} .facts div`)].map((e) => [e.children[0], e.children[1]])"
    return dict(tab.js(f"{read}.map(([t, d]) => [t.textContent, Number(d.dataset.value)])", part))


def cells(tab: Tab, table: str) -> list[list[str]]:
    """A table's values, unrounded, row by row."""
    read = "[...document.querySelectorAll(`#${arguments[0]} tbody tr`)].map((r) => [...r.children]"
    return tab.js(f"{read}.map((c) => c.dataset.value))", table)


def marks(tab: Tab, chart: str) -> list[list[float]]:
    """Where the points of a chart are drawn, in pixels."""
    walk = (
        "((view) => { const found = []; const walk = (item) => { const inside = item.items ?? [];"
        " if (item.marktype === 'symbol' && item.role === 'mark') found.push(...inside.map((i) => [i.x, i.y]));"
        " else inside.forEach(walk); }; walk(view.scenegraph().root); return found; })"
        "(lab.Charts.view(arguments[0]))"
    )
    return tab.js(walk, chart)


# ----------------------------------------------------------------------------------------------------- one layer's gain
@pytest.mark.parametrize(
    ("L", "d", "layer", "numbers"),
    [
        (24, 64, 0, (0.0, -0.5, 0.0, -0.5, 100.0)),
        (30, 8, 29, (0.4, 0.76, -0.156, -1.09, 100.0)),
        (7, 130, 3, (-1.0, 0.2, 1.1, 0.3, 10_000.0)),
    ],
)
def test_sliders_move_the_gains_to_the_packages(
    tab: Tab, L: int, d: int, layer: int, numbers: tuple[float, float, float, float, float]
) -> None:
    tab.set("gain-preset", "start")
    before = marks(tab, "pairs")
    names = ("alpha", "beta", "alpha_rot", "beta_rot", "base")
    for name, value in zip(("n_layer", "d", "layer", *names), (L, d, layer, *numbers), strict=True):
        tab.set(f"gain-{name}-number", value)
    table = gain_table(torch.ones(d, dtype=torch.float64), L, *numbers).numpy()
    shown = rows(tab, "channels", "channels")
    assert [row["gain"] for row in shown] == pytest.approx(table[layer].tolist(), **CLOSE)
    pairs = rows(tab, "pairs", "pairs")
    assert [(row["x"], row["y"]) for row in pairs] == pytest.approx(
        [pytest.approx(p, **CLOSE) for p in table[layer].reshape(-1, 2).tolist()]
    )
    assert {row["pair"] for row in pairs if row["sign"] == "one negative"} == set(
        np.flatnonzero((table[layer].reshape(-1, 2) < 0).any(1)).tolist()
    )
    sizes = [row["value"] for row in rows(tab, "sizes", "law")]
    assert sizes == pytest.approx(np.sqrt((table**2).mean(1)).tolist(), **CLOSE)
    turned = [row["value"] for row in rows(tab, "turns", "law")]
    assert turned == pytest.approx(angles.angles(table).from_first, abs=1e-6)
    said = facts(tab, "gain")
    assert said["negative channels"] == (table[layer] < 0).sum()
    assert said["size factor eʳ"] == pytest.approx(math.exp(numbers[0] + numbers[1] * math.log(layer + 1)), **CLOSE)
    assert marks(tab, "pairs") != before


def test_the_papers_numbers_appear(tab: Tab) -> None:
    """At width 2048: 54 negative channels where training starts, 49 and about 16 degrees at the learned MLP read."""
    tab.set("gain-preset", "start")
    tab.set("gain-d-number", 2048)
    assert facts(tab, "gain")["negative channels"] == 54
    tab.set("gain-preset", "read-mlp")
    said = facts(tab, "gain")
    assert said["angle of the first pair"] == pytest.approx(49, abs=1e-3)
    assert said["the whole vector, from γ"] == pytest.approx(16, abs=0.1)
    tab.set("gain-layer-number", 23)
    assert facts(tab, "gain")["angle of the first pair"] == pytest.approx(1.5, abs=0.05)
    for name, slope in (("write-attn", 0.56), ("write-mlp", 0.76)):
        tab.set("gain-preset", name)
        sizes = [row["value"] for row in rows(tab, "sizes", "law")]
        assert sizes == pytest.approx([(layer + 1) ** slope for layer in range(24)], **CLOSE)


def test_smollm2_stands_beside_as_measured(tab: Tab) -> None:
    norms = np.load(ROOT / "tests" / "data" / "smollm2-135m.npz")
    for who, name in (("SmolLM2 attention read", "attn_in"), ("SmolLM2 MLP read", "mlp_in")):
        table = norms[name].astype(np.float64)
        sizes = [row["value"] for row in rows(tab, "sizes", "measured") if row["who"] == who]
        assert sizes == pytest.approx(np.sqrt((table**2).mean(1)).tolist(), **CLOSE)
        turned = [row["value"] for row in rows(tab, "turns", "measured") if row["who"] == who]
        assert turned == pytest.approx(angles.angles(table).from_first, abs=1e-6)


def test_a_runs_gains_are_its_own(tab: Tab, lab_folder: Path) -> None:
    rows_LKD = load_trained(lab_folder / HOSTILE).model.gains.site_rows().detach().numpy()  # type: ignore[union-attr]
    for k, site in enumerate(SITES):
        tab.set("gain-preset", f"run-{site}")
        for layer in range(2):
            tab.set("gain-layer-number", layer)
            shown = [row["gain"] for row in rows(tab, "channels", "channels")]
            assert shown == pytest.approx(rows_LKD[layer, k].tolist(), abs=1e-6)
    assert HOSTILE[:-1] in tab.find("#gain-note").text  # its last character is a line separator, shown as a space


@pytest.mark.parametrize(("name", "held"), [("free", True), ("far", False)])
def test_a_run_beyond_the_sliders_is_shown_whole(
    chromium: Tab, lab_folder: Path, tmp_path: Path, name: str, held: bool
) -> None:
    """Free tables, whose depth is held whatever an address asks for; and scalars farther out than sliders reach."""
    from layerrope.lab import write_lab

    chromium.look()
    chromium.open(write_lab(tmp_path / "run.html", lab_folder / name), "#gain.d=64" + "&gain.n_layer=9" * held)
    own = load_trained(lab_folder / name).model.gains.site_rows().detach().numpy()  # type: ignore[union-attr]
    for layer in range(2):
        chromium.set("gain-layer-number", layer)
        shown = [row["gain"] for row in rows(chromium, "channels", "channels")]
        assert shown == pytest.approx(own[layer, 0].tolist(), rel=1e-6, abs=1e-6)
    assert chromium.find("#gain-n_layer").is_enabled() is not held
    chromium.set("gain-preset", "start")
    assert chromium.find("#gain-d").is_enabled()
    assert chromium.js("document.getElementById('gain-alpha').max") == "4"
    assert chromium.messages() == []


# ----------------------------------------------------------------------------------------------------------- the stream
@pytest.mark.parametrize(("n", "slope", "start"), [(24, 0.56, 0.0), (512, -0.3, 2.5), (57, 1.2, 0.0)])
def test_the_stream_is_the_toys(tab: Tab, n: int, slope: float, start: float) -> None:
    for name, value in (("n_layer", n), ("slope", slope), ("start", start)):
        tab.set(f"stream-{name}-number", value)
    ratio = toy_stream.geometric_ratio(n, slope)
    writes = {
        "Pre-Norm": toy_stream.power(n, 0),
        "power law": toy_stream.power(n, slope),
        "learned at 1.3B": toy_stream.block(n, toy_stream.LEARNED),
        "geometric": toy_stream.geometric(n, ratio),
    }
    for name, g in writes.items():
        update = toy_stream.relative_update(g, start)
        shown = [row["value"] for row in rows(tab, "updates", "blocks") if row["schedule"] == name]
        assert shown == pytest.approx(update[np.isfinite(update)].tolist(), rel=1e-9)
        grown = [row["value"] for row in rows(tab, "variances", "blocks") if row["schedule"] == name]
        assert grown == pytest.approx(toy_stream.variance(g, start)[1:].tolist(), rel=1e-9)
    heads = tab.js("[...document.querySelectorAll('#stream-table th')].map((e) => e.textContent)")
    shown = dict(zip(heads, zip(*cells(tab, "stream-table"), strict=True), strict=True))
    assert list(shown["schedule"]) == list(writes)
    last = next(name for name in heads if name.endswith(f"last of {n}"))
    ends = [toy_stream.relative_update(g, start)[-1] for g in writes.values()]
    assert [float(v) for v in shown[last]] == pytest.approx(ends, rel=1e-9)
    grown_to = [toy_stream.variance(g, start)[-1] for g in writes.values()]
    assert [float(v) for v in shown[f"variance after {n}"]] == pytest.approx(grown_to, rel=1e-9)


def test_pre_norms_two_numbers_are_on_the_page(tab: Tab) -> None:
    text = tab.find("#stream-table").text
    assert "0.2085" in text
    assert "0.04424" in text
    tab.set("stream-ends", "own")
    tab.set("stream-ratio-number", 1.1)
    geometric = [float(v) for v in cells(tab, "stream-table")[3][1:]]
    assert geometric[1] == pytest.approx(toy_stream.relative_update(toy_stream.geometric(512, 1.1))[-1], rel=1e-9)
    assert tab.find("#stream-ratio").is_enabled()


# ----------------------------------------------------------------------------------------------------------- the mirage
@pytest.mark.parametrize("values", [{}, {"n": 9, "d": 40, "top": 3, "noise": 0.3, "seed": 7}])
def test_the_mirages_angles_are_the_inspectors(tab: Tab, values: dict[str, float]) -> None:
    for name, value in values.items():
        tab.set(f"mirage-{name}-number", value)
    vectors = tab.js("lab.Mirage.growing(lab.panels.find((p) => p.name === 'mirage').values).map((r) => [...r])")
    _same_picture(tab, np.array(vectors))


@pytest.mark.parametrize(("source", "name"), [("smollm2-attn", "attn_in"), ("smollm2-mlp", "mlp_in")])
def test_the_pictures_of_smollm2_are_the_inspectors(tab: Tab, source: str, name: str) -> None:
    tab.set("mirage-source", source)
    _same_picture(tab, np.load(ROOT / "tests" / "data" / "smollm2-135m.npz")[name].astype(np.float64))


def _same_picture(tab: Tab, table: np.ndarray) -> None:
    found, true = mds.picture(table), angles.angles(table)
    shown = tab.js("(({angles, picture}) => ({angles, picture}))(lab.MiragePart.shown())")
    scale = float(np.abs(found.points).max())
    assert np.allclose(shown["picture"]["points"], found.points, atol=1e-8 * scale, rtol=0)
    assert shown["picture"]["stress"] == pytest.approx(found.stress, abs=1e-6)
    assert shown["picture"]["kept"] == pytest.approx(found.kept, abs=1e-6)
    for name in ("net", "folded", "path", "range"):
        assert shown["picture"]["sweep"][name] == pytest.approx(getattr(found.sweep, name), abs=1e-6)
    assert shown["angles"]["largest"] == pytest.approx(true.largest, abs=1e-6)
    assert shown["angles"]["fromFirst"] == pytest.approx(true.from_first, abs=1e-6)
    said = facts(tab, "mirage")
    assert said["swept in the picture"] == pytest.approx(found.sweep.net, abs=1e-6)


def test_the_null_is_the_inspectors(tab: Tab) -> None:
    """Different random numbers, the same distribution: means agree within five standard errors of their difference."""
    table = np.load(ROOT / "tests" / "data" / "smollm2-135m.npz")["mlp_in"].astype(np.float64)
    tab.set("mirage-source", "smollm2-mlp")
    ended = (
        "new Promise((go) => { const look = () => lab.MiragePart.shown().null ? go() : setTimeout(look, 20); look(); })"
    )
    tab.settle(ended)
    mine = tab.js("lab.MiragePart.shown().null")
    theirs = mds.rank1_null(table, angles.shared_direction(table), draws=50)
    assert mine["draws"] == theirs.draws
    assert abs(mine["mean"] - theirs.mean.net) < 5 * math.hypot(mine["std"], theirs.std.net) / math.sqrt(50)
    along = tab.js(
        "(({along, noise}) => ({along, noise: [...noise]}))(lab.Mirage.shared(lab.MiragePart.shown().gram, 576))"
    )
    shared = angles.shared_direction(table)
    noise = np.sqrt(np.mean((table - shared.table) ** 2, axis=1))
    assert along["along"] == pytest.approx(shared.size.tolist(), rel=1e-8)
    assert along["noise"] == pytest.approx(noise.tolist(), rel=1e-6)
    low, high = mine["low"], mine["high"]
    assert f"{low:.1f}° to {high:.1f}°" in tab.find("#mirage-verdict").text


def test_the_random_numbers_are_what_they_are_called(tab: Tab) -> None:
    many = "((draw) => Array.from({length: 20000}, draw))(((z) => () => %s)(lab.Mirage.normals(3)))"
    normal = np.array(tab.js(many % "z.normal()"))
    assert abs(normal.mean()) < 5 / math.sqrt(20_000)
    assert abs(normal.var() - 1) < 5 * math.sqrt(2 / 20_000)
    for k in (1, 2, 30):
        drawn = np.array(tab.js(many % f"lab.Mirage.chiSquare({k}, z)"))
        assert abs(drawn.mean() - k) < 5 * math.sqrt(2 * k / 20_000)
        assert abs(drawn.var() / (2 * k) - 1) < 0.2


# ----------------------------------------------------------------------------------------------------------- the budget
SHAPES = [
    {"n_layer": 3, "d_model": 10, "d_ff": 7, "vocab_size": 11, "seq_len": 5},
    {"n_layer": 5, "d_model": 96, "d_ff": 250, "vocab_size": 50_257, "seq_len": 1024},
]


@pytest.mark.parametrize("shape", ["micro", "130m", "1b", *SHAPES], ids=str)
def test_the_budget_is_the_accounts_to_the_last_digit(tab: Tab, shape: Any) -> None:
    if isinstance(shape, str):
        tab.set("budget-tier", shape)
        config = tier(shape)
    else:
        for name, value in shape.items():
            tab.set(f"budget-{name}-number", value)
        config = ModelConfig(**shape, n_head=1)
    tab.set("budget-ratio-number", 20)
    table = {row[0]: row[1:] for row in cells(tab, "budget-table")}
    assert list(table) == list(budget.SHOWN)
    for name in ("prenorm", "layerrope", "hc", "mhc"):
        mine = ModelConfig(**{**config.__dict__, "scheme": name})
        parameters = count_parameters(mine)[0]
        plain = count_parameters(config)[0]
        flops, gate = flops_per_token(mine), gate_flops(mine)
        counted = [parameters, parameters - plain, flops, gate / flops, 20 * parameters, flops * (20 * parameters)]
        assert [float(v) for v in table[name][:6]] == counted
        hours = counted[-1] / (989e12 * 8 * 0.4) / 3600
        assert float(table[name][6]) == pytest.approx(hours, rel=1e-12)


def test_shape_and_machine_follow_each_other(tab: Tab) -> None:
    tab.set("budget-tier", "60m")
    assert tab.js("document.getElementById('budget-d_model-number').value") == "512"
    tab.set("budget-d_model-number", 514)
    assert tab.js("document.getElementById('budget-tier').value") == "own"
    tab.set("budget-device", "a100")
    assert tab.js("document.getElementById('budget-teraflops-number').value") == "312"
    tab.set("budget-teraflops-number", 500)
    assert tab.js("document.getElementById('budget-device').value") == "own"


# ------------------------------------------------------------------------------------------------------- hands and eyes
def test_every_control_is_labelled_and_reached_by_the_keyboard(tab: Tab) -> None:
    from selenium.webdriver import ActionChains, Keys

    nameless = (
        "[...document.querySelectorAll('input, select, button')]"
        ".filter((e) => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent)).map((e) => e.id)"
    )
    assert tab.js(nameless) == []
    wanted = set(tab.js("[...document.querySelectorAll('form input:enabled, form select')].map((e) => e.id)"))
    reached: set[str] = set()
    for _ in range(len(wanted) + 60):
        ActionChains(tab.driver).send_keys(Keys.TAB).perform()
        reached.add(tab.js("document.activeElement.id"))
    assert wanted <= reached


def test_arrow_keys_move_a_slider_and_the_marks(tab: Tab) -> None:
    from selenium.webdriver import Keys

    tab.set("gain-preset", "start")
    tab.set("gain-n_layer-number", 24)
    slider, before = tab.find("#gain-layer"), marks(tab, "pairs")
    for presses in (1, 2):
        slider.send_keys(Keys.ARROW_RIGHT)
        tab.wait()
        assert tab.js("document.getElementById('gain-layer-number').value") == str(presses)
        assert marks(tab, "pairs") != before
    deep = tab.find("#stream-n_layer")
    deep.send_keys(Keys.END)
    tab.wait()
    assert len(rows(tab, "variances", "blocks")) == 4 * 512


def test_values_that_cannot_be_are_brought_back(tab: Tab) -> None:
    for value, becomes in (("9999", "512"), ("-3", "2"), ("7.4", "7"), ("", "7")):
        tab.set("gain-n_layer-number", value)
        assert tab.js("document.getElementById('gain-n_layer-number').value") == becomes
    assert int(tab.js("document.getElementById('gain-layer').max")) == 6


def test_every_control_at_its_ends_shows_numbers(tab: Tab) -> None:
    tab.set("gain-preset", "start")
    names = "lab.panels.flatMap((p) => [...p.fields.values()].map((f) => [p.name, f.id, f.min ?? null, f.max ?? null]))"
    ends = [(part, field, v) for part, field, *both in tab.js(names) for v in both if v is not None]
    move = (
        "((p, field, value) => p.assign({...p.usual, [field]: value}))(lab.panels.find((p) => p.name === arguments[0]),"
    )
    move += "arguments[1], arguments[2])"
    said = "[...document.querySelectorAll('dd, .view td')].map((e) => e.innerText).join(' ')"
    for part, field, value in ends:
        tab.js(move, part, field, value)
        tab.wait()
        assert not re.search("NaN|undefined|null|Infinity", tab.js(said)), (part, field, value)
    tab.set("mirage-noise-number", 0)
    tab.set("mirage-top-number", 1)  # all vectors the same: there is no picture
    assert "NaN" not in tab.js(said)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_overflows(chromium: Tab, file: Path, tmp_path: Path, width: int, dark: bool) -> None:
    chromium.look(width, dark=dark)
    chromium.open(file)
    assert chromium.js("document.documentElement.scrollWidth") <= width
    wide = (
        "[...document.querySelectorAll('h1, h2, h3, p, li, label, legend, dt, dd, button, figcaption, nav a, .live')]"
        ".filter((e) => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')"
        ".filter((e) => !e.matches('.theme legend')).map((e) => e.outerHTML.slice(0, 200))"
    )
    assert chromium.js(wide) == []
    words = (
        "[...document.querySelectorAll('.live svg')].flatMap((svg) => [...svg.querySelectorAll('text')].filter((t) => {"
        " const [a, b] = [t.getBoundingClientRect(), svg.getBoundingClientRect()];"
        " return a.width && (a.left < b.left - 1 || a.right > b.right + 1); }).map((t) => t.textContent))"
    )
    assert chromium.js(words) == []
    ground = chromium.js("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")
    assert chromium.messages() == []
    shot = chromium.picture(tmp_path / "page.png").read_bytes()
    assert struct.unpack(">2I", shot[16:24])[0] == width
    assert len(shot) > 50_000


def test_colours_follow_the_system_until_told_otherwise(tab: Tab) -> None:
    def grounds() -> list[str]:
        tab.wait()
        chart = "document.querySelector('#sizes svg').style.backgroundColor"
        return tab.js(f"[getComputedStyle(document.body).backgroundColor, {chart}]")

    light, dark = ["rgb(255, 255, 255)"] * 2, ["rgb(20, 23, 26)"] * 2
    assert grounds() == light
    tab.look(dark=True)
    assert grounds() == dark
    tab.find("#theme label:nth-of-type(2)").click()
    assert grounds() == light
    tab.look(dark=False)
    tab.find("#theme label:nth-of-type(3)").click()
    assert grounds() == dark
    assert "theme=dark" in tab.js("location.hash")


def test_the_address_keeps_what_is_shown(chromium: Tab, file: Path) -> None:
    chromium.look()
    chromium.open(file)
    chromium.set("gain-preset", "read-mlp")
    chromium.set("gain-layer-number", 5)
    chromium.set("stream-slope-number", 0.25)
    chromium.set("mirage-source", "smollm2-mlp")
    kept, seen = chromium.js("location.hash"), [rows(chromium, "pairs", "pairs"), facts(chromium, "stream")]
    chromium.open(file, kept)
    assert [rows(chromium, "pairs", "pairs"), facts(chromium, "stream")] == seen
    assert chromium.js("document.getElementById('mirage-source').value") == "smollm2-mlp"
    assert chromium.messages() == []


@pytest.mark.parametrize(
    "address",
    [
        "#gain.layer=1e999&gain.d=-4&gain.L=x&stream.slope=NaN&at=<img src=x>",
        "#gain.preset=constructor&mirage.source=__proto__&theme=toString&__proto__.x=1",
        "#%F0%28%8C%28&=&a==&gain.beta=%3Cscript%3E",
    ],
)
def test_an_address_from_anyone_breaks_nothing(chromium: Tab, file: Path, address: str) -> None:
    chromium.look()
    chromium.open(file, address)
    assert all(math.isfinite(row["gain"]) for row in rows(chromium, "channels", "channels"))
    assert chromium.js("document.querySelectorAll('img').length") == 0
    assert chromium.messages() == []


def test_links_that_say_try_move_the_controls(tab: Tab) -> None:
    links = tab.driver.find_elements("css selector", ".try a")
    assert len(links) >= 12
    for link in links:
        part = link.get_attribute("href").partition("#")[2].partition(".")[0]
        tab.js("arguments[0].click()", link)
        tab.wait()
        assert part in tab.js("location.hash") or part == "gain"
    values = tab.js("Object.fromEntries(lab.panels.map((p) => [p.name, p.values]))")
    assert values["gain"]["preset"] == "smollm2-attn_read"
    assert (values["stream"]["ends"], values["stream"]["ratio"]) == ("own", 1.02)
    held = [row["value"] for row in rows(tab, "updates", "blocks") if row["schedule"] == "geometric"]
    assert max(held) - min(held) < 1e-3
    assert values["budget"]["n_layer"] == 24
    assert values["budget"]["teraflops"] == 0.05


def test_hostile_names_are_words_on_the_page(tab: Tab) -> None:
    assert tab.js("document.querySelectorAll('img').length") == 0
    legends = tab.js("[...document.querySelectorAll('.runs svg text')].map((t) => t.textContent)")
    assert any(text.startswith("<img src=x onerror") for text in legends)
    assert tab.js("window.alert.toString().includes('native')")


def test_the_page_can_reach_nothing(tab: Tab, file: Path) -> None:
    """Even asked to, it fetches nothing: its own policy forbids it."""
    ended = tab.settle("fetch('https://example.org/').then(() => 'fetched', () => 'refused')")
    assert ended == "refused"
    said = tab.messages()
    assert said
    assert all("Content Security Policy" in text or "example.org" in text for text in said)
    tab.requests()


def test_the_pictures_for_the_readme_are_made_and_small(chromium: Tab, file: Path, tmp_path: Path) -> None:
    made = lab_pictures.take(chromium, file, tmp_path)
    assert [path.stem for path in made] == [shot[0] for shot in lab_pictures.SHOTS]
    for path in made:
        width, height = struct.unpack(">2I", path.read_bytes()[16:24])
        assert width == 1280
        assert height > 500
        assert 10_000 < path.stat().st_size < 200_000
