"""Train a small model with Lightning: ``lightning_save.py ROOT``.

Lightning writes each checkpoint into the temporary directory and moves it in when it is whole. With that
directory on the same file system the move is a rename: the checkpoint appears at once and its duration cannot
be seen. On another file system it is a copy, which starts when it opens its target and ends when it closes
it; setting the file's times and removing the source come after that.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import warnings

from save_clock import SaveClock, required_frameworks

with required_frameworks():
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.plugins.io import TorchCheckpointIO

SAVE_STEPS = 5
SAVES = 3


class Model(LightningModule):
    """16 million parameters: 64 MB (10**6 bytes) in a checkpoint, the optimizer keeps no state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4000, 4000)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        """Return the loss of one batch."""
        return self.layer(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


class TimedCheckpointIO(TorchCheckpointIO):
    """Lightning's own way of writing, with the truth of each save printed."""

    def __init__(self, clock: SaveClock, *, timed: bool) -> None:
        super().__init__()
        self._clock = clock
        self._timed = timed

    def save_checkpoint(
        self, checkpoint: dict[str, object], path: str, storage_options: object = None
    ) -> None:
        """Save as Lightning does."""
        with self._clock.save(checkpoint["global_step"], os.fspath(path), timed=self._timed):
            super().save_checkpoint(checkpoint, path, storage_options)


def mark_copies(clock: SaveClock) -> None:
    """Mark the clock whenever ``shutil`` has copied and closed a whole file."""
    copyfile = shutil.copyfile

    def marking_copyfile(*args: object, **options: object) -> object:
        copied = copyfile(*args, **options)
        clock.mark_commit()
        return copied

    shutil.copyfile = marking_copyfile


def main(root: str) -> None:
    """Train for SAVES * SAVE_STEPS steps with the checkpoints below ``root``."""
    same_file_system = os.stat(tempfile.gettempdir()).st_dev == os.stat(root).st_dev
    warnings.filterwarnings("ignore", module="lightning")
    clock = SaveClock(root)
    mark_copies(clock)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=SAVES * SAVE_STEPS,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(dirpath=root, every_n_train_steps=SAVE_STEPS, save_top_k=-1)],
        plugins=[TimedCheckpointIO(clock, timed=not same_file_system)],
    )
    batches = torch.utils.data.DataLoader(torch.rand(100, 4000), batch_size=4)
    trainer.fit(Model(), batches)


if __name__ == "__main__":
    main(sys.argv[1])
