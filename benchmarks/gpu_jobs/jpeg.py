"""ResNet-50 on JPEG files that four workers decode and crop: the loader limits this job on a GPU.

    python jpeg.py [--steps 20000] [--size 224] [--batch 64] [--workers 4] [--files 128]

The files are generated at the start and kept in memory: 500x375 pixels, about 95 kB each.
"""

import argparse
import io

import numpy as np
import torch
from PIL import Image
from resnet50 import resnet50
from torch import nn
from torch.utils.data import DataLoader, Dataset


def photograph(label, generator):
    """JPEG bytes: soft shapes and grain, tinted by the label."""
    soft = torch.rand(1, 3, 12, 16, generator=generator)
    image = nn.functional.interpolate(soft, size=(375, 500), mode="bicubic")[0]
    image += 0.1 * torch.randn(3, 375, 500, generator=generator)
    tint = torch.tensor([label % 2, label // 2 % 2, label // 4 / 2])[:, None, None]
    pixels = ((0.7 * image + 0.3 * tint).clamp(0, 1) * 255).byte().permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


class Photographs(Dataset):
    def __init__(self, size, files, count=8192):
        generator = torch.Generator().manual_seed(0)
        self.files = [photograph(number % 10, generator) for number in range(files)]
        self.size, self.count = size, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        number = index % len(self.files)
        image = Image.open(io.BytesIO(self.files[number])).convert("RGB")
        share = 0.3 + 0.7 * torch.rand(1).item()
        width, height = share * image.width, share * image.height
        left = torch.rand(1).item() * (image.width - width)
        top = torch.rand(1).item() * (image.height - height)
        box = (left, top, left + width, top + height)
        crop = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        if torch.rand(1).item() < 0.5:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(crop)).permute(2, 0, 1).float()
        return (pixels - 127.5) / 58.0, number % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--files", type=int, default=128)
    options = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = resnet50(options.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(
        Photographs(options.size, options.files), batch_size=options.batch, shuffle=True,
        num_workers=options.workers, drop_last=True,
    )  # fmt: skip
    step = 0
    while step < options.steps:
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0 or step == options.steps:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == options.steps:
                break


if __name__ == "__main__":
    main()
