"""mmengine's Runner: accumulation in its OptimWrapper (it goes on over the end of an epoch), validation after every epoch."""

import json
import math
import sys
import time

import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import Dataset

steps, out = int(sys.argv[1]), sys.argv[2]
BATCHES = 25  # an epoch; each step takes two


class Vectors(Dataset):
    def __init__(self, count):
        self.inputs = torch.randn(count, 32, generator=torch.Generator().manual_seed(count))
        self.labels = self.inputs[:, :4].argmax(1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


class Classifier(BaseModel):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 4))

    def forward(self, inputs, labels, mode):
        scores, labels = self.net(torch.stack(inputs)), torch.stack(labels)
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(scores, labels)}
        time.sleep(0.1)
        return [{"right": bool(right)} for right in scores.argmax(1) == labels]


class Accuracy(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results.extend(data_samples)

    def compute_metrics(self, results):
        return {"accuracy": sum(result["right"] for result in results) / len(results)}


def loader(data, batch_size, shuffle):
    return {"dataset": data, "batch_size": batch_size, "num_workers": 0, "sampler": {"type": "DefaultSampler", "shuffle": shuffle}}


runner = Runner(
    model={"type": Classifier},
    work_dir=out,
    train_dataloader=loader(Vectors(8 * BATCHES - 4), 8, shuffle=True),
    train_cfg={"by_epoch": True, "max_epochs": math.ceil(2 * steps / BATCHES)},
    optim_wrapper={"optimizer": {"type": "AdamW", "lr": 3e-3}, "accumulative_counts": 2},
    param_scheduler={"type": "LinearLR", "start_factor": 0.5, "end": 100, "by_epoch": False},
    val_dataloader=loader(Vectors(100), 100, shuffle=False),
    val_cfg={},
    val_evaluator={"type": Accuracy},
    default_hooks={"logger": {"type": "LoggerHook", "interval": 1}, "checkpoint": {"type": "CheckpointHook", "interval": 10}},
    log_processor={"window_size": 1},  # losses as they are, and no means
    randomness={"seed": 1},
)
began = time.perf_counter()
runner.train()
with open(f"{out}/times.json", "w") as file:
    json.dump({"loop_s": time.perf_counter() - began}, file)
