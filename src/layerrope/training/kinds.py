"""The kinds of model that the trainer trains: decoders, looped decoders, Vision Transformers; and their runs.

A decoder's run is a `TrainConfig`. The others differ in what `model` and `data` are, and in nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from layerrope.config import ModelConfig
from layerrope.data import DataConfig, Dataset, load_data
from layerrope.errors import InputError, one_of
from layerrope.looping.looped import LoopedConfig, LoopedLM
from layerrope.model import LM
from layerrope.training.recipe import TrainConfig, from_json
from layerrope.vision.images import ImageConfig, ImageData, load_images
from layerrope.vision.vit import ViT, ViTConfig

Model: TypeAlias = LM | LoopedLM | ViT
Shape: TypeAlias = ModelConfig | LoopedConfig | ViTConfig
Data: TypeAlias = Dataset | ImageData


@dataclass(frozen=True)
class LoopedTrainConfig(TrainConfig):
    """A run of a looped decoder."""

    model: LoopedConfig = field(default_factory=LoopedConfig)  # pyright: ignore[reportIncompatibleVariableOverride]
    """shape, loops and scheme"""


@dataclass(frozen=True)
class VisionTrainConfig(TrainConfig):
    """A run of a Vision Transformer. Lengths in positions are of tokens, those of patches and the class token."""

    model: ViTConfig = field(default_factory=ViTConfig)  # pyright: ignore[reportIncompatibleVariableOverride]
    """shape and scheme"""
    data: ImageConfig = field(default_factory=ImageConfig)  # pyright: ignore[reportIncompatibleVariableOverride]
    """images and how training moves them"""

    def _check_data(self) -> None:
        size = self.data.image_size
        if size is not None and size != self.model.image_size:
            raise InputError(f"the data brings images to {size} pixels, the model reads {self.model.image_size}")


KINDS: dict[str, type[TrainConfig]] = {"looped": LoopedTrainConfig, "vit": VisionTrainConfig}
"""Runs by the `kind` of their model; a decoder's config names none."""


def read_config(data: Any, where: str = "config") -> TrainConfig:
    """The config of a run of any kind, from what `to_json` made of it.

    Raises:
        InputError: see `from_json`; or a kind of model that does not exist.
    """
    model = data.get("model") if isinstance(data, Mapping) else None
    kind = model.get("kind") if isinstance(model, Mapping) else None
    chosen = TrainConfig if kind is None else KINDS[one_of(f"kind of model in {where}:", str(kind), KINDS)]
    return from_json(chosen, data, where)


def build_model(config: Shape, seed: int = 0) -> Model:
    """The model of this config, started from `seed`."""
    if isinstance(config, LoopedConfig):
        return LoopedLM(config, seed)
    return ViT(config, seed) if isinstance(config, ViTConfig) else LM(config, seed)


def load(config: TrainConfig) -> Data:
    """The data of this run."""
    return load_any(config.data)


def load_any(config: DataConfig | ImageConfig) -> Data:
    """Text or images."""
    return load_images(config) if isinstance(config, ImageConfig) else load_data(config)


def check_fits(config: TrainConfig, data: Data) -> None:
    """Raise InputError unless `data` is what the config and its model expect."""
    if data.config != config.data:
        raise InputError("the loaded data set was made with another data config than this run's")
    check_reads(config.model, data)


def check_reads(model: Shape, data: Data) -> None:
    """Raise InputError unless the model knows every token id, or reads images of this shape and as many classes."""
    if isinstance(model, ViTConfig) and isinstance(data, ImageData):
        _check_images(model, data)
    elif data.vocab_size > model.vocab_size:
        raise InputError(
            f"token ids run to {data.vocab_size - 1}, but the model's vocabulary has {model.vocab_size}: "
            f"set vocab_size to {data.vocab_size}"
        )


def _check_images(model: ViTConfig, data: ImageData) -> None:
    wanted = (model.channels, model.image_size, model.image_size)
    if data.image_shape != wanted:
        raise InputError(f"the images are {data.image_shape} (C, height, width), the model reads {wanted}")
    if data.n_class > model.n_class:
        raise InputError(f"the images have {data.n_class} classes, the model {model.n_class}: set n_class")
