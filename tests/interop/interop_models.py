"""Small models for the interop tests, with every parameter away from its start, and a Llama written out plainly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from layerrope import LM, ModelConfig

torch.set_num_threads(1)

IDS = torch.randint(61, (2, 128), generator=torch.Generator().manual_seed(3))


def model(scheme: str = "layerrope", seed: int = 1, **changes: Any) -> LM:
    """An LM under `scheme` whose gains, norms and matrices have all been shaken."""
    shape: dict[str, Any] = {
        "n_layer": 3,
        "n_head": 4,
        "n_kv_head": 2,
        "d_model": 64,
        "d_ff": 96,
        "vocab_size": 61,
        "rope_base": 500_000.0,
    }
    made = LM(ModelConfig(**(shape | {"scheme": scheme} | changes)))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in made.named_parameters():
            size = 0.2 if p.ndim < 2 or name.startswith("gains.") else 0.06
            p.add_(torch.randn(p.shape, generator=generator) * size)
    return made.eval()


def logits(made: LM, ids: Tensor = IDS) -> Tensor:
    with torch.no_grad():
        return made(ids)


def folder_tensors(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def plain_llama(config: dict[str, Any], w: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Llama from its published description: one head at a time, one position's rotation matrix at a time."""
    C, T = config["head_dim"], ids.shape[1]
    group = config["num_attention_heads"] // config["num_key_value_heads"]
    theta = config["rope_theta"] ** (-torch.arange(0, C, 2).double() / C)

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * w[name].double()

    def turn(x: Tensor) -> Tensor:  # (T, C), halves paired
        rows = []
        for t in range(T):
            c, s = torch.cos(t * theta), torch.sin(t * theta)
            a, b = x[t, : C // 2], x[t, C // 2 :]
            rows.append(torch.cat((a * c - b * s, b * c + a * s)))
        return torch.stack(rows)

    def attend(x: Tensor, at: str) -> Tensor:
        q, k, v = (x @ w[f"{at}.{role}_proj.weight"].double().T for role in "qkv")
        heads = []
        for i in range(config["num_attention_heads"]):
            here, shared = slice(i * C, (i + 1) * C), slice(i // group * C, (i // group + 1) * C)
            scores = turn(q[:, here]) @ turn(k[:, shared]).T / C**0.5
            scores = scores + torch.full((T, T), -torch.inf).double().triu(1)
            heads.append(scores.softmax(-1) @ v[:, shared])
        return torch.cat(heads, dim=-1) @ w[f"{at}.o_proj.weight"].double().T

    def one(row: Tensor) -> Tensor:
        h = w["model.embed_tokens.weight"].double()[row]
        for i in range(config["num_hidden_layers"]):
            at = f"model.layers.{i}"
            h = h + attend(norm(h, f"{at}.input_layernorm.weight"), f"{at}.self_attn")
            x = norm(h, f"{at}.post_attention_layernorm.weight")
            gate, up = (x @ w[f"{at}.mlp.{role}_proj.weight"].double().T for role in ("gate", "up"))
            h = h + (gate * gate.sigmoid() * up) @ w[f"{at}.mlp.down_proj.weight"].double().T
        head = w["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
        return norm(h, "model.norm.weight") @ head.double().T

    return torch.stack([one(row) for row in ids])
