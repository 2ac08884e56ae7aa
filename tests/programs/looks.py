"""Looks at every batch before training on it, an average of the weights evaluated after every step, and whole evaluations between.

The evaluations: of the model on the training data, every sixteen steps; of the average on the same loader; and of the model on tensors that
come from no loader.
"""

import copy
import time

import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader

torch.manual_seed(0)
net = model()
average = copy.deepcopy(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
loader = DataLoader(dataset(), batch_size=32, shuffle=True)
held_out = dataset(1024).tensors[0]


@torch.no_grad()
def evaluate():
    net.eval()
    for inputs, _ in loader:
        net(inputs)
        time.sleep(0.005)
    for inputs, _ in loader:
        average(inputs)
        time.sleep(0.005)
    for inputs in held_out.split(64):
        net(inputs)
        time.sleep(0.005)
    net.train()


outside_s = 0.0
for _ in range(50):
    for inputs, labels in loader:
        net.eval()
        with torch.no_grad():
            before = net(inputs)
        net.train()
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = loss_function(outputs, labels) + 0.1 * (outputs - before).abs().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), net.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)
            average(inputs)
        note(loss, len(inputs), outside_s)
        outside_s = 0.0
    began = time.perf_counter()
    evaluate()
    outside_s = time.perf_counter() - began
