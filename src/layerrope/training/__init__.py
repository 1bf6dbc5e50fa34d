"""One training run from inside: what it is, its loop, its optimisers, its checkpoints, and its folder."""
