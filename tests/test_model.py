"""The decoder: equivalences, causality, precision, generation, starting values, and configs that do not fit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from layerrope import LM, ModelConfig, tiers
from layerrope.config import preset, tier
from layerrope.errors import InputError
from layerrope.model import IGNORED

SMALL = ModelConfig(n_layer=3, n_head=4, n_kv_head=2, d_model=16, d_ff=24, vocab_size=37, seq_len=24)


def some_ids(*shape: int, seed: int = 0, vocab: int = 37) -> torch.Tensor:
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(seed))


def shaken(model: LM, scale: float = 0.2) -> LM:
    """The model with every parameter moved off its start."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(scale * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


def test_layerrope_at_neutral_gains_is_prenorm_bit_for_bit() -> None:
    ids = some_ids(2, 24)
    neutral = LM(replace(SMALL, scheme="layerrope:alpha=0,beta=0,rotation=off"))
    assert torch.equal(neutral(ids), LM(SMALL)(ids))


def test_damped_write_start_is_scaled_init() -> None:
    ids = some_ids(2, 24)
    damped = LM(replace(SMALL, scheme="layerrope:alpha=0/damped,beta=0,rotation=off"))
    scaled = LM(replace(SMALL, scheme="prenorm-scaledinit"))
    torch.testing.assert_close(damped(ids), scaled(ids), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["modern", "gpt-2017"])
def test_presets_are_causal_and_differentiable(name: str) -> None:
    model = shaken(LM(preset(name, replace(SMALL, n_kv_head=None))))
    ids = some_ids(1, 12)
    changed = ids.clone()
    changed[0, 8] = (ids[0, 8] + 1) % 37
    with torch.no_grad():
        before, after = model(ids), model(changed)
    assert torch.equal(before[:, :8], after[:, :8])
    assert not torch.equal(before[:, 8], after[:, 8])
    model(ids, ids).backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_preset_parts() -> None:
    old = LM(preset("gpt-2017", SMALL))
    names = dict(old.named_parameters())
    assert {"position.weight", "layers.0.attn.f.q.bias", "layers.0.attn.branch.pre.bias"} <= set(names)
    assert not any(n.endswith("gate.weight") for n in names)
    assert not any("position" in n or n.endswith("bias") for n, _ in LM(SMALL).named_parameters())


