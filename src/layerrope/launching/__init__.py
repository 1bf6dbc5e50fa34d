"""Where runs go: this process, local worker processes, or Slurm."""
