"""The report of a study: report.html, charts as PNGs, runs.csv and result.json, from the runs in its folder."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from layerrope.charts import save_charts
from layerrope.comparing.report import shown_rows
from layerrope.files import write_atomic, write_json
from layerrope.page import Page
from layerrope.studies.findings import Said, findings_of
from layerrope.studies.reading import Found, run_row, runs_csv

SCHEMA = "layerrope.study/1"
BEST = "Each scheme at its best learning rate; * is at the edge of those tried, † the only one tried"


def write_study_report(found: Found) -> tuple[Said, dict[str, Any]]:
    """Write the report into the study's folder.

    Returns:
        The findings, and the document in result.json.

    Raises:
        InputError: the folder cannot be written.
    """
    said = findings_of(found)
    write_atomic(found.folder / "runs.csv", runs_csv(found))
    page(found, said).write(found.folder / "report.html")
    made = document(found, said)
    write_json(found.folder / "result.json", made)
    # last: under a limit on memory the library that draws may end the process
    save_charts({figure.name: figure.chart for figure in said.figures}, found.folder / "charts")
    return said, made


def setting_rows(found: Found) -> list[dict[str, Any]]:
    """Every scheme of every setting at its best rate, in words; with its seeds where these are not equally many."""
    counts = {row.seeds for group in found.groups for row in group.table.ranked}
    return [
        {
            **{k: str(v) for k, v in group.setting.items()},
            **shown,
            **({"seeds": str(row.seeds)} if len(counts) > 1 else {}),
        }
        for group in found.groups
        for row, shown in zip(group.table.rows, shown_rows(group.table), strict=True)
    ]


def page(found: Found, said: Said) -> Page:
    """The report as one self-contained page."""
    facts = found.study.facts
    made = Page(f"Study: {found.study.name}", str(facts.get("question", "")))
    made.bullets(said.sentences)
    for caption, rows in said.tables:
        made.table(rows, caption)
    for figure in said.figures:
        made.chart(figure.chart, figure.caption, figure.alt)
    made.heading("Every setting")
    made.table(setting_rows(found), BEST)
    made.table([run_row(found, run) for run in found.study.runs], "Every run", folded=True)
    return made.heading("Command").code(str(facts.get("command", "")))


def document(found: Found, said: Said) -> dict[str, Any]:
    """Everything as strict JSON data."""
    facts = found.study.facts
    return {
        "schema": SCHEMA,
        "study": found.study.name,
        "question": facts.get("question"),
        "command": facts.get("command"),
        "finished": found.finished,
        "findings": said.sentences,
        "tables": [{"caption": caption, "rows": rows} for caption, rows in said.tables],
        "settings": [
            {
                "setting": dict(group.setting),
                "scheme": row.scheme,
                "lr": row.lr,
                "bracketed": row.bracketed,
                "val_loss": row.val_loss,
                "difference": None if row.difference is None else asdict(row.difference),
                "seeds": row.seeds,
                "lost": len(row.lost),
            }
            for group in found.groups
            for row in group.table.rows
        ],
        "runs": [run_row(found, run) for run in found.study.runs],
    }
