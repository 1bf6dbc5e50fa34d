"""Which norm is which: roles and conventions of a checkpoint's norm tensors, by architecture.

A norm's role is where it acts, not what it is called: `post_attention_layernorm` is what the MLP reads in Llama,
Qwen and GLM-4, and what attention writes in Gemma 2, Gemma 3 and OLMo 2. Names come from the Hugging Face
implementations, timm, Meta's and this package's own checkpoints, and from llama.cpp's tensor map for GGUF.

The convention, w or 1 + w, is decided for each tensor by architecture, role and file format. An architecture
outside the tables is never guessed at: its values are raw and its roles unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

#: Role -> what it is in words, in the order of a block.
ROLES = {
    "embedding": "embedding norm",
    "attn_read": "attention read",
    "q_norm": "query norm",
    "k_norm": "key norm",
    "attn_inner": "norm inside attention",
    "attn_write": "attention write",
    "attn_post": "norm after the attention add",
    "shared_read": "read shared by attention and MLP",
    "mlp_read": "MLP read",
    "mlp_write": "MLP write",
    "mlp_post": "norm after the MLP add",
    "final": "final norm",
    "other": "another norm",
}
#: The roles that have one vector of the stream's width per layer.
STREAM_ROLES = tuple(r for r in ROLES if r.endswith(("_read", "_write", "_post")))

#: Last part of a tensor's name -> is it the gain or the bias.
PARTS = {"weight": "gain", "gamma": "gain", "lambda1": "gain", "bias": "bias", "beta": "bias"}


@dataclass(frozen=True)
class Layout:
    """Where each role's norm lives: role -> names without their last part, `{l}` for the layer.

    A name may stand after any prefix (`model.`, `language_model.model.`, `_orig_mod.`); `prefix` is the usual one.
    """

    roles: Mapping[str, tuple[str, ...]]
    prefix: str = ""


def _layout(prefix: str = "", **roles: str) -> Layout:
    return Layout({role: tuple(names.split()) for role, names in roles.items()}, prefix)


_QK = {"q_norm": "layers.{l}.self_attn.q_norm", "k_norm": "layers.{l}.self_attn.k_norm"}
_IN, _POST_ATTN = "layers.{l}.input_layernorm", "layers.{l}.post_attention_layernorm"
_PRE_FF, _POST_FF = "layers.{l}.pre_feedforward_layernorm", "layers.{l}.post_feedforward_layernorm"
_BLK = {
    "q_norm": "blk.{l}.attn_q_norm",
    "k_norm": "blk.{l}.attn_k_norm",
    "embedding": "token_embd_norm",
    "final": "output_norm",
}

LAYOUTS: dict[str, Layout] = {
    # Hugging Face safetensors
    "llama": _layout("model.", attn_read=_IN, mlp_read=_POST_ATTN, final="norm", **_QK),
    "stablelm": _layout("model.", shared_read=_IN, mlp_read=_POST_ATTN, final="norm"),
    "sandwich": _layout(
        "model.",
        attn_read=_IN,
        attn_write=_POST_ATTN,
        mlp_read=_PRE_FF,
        mlp_write=_POST_FF,
        final="norm",
        **_QK,
    ),
    "glm4": _layout(
        "model.",
        attn_read=_IN,
        attn_write="layers.{l}.post_self_attn_layernorm",
        mlp_read=_POST_ATTN,
        mlp_write="layers.{l}.post_mlp_layernorm",
        final="norm",
    ),
    "write-only": _layout("model.", attn_write=_POST_ATTN, mlp_write=_POST_FF, final="norm", **_QK),
    "hybrid": _layout(
        "model.",
        attn_read=_IN,
        mlp_read=_POST_ATTN,
        attn_inner="layers.{l}.linear_attn.norm",
        final="norm",
        **_QK,
    ),
    "shared": _layout("model.", shared_read=_IN, final="norm", **_QK),
    "phi": _layout(
        "model.",
        shared_read=_IN,
        q_norm="layers.{l}.self_attn.q_layernorm",
        k_norm="layers.{l}.self_attn.k_layernorm",
        final="final_layernorm",
    ),
    "falcon": _layout(
        "transformer.",
        shared_read="h.{l}.input_layernorm",
        attn_read="h.{l}.ln_attn",
        mlp_read="h.{l}.post_attention_layernorm h.{l}.ln_mlp",
        final="ln_f",
    ),
    "gpt_neox": _layout("gpt_neox.", attn_read=_IN, mlp_read=_POST_ATTN, final="final_layer_norm"),
    "gpt2": _layout("transformer.", attn_read="h.{l}.ln_1", mlp_read="h.{l}.ln_2", final="ln_f"),
    "gptj": _layout("transformer.", shared_read="h.{l}.ln_1", final="ln_f"),
    "bloom": _layout(
        "transformer.",
        embedding="word_embeddings_layernorm",
        attn_read="h.{l}.input_layernorm",
        mlp_read="h.{l}.post_attention_layernorm",
        final="ln_f",
    ),
    "mpt": _layout("transformer.", attn_read="blocks.{l}.norm_1", mlp_read="blocks.{l}.norm_2", final="norm_f"),
    "opt": _layout(
        "model.",
        attn_read="decoder.layers.{l}.self_attn_layer_norm",
        mlp_read="decoder.layers.{l}.final_layer_norm",
        final="decoder.final_layer_norm",
    ),
    "internlm2": _layout("model.", attn_read="layers.{l}.attention_norm", mlp_read="layers.{l}.ffn_norm", final="norm"),
    "chatglm": _layout(
        "transformer.",
        attn_read="encoder.layers.{l}.input_layernorm",
        mlp_read="encoder.layers.{l}.post_attention_layernorm",
        final="encoder.final_layernorm",
    ),
    "bert": _layout(
        "bert.",
        embedding="embeddings.LayerNorm",
        attn_post="encoder.layer.{l}.attention.output.LayerNorm",
        mlp_post="encoder.layer.{l}.output.LayerNorm",
    ),
    "distilbert": _layout(
        "distilbert.",
        embedding="embeddings.LayerNorm",
        attn_post="transformer.layer.{l}.sa_layer_norm",
        mlp_post="transformer.layer.{l}.output_layer_norm",
    ),
    "modernbert": _layout(
        "model.",
        embedding="embeddings.norm",
        attn_read="layers.{l}.attn_norm",
        mlp_read="layers.{l}.mlp_norm",
        final="final_norm",
    ),
    "vit": _layout(
        attn_read="encoder.layer.{l}.layernorm_before",
        mlp_read="encoder.layer.{l}.layernorm_after",
        final="layernorm",
    ),
    "dinov2": _layout(
        attn_read="encoder.layer.{l}.norm1",
        attn_write="encoder.layer.{l}.layer_scale1",
        mlp_read="encoder.layer.{l}.norm2",
        mlp_write="encoder.layer.{l}.layer_scale2",
        final="layernorm",
    ),
    # timm, Meta, this package
    "timm-vit": _layout(
        attn_read="blocks.{l}.norm1",
        attn_write="blocks.{l}.ls1",
        mlp_read="blocks.{l}.norm2",
        mlp_write="blocks.{l}.ls2",
        q_norm="blocks.{l}.attn.q_norm",
        k_norm="blocks.{l}.attn.k_norm",
        final="norm fc_norm",
    ),
    "meta-llama": _layout(attn_read="layers.{l}.attention_norm", mlp_read="layers.{l}.ffn_norm", final="norm"),
    "layerrope": _layout(
        attn_read="layers.{l}.attn.branch.pre",
        attn_write="layers.{l}.attn.branch.post",
        attn_post="layers.{l}.attn.residual.norm",
        mlp_read="layers.{l}.mlp.branch.pre",
        mlp_write="layers.{l}.mlp.branch.post",
        mlp_post="layers.{l}.mlp.residual.norm",
        final="norm",
    ),
    # GGUF
    "gguf-pre": _layout(attn_read="blk.{l}.attn_norm", mlp_read="blk.{l}.ffn_norm", **_BLK),
    "gguf-sandwich": _layout(
        attn_read="blk.{l}.attn_norm",
        attn_write="blk.{l}.post_attention_norm",
        mlp_read="blk.{l}.ffn_norm",
        mlp_write="blk.{l}.post_ffw_norm",
        **_BLK,
    ),
    "gguf-write-only": _layout(attn_write="blk.{l}.post_attention_norm", mlp_write="blk.{l}.post_ffw_norm", **_BLK),
    "gguf-post-attention-read": _layout(
        attn_read="blk.{l}.attn_norm",
        mlp_read="blk.{l}.post_attention_norm",
        attn_inner="blk.{l}.ssm_norm",
        **_BLK,
    ),
    "gguf-shared": _layout(
        shared_read="blk.{l}.attn_norm", attn_read="blk.{l}.attn_norm_2", mlp_read="blk.{l}.ffn_norm", **_BLK
    ),
    "gguf-bert": _layout(attn_post="blk.{l}.attn_output_norm", mlp_post="blk.{l}.layer_output_norm", **_BLK),
}

#: `model_type` (config.json) -> layout.
MODEL_TYPES: dict[str, str] = {
    model_type: layout
    for layout, types in {
        "llama": "llama mistral ministral mixtral qwen2 qwen2_moe qwen2_vl qwen2_5_vl qwen3 qwen3_moe smollm3 gemma "
        "phi3 phimoe granite granitemoe glm glm4_moe deepseek_v2 deepseek_v3 starcoder2 nemotron olmoe ernie4_5 "
        "seed_oss gpt_oss internlm3 minicpm baichuan arcee",
        "stablelm": "stablelm",
        "sandwich": "gemma2 gemma3 gemma3_text vaultgemma",
        "glm4": "glm4",
        "write-only": "olmo2 olmo3 exaone4",
        "hybrid": "qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text",
        "shared": "cohere cohere2",
        "phi": "phi",
        "falcon": "falcon RefinedWeb RefinedWebModel",
        "gpt_neox": "gpt_neox",
        "gpt2": "gpt2 gpt_bigcode gpt_neo exaone",
        "gptj": "gptj codegen",
        "bloom": "bloom",
        "mpt": "mpt",
        "opt": "opt",
        "internlm2": "internlm2",
        "chatglm": "chatglm",
        "bert": "bert roberta xlm-roberta camembert electra",
        "distilbert": "distilbert",
        "modernbert": "modernbert",
        "vit": "vit deit",
        "dinov2": "dinov2 dinov2_with_registers",
        "timm-vit": "timm-vit",
        "meta-llama": "meta-llama",
        "layerrope": "layerrope",
    }.items()
    for model_type in types.split()
}

#: `general.architecture` (GGUF) -> layout.
GGUF_ARCHITECTURES: dict[str, str] = {
    name: layout
    for layout, names in {
        "gguf-pre": "llama qwen2 qwen2moe qwen3 qwen3moe gemma phi3 phimoe gptneox gpt2 bloom mpt starcoder "
        "starcoder2 nemotron internlm2 granite granitemoe deepseek2 olmoe baichuan minicpm smollm3 chatglm exaone "
        "ernie4_5 arcee",
        "gguf-sandwich": "gemma2 gemma3 glm4",
        "gguf-write-only": "olmo2 exaone4",
        "gguf-post-attention-read": "glm4moe gpt-oss qwen3next qwen35 qwen35moe seed_oss",
        "gguf-shared": "command-r cohere2 phi2 gptj falcon stablelm",
        "gguf-bert": "bert nomic-bert",
    }.items()
    for name in names.split()
}

#: Model types whose norms multiply by 1 + w; a role named here is the exception and multiplies by w.
ONE_PLUS_W: dict[str, frozenset[str]] = {
    "gemma": frozenset(),
    "gemma2": frozenset(),
    "gemma3": frozenset(),
    "gemma3_text": frozenset(),
    "vaultgemma": frozenset(),
    "nemotron": frozenset(),
    "qwen3_next": frozenset({"attn_inner"}),
    "qwen3_5": frozenset({"attn_inner"}),
    "qwen3_5_text": frozenset({"attn_inner"}),
    "qwen3_5_moe": frozenset({"attn_inner"}),
    "qwen3_5_moe_text": frozenset({"attn_inner"}),
}
#: The same by their GGUF names: there the converter has already added the 1.
GGUF_ADDED_ONE = frozenset({"gemma", "gemma2", "gemma3", "nemotron", "qwen3next", "qwen35", "qwen35moe"})

#: (architecture, role) -> layers that have no such norm by design: ModernBERT's first follows the embedding's norm.
ABSENT: dict[tuple[str, str], frozenset[int]] = {("modernbert", "attn_read"): frozenset({0})}

#: Architectures whose norms have no weights at all.
WEIGHTLESS = {"olmo": "OLMo 1 uses LayerNorm without weights (OLMo 2 has gains)"}


@dataclass(frozen=True)
class NormTensor:
    """One norm tensor: what it is called, where it acts, and how its stored values become a gain."""

    name: str
    role: str
    """a key of `ROLES`, or "unknown:" and the name's pattern"""
    layer: int | None
    """0-based; None for a norm outside the layers"""
    part: str
    """gain or bias"""
    convention: str
    """w, 1+w, or raw where the architecture is unknown"""
    reason: str

    def gain(self, stored: Any) -> Any:
        """What the norm multiplies by (for "raw": the stored values, whatever they mean)."""
        return stored + 1 if self.convention == "1+w" and self.part == "gain" else stored


