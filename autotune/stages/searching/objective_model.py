"""The measurements of one objective and the search model built from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.search.model import ModelSearch
from autotune_spaces.base import Config, Value

# configuration, log cost, weight, time in seconds
Row = tuple[dict[str, Value], float, float, float]


class ObjectiveModel:
    """The measured rows of one objective and their model.

    The model is built on first use and updated with every row until ``forget``, which is called
    when its settings have changed.

    Args:
        make: builds a model of the knobs searched now from these rows.
        searched: whether a configuration has only those knobs; the model is given no others.
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

    def failed(self, config: Config) -> tuple[tuple[str, Value], ...]:
        """Returns what is blamed for it, if the model knows; see :meth:`.ModelSearch.failed`."""
        if self._made is not None and self._searched(config):
            return self._made.failed(config)
        return ()

    def exclude(self, name: str, value: Value) -> None:
        if self._made is not None and self._searched({name: value}):
            self._made.exclude(name, value)

    def keep(self, kept: Callable[[Config], bool]) -> None:
        """Forget the rows of all other configurations."""
        self.rows = [row for row in self.rows if kept(row[0])]
        self.forget()

    def forget(self) -> None:
        self._made = None
