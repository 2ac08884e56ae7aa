"""Compiles the forward of a module the job calls in training, runs it, and takes it back."""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from autotune_spaces.knobs.compile_mode import CUDA_GRAPHS, REGIONAL, arguments
from autotune_trials.agent.controls.call_slot import SLOT, TRACED, SlotCall
from autotune_trials.agent.controls.out_of_memory import is_out_of_memory
from autotune_trials.agent.controls.regional import block_function, repeated_blocks
from autotune_trials.agent.facts.dynamo import dynamo_graphs
from autotune_trials.agent.loop.batches import tensors_in

if TYPE_CHECKING:
    from autotune_trials.agent.controls.entry_modules import Entry
    from autotune_trials.agent.controls.live_job import LiveJobControl

OUTPUTS_KEPT = 64  # latest output tensors, to be copied out of a CUDA graph's memory
RECORDED = 3  # calls until a CUDA graph has been warmed up, recorded and replayed


class BlockCall(SlotCall):
    """Slot of a repeated block: compiled in training, and when backward recomputes a checkpoint."""

    def __init__(self, live: LiveJobControl, block: Any, compiled: Any) -> None:
        super().__init__(live)
        self._block, self._compiled = block, compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        state, block = self._state, self._block
        clone = self._clone(block)
        if clone is not None:
            return clone._call_impl(*args, **kwargs)
        if state.inside_entry:
            return self._compiled(block, args, kwargs)
        if not state.in_backward or self._exporting():
            return block._call_impl(*args, **kwargs)
        with self._patches.suspended(*TRACED):
            return self._compiled(block, args, kwargs)


