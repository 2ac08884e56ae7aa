"""What the agent reports to the tuner: :class:`JobFacts`, the fingerprint of the job's settings, and
the settings in force.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from autotune_spaces import machine
from autotune_spaces.facts import JobFacts, ModelFacts, OptimizerFacts, ProcessFacts
from autotune_spaces.topology import as_list
from autotune_trials.agent.controls import garbage_collector
from autotune_trials.agent.controls.attention import AttentionControl
from autotune_trials.agent.controls.autocast import AutocastControl
from autotune_trials.agent.controls.garbage_collector import GcControl
from autotune_trials.agent.controls.optimizers import implementation_of
from autotune_trials.agent.controls.regional import repeated_blocks
from autotune_trials.agent.facts.dynamo import dynamo_graphs
from autotune_trials.agent.facts.parameters import parameters_of
from autotune_trials.agent.facts.ranks import backend, number, world_size

if TYPE_CHECKING:
    from autotune_trials.agent.controls.entry_modules import Entry
    from autotune_trials.agent.controls.live_job import LiveJobControl
    from autotune_trials.agent.controls.optimizers import OptimizerControl
    from autotune_trials.agent.core.agent import Agent

# Settings of a param group that choose an implementation, not a computation.
IMPLEMENTATION_SETTINGS = """
    params foreach fused capturable differentiable initial_lr param_names
""".split()

# Settings that a param group or a schedule may set to other values than the optimizer's own.
HYPERPARAMETERS = frozenset(
    """
    lr betas momentum weight_decay eps dampening nesterov alpha centered amsgrad maximize rho lambd
    t0 etas step_sizes lr_decay momentum_decay decoupled_weight_decay
    """.split()
)

# Variables by which a job may already set what a knob, or the slot it runs on, would set.
VARIABLES = """
    LD_PRELOAD PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF CUDNN_CONV_WSCAP_DBG GOMP_CPU_AFFINITY
    KMP_AFFINITY OMP_PROC_BIND OMP_PLACES NCCL_ALGO NCCL_PROTO NCCL_NVLS_ENABLE GLIBC_TUNABLES
    MALLOC_TRIM_THRESHOLD_ MALLOC_MMAP_THRESHOLD_ MALLOC_TOP_PAD_ MALLOC_MMAP_MAX_
    CUDA_VISIBLE_DEVICES
