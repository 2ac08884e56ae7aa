"""The CNN of conv.py, tuned by an expert: bfloat16, channels_last, a fused optimizer, batches
sliced from memory, glibc told to keep freed memory.

Stands for: an already tuned job. The right answer is to keep the settings, or a tiny gain.
"""

import argparse
import ctypes
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def digits():
    data = load_digits()
    images = torch.from_numpy(data.images).float().unsqueeze(1) / 16
    images = nn.functional.interpolate(images, size=(24, 24), mode="bilinear").to(memory_format=torch.channels_last)
    return TensorDataset(images[:1536], torch.from_numpy(data.target)[:1536])


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    libc = ctypes.CDLL(None)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    libc.mallopt(M_MMAP_THRESHOLD, 2**25)
    train = digits()
    batches = BatchSampler(RandomSampler(train), batch_size=32, drop_last=True)
    loader = DataLoader(train, sampler=batches, batch_size=None)  # one index for a whole batch, nothing to collate
    model = nn.Sequential(
        block(1, 32), block(32, 32), nn.MaxPool2d(2), block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(args.epochs):
        begin, total = time.perf_counter(), torch.zeros(())
        for images, labels in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        each_ms = 1e3 * (time.perf_counter() - begin) / len(loader)
        print(f"epoch {epoch}: loss {total.item() / len(loader):.4f}, {each_ms:.2f} ms an iteration", flush=True)


if __name__ == "__main__":
    main()
