"""Labelled images to batches: bundled digits, an array file, or a folder with one folder for each class.

Batches are a pure function of the step, as those of text are: the same images in the same order, moved the same way.

Dimensions: N images, B batch, C channels, H height, W width.
"""

from __future__ import annotations

import hashlib
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from layerrope.config import MOST
from layerrope.errors import InputError, MissingExtra, one_of, reason
from layerrope.text.windows import permutation, visited

PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"}

_SPLIT, _MOVES = 0x51A7, 0x30FE
"""Seeds of the split, the same for every run, and of the stream of draws that move images."""


@dataclass(frozen=True)
class ImageConfig:
    """Which images, how they are split, and how training moves them."""

    source: str = "digits"
    """digits (1,797 of 8 x 8 pixels, bundled), an .npz file (arrays `images`, uint8 (N, H, W) or (N, H, W, C), and
    `labels` (N,)), or a folder with one folder of pictures for each class"""
    image_size: int | None = None
    """height and width in pixels to which a folder's pictures are brought; needed for folders"""
    val_fraction: float = 0.2
    """share of the images held out, drawn with a seed of its own"""
    shift: int = 0
    """pixels by which training images are moved, at most, in each direction"""
    flip: bool = False
    """mirror half of the training images"""
    kind: str = "images"
    """says in a run's record that the data are images"""

    def __post_init__(self) -> None:
        one_of("kind of data", self.kind, ("images",))
        if not 0 < self.val_fraction < 1:
            raise InputError(f"val_fraction is {self.val_fraction}: it lies between 0 and 1, both excluded")
        if self.shift < 0:
            raise InputError(f"shift is a number of pixels: got {self.shift}")
        if self.image_size is not None and not 1 <= self.image_size <= MOST:
            raise InputError(f"image_size is {self.image_size}: at least 1 pixel, at most {MOST}")


class ImageData:
    """Batches of normalised images and their labels from a training part, evaluation from a held-out part.

    Args:
        images: (N, H, W, C) uint8. labels: (N,) of whole numbers from 0.

    Raises:
        InputError: the arrays do not fit together, or a part would be empty.
    """

    def __init__(self, config: ImageConfig, images: np.ndarray, labels: np.ndarray) -> None:
        _check_arrays(config.source, images, labels)
        self.config = config
        self.sha256 = hashlib.sha256(
            np.ascontiguousarray(images).tobytes() + labels.astype("<i8").tobytes()
        ).hexdigest()
        order = permutation(len(images), _SPLIT, 0)
        n_val = round(config.val_fraction * len(images))
        if not 0 < n_val < len(images):
            raise InputError(f"{config.source} has {len(images)} images: too few to hold out {config.val_fraction:g}")
        if config.shift >= images.shape[1]:
            raise InputError(f"shift {config.shift} moves images of {images.shape[1]} pixels out of sight: choose less")
        self.n_class = int(labels.max()) + 1
        pixels = torch.from_numpy(images[order].astype(np.float32) / 255).permute(0, 3, 1, 2)
        shown = pixels[n_val:]  # no statistic of the images held out goes into training
        mean, std = shown.mean((0, 2, 3), keepdim=True), shown.std((0, 2, 3), keepdim=True).clamp(min=1e-6)
        pixels, named = ((pixels - mean) / std).contiguous(), torch.from_numpy(labels[order].astype(np.int64))
        self._val, self._train = (pixels[:n_val], named[:n_val]), (pixels[n_val:], named[n_val:])

    @property
    def vocab_size(self) -> int:
        """Number of classes."""
        return self.n_class

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W)"""
        return tuple(self._train[0].shape[1:])

    @property
    def n_train(self) -> int:
        return len(self._train[0])

    def batch(
        self, step: int, batch_size: int, *, seed: int = 0, rank: int = 0, world: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Training images (B / world, C, H, W) fp32 and labels int64 of `step`; every epoch sees each image once.

        Raises InputError when batch_size is not a multiple of world.
        """
        if batch_size < 1 or world < 1 or batch_size % world:
            raise InputError(f"a batch of {batch_size} images cannot be shared equally by {world} ranks")
        share = batch_size // world
        first = step * batch_size + rank * share
        which = torch.from_numpy(visited(self.n_train, seed, first, share))
        images = self._train[0][which]
        moves = self.config.shift or self.config.flip
        return (self._moved(images, seed, first) if moves else images), self._train[1][which]

    def _moved(self, images: Tensor, seed: int, first: int) -> Tensor:
        """Shifted (what comes in is the mean pixel) and mirrored, by draws that belong to each image's global place."""
        reach, (H, W) = self.config.shift, images.shape[-2:]
        key = np.array([seed % (1 << 64), _MOVES], np.uint64)
        draws = np.random.Philox(key=key, counter=first).random_raw(4 * len(images)).reshape(-1, 4)  # 4 a counter
        mirrored = torch.from_numpy(draws[:, 2] % 2 == 1) & self.config.flip
        images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
        offsets = (draws[:, :2] % (2 * reach + 1)).tolist()
        padded = F.pad(images, (reach,) * 4)
        return torch.stack([padded[i, :, y : y + H, x : x + W] for i, (y, x) in enumerate(offsets)])

    def eval_batches(self, batch_size: int, max_tokens: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Held-out images and labels in a fixed order; the last batch may be smaller. `max_tokens`: so many images."""
        n = len(self._val[0]) if max_tokens is None else min(len(self._val[0]), max_tokens)
        for start in range(0, n, batch_size):
            stop = min(start + batch_size, n)
            yield self._val[0][start:stop], self._val[1][start:stop]

    def bits_per_byte(self, nats_per_label: float) -> None:
        """None: images are not text."""
        return None

    def summary(self) -> dict[str, Any]:
        """What was loaded, for a run's records: name, hash, counts. No path of this machine is in it."""
        return {
            "source": Path(self.config.source).name,
            "sha256": self.sha256,
            "n_class": self.n_class,
            "image_shape": list(self.image_shape),
            "train": {"n_images": self.n_train},
            "val": {"n_images": len(self._val[0])},
            "shift": self.config.shift,
            "flip": self.config.flip,
        }


# ------------------------------------------------------------------------------------------------------------ reading
def load_images(config: ImageConfig) -> ImageData:
    """The images that `config` names.

    Raises:
        InputError: a source that is not there, holds something else, or does not fit together.
    """
    if config.source == "digits":
        with resources.files("layerrope").joinpath("image_data/digits.npz").open("rb") as file, np.load(file) as held:
            return ImageData(config, held["images"], held["labels"])
    path = Path(config.source)
    if config.source and path.is_dir():
        return ImageData(config, *_read_folder(path, config.image_size))
    if path.is_file():
        return ImageData(config, *_read_arrays(path))
    raise InputError(f"no images at {config.source!r}: give digits, an .npz file, or a folder of class folders")


def _read_arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """`images` and `labels` of an .npz file; nothing pickled is opened."""
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is no .npz file: write one with numpy.savez, with arrays images and labels")
    try:
        with np.load(path, allow_pickle=False) as held:
            missing = {"images", "labels"} - set(held.files)
            if missing:
                raise InputError(f"{path} has no array {min(missing)!r}: it needs images and labels")
            images, labels = np.asarray(held["images"]), np.asarray(held["labels"])
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"the arrays of {path} do not fit into memory: give fewer or smaller images") from error
    except Exception as error:  # what numpy and zipfile raise for a damaged member has no common kind
        raise InputError(f"cannot read arrays from {path}: {reason(error)}") from error
    return (images[..., None] if images.ndim == 3 else images), labels


