"""What a training step costs in time and memory, as ratios of paired runs."""
