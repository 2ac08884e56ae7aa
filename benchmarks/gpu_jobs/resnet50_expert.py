"""The ResNet-50 of resnet50.py as an expert sets it up; there may be nothing to gain.

    python resnet50_expert.py [--steps 20000] [--size 224] [--batch 64] [--width 64]

bfloat16, channels last, torch.compile, TF32, cuDNN's benchmark mode, a fused optimizer, eight
persistent workers, pinned memory and non-blocking copies.
"""

import argparse

import torch
from conv_net import Images
from resnet50 import resnet50
from torch import nn
from torch.utils.data import DataLoader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = resnet50(options.width).to(device, memory_format=torch.channels_last)
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True
    )
    loader = DataLoader(
        Images(options.size), batch_size=options.batch, shuffle=True, num_workers=8,
        prefetch_factor=4, persistent_workers=True, pin_memory=device == "cuda", drop_last=True,
    )  # fmt: skip
    step = 0
    while step < options.steps:
        for images, labels in loader:
            images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
            labels = labels.to(device, non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16):
                loss = nn.functional.cross_entropy(compiled(images.float() / 255), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0 or step == options.steps:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == options.steps:
                break


if __name__ == "__main__":
    main()
