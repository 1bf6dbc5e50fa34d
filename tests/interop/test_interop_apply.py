"""`layerrope.apply` on models of transformers: neutral, reversible, foldable, and trained by the usual tools."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'layerrope[hf]'")

from hf_models import DECODERS, ENCODERS, IDS, decoder, encoder, runner, shake

import layerrope
from layerrope import InputError
from layerrope.gains import SITES
from layerrope.interop import hf
from layerrope.patching.patching import ATTRIBUTE, patch_of

EVERY = [*DECODERS, *ENCODERS]
WRITES_ONLY = ("attn_write", "mlp_write")


def any_model(name: str) -> Any:
    return encoder(name) if name in ENCODERS else decoder(name)


def off(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference, over the largest value where that is above 1."""
    return float((a - b).abs().max() / a.abs().max().clamp(min=1))


# ------------------------------------------------------------------------------------------------- every architecture
@pytest.mark.parametrize("name", EVERY)
def test_neutral_gains_change_nothing_and_every_gain_acts(name: str) -> None:
    model = any_model(name)
    run = runner(model)
    before = run(model)
    patch = layerrope.apply(model)
    assert patch.sites == (WRITES_ONLY if name == "olmo2" else tuple(SITES))
    assert off(before, run(model)) < 1e-6
    rows = patch.gains()
    torch.testing.assert_close(rows, torch.ones_like(rows), rtol=0, atol=3e-7)
    shake(patch.gains)
    assert off(before, run(model)) > 1e-3
    run_loss = model(**({"pixel_values": torch.randn(2, 3, 16, 16)} if name in ENCODERS else {"input_ids": IDS})).logits
    run_loss.square().mean().backward()
    assert all(p.grad is not None and float(p.grad.abs().max()) > 0 for p in patch.gains.parameters())


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("init", ["neutral", "paper", "fit"])
def test_the_folded_copy_is_stock_and_computes_the_same(name: str, init: str) -> None:
    model = any_model(name)
    run, names = runner(model), list(model.state_dict())
    patch = layerrope.apply(model, init=init)
    shake(patch.gains, 0.1)
    with_gains = run(model)
    folded = layerrope.fold(model)
    assert list(folded.state_dict()) == names
    assert patch_of(folded) is None
    assert not hasattr(folded.config, "layerrope")
    assert off(with_gains, run(folded)) < 5e-6
    assert off(with_gains, run(model)) == 0  # the patched model itself is untouched
    assert layerrope.fold(folded) is folded


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("init", ["neutral", "paper", "fit"])
def test_removing_gives_the_model_back_bit_for_bit(name: str, init: str) -> None:
    model = any_model(name)
    run = runner(model)
    before, state = run(model), {k: v.clone() for k, v in model.state_dict().items()}
    trained = {k: p.requires_grad for k, p in model.named_parameters()}
    shake(layerrope.apply(model, init=init).gains)
    layerrope.remove(model)
    assert torch.equal(before, run(model))
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert {k: p.requires_grad for k, p in model.named_parameters()} == trained
    with pytest.raises(InputError, match="no depth gains"):
        layerrope.remove(model)


# -------------------------------------------------------------------------------------------------------- folding roles
@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("llama", "post_attention_layernorm"),
        ("gemma2", "pre_feedforward_layernorm"),
        ("gemma3", "pre_feedforward_layernorm"),
        ("glm4", "post_attention_layernorm"),
        ("gpt2", "ln_2"),
    ],
)
def test_a_gain_on_what_the_mlp_reads_changes_that_norm_alone(name: str, changed: str) -> None:
    """EXP-3: by role, not by name; every other tensor is byte-identical."""
    model = decoder(name)
    shake(layerrope.apply(model, "layerrope:sites=mlp_read").gains)
    before, after = model.state_dict(), layerrope.fold(model).state_dict()
    names = {k for k, v in after.items() if not torch.equal(v, before[k])}
    assert names
    assert all(k.split(".")[-2] == changed for k in names)
    assert len({k.rpartition(".")[0] for k in names}) == 3


def test_a_gain_on_what_the_mlp_reads_has_no_place_in_olmo2() -> None:
    with pytest.raises(InputError, match="acts on mlp_read; a olmo2 has attn_write, mlp_write"):
        layerrope.apply(decoder("olmo2"), "layerrope:sites=mlp_read")


