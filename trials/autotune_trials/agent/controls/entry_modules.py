"""Top-level modules the job calls in training: compilation (compiled_forward.py), memory layout
(memory_layout.py) and autocast act on them.

An entry sits in the module's call slot (call_slot.py).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.controls.call_slot import SLOT, TRACED, SlotCall
from autotune_trials.agent.controls.compiled_forward import CompiledForward
from autotune_trials.agent.controls.memory_layout import MemoryLayout, memory_of
from autotune_trials.agent.loop.batches import tensors_in, tensors_of

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl

FADING = 3  # iterations after a switch in which the job may hold tensors of the old dtype
OUTPUTS_REMEMBERED = 64  # latest outputs of a warm-up, to see whether the job keeps them


class EntryCall(SlotCall):
    """Slot of an entry module."""

    def __init__(self, entry: Entry, live: LiveJobControl) -> None:
        super().__init__(live)
        self.entry, self._module = entry, entry.reference
        # holds the module, and only the module holds it: a module that the job drops must be freed
        self.compiled: Any = None
        self.compiled_with: Any = None  # the hooks and the forward at that time
        self.called_with: Any = None  # those of the last call that had others

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        state, entry = self._state, self.entry
        module = self._module()
        clone = self._clone(module)
        if clone is not None:
            return clone._call_impl(*args, **kwargs)
        if state.stopped or state.inside_entry or self._tracing():
            return module._call_impl(*args, **kwargs)
        gradless = not self._computes_gradients()
        trains = module.training or entry.trains_in_evaluation
        if gradless or not trains or not self._anything_trainable(module):
            with self._loop.evaluate(entry, args, gradless) or nullcontext():
                return entry.layout.in_own_layout(module._call_impl(*args, **kwargs))
        confined = self._loop.call_module(entry, args, kwargs)
        state.inside_entry = True
        try:
            if confined is None:
                return entry.run(module, args, kwargs)
            with confined:
                return entry.run(module, args, kwargs)
        except BaseException as error:
            self._loop.note_error(error)
            raise
        finally:
            state.inside_entry = False


class Entry:
    """One top-level module; implements :class:`autotune_spaces.base.EntryModule`."""

    def __init__(self, module: Any, live: LiveJobControl) -> None:
        self.reference: Callable[[], Any] = weakref.ref(module)
        self._live, self._torch = live, live.torch
        # dtype of autocast that was switched off lately: the job may still hold tensors of it
        self._fading: Any = None
        self._fading_until = 0  # this many iterations
        self.call: Any = lambda: None  # weak reference to our object in the slot
        self.forward = CompiledForward(self, live)
        self.layout = MemoryLayout(self.reference, live)
        # (iteration, storages) of its latest outputs during warm-up
        self._past: deque[tuple[int, list[Any]]] = deque(maxlen=OUTPUTS_REMEMBERED)
        self._past_unknown = False  # of some it cannot be told
        self.shapes: set[tuple[Any, ...]] = set()  # of its inputs during warm-up
        self.called_gradless = False  # its latest call, in training mode
        # iterations in a row that called it in evaluation, with gradients, and nothing in training
        self.evaluated_iterations = 0
        self.trains_in_evaluation = False  # the job trains without model.train()
        self.in_region = False  # its latest forward ran under the agent's autocast
        self.checkpointed = False  # and recomputed in backward: such a call is part of the forward
        self._written = 0  # changes in place of its first parameter, when it was last called

    @property
    def module(self) -> Any:
        return self.reference()

    @property
    def alive(self) -> bool:
        return self.reference() is not None

    @property
    def compiled(self) -> bool:
        return self.forward.mode is not None

    @property
    def changed(self) -> bool:
        """Whether a knob changes how it computes."""
        return self.compiled or self.layout.channels_last

    def rewritten(self) -> bool:
        """Whether its weights were changed in place since the last call, judging by the first of them."""
        first = next(iter(self.module.parameters()), None)
        before, self._written = self._written, 0
        if first is not None and not first.is_inference():  # they have no version counter
            self._written = first._version
        return before != self._written

    def install(self) -> bool:
        """Take the slot, unless the job's own ``module.compile()`` holds it. Idempotent."""
        present = vars(self.module).get(SLOT)
        if present is None:
            present = vars(self.module)[SLOT] = EntryCall(self, self._live)
            self.call = weakref.ref(present)
        return present is self.call()

    def remove(self) -> None:
        """Restore the job's own settings and leave the slot."""
        if self.alive:
            self.set_compiled(None)
            self.set_channels_last(False)
        self.release()

    def release(self) -> None:
        """Only leave the slot (the job is about to compile the module itself)."""
        module, call = self.module, self.call()
        if module is not None and call is not None and vars(module).get(SLOT) is call:
            del vars(module)[SLOT]

    # ------------------------------------------------------------------ calling

    def run(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the module's forward as the knobs want it; the caller keeps the module alive."""
        if self._fading is not None:
            args, kwargs = self._in_own_dtype((args, kwargs))
        if self.layout.channels_last:
            args = tuple(self.layout.laid_out(a) for a in args)
            kwargs = {k: self.layout.laid_out(v) for k, v in kwargs.items()}
        if self.forward.mode is None:
            result = module._call_impl(*args, **kwargs)
            if self._live.state.iterations < self._live.config.warmup_steps:
                self._note_past(module, (args, kwargs), result)
            return result
        with self._live.patches.suspended(*TRACED):
            return self.forward.run(args, kwargs)

    def fade(self, dtype: Any) -> None:
        """Autocast to ``dtype`` is switched off; None: it is switched on."""
        self._fading, self._fading_until = dtype, self._live.state.iterations + FADING

    def _in_own_dtype(self, inputs: Any) -> Any:
        """``inputs``, with tensors that autocast made before it was switched off (a recurrent state,
        what a GAN's generator made) in the dtype of the module's parameters."""
        from torch.utils._pytree import tree_map_only

        own = next((p.dtype for p in self.module.parameters() if p.is_floating_point()), None)
        old = self._fading
        if self._live.state.iterations > self._fading_until:
            self._fading = None
        if own is None or own is old:
            return inputs
        return tree_map_only(
            self._torch.Tensor, lambda t: t.to(own) if t.dtype is old else t, inputs
        )

    def _note_past(self, module: Any, inputs: Any, result: Any) -> None:
        """Note the storages of ``result`` that are new, to see later whether the job keeps them."""
        from torch.multiprocessing.reductions import StorageWeakRef

        try:
            known = [*module.parameters(), *module.buffers(), *tensors_in(self._torch, inputs)]
            old = {memory_of(t)[0] for t in known}
            made = [t.untyped_storage() for t in tensors_in(self._torch, result)]
            references = [StorageWeakRef(s) for s in made if s._cdata not in old]
            self._past.append((self._live.state.iterations, references))
        except NotImplementedError:  # inside a transform of torch.func tensors have no storage
            self._past_unknown = True
        except Exception:  # a class of tensors that has none
            self._past_unknown = True
            log.write_exception("outputs")

    def keeps_outputs(self) -> bool:
        """Whether an output of an iteration before the last still exists, or that cannot be told: a
        replayed CUDA graph would overwrite it.
        """
        before = self._live.state.iterations - 1
        return self._past_unknown or any(
            not reference.expired() for at, refs in self._past if at < before for reference in refs
        )

    def note_shapes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record the shapes of the tensors it is called with."""
        try:
            # also inside a batch of a class of its own (torch-geometric's)
            self.shapes.add(tuple(tuple(x.shape) for x in tensors_of((args, kwargs))))
        # arguments of the job's own classes may do anything when inspected
        except Exception:
            log.write_exception("shapes")

    # ------------------------------------------------------------------ what knobs set

    def set_compiled(self, mode: str | None) -> None:
        self.forward.set_mode(mode)

    def compiled_graphs(self) -> int:
        return self.forward.graphs()

    def set_channels_last(self, on: bool) -> None:
        self.layout.set_channels_last(on)
