"""Bed: a multi-layer perceptron that imitates another one. SGD with momentum and weight decay; only
the order is random.
"""

import planting
import torch
from torch import nn
from torch.utils.data import TensorDataset

plant = planting.from_arguments()
torch.manual_seed(0)

FEATURES, CLASSES, SAMPLES = 24, 8, 4096
fixed = torch.Generator().manual_seed(1)  # every run has the same data
inputs = torch.randn(SAMPLES, FEATURES, generator=fixed)
hidden = torch.tanh(inputs @ torch.randn(FEATURES, 48, generator=fixed) / FEATURES**0.5)
logits = 1.5 * hidden @ torch.randn(48, CLASSES, generator=fixed)
labels = torch.multinomial(logits.softmax(1), 1, generator=fixed).squeeze(1)
loader = plant.loader(TensorDataset(inputs, labels), keys=labels, batch_size=32)

net = plant.model(
    nn.Sequential(
        nn.Linear(FEATURES, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, CLASSES)
    ),
    head="4",
)
optimizer = plant.optimizer(
    torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4)
)
loss_function = nn.CrossEntropyLoss()

for _epoch in range(1000):
    for x, y in loader:
        optimizer.zero_grad()
        with plant.forward():
            loss = loss_function(net(plant.inputs(x)).float(), y)
        plant.loss(loss).backward()
        plant.before_step()
        optimizer.step()
