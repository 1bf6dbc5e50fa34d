"""One run on several ranks: the losses, gradients, checkpoints and graphs of one process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rank_group import SharedToy, casts, course, courses, graphs, rank_config, runs, together
from safetensors.torch import save_file
from toy_run import curve, run, same, tensors

from layerrope.loading import load_lm
from layerrope.model import IGNORED, LM
from layerrope.ranks.ranks import Ranks
from layerrope.ranks.sharding import starting_values
from layerrope.scheme_table import schemes
from layerrope.training.evaluation import shared
from layerrope.training.recipe import TrainConfig, to_json
from layerrope.training.streamed import DTYPES, ordered, write_streamed

torch.set_num_threads(1)


HEAD = "head.weight"


def config(name: str, **changes: Any) -> TrainConfig:
    """A run under a scheme, its embedding tied to its head where the scheme allows it."""
    return rank_config(scheme=name, tie=not schemes[name].untied, **changes)


@pytest.fixture(scope="module")
def alone() -> dict[str, list[list[float]]]:
    """What one process finds, for every scheme."""
    return {name: course(config(name), Ranks()) for name in schemes}


def close(found: list[list[float]], wanted: list[list[float]], rel: float = 1e-6) -> bool:
    return all(a == pytest.approx(b, rel=rel) for a, b in zip(found, wanted, strict=True))


# ---------------------------------------------------------------------------------------------------------- numbers
@pytest.mark.parametrize(
    ("world", "parallel", "micro", "every"),
    [(3, "fsdp", 1, 1), (2, "fsdp", None, 3), (1, "fsdp", None, 6), (2, "ddp", 1, 1), (3, "ddp", None, 6)],
)
def test_every_scheme_learns_as_in_one_process(
    tmp_path: Path, alone: dict[str, list[list[float]]], world: int, parallel: str, micro: int | None, every: int
) -> None:
    """Losses, gradient norms before the clip that bites, and the validation loss, to 1e-6 in fp32.

    Every scheme in shards on three ranks (they are uneven there) and on two copies; every third or sixth otherwise.
    """
    names = list(schemes)[::-every]
    configs = {name: to_json(config(name, micro_batch=micro)) for name in names}
    ended = together(tmp_path / "ranks", courses, world, configs, parallel, tmp_path / "found")
    assert [rank.code for rank in ended] == [0] * world, ended[0].err
    found = json.loads((tmp_path / "found").read_text())
    assert [name for name in names if not close(found[name], alone[name])] == []
    clip = rank_config().clip
    assert clip is not None
    assert all(step[1] > 1.5 * clip for name in names for step in found[name][:-1]), "the clip does not bite"


def test_precisions_and_activation_checkpointing_among_ranks(tmp_path: Path) -> None:
    """Checkpointing recomputes inside a gathered layer; bf16's sums round by how the rows are split."""
    kinds = {
        "checkpointing": (config("layerrope", checkpointing=True), 1e-6),
        "checkpointing, streams": (config("mhc", checkpointing=True, micro_batch=1), 1e-6),
        "checkpointing, blocks": (config("attnres", checkpointing=True), 1e-6),
        "bf16": (config("layerrope-peri", precision="bf16"), 2e-3),
        "adamw": (config("layerrope-peri", optimizer="adamw"), 1e-6),
    }
    configs = {name: to_json(of) for name, (of, _) in kinds.items()}
    ended = together(tmp_path / "ranks", courses, 2, configs, "fsdp", tmp_path / "found")
    assert [rank.code for rank in ended] == [0, 0], ended[0].err
    found = json.loads((tmp_path / "found").read_text())
    assert [name for name, (of, rel) in kinds.items() if not close(found[name], course(of, Ranks()), rel)] == []


def test_bf16_copies_of_weights_go_where_layers_are_recomputed(tmp_path: Path) -> None:
    """Seven matrices in each of two layers; the plan on paper counts on it (`roofline._gathered_bytes`)."""
    wanted = config("layerrope", precision="bf16", d_model=24, n_head=2, d_ff=40, seq_len=8)
    ended = together(tmp_path / "ranks", casts, 1, to_json(wanted), tmp_path / "found")
    assert [rank.code for rank in ended] == [0], ended[0].err
    assert json.loads((tmp_path / "found").read_text()) == [[14, 0], [14, 14]]


def test_what_needs_whole_parameters_runs_on_copies(tmp_path: Path) -> None:
    paper = rank_config(precision="paper", clip=None, weight_decay=0.0)
    muon = rank_config(optimizer="muon")
    ended = together(
        tmp_path / "ranks", courses, 2, {"paper": to_json(paper), "muon": to_json(muon)}, "auto", tmp_path / "found"
    )
    assert [rank.code for rank in ended] == [0, 0], ended[0].err
    found = json.loads((tmp_path / "found").read_text())
    assert close(found["paper"], course(paper, Ranks()), 2e-3)
    assert close(found["muon"], course(muon, Ranks()), 1e-5)  # its products are in bf16