class CompiledForward:
    """The compiled forward of one entry module. None as its ``mode``: not compiled by us."""

    def __init__(self, entry: Entry, live: LiveJobControl) -> None:
        self._entry, self._live, self._torch = entry, live, live.torch
        self.mode: str | None = None
        self._worked = 0  # calls of the compiled forward that have worked
        self._graphs_before = 0
        self._blocks: list[weakref.ref[Any]] = []  # blocks compiled one by one
        # latest outputs of CUDA graphs
        self._outputs: deque[weakref.ref[Any]] = deque(maxlen=OUTPUTS_KEPT)

    @property
    def uses_graphs(self) -> bool:
        return self.mode in CUDA_GRAPHS

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the compiled forward; the first call and new shapes compile. If the compiler fails,
        report it and run uncompiled: a knob must not end the job.
        """
        if self.mode != REGIONAL:
            call, parts = self._entry.call(), _called_parts(self._entry.module)
            if parts not in (call.compiled_with, call.called_with):  # perhaps for this call only
                call.called_with = parts
                return self._entry.module._call_impl(*args, **kwargs)
            if parts != call.compiled_with:
                self.compile_anew()
        try:
            result = self._entry.call().compiled(*args, **kwargs)
        except Exception as error:
            proven = self._worked >= (RECORDED if self.uses_graphs else 1)
            if is_out_of_memory(error) or (proven and not _is_compilers(error)):
                raise
            for entry in self._live.entries:
                entry.forward.take_out_of_graphs()
            mode, self.mode, self._entry.call().compiled = self.mode, None, None
            # Frees the memory of graphs; not while another entry's backward may still need them.
            if not any(entry.forward.uses_graphs for entry in self._live.entries):
                sys.modules["torch._dynamo"].reset()
            self._free_blocks()
            self._keep_random_stream(False)
            self._live.loop.fail_knob(
                f"compile_mode: {mode}: {type(error).__name__}: {str(error)[:300]}"
            )
            return self._entry.module._call_impl(*args, **kwargs)
        self._worked += 1
        if self.uses_graphs:
            self._note_outputs(result)
        return result

    def _note_outputs(self, result: Any) -> None:
        self._outputs.extend(weakref.ref(x) for x in tensors_in(self._torch, result))

    def set_mode(self, mode: str | None) -> None:
        if mode == self.mode:
            return
        import torch._dynamo

        if self.mode is not None:
            for entry in self._live.entries:
                entry.forward.take_out_of_graphs()
            # After some variants dynamo silently stops compiling; and one mode's code must not
            # serve another.
            torch._dynamo.reset()
        self._free_blocks()
        call, self.mode, self._worked = self._entry.call(), mode, 0
        if call is None:
            self.mode = mode = None  # the job has put something of its own in the slot
        else:
            call.compiled = None
        self._keep_random_stream(mode is not None)
        if mode is None:
            return
        if not any(entry.compiled for entry in self._live.entries if entry is not self._entry):
            torch._dynamo.utils.counters.clear()
        self._graphs_before = dynamo_graphs()
        self._live.before_compile()
        module = self._entry.module
        compile = self._live.patches["torch.compile"].original
        if mode == REGIONAL:
            self._compile_blocks(compile)
            call.compiled = module._call_impl
            return
        call.compiled_with = own_hooks, any_hooks, _ = _called_parts(module)
        # A plain function: compiling an instance of a class from torch.nn itself silently does
        # nothing.
        target = module._call_impl if own_hooks or any_hooks else module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            return target(*args, **kwargs)

        forward.__code__ = forward.__code__.replace(co_name=f"forward_{self._number}")
        call.compiled = compile(forward, **arguments(mode))

    @property
    def _number(self) -> int:
        """For names of what is compiled: by them dynamo remembers which shapes vary, and those of
        another model may be others.
        """
        return self._live.entries.index(self._entry)

    def _compile_blocks(self, compile: Any) -> None:
        for kind, alike in enumerate(repeated_blocks(self._torch, self._entry.module)):
            function = block_function(f"block_{self._number}_{kind}")
            compiled = compile(function, **arguments(REGIONAL))
            for block in alike:
                if vars(block).get(SLOT) is None:
                    vars(block)[SLOT] = BlockCall(self._live, block, compiled)
                    self._blocks.append(weakref.ref(block))

    def _free_blocks(self) -> None:
        for block in (reference() for reference in self._blocks):
            if block is not None and isinstance(vars(block).get(SLOT), BlockCall):
                del vars(block)[SLOT]
        self._blocks.clear()

    def compile_anew(self) -> None:
        """Recompile if compiled: a value baked into compiled code has changed, and dynamo has no
        guard for it.
        """
        mode = self.mode
        if mode is not None:
            self.set_mode(None)
            self.set_mode(mode)

    def take_out_of_graphs(self) -> None:
        """Copy ``.grad`` and the latest outputs out of CUDA graph memory, which is about to be
        freed; the job may still read both, or accumulate into the former. Views it made of an
        output are not found.
        """
        if not self.uses_graphs:
            return
        gradients = (parameter.grad for parameter in self._entry.module.parameters())
        outputs = (reference() for reference in self._outputs)
        for tensor in (*gradients, *outputs):
            if tensor is not None:
                # torch refuses to read one that a later replay has overwritten
                with suppress(RuntimeError):
                    tensor.data = tensor.data.clone()
        self._outputs.clear()

    def graphs(self) -> int:
        return 0 if self.mode is None else dynamo_graphs() - self._graphs_before

    def _keep_random_stream(self, compiled: bool) -> None:
        """Make compiled code draw the same random numbers as eager code: losses then compare step
        by step.

        Dropout may be a function call that no module shows, so this is set whatever the model is
        made of. Code that draws nothing is unaffected.
        """
        import torch._inductor.config as config

        live = self._live
        if compiled:
            if live.own_fallback_random is None:
                live.own_fallback_random = config.fallback_random
            config.fallback_random = True
        elif live.own_fallback_random is not None and not any(
            e.compiled for e in live.entries if e is not self._entry
        ):
            config.fallback_random, live.own_fallback_random = live.own_fallback_random, None


def _is_compilers(error: Exception) -> bool:
    """Whether ``error`` comes from compiling, not from the job's own code."""
    return isinstance(error, sys.modules["torch._dynamo.exc"].TorchDynamoException)


def compile_notes(entries: Sequence[Entry]) -> dict[str, Any]:
    """What dynamo counted since a knob compiled ``entries``: graphs and graph breaks. Empty if none
    is compiled.
    """
    if not any(entry.compiled for entry in entries):
        return {}
    counters = sys.modules["torch._dynamo.utils"].counters
    return {
        "unique_graphs": dynamo_graphs(),
        "graph_breaks": int(sum(counters["graph_break"].values())),
    }


def _called_parts(module: Any) -> tuple[tuple[int, ...], bool, Any]:
    """What a call of ``module`` runs: the numbers of its hooks, whether there are hooks on all
    modules, and a forward set on the instance. Cheap: runs in every compiled call.
    """
    attributes = vars(module)
    own_hooks = (
        *attributes.get("_forward_hooks", ()),
        *attributes.get("_forward_pre_hooks", ()),
        *attributes.get("_backward_hooks", ()),
        *attributes.get("_backward_pre_hooks", ()),
    )
    any_hooks = sys.modules["torch.nn.modules.module"]._has_any_global_hook()
    return own_hooks, bool(any_hooks), attributes.get("forward")
