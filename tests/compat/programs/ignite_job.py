"""PyTorch-Ignite: a supervised trainer, and an evaluator after every epoch."""

import json
import sys
import time

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

epochs, out = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(1)
inputs = torch.randn(400, 32)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
trainer = create_supervised_trainer(model, torch.optim.AdamW(model.parameters(), lr=3e-3), nn.CrossEntropyLoss())
evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()})
losses, away_s = [], 0.0


@trainer.on(Events.ITERATION_COMPLETED)
def log(engine):
    losses.append(engine.state.output)


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine):
    global away_s
    left = time.perf_counter()
    evaluator.run(DataLoader(data, batch_size=100))
    away_s += time.perf_counter() - left


began = time.perf_counter()
trainer.run(DataLoader(data, batch_size=16, shuffle=True), max_epochs=epochs)
loop_s = time.perf_counter() - began
with open(f"{out}/losses.json", "w") as file:
    json.dump({"losses": losses, "loop_s": loop_s, "away_s": away_s}, file)
