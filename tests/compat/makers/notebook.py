"""A notebook whose cells train, exported as a script by nbconvert, as people do for a cluster."""

import subprocess
import sys

import nbformat

CELLS = [
    "import json, sys, time\nimport torch\nfrom torch import nn\n"
    "from torch.utils.data import DataLoader, TensorDataset",
    "steps, out = int(sys.argv[1]), sys.argv[2]\ntorch.manual_seed(1)\n"
    "inputs = torch.randn(400, 32)\ndata = TensorDataset(inputs, inputs[:, :4].argmax(1))",
    "model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))\n"
    "optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)\nlosses = []",
    "began = time.perf_counter()\n"
    "while len(losses) < steps:\n"
    "    for x, y in DataLoader(data, batch_size=16, shuffle=True):\n"
    "        loss = nn.functional.cross_entropy(model(x), y)\n"
    "        optimizer.zero_grad()\n"
    "        loss.backward()\n"
    "        optimizer.step()\n"
    "        losses.append(loss.item())\n"
    "        if len(losses) == steps:\n"
    "            break\n"
    "loop_s = time.perf_counter() - began",
    "json.dump({'losses': losses, 'loop_s': loop_s}, open(f'{out}/losses.json', 'w'))",
]
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
notebook.metadata["language_info"] = {"name": "python", "file_extension": ".py"}
nbformat.write(notebook, "training.ipynb")
subprocess.run([sys.executable, "-m", "nbconvert", "--to", "script", "training.ipynb"], check=True)
