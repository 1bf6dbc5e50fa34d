"""`layerrope probe`: what each layer of trained models does to the stream, by depth."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from layerrope.errors import InputError
from layerrope.terminal import emit_json, note, out


@dataclass(frozen=True)
class Command:
    """Probe every layer of one or several trained models: sizes, angles, layers left out or exchanged, logit lens,
    Jacobians, gradients, ranks and gains. Training is not touched; nothing in a run's folder is changed but the
    report that is added to it.
    """

    sources: Annotated[tuple[str, ...], tyro.conf.Positional]
    """runs of any kind of model, checkpoints (RUN/checkpoints/step-N), exported folders or stock folders"""
    text: str | None = None
    """text to probe on: embedded, a .txt or .jsonl file, a folder, or hf:NAME; for a vision model images, as --data of
    layerrope vision; the validation part of the run"""
    tokens: int = 4096
    """positions to probe on, in whole windows, evenly spaced over the text, or in whole images"""
    batch: int = 8
    """windows or images per forward pass"""
    loops: int | None = None
    """iterations of a looped model; those it was trained with in the mean"""
    probes: tuple[str, ...] = ()
    """which: stream update angle matrix drop swap lens jacobian gradient collapse affine gains; all"""
    vectors: int = 8
    """directions of the Jacobian's estimate, each one backward pass of every layer; 0: all of them, exact"""
    every_pair: bool = False
    """exchange any two layers, not only neighbours: L (L - 1) / 2 runs of the model"""
    device: str = "cpu"
    """cpu, cuda, cuda:N"""
    threads: int | None = None
    """CPU threads; torch's own choice"""
    out: Path | None = None
    """folder for probe.json, probe.html and charts/; RUN/probes of the first run, or probes"""
    html: bool = True
    """write probe.html"""
    png: bool = True
    """write charts/*.png"""
    json: bool = False
    """print the documents as one JSON list on stdout"""

    def run(self) -> int:
        from layerrope.probes.page import write
        from layerrope.probes.reading import default_folder, probe_source
        from layerrope.training.machine import check_machine, threads

        self._check()
        device = check_machine(self.device)
        found: dict[str, Any] = {}
        with threads(self.threads):
            for source in self.sources:
                began = time.perf_counter()
                document = probe_source(source, self.plan(), device)
                found[_label(document, found)] = document
                measured = f"{document['tokens']:,} {_UNITS[document['kind'] == 'vit']}"
                note(f"{source}: probed on {measured} in {time.perf_counter() - began:.1f} s")
        paths = write(found, self.out or default_folder(self.sources[0]), self.html, self.png)
        if self.json:
            emit_json(list(found.values()))
        else:
            self._print(found, paths)
        return 0

    def plan(self) -> Any:
        """What to measure, and on what."""
        from layerrope.probes import PROBES, Options
        from layerrope.probes.reading import Plan

        options = Options(self.vectors, self.every_pair)
        return Plan(self.text, self.tokens, self.batch, self.probes or tuple(PROBES), options, self.loops)

    def _check(self) -> None:
        from layerrope.errors import one_of
        from layerrope.looping.looped import MOST_LOOPS
        from layerrope.probes import PROBES

        if not self.sources:
            raise InputError("nothing to probe: name a run")
        for name, least in (("tokens", 1), ("batch", 1), ("vectors", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}: got {getattr(self, name)}")
        if self.loops is not None and not 1 <= self.loops <= MOST_LOOPS:
            raise InputError(f"loops must lie between 1 and {MOST_LOOPS}: got {self.loops}")
        for name in self.probes:
            one_of("probe", name, PROBES)

    def _print(self, found: dict[str, Any], paths: list[Path]) -> None:
        from layerrope.probes.page import apart_rows, cost_rows, summary

        out.print(_table([{k: v for k, v in row.items() if k not in _ON_THE_PAGE} for row in summary(found)]))
        out.print(_table(cost_rows(found)))
        for row in apart_rows(found):
            note(f"{row['model']}: not comparable with other schemes: {row['numbers']} ({row['why']})")
        out.print(f"written: {', '.join(str(p) for p in paths[:2])}", markup=False, soft_wrap=True)


_UNITS = {False: "tokens", True: "tokens of images"}

_ON_THE_PAGE = ("layers", "tokens")
"""Columns of the summary for which a terminal has no room."""


def _label(document: dict[str, Any], found: dict[str, Any]) -> str:
    """The scheme, with the source where two models have the same."""
    taken = document["scheme"] in {other["scheme"] for other in found.values()}
    return f"{document['scheme']} ({document['source']})" if taken else document["scheme"]


def _table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    from layerrope.page import show

    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right", no_wrap=name != "what")
    for row in rows:
        table.add_row(*(show(value, digits=3) for value in row.values()))
    return table
