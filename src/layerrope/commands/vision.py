"""`layerrope vision`: depth schemes side by side on images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from layerrope.training.kinds import VisionTrainConfig
    from layerrope.training.session import Callback
    from layerrope.vision.compare import VisionTable


WIDTH = 160
"""Columns of the table where stdout is no terminal."""


@dataclass(frozen=True)
class Command:
    """Train Vision Transformers under several depth schemes, at several learning rates and seeds, and compare them.

    The learning rate is chosen on the held-out images that are reported, for every scheme alike. Runs are resumable:
    the same command continues, and finished runs are only read.
    """

    schemes: tuple[str, ...] = ("prenorm", "layerrope")
    """depth schemes, with options where wanted; the first is what the others are compared with"""
    data: str = "digits"
    """digits (1,797 of 8 x 8 pixels, bundled), an .npz file (arrays images and labels), or a folder of class folders"""
    tier: str = "micro"
    """named model size: micro (8 x 8 pixels, patches of 2), deit-ti, deit-s, deit-b (224 pixels, patches of 16)"""
    image_size: int | None = None
    """height and width in pixels: of arrays their own, of a folder's pictures what they are brought to; the tier's"""
    patch_size: int | None = None
    """height and width of a patch in pixels, instead of the tier's"""
    channels: int | None = None
    """colour channels; those of the images"""
    n_class: int | None = None
    """classes; those of the labels"""
    n_layer: int | None = None
    """layers, instead of the tier's"""
    n_head: int | None = None
    """attention heads, instead of the tier's"""
    d_model: int | None = None
    """width, instead of the tier's"""
    d_ff: int | None = None
    """hidden width of the MLP, instead of the tier's"""
    drop_path: float | None = None
    """largest share of branches dropped in training, instead of the tier's"""
    shift: int = 1
    """pixels by which training images are moved, at most, in each direction"""
    flip: bool = False
    """mirror half of the training images"""
    lrs: tuple[float, ...] = (1e-3, 3e-3)
    """peak learning rates to try"""
    seeds: int = 3
    """runs of each scheme and rate"""
    steps: int = 500
    """optimiser updates of a run"""
    batch_size: int = 64
    """images per update"""
    weight_decay: float = 0.05
    """AdamW's, for matrices, embeddings and the head"""
    device: str = "cpu"
    """cpu, cuda, cuda:N"""
    threads: int | None = None
    """CPU threads; torch's own choice"""
    out: Path = Path("runs/vision")
    """folder of the runs, and of vision.json, runs.csv and accuracy.png"""
    json: bool = False
    """print one JSON document on stdout and nothing else"""

    def run(self) -> int:
        from layerrope.commands.live import RunBar
        from layerrope.commands.typed import typed
        from layerrope.errors import InputError
        from layerrope.terminal import emit_json, out
        from layerrope.vision.compare import compare_vision
        from layerrope.vision.report import write_vision

        if self.seeds < 1:
            raise InputError(f"seeds must be at least 1: got {self.seeds}")
        bars: list[RunBar] = []

        def watch(label: str) -> Callback:
            while bars:
                bars.pop().__exit__(None, None, None)
            bars.append(RunBar(label).__enter__())
            return bars[-1]

        try:
            base, seeds = self.base(), range(self.seeds)
            where = {"device": self.device, "threads": self.threads, "watch": watch}
            found = compare_vision(base, self.schemes, self.lrs, seeds, self.out, **where)
        finally:
            while bars:
                bars.pop().__exit__(None, None, None)
        document = write_vision(found, base, typed(self, "vision", ("json",)), self.out)
        ended = any(row.accuracy is not None for row in found.rows)
        if self.json:
            emit_json(document)
        else:
            _show(found, f"{self.data}: {base.model.n_layer} layers, width {base.model.d_model}, {self.steps} steps")
            picture = f", picture: {self.out}/accuracy.png" if ended else ""
            out.print(f"\nevery run: {self.out}/runs.csv{picture}", markup=False, soft_wrap=True)
        return 0 if ended else 1

    def base(self) -> VisionTrainConfig:
        """The run that all others are made from."""
        from layerrope.errors import one_of
        from layerrope.training.kinds import VisionTrainConfig
        from layerrope.vision.images import ImageConfig, load_images
        from layerrope.vision.vit import vit_tiers

        tier = vit_tiers[one_of("tier", self.tier, vit_tiers)]
        names = ("image_size", "patch_size", "channels", "n_class", "n_layer", "n_head", "d_model", "d_ff", "drop_path")
        given = {n: getattr(self, n) for n in names if getattr(self, n) is not None}
        size = given.get("image_size", tier.image_size) if Path(self.data).is_dir() else None
        data = ImageConfig(self.data, size, shift=self.shift, flip=self.flip)
        images = load_images(data)
        own = dict(zip(("channels", "image_size"), images.image_shape, strict=False)) | {"n_class": images.n_class}
        model = replace(tier, **{**own, **given})
        return VisionTrainConfig(
            model=model,
            data=data,
            steps=self.steps,
            batch_size=self.batch_size,
            optimizer="adamw",
            weight_decay=self.weight_decay,
            clip=1.0,
            checkpoint_every=0,
            log_every=max(1, self.steps // 10),
        )


def _show(found: VisionTable, title: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from layerrope import terminal
    from layerrope.vision.report import findings, shown_rows

    out = terminal.out if terminal.out.is_terminal else Console(highlight=False, width=WIDTH, soft_wrap=True)

    table, rows = Table(title=escape(title)), shown_rows(found.rows, found.rows[0].scheme)
    for name in rows[0]:
        table.add_column(escape(name), justify="left" if name == "scheme" else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row.values()))
    out.print(table)
    for line in findings(found):
        out.print(f"- {escape(line)}")
    out.print("Loss (nats) and accuracy on held-out images, on which each scheme's learning rate was also chosen.")
