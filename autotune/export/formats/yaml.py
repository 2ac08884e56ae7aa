"""Exports tuned.yaml itself."""

from __future__ import annotations

from autotune.export.formats.base import Format
from autotune.export.tuned import to_yaml

YAML = Format("yaml", "tuned.yaml, for autotune launch", to_yaml)
