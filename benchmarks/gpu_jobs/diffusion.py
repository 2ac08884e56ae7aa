"""A diffusion U-Net on 64x64 images, float32, AdamW, that saves an image every fifth iteration.

    python diffusion.py [--steps 20000] [--size 64] [--width 128] [--batch 32] [--out samples]

The image is a strip of eight of the model's predictions of the clean images: training stops while
the job waits for the GPU and encodes the PNG.
"""

import argparse
import math
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Blobs(Dataset):
    """Smooth random colors in -1 ... 1, each in four rotations."""

    def __init__(self, size, count=1024):
        small = torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(0))
        self.images = nn.functional.interpolate(small, size=size, mode="bilinear") * 2 - 1

    def __len__(self):
        return 4 * len(self.images)

    def __getitem__(self, index):
        return self.images[index // 4].rot90(index % 4, dims=(1, 2))


def norm(channels):
    return nn.GroupNorm(min(32, channels // 4), channels)


class Residual(nn.Module):
    """Two 3x3 convolutions; the time embedding is added between them."""

    def __init__(self, inputs, outputs, time):
        super().__init__()
        self.before = nn.Sequential(
            norm(inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time, outputs))
        self.after = nn.Sequential(
            norm(outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1)
        )
        same = inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x, time):
        hidden = self.before(x) + self.time(time)[:, :, None, None]
        return self.shortcut(x) + self.after(hidden)


class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = norm(channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        batch, channels, height, width = x.shape
        heads = max(1, channels // 64)
        qkv = self.qkv(self.norm(x)).view(batch, 3, heads, channels // heads, height * width)
        q, k, v = qkv.transpose(3, 4).unbind(1)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(attended.transpose(2, 3).reshape(x.shape))


class UNet(nn.Module):
    """Four resolutions with two residual blocks each; attention at the lowest."""

    def __init__(self, width):
        super().__init__()
        self.width, time = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        channels, kept = width, [width]
        for level, outputs in enumerate((width, 2 * width, 2 * width, 2 * width)):
            if level:
                self.down.append(nn.Conv2d(channels, channels, 3, stride=2, padding=1))
                kept.append(channels)
            for _ in range(2):
                self.down.append(Residual(channels, outputs, time))
                channels = outputs
                kept.append(channels)
        self.middle = nn.ModuleList(
            [
                Residual(channels, channels, time),
                Attention(channels),
                Residual(channels, channels, time),
            ]
        )
        for level, outputs in enumerate((2 * width, 2 * width, 2 * width, width)):
            for _ in range(3):
                self.up.append(Residual(channels + kept.pop(), outputs, time))
                channels = outputs
            if level < 3:
                conv = nn.Conv2d(channels, channels, 3, padding=1)
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2), conv))
        self.last = nn.Sequential(norm(channels), nn.SiLU(), nn.Conv2d(channels, 3, 3, padding=1))

    def forward(self, x, times):
        half = self.width // 2
        rates = torch.exp(torch.arange(half, device=x.device) * (-math.log(10_000) / half))
        angles = times[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        kept = [x := self.first(x)]
        for layer in self.down:
            x = layer(x, time) if isinstance(layer, Residual) else layer(x)
            kept.append(x)
        for layer in self.middle:
            x = layer(x, time) if isinstance(layer, Residual) else layer(x)
        for layer in self.up:
            if isinstance(layer, Residual):
                x = layer(torch.cat([x, kept.pop()], dim=1), time)
            else:
                x = layer(x)
        return self.last(x)


def save(images, path):
    strip = torch.cat(list(images[:8]), dim=2).clamp(-1, 1)
    pixels = ((strip + 1) * 127.5).byte().permute(1, 2, 0).cpu().numpy()
    Image.fromarray(pixels).save(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=64, help="a multiple of 8")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("samples"))
    options = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options.out.mkdir(parents=True, exist_ok=True)
    model = UNet(options.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    kept_signal = torch.linspace(1 - 1e-4, 1 - 0.02, 1000, device=device).cumprod(0)
    loader = DataLoader(
        Blobs(options.size), batch_size=options.batch, shuffle=True, num_workers=4,
        persistent_workers=True, pin_memory=device == "cuda", drop_last=True,
    )  # fmt: skip
    step = 0
    while step < options.steps:
        for images in loader:
            images = images.to(device)
            times = torch.randint(1000, (len(images),), device=device)
            noise = torch.randn_like(images)
            signal = kept_signal[times][:, None, None, None]
            noisy = signal.sqrt() * images + (1 - signal).sqrt() * noise
            optimizer.zero_grad()
            guess = model(noisy, times)
            loss = nn.functional.mse_loss(guess, noise)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 5 == 0:
                clean = (noisy - (1 - signal).sqrt() * guess.detach()) / signal.sqrt()
                save(clean, options.out / f"{step:06d}.png")
            if step % 50 == 0 or step == options.steps:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == options.steps:
                break


if __name__ == "__main__":
    main()
