"""`layerrope fit`: scaling laws through the points of a table or a study, and the compute they save."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

MOST = 100_000
"""Resamples that one fit makes."""

if TYPE_CHECKING:
    from layerrope.scaling.report import FitReport


@dataclass(frozen=True)
class Command:
    """Fit L(C) = E + A C^-alpha to every scheme's points, and say how much compute one scheme saves another.

    A saving is stated against the best baseline first and against Pre-Norm second.
    """

    source: Positional[tuple[Path, ...]]
    """CSV tables with the columns scheme, loss and compute (or n_params and tokens), and seed, lr, status where there
    are some; or folders of studies. Where a size was trained at several rates its best one counts"""
    form: str = "power"
    """power: a law in training FLOPs; chinchilla: in parameters and tokens"""
    shared_e: bool = True
    """one floor E for all schemes, or one for each"""
    e: float | None = None
    """the floor itself, nats per token, in place of a fitted one"""
    schemes: tuple[str, ...] = ()
    """fit these only; none: all in the table"""
    whose: tuple[str, ...] = ()
    """schemes whose savings are computed; none: those with LayerRoPE's gains"""
    baselines: tuple[str, ...] = ()
    """against which; none: those without"""
    against: tuple[float, float] | None = None
    """a model from elsewhere to compare with: its training FLOPs and its loss"""
    target: float | None = None
    """loss, nats per token, at which computes are compared, both read off curves; none: the measured loss and compute
    of the baseline's largest model against the scheme's curve, as in the LayerRoPE paper"""
    delta: float = 1e-3
    """where the Huber loss turns from square to linear, in log loss"""
    resamples: int = 2000
    """refits for the intervals; 0: none"""
    seed: int = 0
    """of the resamples"""
    json: bool = False
    """print one JSON document on stdout, and nothing else there"""
    png: Path | None = None
    """also draw the chart into this PNG"""
    html: Path | None = None
    """also write a page with tables and chart"""

    def run(self) -> int:
        from layerrope import terminal
        from layerrope.files import PAGE, PNG, ready
        from layerrope.scaling.report import document, page, write_png

        ready([(self.png, PNG), (self.html, PAGE)])
        report = self.report()
        if self.png is not None:
            write_png(report, self.png)
        if self.html is not None:
            page(report).write(self.html)
        if self.json:
            terminal.emit_json(document(report))
        else:
            _show(report)
        return 0 if report.fit.converged else 1

    def report(self) -> FitReport:
        """The fit that was asked for. Raises InputError for a table or a request that gives none."""
        from layerrope.commands.typed import typed
        from layerrope.errors import InputError, one_of
        from layerrope.scaling.law import fit_scaling, schemes_of
        from layerrope.scaling.report import FitReport
        from layerrope.scaling.savings import resample, savings
        from layerrope.scaling.table import read_points

        if not self.source:
            raise InputError("no table to fit: give a CSV file or the folder of a study")
        if self.resamples < 0:
            raise InputError(f"--resamples must be at least 0: got {self.resamples}")
        if self.resamples > MOST:
            raise InputError(f"--resamples is at most {MOST:,}, which settle any interval: got {self.resamples:,}")
        for name, value in (("target", self.target), *(("against", v) for v in self.against or ())):
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"--{name} takes positive numbers: got {value:g}")
        points, notes = read_points(*self.source)
        for name in (*self.schemes, *self.whose, *self.baselines):
            one_of("scheme of the table", name, schemes_of(points))
        chosen = [p for p in points if not self.schemes or p.scheme in self.schemes]
        fit = fit_scaling(chosen, form=self.form, shared_e=self.shared_e, e=self.e, delta=self.delta)
        made = resample(fit, self.resamples, self.seed) if self.resamples else None
        found, refused = savings(
            fit,
            schemes=self.whose,
            baselines=self.baselines,
            against_point=self.against,
            target=self.target,
            resamples=made,
        )
        command = typed(self, "fit", ("json", "png", "html"), positional=("source",))
        return FitReport(fit, made, found, [*notes, *refused], ", ".join(map(str, self.source)), command)


def _show(report: FitReport) -> None:
    from rich.markup import escape

    from layerrope.commands.compare import WIDTH, table
    from layerrope.scaling.report import coefficient_rows, saving_rows, sentences
    from layerrope.terminal import out

    console = out
    if not out.is_terminal:
        from rich.console import Console

        console = Console(highlight=False, width=2 * WIDTH, soft_wrap=True)
    console.print(table(coefficient_rows(report), "Fitted curves"))
    if report.savings:
        console.print(table(saving_rows(report.savings), "Compute saved at equal loss; the best baseline first"))
    for sentence in sentences(report):
        console.print(f"- {escape(sentence)}")