@dataclass(frozen=True)
class Found:
    """The norm tensors of a checkpoint."""

    architecture: str
    known: bool
    tensors: tuple[NormTensor, ...]
    notes: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()
    """tensors of other towers, which are not among `tensors`"""


def role_words(role: str) -> str:
    """`role` in words."""
    return ROLES.get(role) or f"unknown site {role.removeprefix('unknown:')}"


def tensor_name(model_type: str, role: str, layer: int | None = None) -> str:
    """The name that a stock checkpoint of `model_type` gives this role's gain, with its usual prefix.

    >>> tensor_name("gemma2", "attn_write", 3)
    'model.layers.3.post_attention_layernorm.weight'

    Raises:
        KeyError: the architecture is not in the tables, or has no norm in that role.
    """
    layout = LAYOUTS[MODEL_TYPES[model_type]]
    return f"{layout.prefix}{layout.roles[role][0].replace('{l}', str(layer))}.weight"


def convention(architecture: str, role: str, format: str) -> tuple[str, str]:
    """("w", "1+w" or "raw", why) for a norm of a known or unknown architecture in a file of this format."""
    if format == "gguf" and architecture in GGUF_ARCHITECTURES:
        added = f"the converter has added the 1 of {architecture}'s 1 + w"
        plain = f"{architecture} norms multiply by the stored w"
        added = added if architecture in GGUF_ADDED_ONE and role != "attn_inner" else plain
        return "w", f"GGUF holds the gain itself: {added}"
    if architecture not in MODEL_TYPES:
        return "raw", f"architecture {architecture} is not in the table: w or 1 + w is not known, so nothing is added"
    if architecture not in ONE_PLUS_W:
        return "w", f"{architecture} norms multiply by the stored w"
    if role in ONE_PLUS_W[architecture]:
        return "w", f"{architecture}'s {role_words(role)} is a plain gated norm: it multiplies by the stored w"
    return "1+w", f"{architecture} norms multiply by 1 + w and store w"


