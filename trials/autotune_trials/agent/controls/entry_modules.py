"""Top-level modules the job calls in training: compilation, memory format and autocast act on them.

An entry sits in the module's ``_compiled_call_impl`` slot, which ``Module.__call__`` checks first,
and which torch itself leaves out of copies and pickles (EMA copies, ``torch.save(model)``).
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from autotune_spaces.knobs.compile_mode import CUDA_GRAPHS, REGIONAL, arguments
from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.controls.optimizer_copy import parameters_of
from autotune_trials.agent.controls.optimizers import lay_out_states
from autotune_trials.agent.controls.regional import block_function, repeated_blocks
from autotune_trials.agent.loop.batches import tensors_of
from autotune_trials.agent.patches.patch_set import UNTRACED

if TYPE_CHECKING:
    from autotune_trials.agent.controls.live_job import LiveJobControl

SLOT = "_compiled_call_impl"
# Patches dynamo must not trace. Those of ``Tensor`` stay: writing to that class in every compiled
# call would cost all later look-ups in it, and they let fake tensors through.
TRACED = ("Module.__call__", "autocast.__enter__")
OWN_USERS = 2  # of a parameter's storage
FADING = 3  # iterations after a switch in which the job may hold tensors of the old dtype
OUTPUTS_KEPT = 64  # latest output tensors, to be copied out of a CUDA graph's memory
RECORDED = 3  # calls until a CUDA graph has been warmed up, recorded and replayed


class SlotCall:
    """What ``Module.__call__`` finds in the slot. Copied or pickled it becomes None, the slot's
    default.
    """

    _torchdynamo_disable = True
    _torchdynamo_disable_msg = UNTRACED

    def __init__(self, live: LiveJobControl) -> None:
        self._patches, self._state, self._loop = live.patches, live.state, live.loop
        self._computes_gradients = live.torch.is_grad_enabled
        self._anything_trainable = live.anything_trainable
        self._exporting = live.torch.compiler.is_dynamo_compiling
        self._tracing = live.torch.jit.is_tracing

    def _clone(self, module: Any) -> Any | None:
        """The called module if it is a clone that shares this slot because it was made from the
        module's ``__dict__`` (learn2learn, DataParallel); else None.
        """
        if self._exporting():  # torch.export traces this and cannot handle a frame
            return None
        called: Any = sys._getframe(2).f_locals.get("self")
        return called if called is not module and getattr(called, SLOT, None) is self else None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


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
                return entry.in_own_layout(module._call_impl(*args, **kwargs))
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
        self._call: Any = lambda: None  # weak reference to our object in the slot
        self._mode: str | None = None
        self._worked = 0  # calls of the compiled forward that have worked
        # (iteration, storages) of its latest outputs during warm-up
        self._past: deque[tuple[int, list[Any]]] = deque(maxlen=OUTPUTS_KEPT)
        self._graphs_before = 0
        self._blocks: list[weakref.ref[Any]] = []  # blocks compiled one by one
        # latest outputs of CUDA graphs
        self._outputs: deque[weakref.ref[Any]] = deque(maxlen=OUTPUTS_KEPT)
        self.shapes: set[tuple[Any, ...]] = set()  # of its inputs during warm-up
        # parameters whose layout we changed, weakly, and the job's own strides
        self._own_strides: dict[int, tuple[Callable[[], Any], tuple[int, ...]]] = {}
        self._channels_last = False
        self._hooks: list[Any] = []  # on the optimizers' state dicts, meanwhile
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
        return self._mode is not None

    @property
    def uses_graphs(self) -> bool:
        return self._mode in CUDA_GRAPHS

    @property
    def changed(self) -> bool:
        """Whether a knob changes how it computes."""
        return self._mode is not None or self._channels_last

    def rewritten(self) -> bool:
        """Whether its weights were changed in place since the last question, as told by the first."""
        first = next(iter(self.module.parameters()), None)
        before, self._written = self._written, 0
        if first is not None and not first.is_inference():  # those count nothing
            self._written = first._version
        return before != self._written

    def install(self) -> bool:
        """Take the slot, unless the job's own ``module.compile()`` holds it. Idempotent."""
        present = vars(self.module).get(SLOT)
        if present is None:
            present = vars(self.module)[SLOT] = EntryCall(self, self._live)
            self._call = weakref.ref(present)
        return present is self._call()

    def remove(self) -> None:
        """Restore the job's own settings and leave the slot."""
        if self.alive:
            self.set_compiled(None)
            self.set_channels_last(False)
        self.release()

    def release(self) -> None:
        """Only leave the slot (the job is about to compile the module itself)."""
        module, call = self.module, self._call()
        if module is not None and call is not None and vars(module).get(SLOT) is call:
            del vars(module)[SLOT]

    # ------------------------------------------------------------------ calling

    def run(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the module's forward as the knobs want it; the caller keeps the module alive."""
        if self._fading is not None:
            args, kwargs = self._in_own_dtype((args, kwargs))
        if self._channels_last:
            args = tuple(self._laid_out(a) for a in args)
            kwargs = {k: self._laid_out(v) for k, v in kwargs.items()}
        if self._mode is None:
            result = module._call_impl(*args, **kwargs)
            if self._live.state.iterations < self._live.config.warmup_steps:
                self._note_past(module, (args, kwargs), result)
            return result
        with self._live.patches.suspended(*TRACED):
            return self._compiled_run(args, kwargs)

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

    def _compiled_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the compiled forward; the first call and new shapes compile. If the compiler fails,
        report it and run uncompiled: a knob must not end the job.
        """
        if self._mode != REGIONAL:
            call, parts = self._call(), _called_parts(self.module)
            if parts not in (call.compiled_with, call.called_with):  # perhaps for this call only
                call.called_with = parts
                return self.module._call_impl(*args, **kwargs)
            if parts != call.compiled_with:
                self.compile_anew()
        try:
            result = self._call().compiled(*args, **kwargs)
        except Exception as error:
            proven = self._worked >= (RECORDED if self.uses_graphs else 1)
            if is_out_of_memory(error) or (proven and not _is_compilers(error)):
                raise
            for entry in self._live.entries:
                entry.take_out_of_graphs()
            mode, self._mode, self._call().compiled = self._mode, None, None
            # Frees the memory of graphs; not while another entry's backward may still need them.
            if not any(entry.uses_graphs for entry in self._live.entries):
                sys.modules["torch._dynamo"].reset()
            self._free_blocks()
            self._keep_random_stream(False)
            self._live.loop.fail_knob(
                f"compile_mode: {mode}: {type(error).__name__}: {str(error)[:300]}"
            )
            return self.module._call_impl(*args, **kwargs)
        self._worked += 1
        if self.uses_graphs:
            self._note_outputs(result)
        return result

    def _note_outputs(self, result: Any) -> None:
        self._outputs.extend(weakref.ref(x) for x in self._tensors(result))

    def _tensors(self, tree: Any) -> list[Any]:
        from torch.utils._pytree import tree_leaves

        return [x for x in tree_leaves(tree) if isinstance(x, self._torch.Tensor)]

    def _note_past(self, module: Any, inputs: Any, result: Any) -> None:
        """Note the storages of ``result`` that are new, to see later whether the job keeps them."""
        from torch.multiprocessing.reductions import StorageWeakRef

        try:
            known = [*module.parameters(), *module.buffers(), *self._tensors(inputs)]
            old = {_memory(t)[0] for t in known}
            made = [t.untyped_storage() for t in self._tensors(result)]
            references = [StorageWeakRef(s) for s in made if s._cdata not in old]
            self._past.append((self._live.state.iterations, references))
        except NotImplementedError:  # inside a transform of torch.func tensors have no storage
            pass
        except Exception:  # a class of tensors that has none
            log.write_exception("outputs")

    def keeps_outputs(self) -> bool:
        """Whether an output of an iteration before the last still exists: a replayed CUDA graph
        would overwrite it.
        """
        before = self._live.state.iterations - 1
        return any(
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

    # ------------------------------------------------------------------ compiling

    def set_compiled(self, mode: str | None) -> None:
        if mode == self._mode:
            return
        import torch._dynamo

        if self._mode is not None:
            for entry in self._live.entries:
                entry.take_out_of_graphs()
            # After some variants dynamo silently stops compiling; and one mode's code must not
            # serve another.
            torch._dynamo.reset()
        self._free_blocks()
        call, self._mode, self._worked = self._call(), mode, 0
        if call is None:
            self._mode = mode = None  # the job has put something of its own in the slot
        else:
            call.compiled = None
        self._keep_random_stream(mode is not None)
        if mode is None:
            return
        if not any(entry.compiled for entry in self._live.entries if entry is not self):
            torch._dynamo.utils.counters.clear()
        self._graphs_before = dynamo_graphs()
        self._live.before_compile()
        module = self.module
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
        return self._live.entries.index(self)

    def _compile_blocks(self, compile: Any) -> None:
        for kind, alike in enumerate(repeated_blocks(self._torch, self.module)):
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
        mode = self._mode
        if mode is not None:
            self.set_compiled(None)
            self.set_compiled(mode)

    def take_out_of_graphs(self) -> None:
        """Copy ``.grad`` and the latest outputs out of CUDA graph memory, which is about to be
        freed; the job may still read both, or accumulate into the former. Views it made of an
        output are not found.
        """
        if not self.uses_graphs:
            return
        gradients = (parameter.grad for parameter in self.module.parameters())
        outputs = (reference() for reference in self._outputs)
        for tensor in (*gradients, *outputs):
            if tensor is not None:
                # torch refuses to read one that a later replay has overwritten
                with suppress(RuntimeError):
                    tensor.data = tensor.data.clone()
        self._outputs.clear()

    def compiled_graphs(self) -> int:
        return 0 if self._mode is None else dynamo_graphs() - self._graphs_before

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
            e.compiled for e in live.entries if e is not self
        ):
            config.fallback_random, live.own_fallback_random = live.own_fallback_random, None

    # ------------------------------------------------------------------ memory format

    def set_channels_last(self, on: bool) -> None:
        if on == self._channels_last:
            return
        if on:
            # raises for a lazy layer without weights yet; the next attempt finds them
            movable = self._movable()
            self._channels_last = True
            for parameter in movable:
                wanted = self._format_of(parameter)
                if (
                    wanted is not None
                    and parameter.data.to(memory_format=wanted).stride() != parameter.stride()
                ):
                    own = weakref.ref(parameter), tuple(parameter.stride())
                    self._own_strides[id(parameter)] = own
                    self._relay(parameter, lambda t, f=wanted: t.to(memory_format=f))
            for optimizer in self._live.every_optimizer():
                self.optimizer_built(optimizer)
            return
        self._channels_last = False
        while self._hooks:
            self._hooks.pop().remove()
        for parameter, strides in self._relaid():
            self._relay(parameter, lambda t, s=strides: _with_strides(self._torch, t, s))
        self._own_strides.clear()

    def optimizer_built(self, optimizer: Any) -> None:
        if self._channels_last:
            self._hooks += [
                optimizer.register_state_dict_post_hook(self._state_in_own_layout),
                optimizer.register_load_state_dict_post_hook(partial(lay_out_states, self._torch)),
            ]

    def in_own_layout(self, result: Any) -> Any:
        """What the module returns in evaluation, in the job's own layout: code that runs only there
        (``view(-1)`` in a metric) may be out of reach of the trials.
        """
        if not self._channels_last:
            return result
        from torch.utils._pytree import tree_map_only

        return tree_map_only(
            self._torch.Tensor,
            lambda t: t if self._format_of(t) is None or t.is_sparse else t.contiguous(),
            result,
        )

    def _movable(self) -> list[Any]:
        """Parameters with memory of their own. One that shares it with another tensor (a tied
        weight, the flat tensor that the optimizer steps, a state dict that the job keeps, that of
        other processes) would lose that link if moved.
        """
        parameters = list(self.module.parameters())
        mine = {id(p) for p in parameters}
        stepped = [p for o in self._live.every_optimizer() for p in parameters_of(o)]
        taken = {_memory(p)[0] for p in stepped if id(p) not in mine}
        places = Counter(_memory(p) for p in parameters)
        return [
            p
            for p in parameters
            if places[_memory(p)] == 1
            and _memory(p)[0] not in taken
            and not self._shared(p)
            and (p.is_cuda or not p.is_shared())
        ]

    def _relaid(self) -> list[tuple[Any, tuple[int, ...]]]:
        """(parameter, the job's own strides) of those that still exist."""
        found = ((reference(), strides) for reference, strides in self._own_strides.values())
        return [(parameter, strides) for parameter, strides in found if parameter is not None]

    def _shared(self, parameter: Any) -> bool:
        """Whether another tensor, or a numpy array, uses its memory."""
        users = getattr(self._torch._C, "_storage_Use_Count", None)
        # the parameter's own, and that of the Python object that is asked
        return users is not None and users(parameter.untyped_storage()._cdata) > OWN_USERS

    def _relay(self, parameter: Any, convert: Any) -> None:
        """Convert the layout of ``parameter``, its gradient and its optimizer state (momenta); the
        Parameter object stays.
        """
        with self._torch.no_grad():
            parameter.data = convert(parameter.data)
            if parameter.grad is not None and parameter.grad.layout == self._torch.strided:
                parameter.grad.data = convert(parameter.grad.data)
            for optimizer in self._live.every_optimizer():
                state: dict[str, Any] = optimizer.state.get(parameter, {})
                for key, value in list(state.items()):
                    if isinstance(value, self._torch.Tensor) and value.shape == parameter.shape:
                        state[key] = convert(value)

    def _state_in_own_layout(self, optimizer: Any, saved: dict[str, Any]) -> dict[str, Any]:
        """``saved``, a state dict, with momenta in the job's own layout. torch's fused kernels take
        them to be laid out like the parameter, and whoever loads it may have no agent.
        """
        state = dict(saved["state"])
        for index, parameter in enumerate(parameters_of(optimizer)):
            own = self._own_strides.get(id(parameter))
            if own is not None and index in state:
                state[index] = {
                    key: _with_strides(self._torch, value, own[1])
                    if isinstance(value, self._torch.Tensor) and value.shape == parameter.shape
                    else value
                    for key, value in state[index].items()
                }
        return {**saved, "state": state}

    def _laid_out(self, value: Any) -> Any:
        """``value`` in its channels-last format, by ``to(memory_format=…)`` as users write it: with
        one channel ``contiguous`` would leave the strides alone.
        """
        if isinstance(value, self._torch.Tensor) and value.layout == self._torch.strided:
            wanted = self._format_of(value)
            if wanted is not None:
                return value.to(memory_format=wanted)
        return value

    def _format_of(self, tensor: Any) -> Any:
        dimensions = tensor.dim()
        if dimensions == 4:
            return self._torch.channels_last
        return self._torch.channels_last_3d if dimensions == 5 else None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` means out of memory, on the device or the host."""
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text
        or "_alloc_failed" in text  # cuBLAS
        or "_allocation_failed" in text  # cuDNN 9
        or "can't allocate memory" in text
        or "cannot allocate memory" in text
    )


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


def dynamo_graphs() -> int:
    """Graphs that dynamo has compiled, whoever asked for it; 0 if it is not in use."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0


def _memory(tensor: Any) -> tuple[int, int]:
    """(storage, offset in it): equal for tensors over the same memory. No address: a DTensor has
    none.
    """
    return int(tensor.untyped_storage()._cdata), int(tensor.storage_offset())


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


def _with_strides(torch: Any, tensor: Any, strides: tuple[int, ...]) -> Any:
    return torch.empty_strided(
        tensor.shape, strides, dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)