@pytest.mark.parametrize("name", list(schemes))
def test_weights_started_part_by_part_are_those_of_the_whole_model(name: str) -> None:
    wanted = config(name, n_layer=3, position="learned").model
    with torch.device("meta"):
        spare = LM(wanted, seed=5)
    found = {key: value.clone() for key, value in starting_values(spare, 5)}
    whole = LM(wanted, seed=5).state_dict()
    if wanted.tie:
        whole.pop(HEAD)
    assert same(found, whole)
    assert all(p.is_meta for p in spare.parameters())


def test_one_graph_serves_all_layers_of_a_compiled_model(tmp_path: Path) -> None:
    cases = [("layerrope", "fsdp"), ("layerrope", "ddp")]
    wanted = [(to_json(config(name, n_layer=4)), parallel) for name, parallel in cases]
    ended = together(tmp_path, graphs, 2, wanted, tmp_path / "found")
    assert [rank.code for rank in ended] == [0, 0], ended[0].err
    assert json.loads((tmp_path / "found").read_text()) == [[None, 1, 2]] * len(cases)


# ------------------------------------------------------------------------------------------------------ checkpoints
def test_a_run_goes_on_at_any_number_of_ranks(tmp_path: Path) -> None:
    """Two ranks end as they would uncut, to the bit; three, one of them, and one process to rounding."""
    wanted = config("layerrope", steps=4, checkpoint_every=0)
    whole, cut = str(tmp_path / "whole"), str(tmp_path / "cut")
    cuts = [(whole, None), (cut, 2)]
    ended = together(tmp_path / "ranks", runs, 2, to_json(wanted), cuts, "fsdp")
    assert [rank.code for rank in ended] == [0, 0], ended[0].err
    for name in ("two", "three", "copies", "one"):
        shutil.copytree(cut, tmp_path / name)
    for name, world, parallel in (("two", 2, "fsdp"), ("three", 3, "fsdp"), ("copies", 2, "ddp")):
        ended = together(tmp_path / "ranks", runs, world, to_json(wanted), [(str(tmp_path / name), None)], parallel)
        assert [rank.code for rank in ended] == [0] * world, ended[0].err
    run(wanted, tmp_path / "one", data=SharedToy(wanted.data))
    assert same(tensors(tmp_path / "two", 4), tensors(tmp_path / "whole", 4))
    assert curve(tmp_path / "two") == curve(tmp_path / "whole")
    for name in ("three", "copies", "one"):
        assert [row[1] for row in curve(tmp_path / name)] == pytest.approx(
            [row[1] for row in curve(tmp_path / "whole")], rel=1e-6
        )
    assert json.loads((tmp_path / "whole" / "config.json").read_text())["ranks"] == 2
    assert len(json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[-1])["ranks"]) == 2
    files = sorted(path.name for path in (tmp_path / "whole" / "checkpoints" / "step-4").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "one" / "checkpoints" / "step-4").iterdir())
    trained = load_lm(tmp_path / "whole").model  # as export, eval, sample and probe read it
    saved = tensors(tmp_path / "whole", 4)
    assert all(torch.equal(t, saved[f"model.{name}"]) for name, t in trained.state_dict().items() if name != HEAD)
    assert trained.head.weight is trained.embed.weight


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=6),
        st.tuples(st.sampled_from(list(DTYPES)), st.lists(st.integers(0, 4), max_size=3)),
        max_size=6,
    )
)
def test_streamed_files_are_those_of_safetensors(
    tmp_path_factory: pytest.TempPathFactory, wanted: dict[str, tuple[torch.dtype, list[int]]]
) -> None:
    folder = tmp_path_factory.mktemp("streamed")
    made = {name: torch.ones(shape).mul(3).to(dtype) for name, (dtype, shape) in wanted.items()}
    save_file(made, folder / "whole")
    write_streamed(folder / "streamed", made, (made[name] for name in ordered(made)))
    assert (folder / "streamed").read_bytes() == (folder / "whole").read_bytes()


# ------------------------------------------------------------------------------------------------------- evaluation
@given(st.integers(0, 9), st.integers(1, 4))
def test_ranks_share_batches_evenly_and_count_each_once(count: int, world: int) -> None:
    batches = [(torch.full((2, 3), i), torch.full((2, 3), i)) for i in range(count)]
    parts = [list(shared(batches, rank, world)) for rank in range(world)]
    assert {len(part) for part in parts} == {-(-count // world)}
    counted = [int(y[0, 0]) for part in parts for _, y in part if y[0, 0] != IGNORED]
    assert sorted(counted) == list(range(count))
