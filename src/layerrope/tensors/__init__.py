"""Named tensors from a folder, a file, a training run, a Hub id or an address, lazily and without torch.

    source = open_source("org/name@main")
    norms = source.read(name for name in source.names if name.endswith("layernorm.weight"))
    print(source.spent)  # Spent(bytes=..., requests=...)

`blobs` and `http` give bytes by range, `safetensors_format` and `gguf_format` find the tensors in them, `shards`
and `layout` put files together, `opening` decides what a person meant.
"""

from __future__ import annotations

from layerrope.tensors.blobs import printable
from layerrope.tensors.entries import Spent, TensorInfo
from layerrope.tensors.opening import open_source
from layerrope.tensors.source import TensorSource

__all__ = ["Spent", "TensorInfo", "TensorSource", "open_source", "printable"]
