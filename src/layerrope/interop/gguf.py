"""A folded model as one GGUF file for llama.cpp, proved equal to its source.

llama.cpp turns the channels of queries and keys in pairs, as an `LM` does, so nothing is permuted here; files made
from stock Llama folders are permuted back from halves by their converters.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import layerrope
from layerrope.config import ModelConfig
from layerrope.errors import InputError, one_of
from layerrope.exporting.folding import Folded, lm_from_tensors
from layerrope.exporting.proof import POSITIONS, Trace, compare, demand, measured, same_kind, sample_ids, trace_lm
from layerrope.exporting.publish import published
from layerrope.exporting.stock import BY_BACKBONE, DTYPES, NAMES, Stock, dtype_word, matrix_names, norm_names
from layerrope.exporting.stock_forward import stock_forward
from layerrope.files import write_json
from layerrope.interop.gguf_vocab import vocabulary
from layerrope.model import LM
from layerrope.norm_sites import GGUF_ARCHITECTURES, LAYOUTS
from layerrope.tensors import open_source
from layerrope.tensors.gguf_write import Value, write_gguf
from layerrope.text.tokens import Tokenizer
from layerrope.training.trained import check_finite

FILE = "model.gguf"
READERS = ("auto", "plain", "llama.cpp")
FILE_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 32}
"""llama.cpp's number for what most tensors of a file are."""
TOLERANCES = {torch.float32: 1e-3, torch.float16: 5e-3, torch.bfloat16: 2e-2}
"""Largest difference allowed in llama.cpp's logits, times the largest absolute value where that is above 1: it sums
in another order, and multiplies with activations rounded to the dtype of the matrices."""

OUTSIDE = {"embed.weight": "token_embd.weight", "norm.weight": "output_norm.weight", "head.weight": "output.weight"}
MATRICES = {
    "attn.f.q": "attn_q",
    "attn.f.k": "attn_k",
    "attn.f.v": "attn_v",
    "attn.f.o": "attn_output",
    "mlp.f.gate": "ffn_gate",
    "mlp.f.up": "ffn_up",
    "mlp.f.down": "ffn_down",
}
"""Our matrix below a layer -> the tensor below blk.N that holds it; gate and up share `ffn_up` where joined."""


# --------------------------------------------------------------------------------------------------------------- names
def gguf_names(stock: Stock, config: ModelConfig) -> dict[str, str]:
    """Our tensor -> the GGUF tensor that holds it; two of ours may share one."""
    roles = LAYOUTS[GGUF_ARCHITECTURES[stock.model_type]].roles
    made = {ours: theirs for ours, theirs in OUTSIDE.items() if not (config.tie and ours == "head.weight")}
    for i in range(config.n_layer):
        for ours, theirs in MATRICES.items():
            theirs = "ffn_up" if stock.joined_mlp and theirs == "ffn_gate" else theirs
            made[f"layers.{i}.{ours}.weight"] = f"blk.{i}.{theirs}.weight"
        for ours, role in stock.norms:
            made[f"layers.{i}.{ours}.weight"] = f"{roles[role][0].replace('{l}', str(i))}.weight"
    return made


def gguf_tensors(stock: Stock, config: ModelConfig, folded: Folded, dtype: torch.dtype) -> dict[str, Tensor]:
    """Folded tensors under their GGUF names: matrices in `dtype`, norms in fp32 as llama.cpp wants them."""
    made: dict[str, Tensor] = {}
    for ours, theirs in gguf_names(stock, config).items():
        t = folded.tensors[ours]
        t = t.to(dtype) if t.ndim == 2 else t.float()
        made[theirs] = torch.cat((made[theirs], t)) if theirs in made else t
    return made


def metadata(stock: Stock, config: ModelConfig, dtype: torch.dtype, name: str) -> dict[str, Value]:
    """What llama.cpp reads of the shape."""
    at = stock.model_type
    return {
        "general.architecture": at,
        "general.name": name,
        "general.file_type": FILE_TYPES[dtype],
        f"{at}.vocab_size": config.vocab_size,
        f"{at}.context_length": config.seq_len,
        f"{at}.embedding_length": config.d_model,
        f"{at}.block_count": config.n_layer,
        f"{at}.feed_forward_length": config.d_ff,
        f"{at}.attention.head_count": config.n_head,
        f"{at}.attention.head_count_kv": config.kv_heads,
        f"{at}.attention.key_length": config.d_head,
        f"{at}.attention.value_length": config.d_head,
        f"{at}.attention.layer_norm_rms_epsilon": float(config.eps),
        f"{at}.rope.dimension_count": config.d_head,
        f"{at}.rope.freq_base": float(config.rope_base),
    }


