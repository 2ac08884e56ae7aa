"""A GPT of 124 million parameters, float32, AdamW, on generated text.

    python gpt.py [--steps 20000] [--layers 12] [--width 768] [--length 512] [--batch 8]

A batch is 32 KiB of tokens: the GPU limits this job.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TOKENS = 50_304


class Text(Dataset):
    """Sequences in which each token follows from the previous one, except for one in ten."""

    def __init__(self, length, count=4096):
        generator = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, 512, (count, length + 1), generator=generator)
        follows = torch.rand(count, length + 1, generator=generator) < 0.9
        for place in range(1, length + 1):
            after = (self.tokens[:, place - 1] * 5 + 3) % 512
            self.tokens[:, place] = torch.where(follows[:, place], after, self.tokens[:, place])

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    def __init__(self, layers, width, length):
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, TOKENS, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = GPT(options.layers, options.width, options.length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loader = DataLoader(
        Text(options.length), batch_size=options.batch, shuffle=True, num_workers=4, persistent_workers=True,
        pin_memory=device == "cuda", drop_last=True,
    )  # fmt: skip
    step = 0
    while step < options.steps:
        for tokens in loader:
            tokens = tokens.to(device)
            optimizer.zero_grad()
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0 or step == options.steps:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == options.steps:
                break


if __name__ == "__main__":
    main()