def test_the_one_of_gemma_is_added_once() -> None:
    """EXP-2: 1 + w, folded as (1 + w) g - 1."""
    model = decoder("gemma2")
    patch = layerrope.apply(model)
    shake(patch.gains)
    w = model.model.layers[1].post_attention_layernorm.weight.detach().double()
    g = patch.gains().detach().double()[1, 0, 1]
    folded = layerrope.fold(model).model.layers[1].post_attention_layernorm.weight
    torch.testing.assert_close(folded.double(), (1 + w) * g - 1, rtol=0, atol=1e-6)


def test_fit_recovers_norms_that_follow_the_law_and_says_how_well() -> None:
    model = decoder("llama")
    law = layerrope.gain_table(torch.linspace(0.5, 1.5, 32), 3, alpha=0.2, beta=-0.4, alpha_rot=-0.5, beta_rot=-0.3)
    with torch.no_grad():
        for layer, row in zip(model.model.layers, law, strict=True):
            layer.input_layernorm.weight.copy_(row)
    before = runner(model)(model)
    patch = layerrope.apply(model, "layerrope:sites=attn_read", init="fit")
    assert patch.errors["attn_read"] < 0.02
    assert off(before, runner(model)(model)) < 0.05
    assert not model.model.layers[0].input_layernorm.weight.requires_grad
    assert set(patch.errors) == {"attn_read"}


# ------------------------------------------------------------------------------------------------------------- refusals
def test_what_does_not_fit_is_refused_by_path() -> None:
    from transformers import AutoModelForCausalLM, CohereConfig, MixtralConfig

    shape = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    with pytest.raises(InputError, match=r"model\.layers\.0\.input_layernorm is a shared_read norm"):
        layerrope.apply(AutoModelForCausalLM.from_config(CohereConfig(**shape, pad_token_id=0, eos_token_id=1)))
    mixtral = AutoModelForCausalLM.from_config(MixtralConfig(**shape, num_local_experts=2))
    with pytest.raises(InputError, match=r"model\.layers\.0\."):
        layerrope.apply(mixtral)


def test_a_parameter_used_in_two_places_cannot_hold_the_gains_of_both() -> None:
    """A gain is one place's own; the hooks would multiply in one, a fold in both."""
    layers = decoder("llama")
    layers.model.layers[2] = layers.model.layers[1]
    weights = decoder("llama")
    weights.model.layers[2].input_layernorm.weight = weights.model.layers[0].input_layernorm.weight
    for model, place in ((layers, "self_attn.o_proj|input_layernorm"), (weights, "input_layernorm")):
        with pytest.raises(InputError, match=rf"layers\.\d\.({place})\.weight and .* are one parameter"):
            layerrope.apply(model)
        assert patch_of(model) is None


@pytest.mark.parametrize("init", ["neutral", "paper", "fit"])
def test_what_was_frozen_stays_frozen(init: str) -> None:
    model = decoder("llama")
    for name, p in model.named_parameters():
        p.requires_grad_("layers.1." in name)
    trained = {name: p.requires_grad for name, p in model.named_parameters()}
    layerrope.apply(model, init=init)
    folded = layerrope.fold(model)
    assert {name: p.requires_grad for name, p in folded.named_parameters()} == trained
    layerrope.remove(model)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == trained


def test_quantised_weights_are_not_folded_into() -> None:
    model = decoder("llama")
    layerrope.apply(model)
    down = model.model.layers[1].mlp.down_proj
    down.weight = torch.nn.Parameter((down.weight * 100).to(torch.int8), requires_grad=False)
    with pytest.raises(InputError, match=r"layers\.1\.mlp\.down_proj\.weight is stored as torch.int8"):
        layerrope.fold(model)


def test_norms_without_numbers_are_not_fitted() -> None:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(decoder("llama").config)
    broken = decoder("llama")
    with torch.no_grad():
        broken.model.layers[1].input_layernorm.weight[3] = float("nan")
    for model, message in ((empty, "no numbers yet"), (broken, "not finite")):
        with pytest.raises(InputError, match=rf"input_layernorm\.weight .*{message}"):
            layerrope.apply(model, init="fit")
        assert patch_of(model) is None


@pytest.mark.parametrize("what", [None, "llama", torch.ones(2)])
def test_what_is_no_model_is_refused(what: Any) -> None:
    with pytest.raises(InputError, match=f"cannot put gains into a {type(what).__name__}"):
        layerrope.apply(what)


def test_a_patch_shows_itself_in_one_line() -> None:
    shown = repr(layerrope.apply(decoder("llama")))
    assert shown.startswith("Patch(sites=('attn_read'")
    assert len(shown) < 200


