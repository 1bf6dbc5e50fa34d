"""OLMo-core's decoder under our schemes: the same numbers as an `LM`, in forward and backward, and what is refused.

Needs the extra `olmo`; docs/engines.md has the command.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("olmo_core", reason="OLMo-core is not installed: pip install 'layerrope[olmo]'")

from olmo_core.nn.transformer import TransformerBlockType, TransformerConfig
from olmo_core.optim import AdamWConfig
from torch._dynamo.testing import CompileCounter

from layerrope.config import ModelConfig
from layerrope.errors import InputError
from layerrope.interop.olmo_core import DepthTransformer, group_overrides, olmo_config, with_scheme
from layerrope.interop.olmo_names import from_olmo, olmo_name, read_olmo_config, to_olmo
from layerrope.interop.olmo_weights import load_weights, prove, to_lm
from layerrope.model import LM
from layerrope.scheme_table import scheme
from layerrope.training.optim import Optimizers

SHAPE = ModelConfig(n_layer=3, n_head=4, n_kv_head=2, d_model=32, d_ff=48, vocab_size=61, seq_len=24)
FOLDING = [
    "prenorm",
    "prenorm-scaledinit",
    "lns",
    "layerscale:start=0.5",
    "perinorm",
    "layerrope",
    "layerrope:rotation=off,sites=read",
    "layerrope:magnitude=off,spectrum=single",
    "layerrope:schedule=free,gamma=layer",
    "layerrope:schedule=geometric",
    "layerrope-peri",
    "lns+layerrope",
    "layerscale+layerrope",
    "perinorm+lns",
    "depth-mup:base=1+layerrope",
    "completep:base=1",
]
OTHERS = ["hc", "mhc", "attnres", "nanochat", "deepnorm", "postnorm", "keel", "rezero", "mixln:fraction=0.5"]


def moved(spec: str, tie: bool = False) -> LM:
    """An `LM` whose norms and gains are not at their start, so that a lost factor shows."""
    model = LM(replace(SHAPE, scheme=spec, tie=tie), seed=5)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1 or p.shape[-1] == SHAPE.d_model:
                p.add_(0.05 * torch.randn(p.shape, generator=generator))
    return model


def built(model: LM) -> DepthTransformer:
    theirs = olmo_config(model.config).build()
    load_weights(theirs, model)
    return theirs


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(SHAPE.vocab_size, (2, 25), generator=generator)
    return ids[:, :-1], ids[:, 1:].clone()


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("spec", FOLDING)
def test_the_same_function_and_gradient_as_an_lm(spec: str, tie: bool) -> None:
    ours = moved(spec, tie)
    theirs = built(ours)
    assert prove(built(ours), ours)["max_difference"] < 1e-5
    ids, targets = batch()
    ours(ids, targets).backward()
    theirs(ids, labels=targets, loss_reduction="mean").loss.backward()
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    wanted = LM(ours.config)
    for p, q in zip(wanted.parameters(), ours.parameters(), strict=True):
        p.data = q.grad  # type: ignore[assignment]
    for name, gradient in to_olmo(wanted):
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("spec", FOLDING)
def test_config_and_weights_come_back_bit_for_bit(spec: str, tie: bool) -> None:
    ours = moved(spec, tie)
    config = olmo_config(ours.config)
    theirs = built(ours)
    assert config.num_params == theirs.num_params == sum(p.numel() for p in ours.parameters())
    again = type(config).from_dict(config.as_config_dict())
    assert again.build().scheme.spec == scheme(spec).spec
    back = to_lm(theirs, again, SHAPE.seq_len)
    assert back.config == ours.config
    for (name, a), (_, b) in zip(back.state_dict().items(), ours.state_dict().items(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("spec", OTHERS)
def test_schemes_that_do_not_fold_are_refused(spec: str) -> None:
    with pytest.raises(InputError, match="only schemes that fold"):
        olmo_config(replace(SHAPE, scheme=spec))


@pytest.mark.parametrize("changes", [{"norm": "layernorm"}, {"position": "learned"}, {"mlp": "gelu"}, {"bias": True}])
def test_other_parts_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="OLMo-core models here have"):
        olmo_config(replace(SHAPE, **changes))


def llama_like(**changes: Any) -> TransformerConfig:
    return TransformerConfig.llama_like(d_model=32, vocab_size=61, n_layers=2, n_heads=4, **changes)


def test_a_config_of_their_own_takes_a_scheme() -> None:
    model = with_scheme(llama_like(qk_norm=True), "layerrope").build()
    ids, targets = batch()
    model(ids, labels=targets).loss.backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
    with pytest.raises(InputError, match="qk_norm"):
        with_scheme(llama_like(qk_norm=True), "layerrope").to_model_config(24)


@pytest.mark.parametrize("name", [TransformerBlockType.reordered_norm, TransformerBlockType.peri_norm])
def test_a_scheme_does_not_replace_other_blocks(name: TransformerBlockType) -> None:
    with pytest.raises(InputError, match="plain block"):
        with_scheme(llama_like(block_name=name), "layerrope")


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        (TransformerBlockType.default, "prenorm"),
        (TransformerBlockType.default_scaled, "lns"),
        (TransformerBlockType.peri_norm, "perinorm"),
    ],
)
def test_their_own_blocks_are_read_as_schemes(name: TransformerBlockType, spec: str) -> None:
    theirs = llama_like(block_name=name)
    model = theirs.build()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    lm = from_olmo(read_olmo_config(theirs.as_config_dict(), 24), dict(model.named_parameters()))
    assert lm.config.scheme == spec
    ids, _ = batch()
    torch.testing.assert_close(lm(ids), model(ids), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("spec", FOLDING)
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_optimiser_has_our_trainers_groups(spec: str, wrapped: bool) -> None:
    ours = moved(spec)
    theirs = olmo_config(ours.config).build()
    overrides = group_overrides(theirs, lr=1e-2, weight_decay=0.1, eps=1e-7)
    if wrapped:
        theirs.apply_activation_checkpointing("full")
    optimiser = AdamWConfig(lr=1.0, weight_decay=9.0, group_overrides=overrides).build(theirs)
    names = {p: name.replace("_checkpoint_wrapped_module.", "") for name, p in theirs.named_parameters()}

    def settings(group: dict[str, Any], of: list[str]) -> tuple[Any, ...]:
        return group["lr"], group["weight_decay"], group["eps"], tuple(sorted(of))

    mine = Optimizers(ours, "adamw", lr=1e-2, weight_decay=0.1, eps=1e-7).groups()
    wanted = {settings(g, [olmo_name(name) for name in g["names"]]) for g in mine}
    assert {settings(g, [names[p] for p in g["params"]]) for g in optimiser.param_groups} == wanted
    undecayed = [o for o in overrides if o.opts["weight_decay"] == 0.0]
    gains = [name for name in names.values() if name.startswith("gains.")]
    assert all(any(fnmatch(name, pattern) for o in undecayed for pattern in o.params) for name in gains)


def test_starting_values_follow_the_schemes_multipliers() -> None:
    config = replace(SHAPE, d_model=64, d_ff=256, scheme="prenorm-scaledinit")
    model = olmo_config(config).build(init_device="meta")
    model.init_weights(device=torch.device("cpu"))
    plain = olmo_config(replace(config, scheme="prenorm")).build(init_device="meta")
    plain.init_weights(device=torch.device("cpu"))
    for (name, a), (_, b) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        factor = 6**-0.5 if name.endswith(("w_out.weight", "w2.weight")) and name.startswith("blocks") else 1.0
        torch.testing.assert_close(a, factor * b, msg=name)


def test_a_meta_build_starts_its_gains_and_gates() -> None:
    config = replace(SHAPE, scheme="layerscale:start=0.3+layerrope:beta=-0.25")
    model = olmo_config(config).build(init_device="meta")
    model.init_weights(device=torch.device("cpu"))
    lm = LM(config)
    assert model.gains is not None
    assert lm.gains is not None
    for (name, a), (_, b) in zip(model.gains.named_parameters(), lm.gains.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert model.blocks["2"].post_attention_norm.weight.tolist() == pytest.approx([0.3] * 32)


def test_one_graph_serves_every_block() -> None:
    model = built(moved("layerrope"))
    counter = CompileCounter()
    for block in model.blocks.values():
        block.compile(backend=counter, fullgraph=True)
    ids, _ = batch()
    model(ids)
    assert counter.frame_count == 1


def test_learned_gains_refuse_pipelines() -> None:
    with pytest.raises(InputError, match="pipeline"):
        olmo_config(replace(SHAPE, scheme="layerrope")).build().apply_pp(None)  # type: ignore[arg-type]


def test_gains_reach_bf16_blocks_in_fp32(one_rank: Any) -> None:
    """bf16's spacing at 1 is 2^-8, above what training moves a gain by."""
    model = built(moved("layerrope"))
    seen: list[tuple[torch.dtype, torch.dtype]] = []
    for block in model.blocks.values():
        block.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append((args[0].dtype, kwargs["gains"].dtype)), with_kwargs=True
        )
    model.apply_fsdp(dp_mesh=one_rank, param_dtype=torch.bfloat16)
    ids, targets = batch()
    model(ids, labels=targets).loss.backward()
    assert seen == [(torch.bfloat16, torch.float32)] * SHAPE.n_layer
    assert model.gains is not None
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.gains.parameters())
