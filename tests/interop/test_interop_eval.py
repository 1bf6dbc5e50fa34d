"""Scores: the adapter and lm-eval's own loader of the exported folder agree; truncation is on the left and counted."""

# ruff: noqa: E402 - what needs lm-eval is imported after the check that it is there

from __future__ import annotations

import json
from pathlib import Path

import pytest

for package in ("transformers", "lm_eval"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'layerrope[hf,eval]'")

from interop_models import model

from layerrope import InputError, cli
from layerrope.exporting.export import export
from layerrope.interop.lm_eval import LayerRoPELM, evaluate_lm
from layerrope.text.tokens import Bytes

LINES = [f"Line {i}: the {w} sat on the mat and {w} again." for i in range(10) for w in ("cat", "dog")]

PERPLEXITY = """task: tiny_perplexity
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/lines.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - {metric: byte_perplexity}
  - {metric: bits_per_byte}
"""
CHOICE = """task: tiny_choice
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/choices.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - {metric: acc}
  - {metric: acc_norm}
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 20-line perplexity and a 20-item choice task, some of them longer than the context."""
    folder = tmp_path_factory.mktemp("tasks")
    lines = [{"text": text * (1 + 4 * (i % 5 == 0))} for i, text in enumerate(LINES)]
    choices = [
        {"question": text * (1 + 4 * (i % 7 == 0)), "choices": [" yes", " no", " cat"], "answer": i % 3}
        for i, text in enumerate(LINES)
    ]
    for name, rows in (("lines", lines), ("choices", choices)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in (("perplexity", PERPLEXITY), ("choice", CHOICE)):
        (folder / f"{name}.yaml").write_text(text.replace("FOLDER", str(folder)))
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "m"
    export(model("layerrope", vocab_size=257, seq_len=96), folder, tokenizer=Bytes())
    return folder


@pytest.mark.slow
def test_adapter_and_folder_give_the_same_scores_at_any_batch_size(tasks: Path, exported: Path) -> None:
    """EVL-1."""
    names = ["tiny_perplexity", "tiny_choice"]
    made = model("layerrope", vocab_size=257, seq_len=96)
    found = [evaluate_lm(LayerRoPELM(made, Bytes(), n), names, include=tasks) for n in (1, 8)]
    found += [evaluate_lm(exported, names, include=tasks, batch_size=n) for n in (1, 8)]
    assert set(found[0].scores["tiny_choice"]) == {"acc", "acc_norm"}
    assert found[0].n_samples == {"tiny_perplexity": 20, "tiny_choice": 20}
    for other in found[1:]:
        for task in names:
            assert other.scores[task] == pytest.approx(found[0].scores[task], rel=1e-4)
    assert found[0].cuts is not None
    assert found[0].cuts.requests == 9  # three choices of each of three long questions; documents are windowed, not cut
    assert found[0].cuts.tokens > 0


@pytest.mark.slow
def test_the_command_prints_one_json_document(tasks: Path, exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", str(exported), "--tasks", "tiny_choice", "--include", str(tasks), "--limit", "5", "--json"]
    assert cli.main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["n_samples"] == {"tiny_choice": 5}
    assert "once" in said["bos"]
    assert cli.main(["eval", str(exported), "--tasks", "tiny_choise", "--include", str(tasks)]) == 2
    assert "did you mean tiny_choice" in capsys.readouterr().err
    assert cli.main(["eval", str(exported)]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "limit must be at least 1"),
        ({"limit": -1}, "limit must be at least 1"),
        ({"n_shot": -1}, "shots must be at least 0"),
        ({"batch_size": 0}, "batch-size must be at least 1"),
    ],
)
def test_numbers_that_are_none_are_refused(tasks: Path, exported: Path, options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate_lm(exported, ["tiny_choice"], include=tasks, **options)


def test_gains_are_not_left_out_of_a_score_without_a_word(tmp_path: Path, tasks: Path) -> None:
    """transformers reads a patched folder as the stock model, its gains unread."""
    import transformers

    import layerrope

    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    patched = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=257, **shape))
    layerrope.apply(patched)
    patched.save_pretrained(tmp_path / "patched")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    for folder, message in (("patched", "its gains would be lost"), ("run", "export it first"), ("no", "no such file")):
        with pytest.raises(InputError, match=message):
            evaluate_lm(tmp_path / folder, ["tiny_choice"], include=tasks)


def test_what_lm_eval_cannot_read_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "lost.yaml").write_text(CHOICE.replace("tiny_choice", "lost").replace("FOLDER", str(tmp_path)))
    harness = LayerRoPELM(model("layerrope", vocab_size=257, seq_len=96), Bytes())
    with pytest.raises(InputError, match=r"lm-eval cannot run these tasks on this model \(.*choices\.jsonl"):
        evaluate_lm(harness, ["lost"], include=tmp_path)


def test_generation_stops_where_it_is_told() -> None:
    harness = LayerRoPELM(model("layerrope", vocab_size=257, seq_len=96), Bytes())
    whole = harness._generate("abc", {"max_gen_toks": 30})
    stop = whole[len(whole) // 2]
    assert harness._generate("abc", {"max_gen_toks": 30, "until": [stop]}) == whole.partition(stop)[0]
    harness._generate("x" * 90, {"max_gen_toks": 30})
    assert (harness.scorer.cuts.requests, harness.scorer.cuts.tokens) == (1, 24)
    with pytest.raises(InputError, match="no room for a context"):
        harness._generate("abc", {"max_gen_toks": 96})
