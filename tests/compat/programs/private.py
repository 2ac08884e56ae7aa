"""Opacus: training with differential privacy. Its DataLoader draws each batch anew, so batches differ in size; one layer is the script's own."""

import json
import sys
import time

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps, out = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(1)
inputs = torch.randn(400, 32)
loader = DataLoader(TensorDataset(inputs, inputs[:, :4].argmax(1)), batch_size=16)


class Scale(nn.Module):
    """Opacus has no rule for its gradients, and takes them by torch.func."""

    def __init__(self, width):
        super().__init__()
        self.factors = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * self.factors


model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), Scale(128), nn.Linear(128, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
engine = PrivacyEngine()
model, optimizer, loader = engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
criterion = nn.CrossEntropyLoss()

step, began = 0, time.perf_counter()
with open(f"{out}/steps.jsonl", "w") as log:
    while step < steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            print(json.dumps({"loss": loss.item(), "samples": len(x)}), file=log, flush=True)
            step += 1
            if step == steps:
                break
loop_s = time.perf_counter() - began
with open(f"{out}/times.json", "w") as file:
    json.dump({"loop_s": loop_s, "epsilon": engine.get_epsilon(delta=1e-5)}, file)
