"""When the blocks of live sessions were measured, and how long they take."""

from __future__ import annotations

from statistics import fmean

from autotune.stages.searching.block_record import BlockRecord
from autotune_spaces.base import Value

COMPILE_S: dict[Value, float] = {  # seconds, until one was measured
    "default": 20.0,
    "regional": 10.0,
    "static": 20.0,
    "dynamic": 20.0,
    "reduce-overhead": 25.0,
    "max-autotune": 60.0,
    "max-autotune-no-cudagraphs": 60.0,
}
SWITCH_S = 1.5  # per switch of a costly knob, until one was measured
AGES_S = 1e7
RECENT_BLOCKS, RECENT_SWITCHES = 20, 5


class NodeClocks:
    """A clock of measured time per node; no two nodes may have blocks of the same time."""

    def __init__(self) -> None:
        self._at_s: dict[str, float] = {}

    def advance(self, node: str, seconds: float) -> float:
        """The time after another ``seconds`` of measuring on ``node``."""
        return self.set(node, self._at_s.get(node, AGES_S * len(self._at_s)) + seconds)

    def set(self, node: str, at_s: float) -> float:
        self._at_s[node] = at_s
        return at_s


class BlockTimes:
    """What the next blocks will take, judged by the last ones. All in seconds."""

    def __init__(self) -> None:
        self._blocks: list[float] = []
        self._switches: list[float] = []
        self.compile_s = dict(COMPILE_S)
        self.longest_compile_s: dict[Value, float] = {}  # of the values that were compiled

    def note(self, block: BlockRecord, compiled: Value) -> bool:
        """Learn from a block.

        Args:
            compiled: its value of a knob that compiles; None: none.

        Returns:
            Whether ``compile_s`` has changed.
        """
        if not block.wall_s:
            return False
        if not block.first:
            self._blocks.append(block.wall_s)
        elif compiled in self.compile_s:
            # the longest: later, the compiler finds its kernels in a cache
            longest = max(self.longest_compile_s.get(compiled, 1.0), block.settle_s)
            if longest != self.longest_compile_s.get(compiled):
                self.longest_compile_s[compiled] = self.compile_s[compiled] = longest
                return True
        else:
            self._switches.append(block.settle_s)
        return False

    def block_s(self, otherwise: float) -> float:
        return fmean(self._blocks[-RECENT_BLOCKS:]) if self._blocks else otherwise

    def switch_s(self) -> float:
        """Of a costly knob."""
        return fmean(self._switches[-RECENT_SWITCHES:]) if self._switches else SWITCH_S
