"""Hydra: the configuration from its own flags, and a directory of its own for each run, into which it changes."""

import json
import time

import hydra
import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@hydra.main(version_base=None, config_path=None)
def main(config: DictConfig) -> None:
    torch.manual_seed(1)
    inputs = torch.randn(400, 32)
    data = TensorDataset(inputs, inputs[:, :4].argmax(1))
    model = nn.Sequential(nn.Linear(32, config.width), nn.ReLU(), nn.Linear(config.width, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
    losses = []
    began = time.perf_counter()
    while len(losses) < config.steps:
        for x, y in DataLoader(data, batch_size=16, shuffle=True):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == config.steps:
                break
    loop_s = time.perf_counter() - began
    with open("losses.json", "w") as file:  # in hydra's directory
        json.dump({"losses": losses, "loop_s": loop_s, "config": OmegaConf.to_container(config)}, file)


main()
