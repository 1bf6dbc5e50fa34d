"""Where the runs of a command go: the flags that `layerrope study` and `layerrope compare` share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from layerrope.errors import InputError, one_of
from layerrope.launching.launch import available_cores, run_here
from layerrope.launching.processes import run_local
from layerrope.launching.slurm import SlurmOptions, run_slurm
from layerrope.study import Launcher
from layerrope.training.machine import check_machine

LAUNCHES = ("local", "slurm")
UNRECORDED = ("launch", *(f"slurm_{name}" for name in SlurmOptions.__dataclass_fields__))
"""Flags that change no number: left out of the command that a record keeps."""


@dataclass(frozen=True)
class Launching:
    """Where the runs go."""

    jobs: int | None = None
    """runs at once, each in a process of its own; none: one for every core (one on a GPU); 0: in this process"""
    threads: int = 1
    """threads of each run"""
    launch: str = "local"
    """local (processes of this machine, see --jobs) or slurm (one job a run, in an array)"""
    slurm_partition: str | None = None
    """partition; none: the cluster's default"""
    slurm_time: int = SlurmOptions.time
    """minutes that a job may take; a run that needs more saves its state, is requeued and goes on"""
    slurm_array: int = SlurmOptions.array
    """runs at once"""
    slurm_cpus: int | None = None
    """cores for each run; none: as many as --threads"""
    slurm_gpus: int | None = None
    """GPUs for each run; none: one where --device is a GPU"""
    slurm_memory: float | None = None
    """GB of memory for each run; none: the partition's default"""
    slurm_extra: tuple[str, ...] = ()
    """further sbatch options as NAME=VALUE: account=me qos=low"""
    slurm_warning: int = SlurmOptions.warning
    """seconds before the time limit at which a run begins to save its state"""

    @property
    def on_slurm(self) -> bool:
        """Do the runs go to a cluster? Raises InputError for a word that is no place."""
        return one_of("--launch", self.launch, LAUNCHES) == "slurm"

    def check_launch(self, device: str, precision: str) -> None:
        """Raise InputError for flags of no meaning, of Slurm where the runs stay here, or a device that is not here."""
        slurm = [f for f in fields(Launching) if f.name.startswith("slurm_")]
        changed = [f.name for f in slurm if getattr(self, f.name) != f.default]
        if not self.on_slurm and changed:
            raise InputError(f"--{changed[0].replace('_', '-')} is for --launch slurm: add that, or leave it out")
        self.slurm_options()
        if not self.on_slurm:  # there the device is the cluster's, and the workers check it
            check_machine(device, precision)
        for name, least in (("jobs", 0), ("threads", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"--{name} must be at least {least}: got {value}")

    def workers(self, runs: int, device: str) -> int:
        """How many of so many runs are trained at once; 0: in this process."""
        if self.on_slurm:
            return min(self.slurm_array, runs)
        if self.jobs is not None:
            return min(self.jobs, runs)
        cores = available_cores() if device == "cpu" else self.threads
        return max(1, min(cores // self.threads, runs))

    def slurm_options(self) -> SlurmOptions:
        """What is asked of Slurm. Raises InputError for values of no meaning."""
        return SlurmOptions(**{name: getattr(self, f"slurm_{name}") for name in SlurmOptions.__dataclass_fields__})

    def launcher(self, folder: Path, workers: int, device: str) -> Launcher:
        """The launcher for runs in `folder`; 0 workers is this process."""
        if self.on_slurm:
            options = self.slurm_options()
            return partial(run_slurm, folder=folder / "slurm", options=options, threads=self.threads, device=device)
        if workers == 0:
            return partial(run_here, device=device, threads=self.threads)
        return partial(run_local, workers=workers, threads=self.threads, device=device)