def test_plain_attention_gives_the_same() -> None:
    """Grouped heads, rotary pairs and the causal mask against the definition, one head and position at a time."""
    model = shaken(LM(SMALL)).double()
    f, x = model.layers[0].attn.f, torch.randn(1, 6, 16, dtype=torch.float64)
    rope = torch.tensor([[m * 10000 ** (-2 * i / 4) for i in range(2)] for m in range(6)], dtype=torch.float64)

    def turned(v: torch.Tensor, m: int) -> torch.Tensor:
        z = torch.view_as_complex(v.reshape(2, 2)) * torch.polar(torch.ones(2, dtype=torch.float64), rope[m])
        return torch.view_as_real(z).flatten()

    heads = []
    for head in range(4):
        rows, kv = slice(4 * head, 4 * head + 4), slice(4 * (head // 2), 4 * (head // 2) + 4)
        q, k, v = x[0] @ f.q.weight[rows].T, x[0] @ f.k.weight[kv].T, x[0] @ f.v.weight[kv].T
        out = []
        for m in range(6):
            scores = torch.stack([turned(q[m], m) @ turned(k[n], n) / 2 for n in range(m + 1)])
            out.append(scores.softmax(0) @ v[: m + 1])
        heads.append(torch.stack(out))
    expected = torch.cat(heads, dim=1) @ f.o.weight.T
    table = torch.stack((rope.cos(), rope.sin()))
    torch.testing.assert_close(f(x, table)[0], expected, rtol=1e-10, atol=1e-12)


class TestLoss:
    def test_is_the_mean_over_counted_tokens(self) -> None:
        model, ids, targets = LM(SMALL), some_ids(2, 9), some_ids(2, 9, seed=1)
        targets[0, 3:] = IGNORED
        logp = F.log_softmax(model(ids).double(), dim=-1)
        counted = [(b, t) for b in range(2) for t in range(9) if targets[b, t] != IGNORED]
        expected = -sum(logp[b, t, targets[b, t]] for b, t in counted) / len(counted)
        assert model(ids, targets).item() == pytest.approx(expected.item(), rel=1e-6)
        total, count = model.loss_sum(ids, targets)
        assert int(count) == 12
        assert total.item() == pytest.approx(12 * expected.item(), rel=1e-6)

    def test_is_zero_and_differentiable_when_nothing_counts(self) -> None:
        model, ids = LM(SMALL), some_ids(2, 9)
        loss = model(ids, torch.full_like(ids, IGNORED))
        loss.backward()
        assert loss.item() == 0.0
        assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)

    def test_is_fp32_in_every_mode(self) -> None:
        model, ids = LM(replace(SMALL, vocab_size=97, n_kv_head=None)), some_ids(2, 16)
        with torch.no_grad():
            model.head.weight.mul_(600.0)
            plain = model(ids, ids)
            with torch.autocast("cpu", torch.bfloat16):
                cast = model(ids, ids)
                assert model(ids).dtype == torch.float32
            low = model.to(torch.bfloat16)(ids, ids)
        assert plain.item() > 20
        assert cast.dtype == low.dtype == torch.float32
        assert cast.item() % 0.25 != 0
        assert cast.item() == pytest.approx(plain.item(), rel=0.02)


class TestStart:
    def test_std_by_role(self) -> None:
        config = ModelConfig(
            n_layer=8, d_model=128, d_ff=256, vocab_size=512, embed_std=math.sqrt(2 / 5), scheme="prenorm-scaledinit"
        )
        model = LM(config)
        assert model.embed.weight.std().item() == pytest.approx(math.sqrt(2 / 5), rel=0.02)
        assert model.head.weight.std().item() == pytest.approx(0.02, rel=0.02)
        for i, layer in enumerate(model.layers):
            for kind, roles in (("attn", "q k v o"), ("mlp", "gate up down")):
                for role in roles.split():
                    std = 0.02 * (16**-0.5 if role in ("o", "down") else 1)
                    weight = layer.get_submodule(f"{kind}.f.{role}").weight
                    assert weight.std().item() == pytest.approx(std, rel=0.04), (i, role)

    def test_schemes_share_their_starting_weights(self) -> None:
        plain, other = (dict(LM(replace(SMALL, scheme=s), seed=3).named_parameters()) for s in ("prenorm", "layerrope"))
        shared = set(plain) & set(other)
        assert len(shared) > 20
        assert all(torch.equal(plain[n], other[n]) for n in shared)
        assert not torch.equal(plain["embed.weight"], LM(SMALL, seed=4).embed.weight)

    def test_building_a_model_draws_nothing_from_the_global_generator_at_init(self) -> None:
        model = LM(SMALL)
        torch.manual_seed(0)
        expected = torch.rand(3)
        torch.manual_seed(0)
        model.init_weights(1)
        assert torch.equal(torch.rand(3), expected)

    def test_tied_embedding(self) -> None:
        model = LM(replace(SMALL, tie=True))
        assert model.head.weight is model.embed.weight
        assert model.embed.weight.std().item() == pytest.approx(0.02, rel=0.15)


class TestGenerate:
    @pytest.mark.parametrize("scheme", ["prenorm", "postnorm", "layerrope-peri"])
    def test_the_cache_changes_nothing(self, scheme: str) -> None:
        model = shaken(LM(replace(SMALL, scheme=scheme)))
        ids = some_ids(2, 5)
        kept = model.generate(ids, 15, temperature=0)
        assert torch.equal(kept, model.generate(ids, 15, temperature=0, cache=False))
        assert kept.shape == (2, 20)

    def test_seed_top_k_and_stop(self) -> None:
        model, ids = shaken(LM(SMALL)), some_ids(2, 3)
        one, two = (model.generate(ids, 9, temperature=1.5, seed=5) for _ in range(2))
        assert torch.equal(one, two)
        assert torch.equal(model.generate(ids, 9, top_k=1, seed=1), model.generate(ids, 9, temperature=0))
        first = model.generate(ids[:1], 9, temperature=0)
        stopped = model.generate(ids[:1], 9, temperature=0, stop=int(first[0, 3]))
        assert stopped.shape == (1, 4)

    def test_learned_positions_end(self) -> None:
        model = LM(preset("gpt-2017", SMALL))
        with pytest.raises(InputError, match="25 positions asked for, but the model learned 24"):
            model.generate(some_ids(1, 20), 6)
        with pytest.raises(InputError, match="prompt is empty"):
            model.generate(some_ids(1, 0), 6)


class TestConfig:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"d_model": 18}, "d_model 18 is not divisible by n_head 4"),
            ({"n_kv_head": 3}, "n_kv_head 3 does not divide n_head 4"),
            ({"n_kv_head": 2.0}, "n_kv_head must be a whole number"),
            ({"n_kv_head": 0}, "n_kv_head must be at least 1"),
            ({"d_model": 4, "n_head": 4, "n_kv_head": None}, "even head width: d_model / n_head is 1"),
            ({"norm": "rms"}, "did you mean rmsnorm"),
            ({"position": "rotery"}, "did you mean rotary"),
            ({"n_layer": 0}, "n_layer must be at least 1"),
            ({"n_layer": 10**9}, "n_layer must be at most 10000"),
            ({"d_model": 4 * 10**30}, "d_model must be at most 100000000"),
            ({"seq_len": 10**18}, "seq_len must be at most"),
            ({"n_layer": 2.5}, "n_layer must be a whole number: got 2.5"),
            ({"vocab_size": "61"}, "vocab_size must be a whole number: got '61'"),
            ({"eps": float("nan")}, "eps must be positive"),
        ],
    )
    def test_shapes_that_do_not_fit(self, change: dict, words: str) -> None:
        with pytest.raises(InputError, match=words):
            replace(SMALL, **change)

    def test_unknown_names_give_the_nearest(self) -> None:
        with pytest.raises(InputError, match="did you mean 130m"):
            tier("13m")
        with pytest.raises(InputError, match="did you mean layerrope"):
            LM(replace(SMALL, scheme="layrope"))
        with pytest.raises(InputError, match="has no option 'rotatoin'"):
            LM(replace(SMALL, scheme="layerrope:rotatoin=off"))

    def test_every_tier_builds_on_meta(self) -> None:
        for config in tiers.values():
            with torch.device("meta"):
                LM(replace(config, n_layer=1, scheme="layerrope-peri"))