# -------------------------------------------------------------------------------------------------------------- export
def export_gguf(
    model: LM,
    folded: Folded,
    to: str | os.PathLike[str],
    *,
    dtype: torch.dtype,
    tokenizer: Tokenizer | None = None,
    why_no_tokenizer: str = "",
    reader: str = "auto",
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write `to`/model.gguf and what `proof.json` beside it holds, which is returned.

    Args:
        model: the source; `folded` are its weights without gains.
        dtype: of the matrices: float32, bfloat16 or float16.
        reader: "plain" (a forward pass of this package), "llama.cpp" (both), "auto" (llama.cpp where
            llama-cpp-python is installed).

    Raises:
        InputError: the folder is there already or cannot be written, or the proof fails. No folder is left then.
    """
    reader = choose_gguf_reader(reader)
    if dtype not in FILE_TYPES:
        raise InputError(f"a GGUF file holds {', '.join(DTYPES)}, not {dtype_word(dtype)}: name one as --dtype")
    stock, config = BY_BACKBONE[folded.backbone], model.config
    words, why = vocabulary(tokenizer, config.vocab_size)
    with published(Path(to), overwrite) as aside:
        facts = metadata(stock, config, dtype, Path(to).name) | words
        tensors = gguf_tensors(stock, config, folded, dtype)
        check_finite(f"the export in {dtype_word(dtype)}", tensors.items())
        write_gguf(aside / FILE, facts, tensors)
        proof = prove_gguf(model, folded, aside, dtype, reader) | {"no_tokenizer": why_no_tokenizer or why or None}
        write_json(aside / "proof.json", proof)
    return proof


def choose_gguf_reader(reader: str) -> str:
    """`reader`, with "auto" resolved: llama.cpp where it can be imported."""
    here = importlib.util.find_spec("llama_cpp") is not None
    if one_of("reader of a GGUF file", reader, READERS) == "llama.cpp" and not here:
        raise InputError("llama.cpp is not here: pip install llama-cpp-python (it is compiled), or --reader plain")
    return reader if reader != "auto" else "llama.cpp" if here else "plain"


# --------------------------------------------------------------------------------------------------------------- proof
def prove_gguf(model: LM, folded: Folded, folder: Path, dtype: torch.dtype, reader: str) -> dict[str, Any]:
    """Compare `model` with the file in `folder`: what `proof.json` holds.

    Folding is compared in fp32 before rounding, then the file with what it should hold, layer by layer by a plain
    forward pass, and by llama.cpp at every position where `reader` says so.

    Raises:
        InputError: something differs; the message names the first layer that does.
    """
    reader = choose_gguf_reader(reader)
    stock, config = BY_BACKBONE[folded.backbone], replace(model.config, scheme=folded.backbone)
    ids = sample_ids(config.vocab_size, POSITIONS)
    source = trace_lm(model, ids)
    demand(compare(source, trace_lm(lm_from_tensors(config, folded.tensors), ids)), "the folded model")
    tensors = {name: t.to(dtype) if t.ndim == 2 else t.float() for name, t in folded.tensors.items()}
    wanted = trace_lm(lm_from_tensors(config, tensors), ids)
    with same_kind(folder / FILE):
        read = _by_plain(folder / FILE, stock, ids)
    files = demand(compare(wanted, read), "the file (read by a plain forward pass)")
    whole = compare(source, read)
    proof = {
        "passed": True,
        "format": f"gguf ({stock.model_type})",
        "reason": None,
        "dtype": dtype_word(dtype),
        "reader": "layerrope's own plain forward pass",
        **measured(ids, source, whole, files),
        "folded": dict(folded.record),
        "scheme": model.config.scheme,
        "layerrope": layerrope.__version__,
        "torch": torch.__version__,
    }
    return proof if reader == "plain" else proof | _by_llama_cpp(folder / FILE, wanted, ids, TOLERANCES[dtype])


def _by_plain(file: Path, stock: Stock, ids: Tensor) -> Trace:
    """The trace of a GGUF file, its shape and weights from the file alone."""
    source = open_source(file)

    def fact(name: str) -> Any:
        key = f"{stock.model_type}.{name}"
        if key not in source.config:
            raise InputError(f"{file} says nothing of {key}: its source is another model, or it was made elsewhere")
        return source.config[key]

    tied = "output.weight" not in source.names
    config = {
        "model_type": stock.model_type,
        "rotary": "pairs",
        "num_hidden_layers": fact("block_count"),
        "num_attention_heads": fact("attention.head_count"),
        "head_dim": fact("attention.key_length"),
        "rms_norm_eps": fact("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {"rope_theta": fact("rope.freq_base")},
        "tie_word_embeddings": tied,
    }
    names = _stock_names(stock, config["num_hidden_layers"], tied)
    tensors = {
        theirs: torch.from_numpy(np.array(source.read([name], limit=1 << 62)[name])) for name, theirs in names.items()
    }
    logits, streams = stock_forward(config, tensors, ids)
    return Trace(logits, [[h] for h in streams], [tensors["model.embed_tokens.weight"]])


def _stock_names(stock: Stock, n_layer: int, tied: bool) -> dict[str, str]:
    """GGUF tensor -> the stock name that `stock_forward` knows it by."""
    ours = gguf_names(stock, ModelConfig(n_layer=n_layer, tie=tied))
    theirs = dict(NAMES)
    for i in range(n_layer):
        theirs |= {f"layers.{i}.{k}": v for k, v in (matrix_names(stock, i) | norm_names(stock, i)).items()}
    return {gguf: theirs[name] for name, gguf in ours.items()}


def _by_llama_cpp(file: Path, wanted: Trace, ids: Tensor, tolerance: float) -> dict[str, Any]:
    """What llama.cpp adds to the proof. Raises InputError where its logits differ from the wanted ones."""
    import llama_cpp  # pyright: ignore[reportMissingImports]

    with same_kind(f"{file}, by llama.cpp,"):
        difference = float((llama_cpp_logits(file, ids) - wanted.logits).abs().max())
    allowed = tolerance * max(1.0, float(wanted.logits.abs().max()))
    if not difference <= allowed:
        raise InputError(f"llama.cpp's logits differ from the file's by {difference:.3g}, {allowed:.3g} allowed")
    return {
        "reader": f"layerrope's own plain forward pass and llama.cpp (llama-cpp-python {llama_cpp.__version__})",
        "max_difference_llama_cpp": difference,
        "tolerance_llama_cpp": allowed,
    }


def llama_cpp_logits(file: Path, ids: Tensor) -> Tensor:
    """llama.cpp's logits (B, T, V) of ids (B, T), its cache in fp32."""
    import llama_cpp  # pyright: ignore[reportMissingImports]

    T = ids.shape[1]
    with _silent():
        llm = llama_cpp.Llama(
            os.fspath(file),
            n_ctx=T,
            n_batch=T,
            n_threads=1,
            n_threads_batch=1,
            logits_all=True,
            type_k=llama_cpp.GGML_TYPE_F32,
            type_v=llama_cpp.GGML_TYPE_F32,
            verbose=False,
        )
        made = []
        for row in ids.tolist():
            llm.reset()
            llm.eval(row)
            made.append(torch.from_numpy(np.array(llm.scores[:T])))
        llm.close()
    return torch.stack(made)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Inside, what the C++ library prints goes nowhere."""
    with open(os.devnull, "w") as nowhere:
        kept = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def stored_dtype(folder: Path) -> torch.dtype:
    """The dtype of a GGUF file's matrices. Raises InputError where it is none that this package writes."""
    found = open_source(folder / FILE).config.get("general.file_type")
    dtypes = {number: dtype for dtype, number in FILE_TYPES.items()}
    if found not in dtypes:
        raise InputError(f"{folder / FILE} has file type {found!r}: those of {', '.join(DTYPES)} can be compared")
    return dtypes[found]
