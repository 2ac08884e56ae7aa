"""A training program whose speed is planted: it looks which knobs are set in its own process, and
sleeps in its forward pass until an iteration has taken what the plan says, with the noise of a
machine. Waiting for batches comes on top.

    python planted_job.py plan.json [--epochs N] [--seed N]

What it really computes takes some milliseconds, hidden in that. Run by planted_runs.py.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ITEMS, BATCH, ITERATION_S = 2048, 32, 0.04
WHITE, FAST, SLOW, FAST_S, SLOW_S = 0.05, 0.04, 0.055, 0.06, 3.0  # as in planted.py


class Items(Dataset):
    def __init__(self, item_s: float) -> None:
        made = torch.Generator().manual_seed(1)
        self.x = torch.randn(ITEMS, 4, 6, 6, generator=made)
        self.y = self.x.flatten(1) @ torch.randn(144, 4, generator=made) / 12
        self.y += 0.3 * torch.randn(ITEMS, 4, generator=made)
        self.item_s = item_s

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.item_s:
            time.sleep(self.item_s)
        return self.x[index], self.y[index]


class Level:
    """The machine's: wanders in wall time, differently in every process."""

    def __init__(self) -> None:
        self.random = random.Random()
        self.at = self.until = time.monotonic()  # until: when the present pass may end
        self.fast, self.slow = self.random.gauss(0, FAST), self.random.gauss(0, SLOW)

    def factor(self) -> float:
        now = time.monotonic()
        past, self.at = now - self.at, now
        self.fast = self._moved(self.fast, FAST, math.exp(-past / FAST_S))
        self.slow = self._moved(self.slow, SLOW, math.exp(-past / SLOW_S))
        return math.exp(self.fast + self.slow + self.random.gauss(0, WHITE))

    def _moved(self, level: float, sd: float, kept: float) -> float:
        return level * kept + self.random.gauss(0, sd * math.sqrt(1 - kept**2))


LEVEL = Level()


class Model(nn.Module):
    def __init__(self, plan: dict) -> None:
        super().__init__()
        self.effects = {(name, value): effect for name, value, effect in plan["effects"]}
        self.pairs = [(set(map(tuple, pair)), effect) for pair, effect in plan["pairs"]]
        self.optimizer = None
        self.conv, self.out = nn.Conv2d(4, 8, 3), nn.Linear(128, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            cost = ITERATION_S * math.exp(self.log_cost(x)) * LEVEL.factor()
            LEVEL.until += cost * len(x) / BATCH
            time.sleep(max(0.0, LEVEL.until - time.monotonic()))
            LEVEL.until = time.monotonic()
        return self.out(torch.relu(self.conv(x)).flatten(1))

    def log_cost(self, x: torch.Tensor) -> float:
        group = self.optimizer.param_groups[0]
        rarely = gc.get_threshold()[0] == 50_000
        layout = self.conv.weight.is_contiguous(memory_format=torch.channels_last)
        set_now = {
            ("amp_dtype", "bfloat16" if torch.is_autocast_enabled("cpu") else "off"),
            ("channels_last", layout and not self.conv.weight.is_contiguous()),
            ("gc", "threshold-50000" if rarely else "default"),
            ("intra_op_threads", torch.get_num_threads()),
            ("matmul_precision", torch.get_float32_matmul_precision()),
            ("optimizer_impl", next((w for w in ("foreach", "fused") if group.get(w)), "default")),
        }
        cost = sum(self.effects.get(item, 0.0) for item in set_now)
        return cost + sum(effect for pair, effect in self.pairs if pair <= set_now)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--epochs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    plan = json.loads(options.plan.read_text(encoding="utf-8"))
    model = Model(plan)
    loader = DataLoader(Items(plan["item_s"]), BATCH, shuffle=True, drop_last=True)
    model.optimizer = optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    LEVEL.until = time.monotonic()
    for epoch in range(options.epochs):
        total, asked = 0.0, time.monotonic()
        for x, y in loader:
            LEVEL.until += time.monotonic() - asked
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
            asked = time.monotonic()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
