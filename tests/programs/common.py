"""Data and a model small enough for tests, real enough to learn."""

import torch
from torch import nn
from torch.utils.data import TensorDataset


def dataset(samples=512, features=16):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, features, generator=generator)
    weights = torch.randn(features, 4, generator=generator)
    return TensorDataset(inputs, (inputs @ weights).argmax(1))


def model(features=16, width=64):
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 4))


loss_function = nn.CrossEntropyLoss()
