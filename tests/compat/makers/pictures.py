"""Small JPEGs with captions, and the configuration of a tiny CLIP: input of open_clip_train."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

generator = np.random.default_rng(1)
colors = {
    "red": (220, 30, 30),
    "green": (30, 200, 40),
    "blue": (30, 40, 220),
    "white": (240, 240, 240),
    "grey": (120, 120, 120),
}
Path("pictures").mkdir(exist_ok=True)
lines = ["filepath\ttitle"]
for number in range(416):
    name = list(colors)[number % 5]
    pixels = np.clip(np.array(colors[name]) + generator.normal(0, 40, (40, 40, 3)), 0, 255).astype(
        np.uint8
    )
    Image.fromarray(pixels).save(f"pictures/{number}.jpg")
    lines.append(f"pictures/{number}.jpg\ta {name} square number {number}")
Path("pictures.csv").write_text("\n".join(lines) + "\n")
model = {
    "embed_dim": 64,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}
Path("clip").mkdir(exist_ok=True)
Path("clip/open_clip_config.json").write_text(
    json.dumps({"model_cfg": model, "preprocess_cfg": {"size": 32}})
)
