"""Studies: axes into runs, one folder a config; the done is reused, the cut continued, a second process kept out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock

from layerrope.config import ModelConfig
from layerrope.data import DataConfig
from layerrope.errors import InputError
from layerrope.files import read_json, write_json
from layerrope.launching.launch import Job, Listener, Outcome, run_here
from layerrope.study import Run, Study, grid, label, outcomes, read_study, replaced, run_study
from layerrope.training.recipe import TrainConfig

MODEL = ModelConfig(n_layer=2, n_head=2, d_model=8, d_ff=8, seq_len=16)
BASE = TrainConfig(model=MODEL, data=DataConfig(seq_len=16), steps=4, batch_size=2, log_every=2, eval_tokens=64)
HERE = partial(run_here, threads=1)


def study(*schemes: str, seeds: Sequence[int] = (0,)) -> Study:
    return Study("test", BASE, tuple(grid({"model.scheme": schemes, "seed": seeds})), {"command": "x"})


class Trained:
    """A launcher and listener that count."""

    def __init__(self, outcome: Outcome | None = None) -> None:
        self.jobs: list[str] = []
        self.heard: list[str] = []
        self.outcome = outcome

    def launch(self, jobs: Sequence[Job], listen: Listener) -> Mapping[Path, Outcome]:
        self.jobs += [job.label for job in jobs]
        if self.outcome is not None:
            return {job.run_dir: self.outcome for job in jobs}
        return HERE(jobs, listen)

    def listen(self, job: Job, what: object) -> None:
        if isinstance(what, Outcome):
            self.heard.append(job.label)


def run(wanted: Study, folder: Path, outcome: Outcome | None = None) -> tuple[Trained, dict[str, Outcome]]:
    trained = Trained(outcome)
    return trained, run_study(wanted, folder, trained.launch, trained.listen)


def test_a_grid_is_every_combination_in_order() -> None:
    assert grid({"a": [1, 2], "b": "xy"}) == [{"a": a, "b": b} for a in (1, 2) for b in "xy"]
    assert grid({"a": [], "b": [1]}) == []
    assert grid({}) == [{}]


def test_a_dotted_name_reaches_into_nested_configs() -> None:
    made = replaced(BASE, {"model.scheme": "lns", "lr": 0.1, "data.max_docs": 3})
    assert (made.model.scheme, made.lr, made.data.max_docs) == ("lns", 0.1, 3)
    assert replace(made, model=MODEL, lr=BASE.lr, data=BASE.data) == BASE
    with pytest.raises(InputError, match="did you mean scheme"):
        replaced(BASE, {"model.sheme": "lns"})
    with pytest.raises(InputError, match="lr must be positive"):
        replaced(BASE, {"lr": -1.0})


def test_equal_points_are_one_run() -> None:
    assert len(study("prenorm", "prenorm", "lns").runs) == 2


def test_a_label_names_the_axes() -> None:
    assert label(Run({"model.scheme": "lns", "lr": 3e-3, "seed": 1, "model.n_layer": 4}, BASE, "key")) == (
        "lns lr 0.003 seed 1 n_layer 4"
    )


def test_done_runs_are_reused_and_new_ones_added(tmp_path: Path) -> None:
    first, _ = run(study("prenorm", "lns"), tmp_path)
    assert first.jobs == ["prenorm seed 0", "lns seed 0"]
    times = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/result.json")}
    again, found = run(study("lns", "perinorm"), tmp_path)
    assert again.jobs == ["perinorm seed 0"]
    assert again.heard == ["lns seed 0", "perinorm seed 0"]
    assert {o.status for o in found.values()} == {"done"}
    assert all(p.stat().st_mtime_ns == t for p, t in times.items())
    assert read_study(tmp_path).points == study("lns", "perinorm").points


def test_every_run_of_a_seed_starts_from_the_same_loss_and_reads_the_same_text(tmp_path: Path) -> None:
    wanted = Study("test", replace(BASE, log_every=1), tuple(grid({"lr": [1e-3, 1e-2], "seed": [0, 1]})))
    run(wanted, tmp_path)
    first = {}
    for each in wanted.runs:
        lines = (tmp_path / each.key / "metrics.jsonl").read_text().splitlines()
        first[each.config.lr, each.config.seed] = lines[0].split('"lr"')[0]
    assert first[1e-3, 0] == first[1e-2, 0] != first[1e-3, 1] == first[1e-2, 1]


def test_a_study_is_read_back_as_it_was(tmp_path: Path) -> None:
    wanted = study("prenorm", "layerrope:rotation=off,beta=0/-0.5", seeds=(0, 7))
    run(wanted, tmp_path, Outcome("failed", error="none", attempts=2))
    read = read_study(tmp_path)
    assert read == wanted
    assert [each.key for each in read.runs] == read_json(tmp_path / "study.json")["keys"]


def test_a_study_is_read_with_the_folders_it_has_even_if_configs_hash_otherwise_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = study("prenorm", "lns")
    run(wanted, tmp_path)
    monkeypatch.setattr("layerrope.study.run_key", lambda config: "another")
    assert [o.status for o in outcomes(read_study(tmp_path), tmp_path).values()] == ["done", "done"]


def test_a_failure_is_kept_and_tried_again(tmp_path: Path) -> None:
    failed = Outcome("failed", error="RuntimeError: x", attempts=2)
    wanted = study("prenorm")
    (tmp_path / wanted.runs[0].key).mkdir()
    run(wanted, tmp_path, failed)
    assert list(outcomes(wanted, tmp_path).values()) == [failed]
    again, found = run(wanted, tmp_path)
    assert again.jobs == ["prenorm seed 0"]
    assert [o.status for o in found.values()] == ["done"]
    assert [o.status for o in outcomes(wanted, tmp_path).values()] == ["done"]


def test_a_run_that_was_cut_is_continued(tmp_path: Path) -> None:
    wanted, steps = study("prenorm"), []

    def cut(jobs: Sequence[Job], listen: Listener) -> Mapping[Path, Outcome]:
        from layerrope.train import train

        result = train(jobs[0].config, jobs[0].run_dir, threads=1, progress=lambda r: None, stop=lambda: True)
        return {jobs[0].run_dir: Outcome(result.status, result)}

    found = run_study(wanted, tmp_path, cut, lambda job, what: None)
    assert [o.status for o in found.values()] == ["interrupted"]
    run_study(wanted, tmp_path, HERE, lambda job, what: steps.append(getattr(what, "step", None)))
    assert steps[:3] == [1, 1, 2]  # the note that it resumes, the start, the next update


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    with FileLock(tmp_path / "lock"), pytest.raises(InputError, match="another process works in"):
        run(study("prenorm"), tmp_path)
    assert not (tmp_path / "study.json").exists()


def test_another_study_s_record_is_kept_and_a_damaged_one_is_written_again(tmp_path: Path) -> None:
    run(study("prenorm"), tmp_path)
    there = (tmp_path / "study.json").read_bytes()
    with pytest.raises(InputError, match=r"holds the study test, not other: choose another --out"):
        run(replace(study("prenorm"), name="other"), tmp_path)
    assert (tmp_path / "study.json").read_bytes() == there
    (tmp_path / "study.json").write_bytes(there[:100])
    run(study("prenorm"), tmp_path)
    assert (tmp_path / "study.json").read_bytes() == there


def test_folders_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        run(study("prenorm"), tmp_path / "file")
    write_json(tmp_path / "run" / "config.json", {})
    with pytest.raises(InputError, match="holds a single run"):
        run(study("prenorm"), tmp_path / "run")
    with pytest.raises(InputError, match="holds no study"):
        read_study(tmp_path)
    write_json(tmp_path / "study.json", {"name": "x", "base": {}, "facts": {}, "points": [{}], "keys": []})
    with pytest.raises(InputError, match="differ in number"):
        read_study(tmp_path)
    write_json(tmp_path / "study.json", {"name": "x"})
    with pytest.raises(InputError, match="is not a study"):
        read_study(tmp_path)


def test_a_run_of_another_config_in_the_folder_is_refused(tmp_path: Path) -> None:
    wanted = study("prenorm")
    run(wanted, tmp_path)
    path = tmp_path / wanted.runs[0].key
    saved = read_json(path / "config.json")
    saved["config"]["lr"] = 0.5
    write_json(path / "config.json", saved)
    (path / "result.json").unlink()
    with pytest.raises(InputError, match="holds a run with another config"):
        run(wanted, tmp_path)
