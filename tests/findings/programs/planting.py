"""What the planted programs share: a healthy small training job, and a meter for the fault.

Each program has one fault, on the line marked ``# <- planted``; with ``--clean`` it does without. The fault is timed by
the program itself; the figures lie in a memory-mapped file (variable PLANTED), which survives the kill that ends a session.
"""

import mmap
import os
import struct
import sys
from time import perf_counter

import torch
from torch import nn
from torch.utils.data import DataLoader

CLEAN = "--clean" in sys.argv
MOST = 20_000  # iterations the meter has room for


class Meter:
    """Seconds of the fault in every iteration: ``with meter: <fault>``, and ``meter.step()`` once an iteration."""

    def __init__(self):
        path = os.environ.get("PLANTED", os.devnull)
        self._kept = bytearray(8 * (MOST + 1))
        if path != os.devnull:
            with open(path, "w+b") as file:
                file.truncate(len(self._kept))
                self._kept = mmap.mmap(file.fileno(), len(self._kept))
        self.iteration, self._spent = 0, 0.0

    def __enter__(self):
        self._began = perf_counter()

    def __exit__(self, *error):
        self.add(perf_counter() - self._began)

    def add(self, seconds):
        self._spent += seconds

    def step(self):
        struct.pack_into("d", self._kept, 8 * (1 + self.iteration % MOST), self._spent)
        self.iteration, self._spent = self.iteration + 1, 0.0
        struct.pack_into("d", self._kept, 0, float(self.iteration))


def loader(batches=64, size=128, features=256, workers=0):
    """Ready batches: asking for one costs next to nothing."""
    generator = torch.Generator().manual_seed(1)
    ready = [
        (torch.randn(size, features, generator=generator), torch.randint(0, 16, (size,), generator=generator)) for _ in range(batches)
    ]
    return DataLoader(ready, batch_size=None, num_workers=workers)


def network(features=256, width=512):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 16))


meter = Meter()
