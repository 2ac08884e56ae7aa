"""timm's model zoo in a plain loop: a small ResNet on random images, random numbers in the collate function."""

import json
import sys
import time

import timm
import timm.optim
import torch
from timm.loss import SoftTargetCrossEntropy
from torch.utils.data import DataLoader, TensorDataset, default_collate

steps, out = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(1)
data = TensorDataset(torch.randn(256, 3, 32, 32), torch.randint(0, 10, (256,)))


def collate(samples):
    images, targets = default_collate(samples)
    share = float(torch.rand(()))
    targets = torch.nn.functional.one_hot(targets, 10).float()
    return share * images + (1 - share) * images.flip(0), share * targets + (1 - share) * targets.flip(0)


loader = DataLoader(data, batch_size=8, shuffle=True, collate_fn=collate, drop_last=True)
model = timm.create_model("resnet10t", num_classes=10)
optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3)
criterion = SoftTargetCrossEntropy()

losses = []
began = time.perf_counter()
model.train()
while len(losses) < steps:
    for images, targets in loader:
        loss = criterion(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == steps:
            break
loop_s = time.perf_counter() - began
with open(f"{out}/losses.json", "w") as file:
    json.dump({"losses": losses, "loop_s": loop_s}, file)