""".split()


def startup_s() -> float:
    """Seconds since this process started."""
    try:
        with open("/proc/self/stat", "rb") as stat, open("/proc/uptime", "rb") as uptime:
            started = int(stat.read().rpartition(b")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
            return max(0.0, float(uptime.read().split()[0]) - started)
    except (OSError, ValueError, IndexError):
        return 0.0


def _dtypes(agent: Agent) -> set[Any]:
    """Dtypes of the modules' and the optimizers' parameters; the latter may be copies in another
    precision.
    """
    computes = (p for entry in agent.live.entries for p in entry.module.parameters())
    return {p.dtype for p in (*computes, *agent.live.parameters())}


def _hooked(parameter: Any) -> bool:
    """Whether the job has hooks on its gradient."""
    return bool(
        parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
    )


def job_facts(agent: Agent) -> JobFacts:
    """The job as seen by the agent so far. Called at the end of warm-up, before any knob is
    touched.
    """
    torch, live = agent.torch, agent.live
    loader = agent.loaders.choice.facts
    # dynamo may have compiled something although no knob requested it
    compiles = agent.traits.compiles or (not agent.knobs.held and dynamo_graphs() > 0)
    counted = agent.samples.counted and agent.state.iterations > 0
    return JobFacts(
        pid=os.getpid(),
        device=live.device or "cpu",
        loader=loader,
        optimizers=tuple(_optimizer(c) for c in live.optimizer_controls),
        models=tuple(_model(torch, e) for e in live.entries),
        own_autocast=agent.traits.autocast,
        own_scaler=agent.traits.scaler,
        own_compile=compiles,
        # torch.compile captures its graphs again where parameters have moved
        own_graphs=agent.state.captures > 0 and not compiles,
        unsafe_to_autocast=agent.traits.unsafe_to_autocast,
        double_backward=agent.traits.double_backward,
        early_gradients=agent.state.caches_gradients
        or agent.state.other_gradients
        or any(map(_hooked, live.parameters())),
        double_precision=_dtypes(agent) == {torch.float64},
        keeps_gradients=agent.traits.keeps_gradients,
        keeps_outputs=any(entry.keeps_outputs() for entry in agent.live.entries),
        matmul_precision=_matmul_precision(torch),
        cudnn_benchmark=bool(torch.backends.cudnn.benchmark),
        cudnn_benchmark_limit=_benchmark_limit(torch),
        intra_op_threads=torch.get_num_threads(),
        backwards_per_step=_backwards_per_step(agent),
        world_size=world_size(torch),
        local_world_size=number(os.environ.get("LOCAL_WORLD_SIZE"), 0),
        backend=backend(torch),
        samples_per_step=agent.samples.total / agent.state.iterations if counted else 1.0,
        sample_unit="samples" if counted else "iterations",
        compares_samples=agent.traits.compares_samples,
        attention=tuple(sorted(live.get(AttentionControl).seen or ())),
        mixture=agent.consumption.mixture,
        unseen_loader=agent.loaders.makes_iterators if loader is None else "",
        ddp=live.built.facts(),
        sharded=any(_is_sharded(m) for e in live.entries for m in e.module.modules()),
        own_settings={**_own_settings(live), **agent.traits.settings, **_own_channels_last(live)},
        sites=agent.sites.facts(agent),
        process=process_facts(),
    )


def process_facts() -> ProcessFacts:
    try:
        import resource

        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        opened = len(os.listdir("/proc/self/fd"))
        own_gib = (resident - shared) * os.sysconf("SC_PAGE_SIZE") / 2**30
        return ProcessFacts(
            max(0.0, own_gib),
            opened,
            0 if most == resource.RLIM_INFINITY else most,
            os.uname().nodename,
            len(multiprocessing.active_children()),
        )
    except (ImportError, OSError, ValueError):  # not Linux
        return ProcessFacts()


def _backwards_per_step(agent: Agent) -> float:
    """Backwards per step, after the first iteration, which may lack a part (GANs step several
    times).
    """
    if agent.state.iterations < 2:
        return float(agent.state.backwards)
    return float(
        (agent.state.backwards - agent.state.backwards_at_first) / (agent.state.iterations - 1)
    )


def fingerprint(agent: Agent) -> dict[str, Any]:
    """Settings that must not change unless a knob declared it, as JSON data.

    Catches delayed effects that the loss does not show (weight decay × 10 has no visible effect on
    it for a long while).
    """
    live = agent.live
    modules = [m for e in live.entries for m in e.module.modules()]
    parameters = live.parameters()
    loader = agent.loaders.choice.facts
    return {
        "optimizers": [_settings(o) for o in live.optimizers],
        "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        "frozen_parameters": sum(
            p.numel() for e in live.entries for p in e.module.parameters() if not p.requires_grad
        ),
        "parameter_dtypes": dict(Counter(map(_dtype, parameters))),
        "optimizer_state_dtypes": sorted({d for o in live.optimizers for d in _state_dtypes(o)}),
        "modules_in_training": sum(m.training for m in modules),
        "modules_in_evaluation": sum(not m.training for m in modules),
        "dropout": [
            float(m.p)
            for m in modules
            if "Dropout" in type(m).__name__ and isinstance(getattr(m, "p", None), (int, float))
        ],
        "normalization": [
            [_plain(getattr(m, name, None)) for name in ("momentum", "eps")]
            for m in modules
            if hasattr(m, "running_mean")
        ],
        "loss_modules": sorted(agent.traits.loss_modules),
        "scaler": agent.traits.scaler,
        "sampler": _sampler(agent),
        "dataset": loader.dataset if loader is not None else "",
        "drop_last": loader.drop_last if loader is not None else False,
    }


def in_force(agent: Agent) -> dict[str, Any]:
    """What the job actually runs with, read back from its objects, as JSON data: the loader that
    feeds training (None if there is none), threads, optimizers, autocast, compiled graphs.
    """
    live, region = agent.live, agent.live.get(AutocastControl).region
    return {
        "loader": agent.loaders.training_source.actual_settings(),
        "intra_op_threads": int(agent.torch.get_num_threads()),
        "optimizers": [implementation_of(o.param_groups) for o in live.optimizers],
        "autocast": "off" if region.dtype is None else _dtype(region),
        "autocast_regions": region.entered,
        "compiled_graphs": sum(entry.compiled_graphs() for entry in live.entries if entry.compiled),
    }


def _sampler(agent: Agent) -> str:
    """Class name of the training loader's sampler."""
    tracked = agent.loaders.choice.loader
    loader = tracked.loader() if tracked is not None else None
    return type(loader.sampler).__name__ if loader is not None else ""


def loss_module(module: Any) -> str:
    """How a loss module called at top level appears in the fingerprint:
    "CrossEntropyLoss(mean)".
    """
    return f"{type(module).__name__}({module.reduction})"


def _optimizer(control: OptimizerControl) -> OptimizerFacts:
    optimizer = control.optimizer
    return OptimizerFacts(
        name=type(optimizer).__name__,
        implementation=control.implementation(),
        supported=control.supported(),
        lr=tuple(float(g["lr"]) for g in optimizer.param_groups if g.get("lr") is not None),
        parameters=sum(p.numel() for p in parameters_of(optimizer)),
    )


