"""Runs of cells, cached on disk and passed to the loss check the way the tool passes its own pairs.

<cache>/<hash of bed, plant, knobs, seed, steps …>.json      one record each, without times
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.verdict.gradients import relative_error
from autotune_spaces.base import Value
from autotune_spaces.codec import decode, encode
from autotune_trials.protocol.messages import Record
from beds import forked
from beds.cells import STEPS, Cell

GRADIENT_STEPS = 4  # of a run made for its first gradient, as in the confirm stage
CACHE_VERSION = 1  # increase it when a bed or what is planted changes


@dataclass(frozen=True)
class Store:
    """Makes each run once."""

    folder: Path

    def reference(self, bed: str, seed: int, steps: int = STEPS, again: bool = False) -> Record:
        return self._get(
            Cell(bed, "baseline", "exact", "exact"), seed, steps, "again" if again else ""
        )

    def candidate(self, cell: Cell, seed: int, steps: int = STEPS) -> Record:
        """``steps`` are the baseline's."""
        return self._get(cell, seed, round(steps * cell.steps / STEPS))

    def first_gradient(self, cell: Cell, seed: int) -> Record:
        return self._get(cell, seed, GRADIENT_STEPS)

    def _get(self, cell: Cell, seed: int, steps: int, more: str = "") -> Record:
        key = json.dumps([CACHE_VERSION, cell.key(), seed, steps, more])
        path = self.folder / f"{hashlib.blake2b(key.encode(), digest_size=12).hexdigest()}.json"
        if path.exists():
            return decode(Record, json.loads(path.read_text(encoding="utf-8")))  # type: ignore[no-any-return]
        record = forked.run(
            cell.bed,
            cell.plant,
            cell.knobs,
            seed=seed,
            steps=steps,
            kernels=self.folder / "compiled",
        )
        window = replace(record.window, phase_times_s={}, data_s=(), turnovers_s=())
        record = replace(record, window=window)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(encode(record)), encoding="utf-8")
        os.replace(temporary, path)
        return record


@dataclass
class CellPairs:
    """Pairs of one cell over one set of seeds: where ``check_loss`` gets its runs."""

    store: Store
    cell: Cell
    first_seed: int
    reference: dict[int, Record] = field(default_factory=dict)
    candidate: dict[int, Record] = field(default_factory=dict)
    steps: int = STEPS
    stretched: int = 1

    @property
    def configs(self) -> dict[str, dict[str, Value]]:
        return {"reference": {}, "candidate": dict(self.cell.knobs)}

    def ensure(self, pairs: int) -> None:
        for seed in range(self.first_seed, self.first_seed + pairs):
            if seed not in self.reference:
                self.reference[seed] = self.store.reference(self.cell.bed, seed, self.steps)
                self.candidate[seed] = self.store.candidate(self.cell, seed, self.steps)

    def repeat_reference(self, seed: int) -> Record:
        return self.store.reference(self.cell.bed, seed, self.steps, again=True)

    def late(self, pairs: int) -> str:
        return ""

    def lengthen(self, steps: int) -> bool:
        self.steps, self.reference, self.candidate = steps, {}, {}
        return True

    def float16_gradient(self) -> tuple[float, float] | None:
        """Relative errors of the first gradient: (candidate's, bfloat16's); None: no float16."""
        if not self.cell.float16:
            return None
        seed = self.first_seed
        exact = self.store.reference(self.cell.bed, seed, self.steps).gradient_sketch
        brain = replace(self.cell, plant=(), knobs={"amp_dtype": "bfloat16"})
        errors = [
            relative_error(exact, self.store.first_gradient(cell, seed).gradient_sketch)
            for cell in (self.cell, brain)
        ]
        return None if errors[0] is None or errors[1] is None else (errors[0], errors[1])
