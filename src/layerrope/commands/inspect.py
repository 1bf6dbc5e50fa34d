"""`layerrope inspect`: what the norms of a checkpoint say about depth."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from layerrope.errors import InputError
from layerrope.terminal import emit_json, note

if TYPE_CHECKING:
    from layerrope.inspector import Inspection


@dataclass(frozen=True)
class Command:
    """What the norm gains of one or several checkpoints say about depth.

    Only headers and norms are fetched. Several models are compared by role and depth with the first one.
    """

    models: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """folder, file (safetensors, GGUF), training run, Hub id (org/name, org/name@revision) or https address"""
    html: Path | None = None
    """write the report here: one page, interactive, no network"""
    png: Path | None = None
    """draw the charts here: one picture into a file.png, or one file a chart into a folder"""
    csv: Path | None = None
    """write the statistics of every norm vector here"""
    json: bool = False
    """print everything as one JSON document instead of tables"""
    save: Path | None = None
    """write the gains here as .npz (one model)"""
    check: bool = False
    """only look for NaN, Inf, empty, all-zero, all-ones and missing norms, in all there is that is called like a norm
    (nothing is fitted); exit code 1 if there are any"""
    survey: bool = False
    """inspect the list of 16 open models of 9 families"""
    architecture: str | None = None
    """read the tensors as this model_type instead of what the configuration says"""
    revision: str | None = None
    """branch, tag or commit of a Hub id"""
    token: str | None = None
    """access token for gated models, sent to the Hub (or --endpoint) only"""
    endpoint: str | None = None
    """address of another Hub; a saved token is not sent there, only one given by --token"""
    base: float | None = None
    """base of LayerRoPE's spectrum over channel pairs (default: the run's own, else 100)"""
    shuffles: int = 20
    """tables with shuffled channels in the rotation's null, 0 to 10,000"""
    layers: bool = False
    """print the statistics of every layer too"""

    def run(self) -> int:
        if self.survey == bool(self.models):
            raise InputError("name at least one model, or --survey for the list (not both)")
        if self.save and (self.survey or len(self.models) != 1):
            raise InputError("--save takes the gains of one model: name exactly one")
        if self.check and (self.html or self.png):
            raise InputError("--check fits nothing, so there is no page and no chart: leave one of them out")
        if self.png:
            from layerrope.inspector.figures import check_picture_path

            check_picture_path(self.png)
        inspections = self._survey() if self.survey else [self._look(model) for model in self.models]
        if not inspections:
            raise InputError("none of the survey's models could be reached: is there a network?")
        self._write(inspections)
        failed = self.check and any(i.faults for i in inspections)
        try:
            self._show(inspections)
            sys.stdout.flush()
        except BrokenPipeError:  # a reader that has seen enough must not turn a failed check into a passed one
            if not failed:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(failed)

    def _look(self, model: str) -> Inspection:
        from layerrope import inspector

        if self.check:
            return inspector.check(
                model,
                revision=self.revision,
                token=self.token,
                endpoint=self.endpoint,
                architecture=self.architecture,
            )
        return inspector.inspect(
            model,
            revision=self.revision,
            token=self.token,
            endpoint=self.endpoint,
            architecture=self.architecture,
            base=self.base,
            shuffles=self.shuffles,
        )

    def _survey(self) -> list[Inspection]:
        from layerrope.inspector.survey import survey

        reached, causes = [], set[str]()
        for one in survey(self._look):
            if one.inspection is None:
                said = "for the same reason" if one.cause in causes else one.why_not
                causes.add(one.cause)
                note(f"{one.id} ({one.family}) not reached: {said}")
            else:
                note(f"{one.id} ({one.family}) read")
                reached.append(one.inspection)
        return reached

    def _write(self, inspections: Sequence[Inspection]) -> None:
        """Write what was asked for, once it is known that no output is in the way of another or of something else."""
        from layerrope.charts import save_png
        from layerrope.files import NPZ, PAGE, PNG, ready, write_atomic
        from layerrope.inspector.inspection import CSV, csv_text, refuse_inputs

        drawn = self._pictures(inspections)
        refuse_inputs(inspections, [path for path in (self.html, self.csv, self.save, *drawn) if path is not None])
        ready([(self.html, PAGE), (self.csv, CSV), (self.save, NPZ), *((path, PNG) for path in drawn)])
        if self.html:
            from layerrope.inspector.report import report_page

            note(f"wrote {report_page(inspections).write(self.html)}")
        for path, chart in drawn.items():
            note(f"wrote {save_png(chart, path)}")
        if self.csv:
            note(f"wrote {write_atomic(self.csv, csv_text(list(inspections)), CSV)}")
        if self.save:
            note(f"wrote {inspections[0].save_npz(self.save)}")

    def _pictures(self, inspections: Sequence[Inspection]) -> dict[Path, Any]:
        if not self.png:
            return {}
        from layerrope.inspector.figures import pictures

        return pictures(inspections, self.png)

    def _show(self, inspections: Sequence[Inspection]) -> None:
        from layerrope.inspector.inspection import json_document
        from layerrope.inspector.printing import print_checks, print_inspections

        if self.json:
            emit_json(json_document(list(inspections)))
        elif self.check:
            print_checks(inspections)
        else:
            print_inspections(inspections, self.layers)
