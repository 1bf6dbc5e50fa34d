"""Tiny random models of transformers, one for each family that `layerrope.apply` names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

torch.set_num_threads(1)

V = 61
IDS = torch.randint(3, V, (2, 20), generator=torch.Generator().manual_seed(0))
_SHAPE: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_KV = {"num_key_value_heads": 2, **_IDS}
_HEADS = {"head_dim": 8, **_KV}

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _SHAPE | _HEADS | {"tie_word_embeddings": True}),
    "mistral": ("MistralConfig", _SHAPE | _HEADS),
    "qwen2": ("Qwen2Config", _SHAPE | _KV),
    "qwen3": ("Qwen3Config", _SHAPE | _HEADS),
    "smollm3": ("SmolLM3Config", _SHAPE | _KV),
    "gemma2": ("Gemma2Config", _SHAPE | _HEADS),
    "gemma3": ("Gemma3TextConfig", _SHAPE | _HEADS),
    "glm4": ("Glm4Config", _SHAPE | _HEADS),
    "olmo2": ("Olmo2Config", _SHAPE | _KV),
    "phi3": ("Phi3Config", _SHAPE | _KV),
    "gpt_neox": ("GPTNeoXConfig", _SHAPE),
    "gpt_neox in series": ("GPTNeoXConfig", _SHAPE | {"use_parallel_residual": False}),
    "gpt2": ("GPT2Config", {"vocab_size": V, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64} | _IDS),
}
ENCODERS: dict[str, tuple[str, str]] = {
    "vit": ("ViTConfig", "ViTForImageClassification"),
    "deit": ("DeiTConfig", "DeiTForImageClassification"),
    "dinov2": ("Dinov2Config", "Dinov2ForImageClassification"),
}


def decoder(name: str, seed: int = 0) -> Any:
    """A decoder whose every parameter is away from its start, so no norm is the identity."""
    import transformers

    config, fields = DECODERS[name]
    torch.manual_seed(seed)
    return _shaken(transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**fields)))


def encoder(name: str) -> Any:
    import transformers

    config, cls = ENCODERS[name]
    torch.manual_seed(0)
    fields = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    return _shaken(getattr(transformers, cls)(getattr(transformers, config)(**fields, image_size=16, patch_size=4)))


def _shaken(model: Any) -> Any:
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return model.eval()


def runner(model: Any) -> Callable[[Any], torch.Tensor]:
    """Logits of a model on its fixed input."""
    image = model.main_input_name == "pixel_values"
    given = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)) if image else IDS

    def run(m: Any) -> torch.Tensor:
        with torch.no_grad():
            return m(given).logits

    return run


def shake(gains: Any, size: float = 0.3) -> None:
    with torch.no_grad():
        for p in gains.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(5)) * size)
