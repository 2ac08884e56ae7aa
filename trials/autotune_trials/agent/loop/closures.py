"""Optimizers that are given a closure call it inside their step: LBFGS as often as its line search needs.

The loss of such a step is that of the first evaluation, which is what ``optimizer.step(closure)`` returns; the others are looks
around. Backward calls outside the step (accumulation before a step with a closure, as Lightning makes it) all count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Evaluations:
    """How often the closure of the running step has been called."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def repeated(self) -> bool:
        return self.count > 1

    def watch(self, args: Any, kwargs: Any, after: Callable[[], None] | None = None) -> Any:
        """The call of ``step`` with its closure counted (and ``after`` called each time), or None if it has none."""
        self.count = 0
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            return None

        def counted() -> Any:
            self.count += 1
            value = closure()
            if after is not None:
                after()
            return value

        if "closure" in kwargs:
            return args, {**kwargs, "closure": counted}
        return (args[0], counted, *args[2:]), kwargs

    def end(self) -> None:
        """The step is over."""
        self.count = 0
