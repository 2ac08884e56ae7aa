"""Three 3x3 convolutions with 128 channels on 224x224 images, float32; reads the loss in every
step.

    python conv_net.py [--steps 20000] [--size 224] [--batch 16]

Two workers deliver the images as bytes: the GPU limits this job, and Python between its kernels.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """Noise with a colored stripe, whose position is the class."""

    def __init__(self, size, count=4096):
        self.noise = torch.randint(0, 200, (64, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image, label = self.noise[index % 64].clone(), index % 10
        size = image.shape[-1]
        image[label % 3, :, size * label // 10 : size * (label + 1) // 10] = 255
        return image, label


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(
        nn.Conv2d(3, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(),
        nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Images(options.size), batch_size=options.batch, shuffle=True, num_workers=2, drop_last=True)
    step = 0
    while step < options.steps:
        for images, labels in loader:
            images, labels = images.to(device).float() / 255, labels.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
            print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == options.steps:
                break


if __name__ == "__main__":
    main()
