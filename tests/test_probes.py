"""The probes against closed forms, other ways of computing the same, and each other."""

from __future__ import annotations

import copy
import doctest
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import perturbed, tiny, token_ids
from probe_toys import CausalMean, Linear, batches, identities, plain, reordered
from torch import Tensor, nn

from layerrope.errors import InputError
from layerrope.files import dumps
from layerrope.model import IGNORED, LM
from layerrope.probes import CHEAP, PROBES, Options, Trunk, not_comparable, probe, surgery
from layerrope.probes.angles import angular_distance, unit
from layerrope.probes.collapse import collinearity, ranks
from layerrope.probes.jacobian import jacobian_distance
from layerrope.probes.surgery import swapped
from layerrope.residual import Add, Sublayer
from layerrope.scheme_table import schemes
from layerrope.stream import stream_rms
from layerrope.training.evaluation import evaluate

SPECS = [*schemes, "hc+layerrope", "perinorm+layerrope", "attnres:size=3"]
D = 16


def found(model: LM, *names: str, **options: int) -> dict:
    return probe(model, batches(), names, Options(**options))["probes"]  # type: ignore[arg-type]


def close(a: object, b: object, rel: float = 1e-5) -> bool:
    """Equal within rounding, through nested data."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[k], b[k], rel) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(close(x, y, rel) for x, y in zip(a, b, strict=True))
    return a == (pytest.approx(b, rel=rel, abs=1e-6) if isinstance(b, float) else b)


def adds(spec: str) -> bool:
    """Is a sublayer that writes nothing the identity: no norm after the add, no mixing of streams?"""
    return all(type(m.residual) is Add for m in LM(tiny(spec)).modules() if isinstance(m, Sublayer))


# ------------------------------------------------------------------------------------------------------ every scheme
@pytest.mark.parametrize("spec", SPECS)
def test_every_scheme_is_probed_and_left_as_it_was(spec: str) -> None:
    model = perturbed(spec).train()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    document = probe(model, batches(18), options=Options(vectors=2))
    assert all(torch.equal(a, before[name]) for name, a in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters() if p.grad is not None)
    assert all(module.training for module in model.modules())
    assert document["probes"].keys() == document["seconds"].keys() == PROBES.keys()
    assert json.loads(dumps(document), parse_constant=pytest.fail) == json.loads(json.dumps(document))
    assert document["tokens"] == 18 * 12
    for probe_name, field in (name.split(".") for name in document["not_comparable"]):
        assert field in document["probes"][probe_name] or "why_not" in document["probes"][probe_name]


@pytest.mark.parametrize("spec", SPECS)
def test_the_trunk_is_the_model_bit_for_bit(spec: str) -> None:
    model, ids = perturbed(spec), token_ids(3, 12)
    trunk = Trunk.of(model, ids)
    assert torch.equal(trunk.stream(trunk.states()[-1]), model.hidden(ids))
    learned = perturbed(spec, position="learned", norm="layernorm", mlp="gelu", bias=True)
    trunk = Trunk.of(learned, ids)
    assert torch.equal(trunk.stream(trunk.run(range(4), trunk.first)), learned.hidden(ids))


@pytest.mark.parametrize("spec", [spec for spec in SPECS if adds(spec)])
def test_identity_blocks_give_the_values_of_nothing(spec: str) -> None:
    model = identities(spec)
    of = probe(model, batches(windows=14), options=Options(vectors=0))["probes"]
    assert of["angle"] == {"neighbour": [0.0] * 4, "block_influence": [0.0] * 4}
    assert of["matrix"]["matrix"] == [[0.0] * 5] * 5
    assert of["jacobian"] == {"distance": [0.0] * 4, "standard_error": [0.0] * 4, "vectors": D, "exact": True}
    assert of["drop"]["ratio"] == [1.0] * 4
    assert of["swap"]["change"] == [0.0] * 3
    assert of["swap"]["permutation_score"] == 0.0
    assert of["affine"]["ratio"] == [1.0] * 4
    assert of["lens"]["kl"] == [0.0] * 5
    assert of["lens"]["agreement"] == [1.0] * 5
    assert of["update"] == {"ratio": [0.0] * 8, "cosine": [0.0] * 8}
    assert len(set(of["stream"]["rms"])) == 1
    assert close(of["gradient"]["stream"], [of["gradient"]["stream"][0]] * 5)


@pytest.mark.parametrize("spec", ["prenorm", "layerrope", "hc", "attnres", "nanochat"])
def test_numbers_do_not_depend_on_how_windows_are_batched(spec: str) -> None:
    model = perturbed(spec)
    names = [name for name in PROBES if name != "affine"]
    one, other = (probe(model, batches(rows=rows), names)["probes"] for rows in (7, 2))
    assert close(one, other, rel=1e-4)


@pytest.mark.parametrize("spec", ["layerrope", "mhc", "attnres"])
def test_positions_without_a_target_do_not_count(spec: str) -> None:
    """Text behind the last counted position may be anything: no number moves."""
    model = perturbed(spec)
    (ids, targets), *_ = batches(3)
    targets = targets.clone()
    targets[:, 7:] = IGNORED
    other = ids.clone()
    other[:, 7:] = (other[:, 7:] + 1) % 31
    one, two = (probe(model, [(x, targets)])["probes"] for x in (ids, other))
    assert close(one, two, rel=1e-4)


# ------------------------------------------------------------------------------------------------------ known layers
def test_layers_that_scale_turn_and_flip() -> None:
    turn = torch.kron(torch.eye(D // 2), torch.tensor([[0.0, -1.0], [1.0, 0.0]]))  # every pair by a right angle
    eye = torch.eye(D)
    model = plain(Linear(2 * eye), Linear(turn - eye), Linear(-2 * eye))
    of = probe(model, batches(), ("angle", "update", "jacobian", "stream"), Options(vectors=0))["probes"]
    assert of["angle"]["neighbour"] == pytest.approx([0.0, 0.5, 1.0], abs=1e-7)
    assert of["angle"]["block_influence"] == pytest.approx([0.0, 1.0, 2.0], abs=1e-6)
    assert of["update"]["ratio"][1::2] == pytest.approx([2.0, math.sqrt(2), 2.0])
    assert of["update"]["cosine"][1::2] == pytest.approx([1.0, -math.sqrt(0.5), -1.0])
    assert of["update"]["ratio"][::2] == [0.0] * 3
    assert of["jacobian"]["distance"] == pytest.approx([2.0, math.sqrt(2), 2.0])
    rms = of["stream"]["rms"]
    assert [b / a for a, b in zip(rms[::2], rms[2::2], strict=False)] == pytest.approx([3.0, 1.0, 1.0])


def test_the_jacobian_is_summed_over_outputs_and_averaged_over_positions() -> None:
    """The causal mean moves positions by 1/(s+1); summed over s and averaged over t that is 1 for every channel."""
    W = torch.randn(D, D, generator=torch.Generator().manual_seed(3))
    model = plain(CausalMean(), Linear(W))
    exact = jacobian_distance(model, batches(), n_vectors=0)
    assert exact["distance"] == pytest.approx([1.0, float(W.norm()) / math.sqrt(D)], rel=1e-5)
    estimate = jacobian_distance(model, batches(), n_vectors=3)
    assert estimate["distance"][0] == pytest.approx(1.0)  # signs see a multiple of the identity exactly
    assert estimate["standard_error"][0] == pytest.approx(0.0, abs=1e-6)


def test_the_estimate_of_the_jacobian_is_within_its_stated_error() -> None:
    model = perturbed("prenorm")
    exact = jacobian_distance(model, batches(), n_vectors=0)["distance"]
    runs = [jacobian_distance(model, batches(), n_vectors=8, seed=seed) for seed in range(12)]
    off = [
        (distance - truth) / error
        for run in runs
        for distance, error, truth in zip(run["distance"], run["standard_error"], exact, strict=True)
    ]
    assert sum(abs(z) < 2 for z in off) >= 0.8 * len(off)
    squares = [sum(run["distance"][layer] ** 2 for run in runs) / len(runs) for layer in range(4)]
    assert squares == pytest.approx([d**2 for d in exact], rel=0.2)


def test_a_linear_layer_is_replaced_without_loss_and_a_crooked_one_is_not() -> None:
    class Crooked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 4 * x.square()

    W = torch.randn(D, D, generator=torch.Generator().manual_seed(3))
    model = plain(Linear(W), Crooked(), CausalMean())
    ids = token_ids(40, 12)
    targets = model(ids).argmax(-1)
    of = probe(model, [(ids, targets)], ["affine"])["probes"]["affine"]
    assert of["ratio"][0] == pytest.approx(1.0, abs=1e-4)
    assert of["ratio"][1] > 1.05
    assert of["useful"] == sum(r > 1.1 for r in of["ratio"]) / 3
    assert of["fitted_on"] == of["held_out"] == 240


def test_the_affine_map_is_tested_on_text_it_was_not_fitted_on() -> None:
    model, some = perturbed("prenorm"), batches(40, rows=40)
    ids, targets = some[0]
    changed = targets.clone()
    changed[1::2] = (changed[1::2] + 1) % 31
    one, other = (probe(model, [(ids, t)], ["affine"])["probes"]["affine"] for t in (targets, changed))
    assert one["loss"] != other["loss"]  # odd windows give the losses
    unchanged = targets.clone()
    unchanged[::2] = (unchanged[::2] + 1) % 31
    assert probe(model, [(ids, unchanged)], ["affine"])["probes"]["affine"] == one  # even ones give only streams


def test_too_little_text_for_a_fit_is_said_and_not_fitted() -> None:
    assert "needs 68 tokens" in found(perturbed("prenorm"), "affine")["affine"]["why_not"]
    assert "needs 68 tokens" in probe(perturbed("prenorm"), batches(1), ["affine"])["probes"]["affine"]["why_not"]


# -------------------------------------------------------------------------------------------- leaving out, exchanging
@pytest.mark.parametrize("layer", [0, 2, 3])
@pytest.mark.parametrize("spec", SPECS)
def test_dropping_a_layer_is_a_model_without_it(spec: str, layer: int) -> None:
    model = perturbed(spec)
    of = found(model, "drop")["drop"]
    without = reordered(model, [i for i in range(4) if i != layer])
    assert of["loss"] == pytest.approx(evaluate(model, batches()), rel=1e-6)
    assert of["loss"] + of["change"][layer] == pytest.approx(evaluate(without, batches()), rel=1e-6)
    assert of["ratio"][layer] == pytest.approx(1 + of["change"][layer] / of["loss"])


def test_dropping_from_a_built_model_with_copied_weights() -> None:
    model, smaller = perturbed("prenorm"), LM(tiny("prenorm", n_layer=3))
    kept = {0: 0, 2: 1, 3: 2}
    weights = {}
    for name, p in model.state_dict().items():
        parts = name.split(".")
        if parts[0] == "layers" and int(parts[1]) not in kept:
            continue
        weights[".".join([parts[0], str(kept[int(parts[1])]), *parts[2:]]) if parts[0] == "layers" else name] = p
    smaller.load_state_dict(weights)
    of = found(model, "drop")["drop"]
    assert of["loss"] + of["change"][1] == pytest.approx(evaluate(smaller, batches()), rel=1e-6)


@pytest.mark.parametrize("spec", SPECS)
def test_exchanging_two_layers_moves_their_constants_and_gains(spec: str) -> None:
    model = perturbed(spec)
    of = found(model, "swap", every_pair=True)["swap"]
    assert of["pairs"] == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    exchanged = reordered(model, [0, 3, 2, 1])
    assert of["loss"] + of["change"][4] == pytest.approx(evaluate(exchanged, batches()), rel=1e-6)
    assert of["permutation_score"] == pytest.approx(sum(abs(c) for c in of["change"]) / 6 / of["loss"])


@pytest.mark.parametrize("spec", ["lns", "layerrope"])
def test_exchanging_the_weights_alone_is_another_model(spec: str) -> None:
    model = perturbed(spec)
    of = found(model, "swap")["swap"]
    assert of["pairs"] == [[0, 1], [1, 2], [2, 3]]
    gains_stay = reordered(model, [1, 0, 2, 3])
    gains_stay.gains = model.gains
    assert abs(of["loss"] + of["change"][0] - evaluate(gains_stay, batches())) > 1e-4


def test_the_example_of_an_order_runs() -> None:
    assert doctest.testmod(surgery).failed == 0


def test_a_layer_exchanged_with_itself_changes_no_bit() -> None:
    trunk = Trunk.of(perturbed("layerrope"), token_ids(3, 12))
    same, whole = (trunk.run(order, trunk.first) for order in (swapped(4, 2, 2), range(4)))
    assert torch.equal(same, whole)


def test_the_standard_error_is_that_of_paired_windows() -> None:
    model = perturbed("prenorm")
    error = found(model, "drop")["drop"]["standard_error"][1]
    without = reordered(model, [0, 2, 3])
    ids, targets = (torch.cat(part) for part in zip(*batches(), strict=True))
    each = [
        float((without(x[None], y[None]) - model(x[None], y[None])).detach()) for x, y in zip(ids, targets, strict=True)
    ]
    assert error == pytest.approx(float(torch.tensor(each).std()) / 7**0.5, rel=1e-3)
    assert probe(model, batches(1), ["drop"])["probes"]["drop"]["standard_error"] == [None] * 4


# --------------------------------------------------------------------------------------------- other ways to the same
@pytest.mark.parametrize("spec", SPECS)
def test_the_stream_is_that_of_the_report(spec: str) -> None:
    model, some = perturbed(spec), batches(4, rows=4)
    of = probe(model, some, ["stream"])["probes"]["stream"]
    assert of["rms"] == pytest.approx(stream_rms(model, some[0][0]).tolist(), rel=1e-5)
    h = model.hidden(some[0][0]).detach()
    assert of["variance"][-1] == pytest.approx(float(h.var(unbiased=False)), rel=1e-5)


@pytest.mark.parametrize("spec", SPECS)
def test_gradients_are_those_of_a_backward_pass(spec: str) -> None:
    model = perturbed(spec)
    of = found(model, "gradient")["gradient"]
    ids, targets = (torch.cat(part) for part in zip(*batches(), strict=True))
    model(ids, targets).backward()
    lengths = [
        float(sum(p.grad.square().sum() for p in layer.parameters() if p.grad is not None)) for layer in model.layers
    ]
    assert of["weights"] == pytest.approx([length**0.5 for length in lengths], rel=1e-4)
    if "attnres" in spec:
        assert of["stream"] is None
        return
    h = model.hidden(ids).detach().requires_grad_()
    nn.functional.cross_entropy(model.logits(h).flatten(0, 1), targets.flatten(), reduction="sum").backward()
    assert h.grad is not None
    assert of["stream"][-1] == pytest.approx(float(h.grad.square().sum(-1).mean().sqrt()), rel=1e-4)


def test_the_last_depth_of_the_lens_is_the_model() -> None:
    model = perturbed("layerrope")
    of = found(model, "lens")["lens"]
    assert of["loss"][-1] == pytest.approx(evaluate(model, batches()), rel=1e-6)
    assert (of["kl"][-1], of["agreement"][-1]) == (0.0, 1.0)
    ids, targets = (torch.cat(part) for part in zip(*batches(), strict=True))
    early = reordered(model, [0, 1])
    assert of["loss"][2] == pytest.approx(float(early(ids, targets).detach()), rel=1e-5)
    p, q = model(ids).log_softmax(-1), early(ids).log_softmax(-1)
    assert of["kl"][2] == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()), rel=1e-4)


def test_gains_are_the_table_times_the_weights() -> None:
    model = perturbed("layerrope")
    assert model.gains is not None
    table = model.gains(4).square().mean(-1).sqrt()
    of = found(model, "gains")["gains"]
    assert of["rms"]["mlp_write"] == pytest.approx(table[:, 1, 1].tolist(), rel=1e-5)
    assert set(of["angle"]) == set(of["rms"]) == {"attn_read", "attn_write", "mlp_read", "mlp_write"}
    assert set(found(perturbed("prenorm"), "gains")["gains"]["rms"]) == {"attn_read", "mlp_read"}


# --------------------------------------------------------------------------------------------------- angles and ranks
@given(st.integers(1, 6), st.integers(0, 100))
def test_angular_distance_at_its_ends_is_exact(width: int, seed: int) -> None:
    a = unit(torch.randn(5, width, generator=torch.Generator().manual_seed(seed)))
    assert angular_distance(a, a).tolist() == [0.0] * 5
    assert angular_distance(a, -a).tolist() == [1.0] * 5


@given(st.floats(0, math.pi))
def test_angular_distance_is_the_angle_over_pi(angle: float) -> None:
    a = torch.tensor([1.0, 0.0], dtype=torch.float64)
    b = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    assert float(angular_distance(a, b)) == pytest.approx(angle / math.pi, abs=1e-12)


@settings(deadline=None)
@given(st.integers(2, 8), st.integers(2, 8), st.integers(0, 1000))
def test_ranks_are_those_of_the_singular_values(rows: int, columns: int, seed: int) -> None:
    h = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    share = torch.linalg.svdvals(h).square()
    share = share / share.sum()
    stable, effective = ranks(h)
    assert float(stable) == pytest.approx(1 / float(share.max()), rel=1e-9)
    assert float(effective) == pytest.approx(float((-(share * share.log()).sum()).exp()), rel=1e-9)
    cosine = nn.functional.cosine_similarity(h[:, None], h[None], dim=-1)
    off_diagonal = (cosine.sum() - cosine.diagonal().sum()) / (rows * (rows - 1))
    assert float(collinearity(h)) == pytest.approx(float(off_diagonal), abs=1e-9)


def test_tokens_that_are_equal_orthogonal_or_nothing() -> None:
    same, apart, nothing = torch.full((6, 4), 0.3).double(), 3 * torch.eye(4).double(), torch.zeros(3, 4).double()
    assert float(collinearity(same)) == pytest.approx(1.0)
    assert float(collinearity(apart)) == pytest.approx(0.0)
    assert [float(r) for r in ranks(same)] == pytest.approx([1.0, 1.0])
    assert [float(r) for r in ranks(apart)] == pytest.approx([4.0, 4.0])
    assert [float(r) for r in ranks(nothing)] == [0.0, 0.0]
    assert [float(r) for r in ranks(same - same.mean(0), beside=same)] == [0.0, 0.0]


# --------------------------------------------------------------------------------------------------- what is not there
def test_attention_residuals_have_no_stream_to_displace() -> None:
    of = probe(perturbed("attnres"), batches(20))
    assert of["probes"]["jacobian"]["distance"] is None
    assert "no stream" in of["probes"]["affine"]["why_not"]
    assert {"stream.rms", "jacobian.distance", "update.ratio"} <= of["not_comparable"].keys()


def test_plain_pre_norm_compares_throughout() -> None:
    assert not_comparable(LM(tiny("prenorm"))) == not_comparable(LM(tiny("layerrope"))) == {}
    assert "stream.rms" in not_comparable(LM(tiny("postnorm")))


def test_an_unknown_probe_and_empty_text_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean lens"):
        probe(perturbed("prenorm"), batches(), ["lense"])
    (ids, targets), *_ = batches()
    with pytest.raises(InputError, match="no counted token"):
        probe(perturbed("prenorm"), [(ids, torch.full_like(targets, IGNORED))])
    with pytest.raises(InputError, match="no counted token"):
        probe(perturbed("prenorm"), [])


def test_half_precision_is_measured_in_double() -> None:
    model = perturbed("layerrope").to(torch.bfloat16)
    of = probe(model, batches(18), options=Options(vectors=2))
    near = probe(perturbed("layerrope"), batches(18), options=Options(vectors=2))
    assert of["probes"]["stream"]["rms"] == pytest.approx(near["probes"]["stream"]["rms"], rel=0.05)
    assert of["loss"] == pytest.approx(near["loss"], rel=0.02)


def test_the_cheap_ones_are_a_few_passes() -> None:
    assert set(CHEAP) == {"stream", "update", "angle", "gradient", "gains"}
