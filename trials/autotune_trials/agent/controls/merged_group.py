"""One pass of the model over several batches of the job's, handed out in slices.

    outputs   of the pass                         ◀─ backward, once, when the last slice has its gradient
    leaves    detached slices of the outputs      their .grad is filled by the job's own backward calls
    handed    copies of the leaves                what the job gets: it may even change them in place
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune_trials.agent.controls.sample_slices import Call, leaves_of, with_leaves

Backward = Callable[[list[Any], list[Any], bool], None]  # (tensors, gradients, retain_graph)


class MergedGroup:
    """``call``, ``result``: of the pass; ``lengths``: samples of each batch; ``made_of``: the batches, and the places and constants
    that make a call of one (see provenance.Sources)."""

    def __init__(
        self,
        torch: Any,
        call: Call,
        result: Any,
        lengths: list[int],
        made_of: tuple[list[Any], list[Any], list[Any]],
        backward: Backward,
    ) -> None:
        self._torch, self._call, self._result, self._lengths, self._backward = torch, call, result, lengths, backward
        self._batches, self._places, self._constants = made_of
        self._outputs = leaves_of(result)
        total = sum(lengths)
        self._sliced = [isinstance(o, torch.Tensor) and o.dim() > 0 and o.shape[0] == total for o in self._outputs]
        self._starts = [sum(lengths[:i]) for i in range(len(lengths))]
        self._slices = [self._cut(number) for number in range(len(lengths))]
        self._handed = 0

    def _cut(self, number: int) -> list[Any]:
        """The outputs of one batch: detached, so that backward stops there."""
        return [
            self._part(o.detach(), number).requires_grad_(o.requires_grad) if sliced else o
            for o, sliced in zip(self._outputs, self._sliced, strict=True)
        ]

    def _part(self, output: Any, number: int) -> Any:
        return output.narrow(0, self._starts[number], self._lengths[number])

    def _leaves(self, number: int) -> list[tuple[int, Any]]:
        """(column, leaf) of what is trained through in one slice."""
        return [(i, t) for i, (t, sliced) in enumerate(zip(self._slices[number], self._sliced, strict=True)) if sliced and t.requires_grad]

    @property
    def complete(self) -> bool:
        """All slices are handed out, and backward has reached the last of them."""
        last = len(self._lengths) - 1
        return self._handed > last and any(leaf.grad is not None for _, leaf in self._leaves(last))

    @property
    def has_gradients(self) -> bool:
        return any(leaf.grad is not None for number in range(self._handed) for _, leaf in self._leaves(number))

    def expects(self, batch: Any, places: list[Any], constants: list[Any]) -> bool:
        """Whether the next slice answers a call made of this."""
        return (
            self._handed < len(self._lengths)
            and batch is self._batches[self._handed]
            and places == self._places
            and constants == self._constants
        )

    def was_computed_from(self, call: Call) -> bool:
        """Whether the next slice was computed from the very values in ``call``."""
        pairs = zip(self._places, leaves_of(self._call), leaves_of(call), strict=True)
        return all(place is None or self._torch.equal(self._part(used, self._handed), given) for place, used, given in pairs)

    def hand_out(self) -> Any:
        """The next slice, as the model's result for its batch."""
        slices = self._slices[self._handed]
        self._handed += 1
        return with_leaves(self._result, [t.clone() if sliced else t for t, sliced in zip(slices, self._sliced, strict=True)])

    def go_back(self) -> None:
        """Backward through the pass with the gradients that have come; zero where none has."""
        self._go_back(retain_graph=False)
        self._call, self._result, self._outputs, self._batches = ((), {}), None, [], []

    def came_late(self) -> bool:
        """A slice got another gradient after :meth:`go_back`, which has reached no parameter."""
        return self.has_gradients

    def dissolve(self) -> None:
        """Go back with what has come; a slice that is still on its way to a loss goes back by itself, when it has its gradient."""
        waiting = [(n, i, t) for n in range(self._handed) for i, t in self._leaves(n) if t.grad is None]
        self._go_back(retain_graph=bool(waiting))
        for number, column, leaf in waiting:
            with self._torch.enable_grad():
                part = self._part(self._outputs[column], number)
            leaf.register_post_accumulate_grad_hook(self._straight_back(part))

    def _straight_back(self, part: Any) -> Callable[[Any], None]:
        def go_on(leaf: Any) -> None:
            gradient, leaf.grad = leaf.grad, None
            self._backward([part], [gradient], True)

        return go_on

    def _go_back(self, retain_graph: bool) -> None:
        tensors, gradients = [], []
        for column, (output, sliced) in enumerate(zip(self._outputs, self._sliced, strict=True)):
            leaves = [slices[column] for slices in self._slices]
            if sliced and output.requires_grad and any(leaf.grad is not None for leaf in leaves):
                tensors.append(output)
                gradients.append(self._torch.cat([self._torch.zeros_like(t) if t.grad is None else t.grad for t in leaves]))
                for leaf in leaves:
                    leaf.grad = None
        if tensors:
            self._backward(tensors, gradients, retain_graph)
