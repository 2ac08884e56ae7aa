"""One large layer, already in bfloat16, fed from memory, keeps its gradients: only matrix products.

Stands for: nothing to gain. Whatever is adopted here is a false win.
"""

import argparse
import time

import torch
from torch import nn

ROWS, WIDTH, BATCH = 8192, 1536, 512


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    made = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, WIDTH, generator=made)
    y = x @ torch.randn(WIDTH, WIDTH, generator=made) / WIDTH**0.5
    y = (y + 0.5 * torch.randn(ROWS, WIDTH, generator=made)).bfloat16()
    x, model = x.bfloat16(), nn.Linear(WIDTH, WIDTH).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    for epoch in range(args.epochs):
        begin, total = time.perf_counter(), torch.zeros(())
        for start in range(0, ROWS, BATCH):
            optimizer.zero_grad(set_to_none=False)
            loss = nn.functional.mse_loss(model(x[start : start + BATCH]), y[start : start + BATCH])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        each_ms = 1e3 * (time.perf_counter() - begin) / (ROWS // BATCH)
        print(f"epoch {epoch}: loss {total.item() / (ROWS // BATCH):.4f}, {each_ms:.2f} ms an iteration", flush=True)


if __name__ == "__main__":
    main()
