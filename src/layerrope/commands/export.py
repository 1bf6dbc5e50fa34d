"""`layerrope export`: a run becomes a folder that stock software loads."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import tyro

from layerrope.errors import InputError
from layerrope.terminal import emit_json, out

WRITING = ("as_", "dtype", "overwrite")
"""Options that say how a folder is written."""


@dataclass(frozen=True)
class Command:
    """Fold the gains into ordinary weights and write a model folder, proved equal to its source.

    Pre-Norm schemes become a Llama, sandwich-norm ones a GLM-4; the others keep this package's own format. The last
    step compares logits and every layer; where they differ, nothing is written and the first such layer is named.
    """

    source: Annotated[str, tyro.conf.Positional]
    """run, checkpoint (RUN/checkpoints/step-N), exported folder, stock folder, or folder of a patched model"""
    to: Path | None = None
    """folder to write"""
    as_: Annotated[str | None, tyro.conf.arg(name="as")] = None
    """llama, glm4, gguf (one file for llama.cpp) or layerrope; the stock format that fits, else layerrope"""
    dtype: str | None = None
    """fp32, bf16 or fp16; the dtype of the source's matrices"""
    reader: str = "auto"
    """what reads the folder for the proof: auto, plain (a forward pass of our own) or transformers; of a GGUF file
    auto, plain or llama.cpp"""
    overwrite: bool = False
    """replace a folder that is there"""
    verify: Path | None = None
    """write nothing: compare this folder, exported before, with the source; exit code 2 if it differs"""
    json: bool = False
    """print the proof as one JSON document on stdout"""

    def run(self) -> int:
        if (self.to is None) == (self.verify is None):
            raise InputError("give --to DIR to write a folder, or --verify DIR to compare one")
        for option in fields(self):
            if self.verify is not None and option.name in WRITING and getattr(self, option.name) != option.default:
                raise InputError(f"--verify compares a folder as it is: leave out --{option.name.strip('_')}")
        proof = self._export() if self.verify is None else self._verify(self.verify)
        if self.json:
            emit_json({"folder": self.to or self.verify, **proof})
        else:
            out.print(report(self.to or self.verify, proof), markup=False)
        return 0

    def _export(self) -> dict[str, Any]:
        from layerrope.exporting.export import export

        assert self.to is not None
        made = export(
            self.source, self.to, as_=self.as_, dtype=self.dtype, reader=self.reader, overwrite=self.overwrite
        )
        return made.proof

    def _verify(self, folder: Path) -> dict[str, Any]:
        from layerrope.exporting.export import verify

        return verify(self.source, folder, reader=self.reader)


def report(folder: Path | None, proof: dict[str, Any]) -> str:
    """The proof in words and numbers, for a terminal."""
    folded = "; ".join(f"{site} into {where}" for site, where in proof["folded"].items()) or "nothing to fold"
    lines = {
        "folder": f"{folder}",
        "format": f"{proof['format']}, {proof['dtype']}" + (f" ({proof['reason']})" if proof.get("reason") else ""),
        "folded": folded,
        "proof": (
            f"logits differ by at most {proof['max_difference']:.2g} over {proof['sequences']} x {proof['positions']} "
            f"positions ({proof['max_difference_without_rounding']:.2g} without rounding, {proof['tolerance']:.2g} "
            f"allowed); read by {proof['reader']}"
        ),
    }
    if proof.get("no_tokenizer"):
        lines["tokenizer"] = f"none written: {proof['no_tokenizer']}"
    return "\n".join(f"{name:<9} {text}" for name, text in lines.items())
