"""Bed: a small convolutional network with batch norm on noisy pictures, randomly shifted and
mirrored.

SGD with Nesterov momentum and a cosine schedule, label smoothing. The augmentation draws from
Python's ``random``.
"""

import random

import planting
import torch
from torch import nn
from torch.utils.data import Dataset

plant = planting.from_arguments()
torch.manual_seed(0)

CLASSES, SIDE, SAMPLES = 8, 10, 2048


class Pictures(Dataset):
    def __init__(self):
        fixed = torch.Generator().manual_seed(2)  # every run has the same data
        coarse = torch.randn(CLASSES, 1, 5, 5, generator=fixed)
        patterns = nn.functional.interpolate(coarse, SIDE, mode="bilinear")
        self.labels = torch.randint(0, CLASSES, (SAMPLES,), generator=fixed)
        self.pictures = patterns[self.labels] + 1.2 * torch.randn(
            SAMPLES, 1, SIDE, SIDE, generator=fixed
        )

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        plant.augmenting(random)
        picture = self.pictures[index].roll((random.randint(-1, 1), random.randint(-1, 1)), (1, 2))
        if random.random() < 0.5:
            picture = picture.flip(2)
        return picture, self.labels[index]


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


data = Pictures()
loader = plant.loader(data, keys=data.labels, batch_size=24)
net = plant.model(
    nn.Sequential(block(1, 12), block(12, 24), nn.Flatten(), nn.Linear(96, CLASSES)), head="3"
)
optimizer = plant.optimizer(
    torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-3)
)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)
loss_function = nn.CrossEntropyLoss(label_smoothing=0.05)

for _epoch in range(1000):
    for x, y in loader:
        optimizer.zero_grad()
        with plant.forward():
            loss = loss_function(net(plant.inputs(x)).float(), y)
        plant.loss(loss).backward()
        plant.before_step()
        optimizer.step()
        schedule.step()
