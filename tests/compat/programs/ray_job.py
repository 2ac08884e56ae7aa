"""Ray Train: TorchTrainer on a local cluster of its own; training runs in Ray's workers."""

import json
import sys
import time

import ray
import ray.train
import ray.train.torch
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(config):
    torch.manual_seed(1)
    inputs = torch.randn(400, 32)
    data = TensorDataset(inputs, inputs[:, :4].argmax(1))
    loader = ray.train.torch.prepare_data_loader(DataLoader(data, batch_size=16, shuffle=True))
    model = nn.Sequential(nn.Linear(32, 1000), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1000, 400), nn.Linear(400, 4))
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss()

    context = ray.train.get_context()
    losses, away_s = [], 0.0
    began = time.perf_counter()
    for epoch in range(config["epochs"]):
        if context.get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            torch.distributed.all_reduce(mean)
            losses.append(mean.item() / context.get_world_size())
        left = time.perf_counter()
        ray.train.report({"epoch": epoch, "loss": losses[-1]})
        away_s += time.perf_counter() - left
    loop_s = time.perf_counter() - began
    if context.get_world_rank() == 0:
        with open(f"{config['out']}/losses.json", "w") as file:
            json.dump({"losses": losses, "loop_s": loop_s, "away_s": away_s}, file)


if __name__ == "__main__":
    workers, epochs, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    ray.init(num_cpus=workers, include_dashboard=False, object_store_memory=10**8)
    TorchTrainer(
        train,
        train_loop_config={"epochs": epochs, "out": out},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name="ray_job", storage_path=out),
    ).fit()
