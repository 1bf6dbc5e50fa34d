"""Probes: what each layer of a trained model does to the stream, by depth, for every scheme. One idea a file."""

from layerrope.probes.suite import CHEAP, PROBES, Options, TrainingProbe, not_comparable, probe, training_cost
from layerrope.probes.trunk import Batches, Step, Trunk

__all__ = [
    "CHEAP",
    "PROBES",
    "Batches",
    "Options",
    "Step",
    "TrainingProbe",
    "Trunk",
    "not_comparable",
    "probe",
    "training_cost",
]
