"""The workloads of published.py, set up by the package pytorch-autotune as its README says.

    python pytorch_autotuned.py tune WORKLOAD [--budget max]   search; its report is printed
    python pytorch_autotuned.py run WORKLOAD [--steps 400]     train with the winner

The package keeps the winner in the file named by PYTORCH_AUTOTUNE_CACHE, where `run` finds it;
without one, `run` has no time to search and fails.
"""

import argparse
import json
import sys

import torch
from published import arguments, batches, train, workload

try:
    from pytorch_autotune import autotune
except ImportError:
    sys.exit(
        "pytorch-autotune is not installed here: pip install --no-deps pytorch-autotune==2.0.0"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("phase", choices=("tune", "run"))
    parser.add_argument("--budget", default="max", help="fast, balanced or max: 2, 6, 15 minutes")
    chosen, rest = parser.parse_known_args()
    options = arguments().parse_args(rest)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, dataset = workload(options)
    ready = batches(options, dataset, device)
    tuning = chosen.phase == "tune"
    result = autotune(
        model, next(ready), optimizer="adamw", lr=1e-3, device=device,
        budget=chosen.budget if tuning else 0, cache="refresh" if tuning else True,
    )  # fmt: skip
    if tuning:
        print(json.dumps(result.report.to_dict()["winner"]))
        return
    train(result.step, ready, options, device)


if __name__ == "__main__":
    main()
