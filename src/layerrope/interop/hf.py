"""Hugging Face transformers: `import layerrope.interop.hf` teaches `AutoModelForCausalLM` this package's format.

A folder of model type `layerrope` then loads, generates, trains and saves like any other model. Models patched by
`layerrope.apply` load with `from_pretrained` here, since a stock class would drop their gains.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layerrope.config import ModelConfig
from layerrope.errors import InputError, MissingExtra, reason
from layerrope.exporting.stored import store_names
from layerrope.files import read_json
from layerrope.model import LM
from layerrope.training.recipe import from_json

try:
    import transformers  # pyright: ignore[reportMissingImports]
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel  # pyright: ignore[reportMissingImports]
    from transformers.modeling_outputs import CausalLMOutput  # pyright: ignore[reportMissingImports]
    from transformers.utils import logging  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise MissingExtra("transformers", "hf") from error

IGNORED = -100
_FP32 = {"gains", "norm", "pre", "post", "residual"}
"""Parts of an `LM` that stay in fp32 whatever the matrices are."""


# -------------------------------------------------------------------------------------------------- the own model type
class LayerRoPEConfig(PretrainedConfig):
    """`ModelConfig` as transformers keeps it: the same fields, beside transformers' own."""

    model_type = "layerrope"
    attribute_map = {
        "hidden_size": "d_model",
        "intermediate_size": "d_ff",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "num_key_value_heads": "n_kv_head",
        "max_position_embeddings": "seq_len",
    }

    def __init__(self, **fields: Any) -> None:
        known = {name: fields.pop(name) for name in ModelConfig.__dataclass_fields__ if name in fields}
        config = from_json(ModelConfig, known, "config.json")
        for name, value in asdict(config).items():
            setattr(self, name, value)
        fields["tie_word_embeddings"] = config.tie
        fields.setdefault("use_cache", False)
        super().__init__(**fields)

    def to_model_config(self) -> ModelConfig:
        return ModelConfig(**{name: getattr(self, name) for name in ModelConfig.__dataclass_fields__})


class LayerRoPEForCausalLM(PreTrainedModel, GenerationMixin):
    """An `LM` under any depth scheme, for transformers. It keeps no key-value cache and takes no left padding."""

    config_class = LayerRoPEConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _supports_cache_class = False
    _tied_weights_keys: Any = (
        {"model.head.weight": "model.embed.weight"} if int(transformers.__version__[0]) >= 5 else ["model.head.weight"]
    )

    def __init__(self, config: LayerRoPEConfig) -> None:
        super().__init__(config)
        self.model = LM(config.to_model_config())
        store_names(self.model)
        parts = {part for name, _ in self.named_parameters() for part in name.split(".")}
        self._keep_in_fp32_modules_strict = sorted(_FP32 & parts)  # loading in bf16 leaves these as they are
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: an `LM` fills its own weights when it is built."""

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embed = value  # pyright: ignore[reportAttributeAccessIssue]

    def get_output_embeddings(self) -> nn.Module:
        return self.model.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.model.head = new_embeddings  # pyright: ignore[reportAttributeAccessIssue]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logits_to_keep: int = 0,
    ) -> CausalLMOutput | tuple[Tensor, ...]:
        """Logits (B, T, V) of ids (B, T); with labels (B, T), shifted here, the loss in nats per counted token.

        `num_items_in_batch` counts the labels of a batch split over several passes (the Trainer gives it).

        Raises:
            InputError: the mask hides a position that is not at the end of its row.
        """
        _check_mask(attention_mask)
        h = self.model.hidden(input_ids)
        logits = self.model.logits(h[:, -logits_to_keep:] if logits_to_keep else h)
        loss = None if labels is None else _loss(logits, labels, num_items_in_batch)
        if return_dict is False:
            return (logits,) if loss is None else (loss, logits)
        return CausalLMOutput(loss=loss, logits=logits)  # pyright: ignore[reportArgumentType]

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **given: Any
    ) -> dict[str, Any]:
        """The whole text at every step: no cache is kept, whatever else `generate` offers in `given`."""
        return {"input_ids": input_ids, "attention_mask": attention_mask, "use_cache": False}


def _check_mask(mask: Tensor | None) -> None:
    if mask is not None and mask.ndim == 2 and bool((mask[:, 1:] > mask[:, :-1]).any()):
        raise InputError("the attention mask hides positions before visible ones: pad on the right, after the text")


def _loss(logits: Tensor, labels: Tensor, num_items: Tensor | int | None) -> Tensor:
    shifted = nn.functional.pad(labels, (0, 1), value=IGNORED)[:, 1:]
    total = nn.functional.cross_entropy(logits.flatten(0, 1), shifted.flatten(), ignore_index=IGNORED, reduction="sum")
    count = (shifted != IGNORED).sum().clamp(min=1) if num_items is None else num_items
    return total / count


AutoConfig.register("layerrope", LayerRoPEConfig, exist_ok=True)
AutoModelForCausalLM.register(LayerRoPEConfig, LayerRoPEForCausalLM, exist_ok=True)


# ------------------------------------------------------------------------------------------------------------- loading
@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside, transformers draws no progress bar and logs errors only."""
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def load_stock(folder: str | os.PathLike[str], dtype: torch.dtype = torch.float32) -> Any:
    """The model in `folder` by `AutoModelForCausalLM`, from safetensors alone, in evaluation mode.

    Raises:
        InputError: a tensor is missing, left over, or of another shape than the class wants.
    """
    model, report = _load(folder, AutoModelForCausalLM, {"dtype": dtype, "local_files_only": True})
    _check_whole(folder, report)
    return model.eval()


def _load(folder: str | os.PathLike[str], auto: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The model and what transformers reports of its tensors. Raises InputError where it cannot load the folder."""
    options = {"use_safetensors": True, "ignore_mismatched_sizes": True} | options  # sizes are reported with the rest
    try:
        with quiet():
            return auto.from_pretrained(os.fspath(folder), output_loading_info=True, **options)
    except Exception as error:  # transformers raises many kinds, and safetensors its own
        raise InputError(f"{folder}: transformers cannot load this model ({reason(error)})") from error


def _check_whole(folder: str | os.PathLike[str], report: dict[str, Any], known: str | None = None) -> None:
    """Raise InputError where tensors are missing, of another shape, or left over (but those with `known` in them)."""
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        found = sorted(str(name) for name in report.get(kind) or () if known is None or known not in str(name))
        if found:
            raise InputError(f"{folder}: transformers reports {kind.replace('_', ' ')}: {', '.join(found[:3])}")


def from_pretrained(folder: str | os.PathLike[str], auto: Any = AutoModelForCausalLM, **options: Any) -> Any:
    """A model that `layerrope.apply` patched and `save_pretrained` wrote, patched again, with its gains.

    Args:
        folder: local; its config.json holds the entry `layerrope`.
        auto: the class that loads the stock part.
        options: for that class's own `from_pretrained`.

    Raises:
        InputError: the folder holds no patched model, transformers cannot load it, its weights do not match its
            config.json, or its gains are missing.
    """
    from layerrope.patching.patching import ATTRIBUTE, reapply

    path = Path(folder)
    config = read_json(path / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("layerrope"), dict):
        raise InputError(f"{path} holds no model patched by layerrope.apply: load it with transformers itself")
    model, report = _load(path, auto, options)
    _check_whole(path, report, known=ATTRIBUTE)  # the gains are unexpected to the stock class, and read below
    return reapply(model, config["layerrope"], path)
