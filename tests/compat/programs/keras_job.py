"""Keras 3 on torch: `fit`, with an optimizer and a training step that are Keras' own."""

import json
import os
import sys
import time

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np

epochs, out = int(sys.argv[1]), sys.argv[2]
keras.utils.set_random_seed(1)
inputs = np.random.randn(320, 32).astype(np.float32)
targets = inputs[:, :4].argmax(1)
losses = []


class Log(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        losses.append(logs["loss"])
        self.model.reset_metrics()  # else it is the mean of the epoch so far


model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dropout(0.1), keras.layers.Dense(4)])
model.compile(
    optimizer=keras.optimizers.AdamW(3e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
began = time.perf_counter()
model.fit(inputs, targets, batch_size=16, epochs=epochs, verbose=0, callbacks=[Log()])
loop_s = time.perf_counter() - began
with open(f"{out}/losses.json", "w") as file:
    json.dump({"losses": [float(loss) for loss in losses], "loop_s": loop_s}, file)
