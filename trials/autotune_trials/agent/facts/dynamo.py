"""What dynamo has counted, whoever asked it to compile."""

from __future__ import annotations

import sys


def dynamo_graphs() -> int:
    """Graphs that dynamo has compiled, whoever asked for it; 0 if it is not in use."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0
