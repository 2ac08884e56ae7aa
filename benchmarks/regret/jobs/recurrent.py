"""A char-level GRU on the source text of a few modules of Python's standard library.

Stands for: a chain of small steps that hardly use several cores; some settings are much slower.
"""

import argparse
import ast
import inspect
import textwrap
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LENGTH = 48


class Text(Dataset):
    """Chunks of text, and the same shifted by one character."""

    def __init__(self):
        text = "".join(inspect.getsource(module) for module in (argparse, ast, textwrap))
        text = "".join(c for c in text if 9 < ord(c) < 127)
        self.alphabet = sorted(set(text))
        place = {c: n for n, c in enumerate(self.alphabet)}
        self.codes = torch.tensor([place[c] for c in text])

    def __len__(self):
        return (len(self.codes) - 1) // 16 - LENGTH // 16

    def __getitem__(self, index):
        start = 16 * index
        return self.codes[start : start + LENGTH], self.codes[start + 1 : start + LENGTH + 1]


class CharModel(nn.Module):
    def __init__(self, characters):
        super().__init__()
        self.embedding, self.gru, self.head = nn.Embedding(characters, 64), nn.GRU(64, 160, batch_first=True), nn.Linear(160, characters)

    def forward(self, x):
        return self.head(self.gru(self.embedding(x))[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    data = Text()
    loader = DataLoader(data, batch_size=32, shuffle=True, drop_last=True)
    model = CharModel(len(data.alphabet))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        begin, total = time.perf_counter(), 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
        each_ms = 1e3 * (time.perf_counter() - begin) / len(loader)
        print(f"epoch {epoch}: loss {total / len(loader):.4f}, {each_ms:.2f} ms an iteration", flush=True)


if __name__ == "__main__":
    main()