def test_unknown_model_types_are_not_guessed_at() -> None:
    model = decoder("llama")
    model.config.model_type = "newcomer"
    with pytest.raises(InputError, match="'newcomer' is not in the table"):
        layerrope.apply(model)
    assert layerrope.apply(model, architecture="llama").sites == tuple(SITES)


@pytest.mark.parametrize(
    ("scheme", "init", "message"),
    [
        ("hc", "neutral", "no gain table"),
        ("hc+layerrope", "neutral", "more than a gain table"),
        ("layerscale+layerrope", "neutral", "more than a gain table"),
        ("depth-mup", "paper", "learning rates"),
        ("prenorm-scaledinit+layerrope", "paper", "initial weights"),
        ("prenorm", "paper", "no gain table"),
        ("lns", "neutral", "init paper"),
        ("layerrope", "nutral", "did you mean neutral"),
        ("layerrope:schedule=free", "fit", "own law only"),
        ("layrope", "neutral", "did you mean layerrope"),
    ],
)
def test_schemes_and_inits_that_do_not_fit_are_refused(scheme: str, init: str, message: str) -> None:
    model = decoder("llama")
    names = list(model.state_dict())
    with pytest.raises(InputError, match=message):
        layerrope.apply(model, scheme, init=init)
    assert list(model.state_dict()) == names
    assert patch_of(model) is None


def test_gains_come_before_compilation() -> None:
    with pytest.raises(InputError, match=r"first, then torch\.compile"):
        layerrope.apply(torch.compile(decoder("llama")))
    model = decoder("llama")
    layerrope.apply(model)
    with pytest.raises(InputError, match="fold the patched model itself"):
        layerrope.fold(torch.compile(model))


def test_a_second_patch_is_refused() -> None:
    model = decoder("llama")
    layerrope.apply(model)
    with pytest.raises(InputError, match="has depth gains already"):
        layerrope.apply(model)


def test_lns_divides_what_the_norms_give() -> None:
    model = decoder("llama")
    layerrope.apply(model, "lns", init="paper")
    with_gains = runner(model)(model)
    folded = layerrope.fold(model)
    assert off(with_gains, runner(folded)(folded)) < 5e-6
    ratio = folded.model.layers[2].input_layernorm.weight / model.model.layers[2].input_layernorm.weight
    torch.testing.assert_close(ratio, torch.full((32,), 3**-0.5))


