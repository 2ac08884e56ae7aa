"""Saves a checkpoint every few steps, in two moves so that none is ever half written, keeps the last two, and resumes from the newest."""

import os
from pathlib import Path

import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader

torch.manual_seed(0)
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
folder = Path("checkpoints")
folder.mkdir(exist_ok=True)
steps = 0
if saved := sorted(folder.glob("step-*.pt")):
    state = torch.load(saved[-1])
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    steps = state["steps"]
for _ in range(50):
    for inputs, labels in DataLoader(dataset(), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss = loss_function(net(inputs), labels)
        loss.backward()
        optimizer.step()
        steps += 1
        note(loss, len(inputs))
        if steps % 7 == 0:
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "steps": steps}, folder / "writing.tmp")
            os.replace(folder / "writing.tmp", folder / f"step-{steps:06d}.pt")
            for old in sorted(folder.glob("step-*.pt"))[:-2]:
                old.unlink()