def _model(torch: Any, entry: Entry) -> ModelFacts:
    module = entry.module
    shown = getattr(module, "_orig_mod", module)  # the job's own torch.compile(model)
    kinds = [type(m).__name__ for m in module.modules()]
    return ModelFacts(
        name=type(shown).__name__,
        parameters=sum(p.numel() for p in module.parameters()),
        convolutions=sum(
            k.startswith(("Conv2d", "Conv3d", "ConvTranspose2d", "ConvTranspose3d")) for k in kinds
        ),
        convolutions_1d=sum(k.startswith(("Conv1d", "ConvTranspose1d")) for k in kinds),
        dropouts=sum(_drops(m) for m in module.modules()),
        repeated_blocks=sum(map(len, repeated_blocks(torch, module))),
        input_shapes=max(1, len(entry.shapes)),
    )


def _drops(module: Any) -> bool:
    """Whether ``module`` itself drops at random in training: a dropout layer, or one with its own
    rate.
    """
    rates = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    layer = any(
        word in type(module).__name__ for word in ("Dropout", "DropPath", "StochasticDepth")
    )
    wanted = [value for name, value in rates.items() if "drop" in name or (layer and name == "p")]
    return any(0 < value <= 1 for value in wanted) or (layer and not wanted)


def _is_sharded(module: Any) -> bool:
    """Whether FSDP shards ``module``: ``fully_shard`` gives a module a class of its own."""
    return any(
        cls.__name__ in ("FSDPModule", "FullyShardedDataParallel") for cls in type(module).__mro__
    )


def _settings(optimizer: Any) -> dict[str, Any]:
    groups = []
    for group in optimizer.param_groups:
        kept = {k: _plain(v) for k, v in group.items() if _is_setting(optimizer, k, v)}
        groups.append({**kept, "parameters": sum(p.numel() for p in group["params"])})
    return {"name": type(optimizer).__name__, "groups": groups}


def _is_setting(optimizer: Any, name: str, value: Any) -> bool:
    """Whether it is a setting, and no figure that the optimizer keeps there (Prodigy's ``d``)."""
    if name in IMPLEMENTATION_SETTINGS:
        return False
    defaults = getattr(optimizer, "defaults", None) or {}  # a wrapper may have none
    return name in HYPERPARAMETERS or _plain(value) == _plain(defaults.get(name))


def _plain(value: Any) -> Any:
    """A setting as JSON data: numbers and strings as they are, scalar tensors as numbers, anything
    else by its type name.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "item") and getattr(value, "numel", lambda: 0)() == 1:
        return value.item()
    return type(value).__name__


def _state_dtypes(optimizer: Any) -> set[str]:
    """Dtypes of the state except the step count, which is exact in any: fused kernels keep it in
    float32, the others in torch's default (torch/optim/optimizer.py, _get_scalar_dtype).
    """
    return {
        f"{key}:{_dtype(value)}"
        for state in optimizer.state.values()
        if isinstance(state, dict)
        for key, value in state.items()
        if key != "step" and hasattr(value, "dtype")
    }


def _dtype(of: Any) -> str:
    return str(of.dtype).removeprefix("torch.")


def _own_settings(live: LiveJobControl) -> dict[str, str]:
    """Settings that the job makes outside torch and knobs make, too: name -> value. Called before
    any live knob is switched; process knobs appear as the job's own settings.
    """
    found = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    found["cpus"] = as_list(machine.cpus())
    if not live.get(GcControl).changed and (call := garbage_collector.own_setting()):
        found["gc"] = call
    torch = live.torch
    if torch.are_deterministic_algorithms_enabled():
        found["deterministic"] = "torch.use_deterministic_algorithms(True)"
    elif torch.backends.cudnn.deterministic:
        found["deterministic"] = "torch.backends.cudnn.deterministic = True"
    return found


def _own_channels_last(live: LiveJobControl) -> dict[str, str]:
    """The job's own ``model.to(memory_format=torch.channels_last)``, detected by strides."""
    layout = live.torch.channels_last
    for entry in live.entries:
        weights = [p for p in entry.module.parameters() if p.dim() == 4]
        if any(not w.is_contiguous() and w.is_contiguous(memory_format=layout) for w in weights):
            return {"channels_last": type(entry.module).__name__}
    return {}


def _matmul_precision(torch: Any) -> str:
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:  # the job has used the newer settings, fp32_precision
        return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else ""


def _benchmark_limit(torch: Any) -> int:
    try:
        limit = torch.backends.cudnn.benchmark_limit
    except Exception:  # a build without cuDNN
        return 10
    return 10 if limit is None else int(limit)
