"""The commands of `layerrope`, one file each: a typed dataclass with `run()`."""
