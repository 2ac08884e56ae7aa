"""fastai: optimizer and DataLoader classes of its own, which no hook of torch's sees."""

import json
import sys
import time

import fastai.callback.progress  # noqa: F401 - gives Learner its no_bar
import torch
from fastai.callback.core import Callback
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from fastai.torch_core import set_seed
from torch import nn

epochs, out = int(sys.argv[1]), sys.argv[2]
set_seed(1)  # Python's own as well, by which it shuffles
inputs = torch.randn(320, 32)
data = list(zip(inputs, inputs[:, :4].argmax(1), strict=True))
loaders = DataLoaders(DataLoader(data, bs=16, shuffle=True, num_workers=0), DataLoader(data, bs=64, num_workers=0))
learner = Learner(loaders, nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)), loss_func=nn.CrossEntropyLoss())


class Log(Callback):
    def after_step(self):
        losses.append(self.loss.item())

    def before_validate(self):
        self.left = time.perf_counter()

    def after_validate(self):
        global away_s
        away_s += time.perf_counter() - self.left


losses, away_s = [], 0.0
learner.add_cb(Log())
began = time.perf_counter()
with learner.no_bar(), learner.no_logging():
    learner.fit(epochs)
loop_s = time.perf_counter() - began
with open(f"{out}/losses.json", "w") as file:
    json.dump({"losses": losses, "loop_s": loop_s, "away_s": away_s}, file)