def architecture_of(config: Mapping[str, Any], format: str = "safetensors") -> str | None:
    """The architecture that a configuration names, or None: `model_type` (also of the text half of a multimodal
    model), GGUF's `general.architecture`, or timm's own `architecture`."""
    if format == "run":
        return "layerrope"
    text = config.get("text_config") or config.get("llm_config")
    for place in ([text] if isinstance(text, Mapping) else []) + [config]:
        named = place.get("model_type")
        if isinstance(named, str) and (named in MODEL_TYPES or named in WEIGHTLESS or place is config):
            return named
    gguf = config.get("general.architecture")
    if isinstance(gguf, str):
        return gguf
    timm = config.get("architecture")
    if isinstance(timm, str):
        return "timm-vit" if re.match(r"(vit|deit|eva|beit)", timm) else timm
    return None


def find_norms(
    names: Iterable[str],
    config: Mapping[str, Any],
    format: str = "safetensors",
    architecture: str | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Found:
    """The norm tensors among `names`, with role, layer, part and convention.

    `architecture` overrides what `config` says. `shapes` helps with unknown architectures: only vectors count.
    """
    named = architecture or architecture_of(config, format)
    table = GGUF_ARCHITECTURES if format == "gguf" else MODEL_TYPES
    if named in WEIGHTLESS:
        return Found(named, True, (), (WEIGHTLESS[named],))
    if named is None or named not in table:
        names = list(names)
        stranger = _unknown(names, named or "not named", shapes or {}, format)
        return replace(stranger, notes=tuple(_hints(names, stranger, format)))
    names = list(names)
    found = _known(names, named, LAYOUTS[table[named]], format)
    if found.tensors:
        return found
    stranger = _unknown(names, f"{named} under other names", shapes or {}, format)
    return replace(stranger, notes=(f"no tensor is called as {named} calls its norms: shown raw",))


#: Among more norms than this no known layout is looked for.
MOST_HINTED = 20_000


def _hints(names: Sequence[str], stranger: Found, format: str) -> list[str]:
    """What `--architecture` to try, where the norms of a stranger are named exactly as one known layout's."""
    names = [name for name in names if len(name) <= 1000 and _called_norm(split_name(name)[0])]
    if len(names) > MOST_HINTED:
        return []
    types = GGUF_ARCHITECTURES if format == "gguf" else MODEL_TYPES
    firsts = {layout: name for name, layout in reversed(types.items())}
    readings: dict[frozenset[tuple[str, str]], str] = {}
    for layout in (known for known in LAYOUTS if known in firsts):
        name = firsts[layout]
        found = _known(names, name, LAYOUTS[layout], format).tensors
        if _is_whole(found, LAYOUTS[layout]) and {n.name for n in stranger.tensors} <= {n.name for n in found}:
            readings.setdefault(frozenset((n.name, n.role) for n in found), name)
    if len(readings) != 1:
        return []
    (name,) = readings.values()
    rule = "1 + w" if format != "gguf" and name in ONE_PLUS_W else "w"
    return [
        f"its norms are named exactly as {name}'s: if they act as those do and multiply by {rule}, "
        f"read it with --architecture {name}"
    ]


def _is_whole(found: Sequence[NormTensor], layout: Layout) -> bool:
    """Does every norm of the stream that `layout` knows by layer stand in `found`?"""
    here = {split_name(n.name)[0] for n in found}
    needed = [names for role, names in layout.roles.items() if role in STREAM_ROLES]
    return bool(found) and all(any(h.endswith(name) for h in here for name in names) for names in needed)


def _known(names: Iterable[str], architecture: str, layout: Layout, format: str) -> Found:
    templates = {name: role for role, group in layout.roles.items() for name in group}
    most = max(name.count(".") for name in templates) + 1
    hits: list[tuple[str, NormTensor]] = []
    for name in names:
        pattern, layer, part = split_name(name)
        prefix, role = _look_up(pattern, templates, most)
        if role is not None and part is not None:
            rule, reason = convention(architecture, role, format)
            hits.append((prefix, NormTensor(name, role, layer, part, rule, reason)))
    towers = Counter(prefix for prefix, norm in hits if norm.layer is not None) or Counter(p for p, _ in hits)
    main = towers.most_common(1)[0][0] if towers else ""
    kept = [norm for prefix, norm in hits if prefix == main]
    others = [f"{n} norm tensors under {p or 'no prefix'} are another tower" for p, n in towers.items() if p != main]
    aside = tuple(norm.name for prefix, norm in hits if prefix != main)
    return Found(architecture, True, tuple(_unshared(kept)), tuple(others), aside)


def _look_up(pattern: str, templates: Mapping[str, str], most: int) -> tuple[str, str | None]:
    """The longest tail of `pattern` that is a template, as (the prefix before it, its role).

    No template has more than `most` parts, and the layer's number belongs to the tail.
    """
    parts = pattern.rsplit(".", most)
    first = 1 if len(parts) > most else 0  # the part in front is the rest
    for start in range(first, len(parts)):
        tail = ".".join(parts[start:])
        if tail in templates:
            return pattern[: len(pattern) - len(tail)], templates[tail]
        if parts[start] == "{l}":
            break
    return "", None


def _unshared(norms: list[NormTensor]) -> list[NormTensor]:
    """A read called shared that stands beside one of attention's or the MLP's own is the other one's."""
    roles = {norm.role for norm in norms}
    if "shared_read" not in roles:
        return norms
    role = "attn_read" if "mlp_read" in roles else "mlp_read" if "attn_read" in roles else "shared_read"
    return [replace(norm, role=role) if norm.role == "shared_read" else norm for norm in norms]


_NORM_LIKE = re.compile(r"(norm|layernorm|layer_norm|(^|[._])ln(_?\w{1,4})?$|(^|\.)ls\d$|layer_?scale)", re.I)


def norm_like(name: str) -> bool:
    """Is a tensor called like a norm's, in whatever model and with whatever last part?"""
    pattern, last = split_name(name)[0], name.rpartition(".")[2]
    return _called_norm(pattern) or _called_norm(last) or re.match(r"gamma|lambda\d", last) is not None


def _called_norm(pattern: str) -> bool:
    return _NORM_LIKE.search(".".join(pattern.rsplit(".", 2)[-2:])) is not None


def _unknown(names: Iterable[str], architecture: str, shapes: Mapping[str, tuple[int, ...]], format: str) -> Found:
    rule, reason = convention(architecture, "", format)
    norms = []
    for name in names:
        pattern, layer, part = split_name(name)
        if part is not None and _called_norm(pattern) and len(shapes.get(name, (1,))) == 1:
            norms.append(NormTensor(name, f"unknown:{pattern.replace('{l}', '*')}", layer, part, rule, reason))
    return Found(architecture, False, tuple(norms))


def split_name(name: str) -> tuple[str, int | None, str | None]:
    """(name without its last part and with `{l}` for the layer, the layer or None, gain or bias or None).

    >>> split_name("model.layers.12.input_layernorm.weight")
    ('model.layers.{l}.input_layernorm', 12, 'gain')
    """
    *parts, last = name.split(".")
    for i, part in enumerate(parts):
        if part.isascii() and part.isdigit() and len(part) < 6:
            return ".".join([*parts[:i], "{l}", *parts[i + 1 :]]), int(part), PARTS.get(last)
    return ".".join(parts), None, PARTS.get(last)
