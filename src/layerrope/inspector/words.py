"""The verdict in plain words. Every number in it comes from the measurements; nothing is written by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from layerrope.inspector.cautions import fault_words, layer_words
from layerrope.inspector.depth_law import Law
from layerrope.inspector.gain_fit import LEVEL, GainFit
from layerrope.inspector.site import MOST, SiteReport, View
from layerrope.norm_sites import STREAM_ROLES, role_words

NOTHING = "No site has enough usable layers to say anything about depth."

#: A difference of AICc below this says nothing (Burnham and Anderson 2002, section 2.6).
TELLING = 2.0
#: Degrees between the two layers furthest apart below which a direction hardly turns.
HARDLY = 15.0
#: An exponent that moves further than this without layer 0 is said to.
MOVES = 0.1


def site_verdict(report: SiteReport) -> str:
    """Three sentences on one site (growth, direction, rotation), and what to be careful about."""
    if report.site.untrained:
        return f"{_capital(report.site.words)}: every gain is exactly one, so it is probably untrained."
    if report.whole is None:
        usable = len(report.site.rows) - len(report.left_out)
        amount = "many to be measured" if usable > MOST else "few to say anything about depth"
        return " ".join(
            [f"{_capital(report.site.words)}: {usable} usable layers are too {amount}.", *_cautions(report)]
        )
    return " ".join([growth(report), direction(report), turning(report.whole.fit), *_cautions(report)])


def model_verdict(reports: Sequence[SiteReport], faults: Sequence[Mapping[str, Any]] = ()) -> str:
    """A few sentences on a whole model, from the sites of the stream, and what to be careful about.

    Args:
        reports: of every site.
        faults: `GainTable.faults`, each named with its site and layers.
    """
    told = [r for r in reports if r.whole is not None]
    stream = [r for r in told if r.site.role in STREAM_ROLES] or told
    if not stream and reports and all(r.site.untrained for r in reports):
        return "Every gain is exactly one: the norms are probably untrained and say nothing about depth."
    words = [_all_growth(stream), _all_direction(stream), _all_turning(stream)] if stream else [NOTHING]
    words += _beside(reports, stream)
    raw = ["the architecture is unknown, so values are raw"] if any(r.site.convention == "raw" for r in stream) else []
    untrained = {r.site.role for r in reports if r.site.untrained}
    broken = fault_words(f for f in faults if not (f["part"] == "gain" and f["role"] in untrained))
    cautions = [*raw, *(f"{r.site.words}: {w}" for r in reports for w in r.site.warnings), *broken]
    out = ["what is broken or untouched is left out of the fits"] if broken and stream else []
    return " ".join([*words, *([f"Caution: {'; '.join([*cautions, *out])}."] if cautions else [])])


def check_verdict(looked_at: int, faults: Sequence[Mapping[str, Any]], depth: int | None) -> str:
    """What looking at every norm found, without a fit."""
    if faults:
        return f"{looked_at} norm tensors read; {'; '.join(fault_words(faults))}."
    layers = (
        "no layer between others is missing (the configuration names no depth)"
        if depth is None
        else f"none of the configured {depth} layers is missing"
    )
    return f"{looked_at} norm tensors read: every norm is finite, none is empty, all zeros or all ones, and {layers}."


def growth(report: SiteReport) -> str:
    """How the size changes with depth, and how sure that is."""
    assert report.whole is not None
    power = report.whole.power
    within = _interval(power.beta_interval)
    fits = "" if math.isnan(power.r2) else f"R² {power.r2:.2f}"
    trend = f"{_trend(report.whole)}, about as (l+1)^{fixed(power.beta)} ({within}{fits})"
    if _trend(report.whole) == "show no clear trend with depth":
        trend = f"show no clear trend with depth (exponent {fixed(power.beta)}, {within.rstrip(', ')})"
    without = f"; without layer 0 the exponent is {fixed(report.later.power.beta)}" if report.later else ""
    if report.later and law_changes(report):
        without += f" and {_best_law(report.later.laws)}"
    return f"{_capital(report.site.words)} gains {trend}{without}; {_best_law(report.whole.laws)}."


def law_changes(report: SiteReport) -> bool:
    """Does another law fit best, by a telling distance, once layer 0 is left out?"""
    if report.whole is None or report.later is None:
        return False
    before, after = next(iter(report.whole.laws)), next(iter(report.later.laws.values()))
    old = report.later.laws[before]
    if after.name == before or after.aicc is None or old.aicc is None:
        return False
    return old.aicc - after.aicc >= TELLING


def leading(laws: dict[str, Law]) -> list[str]:
    """The law that fits best and those that nothing tells from it."""
    scores = {name: law.aicc for name, law in laws.items() if law.aicc is not None}
    best = min(scores.values(), default=0.0)
    return [name for name, score in scores.items() if score - best < TELLING] if len(scores) == len(laws) else []


def _trend(view: View) -> str:
    interval = view.power.beta_interval
    low, high = interval or (view.power.beta, view.power.beta)
    if low <= 0 <= high:
        return "show no clear trend with depth"
    return "grow with depth" if view.power.beta > 0 else "shrink with depth"


def _interval(interval: tuple[float, float] | None) -> str:
    return (
        f"95% interval {fixed(interval[0])} to {fixed(interval[1])}, "
        if interval
        else "too few layers for an interval, "
    )


def _best_law(laws: dict[str, Law]) -> str:
    best, second, *_ = laws.values()
    if best.aicc is None or second.aicc is None:
        return "there are too few layers to tell one law from another"
    lead = second.aicc - best.aicc
    if lead < TELLING:
        return f"a {best.name} law and a {second.name} one fit equally well (AICc within {TELLING:.0f})"
    return f"of four laws the {best.name} one fits best (AICc {lead:.1f} below the {second.name} one)"


def direction(report: SiteReport) -> str:
    """How far the vectors really turn."""
    whole, later = report.whole, report.later
    assert whole is not None
    a, b = whole.angles.largest_pair
    words = f"One shared direction holds {whole.rank1:.1%} of the squared gains; the largest true angle between"
    words += f" layers is {whole.angles.largest:.1f}° (layers {a} and {b})"
    return words + (f", {later.angles.largest:.1f}° without layer 0." if later else ".")


def turning(fit: GainFit) -> str:
    """What LayerRoPE's form explains, and whether its rotation does any of it."""
    size = f"A shared vector that only grows misses {fit.magnitude:.1%} of the table"
    if fit.rotation_gain is None:
        return f"{size}; {'nothing is left for the rotation' if fit.exact else 'the rotation was not tried'}."
    removes = f"LayerRoPE's rotation removes {share(fit.rotation_gain)} of what is then left"
    return f"{size}; {removes}{_against_the_null(fit)}."


