"""What was measured by one objective, and the search model of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.search.model import ModelSearch
from autotune_spaces.base import Config, Value

# configuration, log cost, weight, when
Row = tuple[dict[str, Value], float, float, float]


class ObjectiveModel:
    """The rows of one objective and their model. The model is made when it is asked for and kept up
    to date from then on, until ``forget``: what it was made with has changed.

    Args:
        make: a model of the knobs searched now, of these rows.
        searched: whether a configuration has those knobs only; the model hears of no others.
    """

    def __init__(
        self, make: Callable[[Sequence[Row]], ModelSearch], searched: Callable[[Config], bool]
    ) -> None:
        self.rows: list[Row] = []
        self._make, self._searched = make, searched
        self._made: ModelSearch | None = None

    @property
    def model(self) -> ModelSearch:
        if self._made is None:
            self._made = self._make([row for row in self.rows if self._searched(row[0])])
        return self._made

    def measured(self, row: Row) -> None:
        self.rows.append(row)
        if self._made is not None and self._searched(row[0]):
            self._made.measured(*row)

    def failed(self, config: Config) -> None:
        if self._made is not None and self._searched(config):
            self._made.failed(config)

    def exclude(self, name: str, value: Value) -> None:
        if self._made is not None and self._searched({name: value}):
            self._made.exclude(name, value)

    def forget(self) -> None:
        self._made = None
