"""How far each layer is from doing nothing: the distance of its Jacobian from the identity.

Dimensions: B batch, T position, D width, K directions, L layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from layerrope.probes.trunk import Batches, Trunk, counted, depth_of, displace, has_stream, n_counted
from layerrope.training.kinds import Model


def jacobian_distance(model: Model, batches: Batches, n_vectors: int = 8, seed: int = 0) -> dict[str, Any]:
    """|J - I|_F / sqrt(D) of each layer, J = mean over positions t of sum over positions s of dh'_s / dh_t

    h is the stream before the layer and h' after it; sums and means run over counted positions of a window. This is
    the position-mean Jacobian of DepthBench: what happens to a displacement that is the same at all positions. It is
    0 for a layer that does nothing. A layer that moves positions in ways that cancel in the mean also has 0.

    With fewer directions than D, |J - I|_F^2 is estimated as the mean over random v in {-1, 1}^D of
    |(J - I)^T v|^2, which has that expectation (Hutchinson); with D or more, all D basis vectors give it exactly.

    Args:
        n_vectors: K, directions; each costs one backward pass of every layer. 0 takes all D.
        seed: of the directions.

    Returns:
        distance: (L,).
        standard_error: of `distance`, (L,), from the spread over directions; zeros where exact.
        vectors: directions used; exact: whether that was all of them.
        All None for Attention Residuals, where there is no stream to displace.
    """
    if not has_stream(model):
        return {"distance": None, "standard_error": None, "vectors": 0, "exact": False}
    D = model.config.d_model
    exact = n_vectors == 0 or n_vectors >= D
    v = torch.eye(D) if exact else random_signs(n_vectors, D, seed)
    v = v.to(next(model.parameters()).device)
    rows = torch.zeros(depth_of(model), len(v), D, dtype=torch.float64)
    for ids, targets in batches:
        rows += torch.stack([r.cpu() for r in _layer_rows(model, ids, counted(model, targets), v)])
    square = (rows / n_counted(model, batches) - v.double().cpu()).square().sum(-1)  # |(J - I)^T v|^2, (L, K)
    found = [_estimate(each, D, exact) for each in square]
    distance, error = ([pair[i] for pair in found] for i in (0, 1))
    return {"distance": distance, "standard_error": error, "vectors": len(v), "exact": exact}


def random_signs(n: int, d: int, seed: int) -> Tensor:
    """(n, d) of -1 and 1, from a generator of its own."""
    return torch.randint(2, (n, d), generator=torch.Generator().manual_seed(seed)).float() * 2 - 1


def _layer_rows(model: Model, ids: Tensor, mask: Tensor, v: Tensor) -> list[Tensor]:
    """For every layer the sum over counted positions of J^T v, (K, D) float64."""
    with torch.no_grad():
        trunk = Trunk.of(model, ids)
        states = trunk.states()
    return [_rows(trunk, layer, trunk.enter(layer, state), mask, v) for layer, state in enumerate(states[:-1])]


def _rows(trunk: Trunk, layer: int, state: Any, mask: Tensor, v: Tensor) -> Tensor:
    with torch.enable_grad():
        still = torch.zeros(*mask.shape, v.shape[-1], device=v.device, requires_grad=True)
        after = trunk.stream(trunk.layer(layer, displace(trunk.model, state, still)))
        found = []
        for each in v:
            (grad,) = torch.autograd.grad(after, still, (mask[..., None] * each).to(after.dtype), retain_graph=True)
            found.append(grad[mask].double().sum(0))
    return torch.stack(found)


def _estimate(square: Tensor, d: int, exact: bool) -> tuple[float, float | None]:
    """(distance, standard error) from |(J - I)^T v|^2 of every direction v, (K,)."""
    if exact:
        return float((square.sum() / d).sqrt()), 0.0
    distance = float((square.mean() / d).sqrt())
    if len(square) < 2:
        return distance, None
    spread = float(square.std()) / len(square) ** 0.5
    return distance, spread / (2 * d * distance) if distance else 0.0
