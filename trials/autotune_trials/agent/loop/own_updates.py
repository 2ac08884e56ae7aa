"""The iterations of a job that steps no optimizer of torch.optim: Keras, manual updates,
torch.func.

    backward ── the job changes its parameters, out of sight ── next(loader), model(x) or backward
                                                             └▶ here the iteration has ended

Whenever the job goes on, the tensors that receive gradients are checked for changes, until it is
known after how many backwards they change; from then on backwards are counted. torch.func keeps its
parameters to itself, so each of its gradients counts as an update. If the job has an optimizer that
has not stepped yet, the first updates may be something else: a batch size search resets the weights
before training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.bootstrap.log import leave_marker, write_exception
from autotune_trials.agent.core.events import Listener
from autotune_trials.agent.facts.parameters import own_shard
from autotune_trials.agent.loop.autograd_graph import leaves, listed
from autotune_trials.api import MARKING

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl

LOOKED_AT = 16  # parameters to check, spread evenly over all of them
ELEMENTS = 64  # checked in each, at most
# One in SHARE must have changed: adversarial perturbations change while the model does not. Some
# stay the same in training, too (one half of low-rank adapters in the first step).
SHARE = 4
SURE = 4  # updates in a row, each after the same number of backwards
PATIENCE = 50  # backwards without an update
STEPLESS = 1000  # backwards by which a job with an optimizer has stepped, however it accumulates
NO_UPDATE = (
    "backward() was called 50 times, no torch.optim optimizer was built, and no parameter"
    " update was seen: autotune cannot tell where an iteration ends."
    f"\n{MARKING[0].upper()}{MARKING[1:]}"
)


class OwnUpdates(Listener):
    """Ends iterations until the first optimizer steps or the job marks its iterations itself."""

    def __init__(
        self, live: LiveJobControl, on_update: Callable[[], None], give_up: Callable[[str], None]
    ) -> None:
        """``on_update``: called when an update was seen and so the iteration has ended.
        ``give_up``: called with the reason if the ends of iterations cannot be determined."""
        self._live, self._on_update, self._give_up = live, on_update, give_up
        self._parameters: list[Any] | None = None  # None: no backward yet
        self._seen: list[tuple[int, Any]] = []  # their state when last checked
        self._pending = 0  # backwards since the last update
        self._alike = 0  # updates in a row, each after the same number of backwards
        self._period = 0  # that number of backwards

    def backward_started(self, tensors: Any, gradients: Any) -> None:
        if self._parameters is None:
            self._parameters = self._find(tensors)
            self._seen = self._look()

    def backward_ended(self) -> None:
        self._pending += 1
        if self._live.state.backwards == STEPLESS:
            # seen by the session: if there is an optimizer, it should step soon
            leave_marker("backwards")
        if self._pending >= PATIENCE and not self._live.every_optimizer() and not self._period:
            self.end()
            self._give_up(NO_UPDATE)

    def went_on(self) -> None:
        if not self._pending or self._inside_transform():
            return
        if self._alike >= SURE:
            updated = self._pending >= self._period
        else:
            updated = self._live.state.functional or self._changed()
        if updated:
            self._alike = self._alike + 1 if self._pending == self._period else 1
            self._period, self._pending = self._pending, 0
            if self._alike >= SURE or not self._live.every_optimizer():
                self._on_update()

    def step_started(self, optimizer: Any) -> None:
        self.end()

    def manual_step(self, loss: Any) -> None:
        self.end()

    def end(self) -> None:
        """Look no further, and let go of the parameters: they would outlive their model."""
        self._live.events.forget(self)
        self._parameters, self._seen = [], []

    def _inside_transform(self) -> bool:
        """Whether a transform of torch.func is calling the model: nothing may be switched then."""
        functional = self._live.state.functional
        return functional and self._live.torch._C._functorch.maybe_current_level() is not None

    # ------------------------------------------------------------------ looking

    def _find(self, tensors: Any) -> list[Any]:
        """A sample of the leaf tensors that receive the gradients of ``tensors``."""
        try:
            found = leaves(listed(tensors))
        except Exception:  # the graph that autograd exposes is not a stable API
            write_exception("looking for what is trained")
            return []
        return found[:: -(-len(found) // LOOKED_AT)] if found else []

    def _look(self) -> list[tuple[int, Any]]:
        """The version (which ``p.data.add_()`` does not change) and some elements of each."""
        torch = self._live.torch
        try:
            with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
                return [(p._version, _some(p).clone()) for p in self._parameters or ()]
        except Exception:  # a kind of parameter that refuses this
            write_exception("looking at what is trained")
            self._parameters = []
            return []

    def _changed(self) -> bool:
        before, self._seen = self._seen, self._look()
        equal = self._live.torch.equal
        changed = sum(
            version != last_version or not equal(now, last)
            for (version, now), (last_version, last) in zip(self._seen, before, strict=False)
        )
        return changed * SHARE >= max(1, len(before))


def _some(parameter: Any) -> Any:
    """A row of ``parameter``, cheap to read in any memory format."""
    shard = own_shard(parameter).detach()
    return shard[(0,) * (shard.dim() - 1)][:ELEMENTS] if shard.dim() else shard
