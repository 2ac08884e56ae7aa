"""fastai: optimizer and DataLoader classes of its own, which no hook of torch's sees. "marked" as third word: with the two lines that help."""

import sys

import fastai.callback.progress  # noqa: F401 - gives Learner its no_bar
import torch
from fastai.callback.core import Callback
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from torch import nn

epochs, marked = int(sys.argv[1]), sys.argv[3:] == ["marked"]
torch.manual_seed(1)
inputs = torch.randn(320, 32)
data = list(zip(inputs, inputs[:, :4].argmax(1), strict=True))
loaders = DataLoaders(DataLoader(data, bs=16, shuffle=True, num_workers=0), DataLoader(data, bs=64, num_workers=0))
learner = Learner(loaders, nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)), loss_func=nn.CrossEntropyLoss())


class Mark(Callback):
    def after_step(self):
        import autotune

        autotune.step(loss=self.loss, samples=len(self.xb[0]))


if marked:
    learner.add_cb(Mark())
with learner.no_bar(), learner.no_logging():
    learner.fit(epochs)
