"""A ViT-S/8 on 224x224 images, float32, AdamW: 785 tokens per image, so that attention matters.

    python vit.py [--steps 20000] [--size 224] [--patch 8] [--layers 12] [--width 384] [--batch 32]

Attention is scaled_dot_product_attention inside torch's encoder layer; torch chooses the kernel.
"""

import argparse

import torch
from conv_net import Images
from torch import nn
from torch.utils.data import DataLoader


class ViT(nn.Module):
    """21.7 million parameters at the default sizes."""

    def __init__(self, size, patch, layers, width, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, dropout=0.0, activation="gelu",
            batch_first=True, norm_first=True,
        )  # fmt: skip
        self.encoder = nn.TransformerEncoder(
            layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1)
        return self.head(self.encoder(tokens + self.places)[:, 0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--patch", type=int, default=8)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = ViT(options.size, options.patch, options.layers, options.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    loader = DataLoader(
        Images(options.size), batch_size=options.batch, shuffle=True, num_workers=4,
        persistent_workers=True, pin_memory=device == "cuda", drop_last=True,
    )  # fmt: skip
    step = 0
    while step < options.steps:
        for images, labels in loader:
            images, labels = images.to(device).float() / 255, labels.to(device)
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
