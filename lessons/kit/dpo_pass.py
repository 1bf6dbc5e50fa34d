"""TRL's DPO on an exported folder, as a program of its own: dpo_pass.py FOLDER PAIRS.json STEPS OUT

A process without marimo, since transformers takes any process that has it for a notebook and then wants IPython.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer


def run(folder: Path, pairs: list[dict[str, str]], steps: int, out: Path) -> None:
    """Tune the model of `folder` on pairs of {prompt, chosen, rejected}; write it and the losses into `out`."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    args = DPOConfig(
        output_dir=str(out / "trainer"),
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=1e-3,  # a small model takes a large rate; 1e-6 is usual for billions of parameters
        lr_scheduler_type="constant",
        beta=0.1,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    trainer = DPOTrainer(
        model,
        ref_model=copy.deepcopy(model),
        args=args,
        train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer,
    )
    trainer.train()
    model.save_pretrained(out / "tuned")
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    (out / "losses.json").write_text(json.dumps([float(loss) for loss in losses]))


if __name__ == "__main__":
    run(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), int(sys.argv[3]), Path(sys.argv[4]))
