"""Train a tiny random Llama with the Hugging Face Trainer: ``hf_trainer.py ROOT``.

Four saves, of which retention keeps two. A save starts with the first file the Trainer opens and is committed
when ``trainer_state.json``, its last file, is closed; the removal of an older checkpoint comes after that.
"""

from __future__ import annotations

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

from save_clock import SaveClock, required_frameworks

with required_frameworks():
    import accelerate  # noqa: F401 (the Trainer needs it, but says so only once it runs)
    import safetensors.torch
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerState, TrainingArguments

SAVE_STEPS = 2
SAVES = 4


def tiny_llama() -> LlamaForCausalLM:
    """Return an untrained model of about 6 million parameters: 25 MB of weights, 50 MB of Adam state."""
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config)


def mark_calls(clock: SaveClock) -> None:
    """Mark the native call that opens the weights, and the end of the Trainer's last file."""
    native = safetensors.torch.serialize_file
    save_to_json = TrainerState.save_to_json

    def serialize_file(*args: object, **options: object) -> object:
        clock.mark_open()
        return native(*args, **options)

    def save_state(self: TrainerState, json_path: str) -> None:
        save_to_json(self, json_path)
        clock.mark_commit()

    safetensors.torch.serialize_file = serialize_file
    TrainerState.save_to_json = save_state


class TimedTrainer(Trainer):
    """A Trainer that prints the truth of each of its saves."""

    clock: SaveClock

    def _save_checkpoint(self, model: object, trial: object) -> None:
        step = self.state.global_step
        with self.clock.save(step, os.path.join(self.args.output_dir, f"checkpoint-{step}")):
            super()._save_checkpoint(model, trial)


def main(root: str) -> None:
    """Train for SAVES * SAVE_STEPS steps with the checkpoints below ``root``."""
    torch.manual_seed(0)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 4096, (64, 32))]
    arguments = TrainingArguments(
        output_dir=root,
        max_steps=SAVES * SAVE_STEPS,
        save_steps=SAVE_STEPS,
        save_total_limit=2,
        per_device_train_batch_size=4,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = TimedTrainer(model=tiny_llama(), args=arguments, train_dataset=rows)
    trainer.clock = SaveClock(root)
    mark_calls(trainer.clock)
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1])