def _against_the_null(fit: GainFit) -> str:
    n, p = len(fit.null), fit.p_value
    if p is None:
        return ", but its null was not tried (0 shuffles), so that may be chance"
    if not fit.decidable:
        return f"; {n} {_shuffles(n)} cannot decide whether that is chance (p is at least {chance(fit.smallest_p)})"
    reach = f"shuffled channels up to {share(max(fit.null))} (p = {chance(p)})"
    if fit.identifiable:
        return f", {reach}: more than chance"
    return f", {reach}: {'at the edge of the search, ' if p <= LEVEL else ''}not identifiable"


def _shuffles(n: int) -> str:
    return "shuffle" if n == 1 else "shuffles"


def chance(p: float | None) -> str:
    """A p value with two significant digits."""
    return "unknown" if p is None else f"{p:.2g}"


def fixed(value: float, decimals: int = 2) -> str:
    """`value` with so many decimals, never as minus zero."""
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def share(value: float) -> str:
    """A share as a percentage with two significant digits, however small; never in powers of ten."""
    percent = 100 * value
    if not percent >= 1e-4:
        return "<0.0001%"
    if 99 < percent < 99.95:
        return f"{percent:.1f}%"
    decimals = max(1 - math.floor(math.log10(percent)), 0)
    return f"{percent:.{decimals}f}%" if percent < 99 or percent >= 100 else ">99.9%"


def _cautions(report: SiteReport) -> list[str]:
    site = report.site
    words = [f"Caution: {w}." for w in site.warnings]
    if site.missing:
        words.append(f"Caution: {layer_words(site.missing)} of {site.expected} missing from the file.")
    if report.left_out:
        faults = {r.layer: r.fault or "another width" for r in site.rows}
        groups: dict[str, list[int]] = {}
        for layer in report.left_out:
            groups.setdefault(faults[layer], []).append(layer)
        told = "; ".join(f"{layer_words(layers)} ({why})" for why, layers in groups.items())
        words.append(f"Left out of the fits: {told}.")
    if report.whole and len(report.whole.layers) < site.expected:
        present = f" of {len(site.rows)} present" if site.missing and report.left_out else ""
        words.append(f"Fitted on {len(report.whole.layers)}{present} of {site.expected} layers.")
    if report.site.convention == "raw":
        words.append("Values are raw: whether the norm multiplies by w or by 1 + w is not known.")
    return words


def _all_growth(reports: Sequence[SiteReport]) -> str:
    groups: dict[str, list[SiteReport]] = {}
    for report in reports:
        assert report.whole is not None
        groups.setdefault(_trend(report.whole), []).append(report)
    parts = []
    for trend, members in groups.items():
        exponents = _joined([fixed(r.whole.power.beta) for r in members if r.whole])
        noun = "exponents" if len(members) > 1 else "exponent"
        parts.append(f"the gains of {_joined([_name(r) for r in members])} {trend} ({noun} {exponents})")
    return " ".join([f"Over {_depths(reports)} layers {_joined(parts)}.", *_without_first(reports)])