def _read_folder(path: Path, size: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The pictures of each class folder, in the order of their names, cut to a square and brought to `size`, RGB."""
    try:
        from PIL import Image  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise MissingExtra("pillow", "vision") from None
    if size is None:
        raise InputError(f"pictures in {path} may be of any size: set image_size to what the model reads")
    classes = [
        _pictures(folder) for folder in sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    ]
    if not classes:
        raise InputError(
            f"no pictures in {path}: it needs one folder for each class, with {', '.join(sorted(PICTURES))}"
        )
    images = [_read_picture(file, size) for files in classes for file in files]
    return np.stack(images), np.repeat(np.arange(len(classes)), [len(files) for files in classes])


def _pictures(folder: Path) -> list[Path]:
    """The pictures of one class, by name; what is hidden or ends in no picture's suffix is left alone."""
    found = (f for f in folder.iterdir() if f.suffix.lower() in PICTURES and not f.name.startswith("."))
    files = sorted(found)
    if not files:
        raise InputError(
            f"no pictures in {folder}, which would be a class: add some ({', '.join(sorted(PICTURES))}), or remove it"
        )
    return files


def _read_picture(file: Path, size: int) -> np.ndarray:
    """One picture, turned as its camera says, as uint8 (size, size, 3)."""
    from PIL import Image, ImageOps  # pyright: ignore[reportMissingImports]

    try:
        with warnings.catch_warnings(), Image.open(file) as picture:
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if picture.mode.startswith(("I", "F")):
                raise InputError(f"{file} has more than 8 bits a channel, which would be cut off: convert it first")
            upright = ImageOps.exif_transpose(picture)
            return np.asarray(ImageOps.fit(upright.convert("RGB"), (size, size)))
    except InputError:
        raise
    except Exception as error:  # decoders of damaged files raise whatever they stumble on
        raise InputError(f"{file} is not a picture that can be read: {reason(error)}") from error


def _check_arrays(source: str, images: np.ndarray, labels: np.ndarray) -> None:
    square = images.ndim == 4 and images.shape[1] == images.shape[2]
    if not square or images.dtype != np.uint8 or min(images.shape[1:]) < 1:
        raise InputError(
            f"images of {source} are {images.dtype} {images.shape}: it takes uint8 (N, H, W) or (N, H, W, C), square"
        )
    if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"labels of {source} are {labels.dtype} {labels.shape}: one whole number for each image")
    if len(labels) and int(labels.min()) < 0:
        raise InputError(f"labels of {source} start at {int(labels.min())}: they count from 0")
    if len(labels) > 1 and int(labels.max()) == int(labels.min()):
        raise InputError(f"all images of {source} are of one class: there is nothing to tell apart")
