"""Train a small model with Keras on torch: ``keras_save.py ROOT``, one ``.keras`` file per epoch.

Keras opens its file through Python, so the truth starts at that open; it ends when the save call returns.
"""

from __future__ import annotations

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

from save_clock import SaveClock, required_frameworks

with required_frameworks():
    import keras
    import numpy as np

EPOCHS = 3


class TimedModel(keras.Sequential):
    """A model that prints the truth of each of its saves."""

    clock: SaveClock
    saves = 0

    def save(self, filepath: str, **options: object) -> None:
        """Save as Keras does."""
        self.saves += 1
        with self.clock.save(self.saves, os.fspath(filepath)):
            super().save(filepath, **options)


def main(root: str) -> None:
    """Train for EPOCHS epochs with a checkpoint below ``root`` after each."""
    model = TimedModel([keras.layers.Input((4000,)), keras.layers.Dense(4000)])
    model.clock = SaveClock(root)
    model.compile(optimizer="sgd", loss="mse")
    rows = np.random.default_rng(0).random((16, 4000), dtype="float32")
    checkpoint = keras.callbacks.ModelCheckpoint(os.path.join(root, "model-{epoch:02d}.keras"))
    model.fit(rows, rows, epochs=EPOCHS, verbose=0, callbacks=[checkpoint])


if __name__ == "__main__":
    main(sys.argv[1])