def _without_first(reports: Sequence[SiteReport]) -> list[str]:
    """What layer 0 alone decides: exponents that move by more than `MOVES`, and laws that change."""
    told = []
    for r in reports:
        if r.whole is None or r.later is None:
            continue
        law = f"the {next(iter(r.whole.laws))} law no longer fits best ({' or '.join(leading(r.later.laws))} does)"
        parts = [law] if law_changes(r) else []
        if abs(r.later.power.beta - r.whole.power.beta) > MOVES:
            parts.insert(0, f"the exponent is {fixed(r.later.power.beta)}")
        if parts:
            told.append(f"at {_name(r)} {_joined(parts)}")
    return [f"Without layer 0, {'; '.join(told)}."] if told else []


def _beside(reports: Sequence[SiteReport], stream: Sequence[SiteReport]) -> list[str]:
    """That norms inside attention are measured but not spoken of here, and why."""
    names = [_name(r) for r in reports if r.whole is not None and r not in stream]
    if not names:
        return []
    verb = "is" if len(names) == 1 else "are"
    return [f"{_capital(_joined(names))} {verb} left out of this: a norm inside attention is not on the stream."]


def _all_direction(reports: Sequence[SiteReport]) -> str:
    views = [r.later or r.whole for r in reports]
    shares = sorted(v.rank1 for v in views if v)
    angle = max(v.angles.largest for v in views if v)
    low, high = f"{shares[0]:.1%}", f"{shares[-1]:.1%}"
    span = low if low == high else f"{low} to {high}"
    held = "Their direction hardly turns" if angle < HARDLY else "Their direction turns"
    where = " after layer 0" if any(r.later for r in reports) else ""
    shared = f"one shared vector holds {span} of the squared gains"
    with_first = max(r.whole.angles.largest for r in reports if r.whole)
    counted = f" ({with_first:.1f}° with layer 0)" if with_first - angle >= 0.1 else ""
    return f"{held}{where}: {shared} and layers are up to {angle:.1f}° apart{counted}."


def _all_turning(reports: Sequence[SiteReport]) -> str:
    """What the rotation explains, site by site: p is given for each, beside the least it could have been."""
    fits = {_name(r): r.whole.fit for r in reports if r.whole and r.whole.fit.rotation_gain is not None}
    if not fits:
        exact = all(r.whole.fit.exact for r in reports if r.whole)
        return f"{'Nothing is left for ' if exact else ''}LayerRoPE's rotation{'' if exact else ' was not tried'}."
    shuffles = min(len(fit.null) for fit in fits.values())
    if not shuffles:
        return "Whether LayerRoPE's rotation explains more than chance is open: its null was not tried (0 shuffles)."
    least = chance(1 / (1 + shuffles))
    if not all(fit.decidable for fit in fits.values()):
        undecided = f"{shuffles} {_shuffles(shuffles)} cannot decide whether LayerRoPE's rotation explains more than"
        return f"{undecided} chance: p is at least {least}, and it takes 19 for one of {LEVEL}."
    said = f"LayerRoPE's rotation explains {_joined(_by_outcome(fits))}"
    ps = _joined([chance(fit.p_value) for fit in fits.values()])
    many = f", not corrected for {len(fits)} sites" if len(fits) > 1 else ""
    return f"{said} (p = {ps}; at best {least} with {shuffles} shuffles{many})."


def _by_outcome(fits: dict[str, GainFit]) -> list[str]:
    """What the rotations of several sites explain, sites of one outcome together."""
    groups: dict[str, list[str]] = {}
    for name, fit in fits.items():
        groups.setdefault(_outcome(fit), []).append(name)
    return [f"{outcome} at {_joined(names)}" for outcome, names in groups.items()]


def _outcome(fit: GainFit) -> str:
    if fit.identifiable:
        return "more than shuffled channels"
    beaten = fit.p_value is not None and fit.p_value <= LEVEL
    return (
        "more, but with angles at the edge of the search," if beaten else "no more than it does for shuffled channels"
    )


def _depths(reports: Sequence[SiteReport]) -> str:
    """How many layers the fits rest on, and of how many where some are missing or left out."""
    fitted = _span({len(r.whole.layers) for r in reports if r.whole})
    expected = _span({r.site.expected for r in reports})
    return fitted if fitted == expected else f"{fitted} of {expected}"


def _span(counts: set[int]) -> str:
    return str(min(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


def _name(report: SiteReport) -> str:
    return role_words(report.site.role).replace("read shared by", "the read shared by")


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