# ------------------------------------------------------------------------------------------------------ save and load
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("init", ["neutral", "paper"])
def test_save_and_load_keep_the_gains(tmp_path: Path, name: str, init: str) -> None:
    model = decoder(name)
    shake(layerrope.apply(model, init=init).gains)
    model.save_pretrained(tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["layerrope"]["scheme"] == "layerrope"
    back = hf.from_pretrained(tmp_path / "m").eval()
    assert torch.equal(runner(model)(model), runner(back)(back))
    assert not [k for k in back.state_dict() if "gamma" in k or "beta" in k]
    frozen = {k: p.requires_grad for k, p in back.named_parameters()}
    assert frozen == {k: p.requires_grad for k, p in model.named_parameters()}
    if init == "paper":
        with pytest.raises(InputError, match="fold the gains instead"):
            layerrope.remove(back)


def test_loading_names_a_folder_without_gains(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = decoder("llama")
    model.save_pretrained(tmp_path / "stock")
    with pytest.raises(InputError, match="no model patched"):
        hf.from_pretrained(tmp_path / "stock")
    layerrope.apply(model)
    model.save_pretrained(tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    kept = {k: v for k, v in tensors.items() if not k.endswith("slope")}
    assert len(kept) < len(tensors)
    save_file(kept, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="lacks gain tensor"):
        hf.from_pretrained(tmp_path / "m")


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({"num_hidden_layers": 4}, {}, r"missing keys: model\.layers\.3\."),
        ({"vocab_size": 70}, {}, r"mismatched keys: .*embed_tokens"),
        ({"model_type": "nope"}, {}, "transformers cannot load this model"),
        ({"layerrope": "x"}, {}, "is not part of the model"),
        ({"layerrope": {"scheme": 3}}, {}, "unknown scheme '3'"),
        ({"layerrope": {"scheme": "layerrope", "sites": None}}, {}, "gains on None"),
        ({"layerrope": {"scheme": "layerrope", "architecture": [1]}}, {}, "not in the table"),
        ({"dtype": "float8", "torch_dtype": None}, {}, "float8"),
        ({}, {"foo": lambda t: torch.ones(2)}, "unexpected keys: foo"),
        ({}, {"model.layers.0.input_layernorm.weight": None}, "missing keys"),
        ({}, {f"model.{ATTRIBUTE}.shared": lambda t: t * 0}, "is zero throughout"),
        ({}, {f"model.{ATTRIBUTE}.slope": lambda t: t * float("nan")}, r"layerrope_norm\.slope .*not finite"),
        ({}, {"model.layers.1.mlp.up_proj.weight": lambda t: t * float("nan")}, r"layers\.1\.mlp\.up_proj"),
        ({}, {f"model.{ATTRIBUTE}.slope": lambda t: t[:1]}, "has shape"),
        ({}, None, "cannot load this model"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line_and_leaves_nothing(
    tmp_path: Path, config: dict[str, Any], tensors: dict[str, Any] | None, message: str
) -> None:
    from safetensors.torch import load_file, save_file

    from layerrope.exporting.export import export

    model, folder = decoder("llama"), tmp_path / "m"
    layerrope.apply(model)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | config))
    made = load_file(folder / "model.safetensors")
    for name, change in (tensors or {}).items():
        made[name] = made.get(name) if change is None else change(made.get(name)).clone()
    kept = {name: t for name, t in made.items() if (tensors or {}).get(name, True) is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    if tensors is None:
        (folder / "model.safetensors").write_bytes(b"xx")
    with pytest.raises(InputError, match=message):
        export(folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_gains_stay_fp32() -> None:
    model = decoder("llama")
    patch = layerrope.apply(model)
    model.to(torch.bfloat16)
    assert {p.dtype for p in patch.gains.parameters()} == {torch.float32}
    assert model(IDS).logits.dtype == torch.bfloat16
    assert {p.dtype for p in layerrope.fold(model).parameters()} == {torch.bfloat16}


def test_a_copy_is_a_model_of_its_own() -> None:
    """As trainers copy a reference model."""
    model = decoder("llama")
    layerrope.apply(model)
    other = copy.deepcopy(model)
    before = runner(model)(model)
    shake(patch_of(other).gains)
    assert torch.equal(runner(model)(model), before)
    assert off(before, runner(other)(other)) > 1e-3
    layerrope.remove(other)
    assert patch_of(model) is not None
    assert torch.equal(runner(model)(model), before)


# ---------------------------------------------------------------------------------------------------------- other tools
def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}


def test_checkpointing_gives_the_same_gradients_even_around_another_forward() -> None:
    model = decoder("llama").train()
    shake(layerrope.apply(model).gains)
    model(input_ids=IDS, labels=IDS).loss.backward()
    plain = gradients(model)
    model.zero_grad()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    loss = model(input_ids=IDS, labels=IDS).loss
    with torch.no_grad():
        model(input_ids=IDS)  # a reference pass between forward and backward
    loss.backward()
    again = gradients(model)
    assert again.keys() == plain.keys()
    assert all(torch.equal(g, plain[k]) for k, g in again.items())


def test_compiled_whole_in_one_graph() -> None:
    from torch._dynamo.testing import CompileCounter

    model = decoder("llama").train()
    shake(layerrope.apply(model).gains)
    expected = model(input_ids=IDS, labels=IDS).loss
    torch._dynamo.reset()
    count = CompileCounter()
    loss = torch.compile(model, backend=count)(input_ids=IDS, labels=IDS).loss
    loss.backward()
    torch.testing.assert_close(loss, expected)
    assert count.frame_count == 1
    assert all(p.grad is not None for p in patch_of(model).gains.parameters())
    torch._dynamo.reset()


def rows(n: int = 32) -> Any:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install 'layerrope[hf]'")
    ids = torch.randint(3, 61, (n, 16), generator=torch.Generator().manual_seed(1)).tolist()
    return datasets.Dataset.from_dict({"input_ids": ids, "labels": ids})


def test_the_trainer_trains_resumes_and_spares_the_gains(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
    from transformers import Trainer, TrainingArguments

    def settings(**more: Any) -> Any:
        return TrainingArguments(
            output_dir=str(tmp_path / "out"),
            max_steps=4,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            weight_decay=0.5,
            report_to=[],
            use_cpu=True,
            save_steps=2,
            gradient_checkpointing=True,
            gradient_checkpointing_kwargs={"use_reentrant": False},
            disable_tqdm=True,
            **more,
        )

    model = decoder("llama")
    patch = layerrope.apply(model)
    before = {k: p.detach().clone() for k, p in patch.gains.named_parameters()}
    trainer = Trainer(model, settings(), train_dataset=rows())
    trainer.train()
    groups = {id(p): g["weight_decay"] for g in trainer.optimizer.param_groups for p in g["params"]}
    gains = dict(patch.gains.named_parameters())
    assert {groups[id(p)] for p in gains.values()} == {0.0}
    assert 0.5 in groups.values()
    assert all(not torch.equal(p, before[k]) and p.dtype == torch.float32 for k, p in gains.items())
    again = decoder("llama")
    layerrope.apply(again)
    Trainer(again, settings(), train_dataset=rows()).train(resume_from_checkpoint=str(tmp_path / "out/checkpoint-2"))
    ends = dict(again.named_parameters())
    assert all(torch.equal(p, ends[k]) for k, p in model.named_parameters())


def test_peft_trains_on_top_and_merges_into_the_folded_model() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = decoder("llama")
    shake(layerrope.apply(model).gains, 0.1)
    targets = ["q_proj", "o_proj", "down_proj"]
    config = peft.LoraConfig(r=2, target_modules=targets, modules_to_save=[ATTRIBUTE], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config)
    trained = [p for p in adapted.parameters() if p.requires_grad]
    adapted(input_ids=IDS, labels=IDS).loss.backward()
    gains = [p for k, p in adapted.named_parameters() if ATTRIBUTE in k and p.requires_grad]
    assert gains
    assert all(p.grad is not None for p in gains)
    torch.optim.SGD(trained, lr=0.5).step()
    after = runner(model)(adapted)
    merged = adapted.merge_and_unload()
    assert off(after, runner(merged)(merged)) < 5e-6
    folded = layerrope.fold(merged)
    assert off(after, runner(folded)(folded)) < 5e-6
    with pytest.raises(InputError, match="apply depth gains first"):
        layerrope.apply(peft.get_peft_model(decoder("llama"), peft.LoraConfig(target_modules=targets)))


def word_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {w: i for i, w in enumerate(["<pad>", "<s>", "</s>", *(f"w{i}" for i in range(58))])}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("kind", ["SFT", "DPO"])
def test_trl_trains_a_few_real_steps(tmp_path: Path, kind: str) -> None:
    trl = pytest.importorskip("trl", reason="trl is not installed")
    from datasets import Dataset

    texts = [" ".join(f"w{(i + j) % 58}" for j in range(6)) for i in range(16)]
    columns = {
        "SFT": {"text": texts},
        "DPO": {"prompt": texts, "chosen": [f" {t}" for t in texts[::-1]], "rejected": [" w3 w4"] * 16},
    }[kind]
    model = decoder("llama")
    patch = layerrope.apply(model)
    reference = {"ref_model": copy.deepcopy(model)} if kind == "DPO" else {}  # by itself it would load a stock one
    before = {k: p.detach().clone() for k, p in patch.gains.named_parameters()}
    settings = getattr(trl, f"{kind}Config")(
        output_dir=str(tmp_path),
        max_steps=3,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = getattr(trl, f"{kind}Trainer")(
        model=model,
        args=settings,
        train_dataset=Dataset.from_dict(columns),
        processing_class=word_tokenizer(),
        **reference,
    )
    trainer.train()
    gains = dict(patch.gains.named_parameters())
    assert all(not torch.equal(p, before[k]) for k, p in gains.items())
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


@pytest.mark.slow
def test_fsdp2_on_two_ranks_equals_one_process(tmp_path: Path) -> None:
    import torch.multiprocessing as mp

    model = decoder("llama").train()
    shake(layerrope.apply(model).gains)
    model(input_ids=IDS, labels=IDS).loss.backward()
    expected = gradients(model)
    mp.spawn(_fsdp_rank, args=(str(tmp_path / "store"), str(tmp_path / "grads.pt")), nprocs=2)
    from safetensors.torch import load_file

    found = load_file(tmp_path / "grads.pt")
    assert found.keys() == expected.keys()
    for name, grad in found.items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-4, atol=1e-7, msg=name)


def _fsdp_rank(rank: int, store: str, out: str) -> None:
    import torch.distributed as dist
    from safetensors.torch import save_file
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    model = decoder("llama").train()
    shake(layerrope.apply(model).gains)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(input_ids=IDS[rank : rank + 1], labels=IDS[rank : rank + 1]).loss.backward()
    whole = {k: p.grad.full_tensor().contiguous() for k, p in model.named_parameters() if p.grad is not None}
    if rank == 0:
        save_file(whole, out)
    dist.barrier()
    dist.destroy_process_group()
