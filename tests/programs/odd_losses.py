"""Losses that are not one positive number that falls: python odd_losses.py KIND [STEPS]"""

import sys

import torch
from common import dataset, loss_function, model
from torch.utils.data import DataLoader

kind, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
torch.manual_seed(0)
net = model()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05 if kind != "no_progress" else 0.0, momentum=0.9)
loader = DataLoader(dataset(), batch_size=32, shuffle=True)


def differentiate(inputs, targets):
    loss = loss_function(net(inputs), targets)
    if kind == "vector":
        each = torch.nn.functional.cross_entropy(net(inputs), targets, reduction="none")
        each.backward(torch.full_like(each, 1 / len(each)))
    elif kind == "unseen":  # no backward: the gradients are put in place by hand
        for p, g in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True):
            p.grad = g
    elif kind == "nan":
        (loss * float("nan")).backward()
    elif kind == "constant":
        (loss / loss.detach()).backward()
    elif kind == "negative":
        (loss - 5.0).backward()
    elif kind == "tiny":
        (loss * 1e-9).backward()
    elif kind == "two":
        loss.backward(retain_graph=True)
        (0.1 * net[0].weight.square().sum()).backward()
    else:
        loss.backward()


done = 0
while done < steps:
    for inputs, targets in loader:
        optimizer.zero_grad()
        differentiate(inputs, targets)
        optimizer.step()
        done += 1
        if done % 20 == 0:
            right = (net(inputs).argmax(1) == targets).float().mean()
            print(f"step {done} val_acc={right:.3f}")
        if done >= steps:
            break
