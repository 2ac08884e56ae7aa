"""What a GPU gains: the example and one convolutional network, tuned, written to benchmarks/gpu.md.

    python benchmarks/gpu.py [--minutes 6] [--out benchmarks/gpu.md]

Each job is an ordinary script run by `autotune run` with default settings. Without a CUDA device it says so and writes nothing:
nothing in that file is guessed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONV_NET = '''
"""Three 3x3 convolutions with 128 channels on 224x224 images made on the spot, with the habits people start with."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, count=4096):
        generator = torch.Generator().manual_seed(0)
        self.small = torch.rand(count, 3, 32, 32, generator=generator)
        self.labels = (self.small.mean((1, 2, 3)) * 997).long() % 10

    def __len__(self):
        return len(self.small)

    def __getitem__(self, index):
        image = nn.functional.interpolate(self.small[index : index + 1], size=224, mode="bilinear")[0]
        return image, self.labels[index]


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = nn.Sequential(
        nn.Conv2d(3, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1, stride=2), nn.ReLU(),
        nn.Conv2d(128, 128, 3, padding=1, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    ).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(20):
        for images, labels in DataLoader(Images(), batch_size=16, shuffle=True):
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            loss.item()


if __name__ == "__main__":
    main()
'''


def tune(name: str, script: str, folder: Path, minutes: float) -> dict:
    """result.json of ``script`` tuned by the command line."""
    folder.mkdir()
    (folder / "train.py").write_text(script)
    (folder / "job.yaml").write_text(f"name: {name}\ncommand: python train.py\nbudget: {{minutes: {minutes}}}\n")
    command = [sys.executable, "-m", "autotune", "run", "job.yaml", "--offline"]
    subprocess.run(command, cwd=folder, check=True)
    return json.loads((folder / "autotune-runs" / name / "result.json").read_text())


def row(result: dict) -> str:
    observation, confirmation = result["observation"], result["confirmation"] or {}
    before = (confirmation.get("baseline_anatomy") or observation["anatomy"])["samples_per_s"]
    speedup = result["speedup"]
    knobs = ", ".join(f"{k}={v}" for k, v in result["knobs"].items()) or "none"
    return (
        f"| {result['name']} | {before:.0f} | {before * speedup['estimate']:.0f} | {speedup['estimate']:.2f} "
        f"({speedup['low']:.2f} to {speedup['high']:.2f}) | {result['loss']['verdict']} | {knobs} | "
        f"{observation['bottleneck']} | {len(result['trials'])} | {result['wall_s'] / 60:.1f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "gpu.md")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device: benchmarks/gpu.md is written only where there is one", file=sys.stderr)
        return 1
    example = (ROOT / "examples" / "digits" / "train.py").read_text()
    on_device = (
        example.replace("model = build_model()", 'model = build_model().to("cuda")')
        .replace("model(images)", 'model(images.to("cuda"))')
        .replace(", labels)", ', labels.to("cuda"))')
        .replace("== labels", '== labels.to("cuda")')
    )
    with tempfile.TemporaryDirectory() as name:
        results = [
            tune("digits", on_device, Path(name) / "digits", options.minutes),
            tune("conv-net", CONV_NET, Path(name) / "conv", options.minutes),
        ]
    machine = results[0]["environment"]["machine"]
    lines = [
        "# On a GPU",
        "",
        f"Made by `python benchmarks/gpu.py` on {machine['device_name']}, torch {machine['torch_version']}, {machine['cores']} cores.",
        "",
        "| job | baseline, samples/s | tuned, samples/s | speed-up (95 %) | loss | knobs | bottleneck | trials | minutes |",
        "|---|---|---|---|---|---|---|---|---|",
        *(row(r) for r in results),
    ]
    print("\n".join(lines))
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
