"""The operator table: calls of a trace grouped by operator, shapes and types, with their work.

row = all identical calls: times, kernels, FLOPs and bytes per call
self time: on the device if there is one, otherwise on the CPU, without the operators it called
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from autotune.explain.flops import PRODUCT_KERNEL, PRODUCTS_INSIDE, Kind, Work, hands_on, kind, work
from autotune.explain.records import Operator
from autotune.explain.roofline import HANDED_ON
from autotune.explain.trace import Copy, Kernel, Op, Shape, Signature, Trace

KERNELS = 3  # named in a row
LONGEST_SHAPES = 400  # characters: an optimizer step over a thousand tensors has a thousand shapes
GRADIENT = "torch::autograd::AccumulateGrad"


@dataclass
class _Group:
    name: str
    shapes: str
    dtypes: str
    self_s: list[float] = field(default_factory=list)
    total_s: float = 0.0
    cpu_s: float = 0.0
    device_s: float = 0.0
    counted: list[Work] = field(default_factory=list)  # one per call that did its own work
    inner: str = ""  # an operator that did the work of the other calls
    kernels: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def operators(trace: Trace) -> tuple[Operator, ...]:
    """The operators of a trace, the costliest first."""
    ops, on_device, list_dtype = trace.ops, trace.on_device, _parameter_dtype(trace)
    inner = _inner(ops)
    device_total_s = _device_totals(ops) if on_device else []
    works: dict[int, Work] = {}
    groups: dict[tuple[object, ...], _Group] = {}
    places: list[_Group] = []
    for place, op in enumerate(ops):
        signature = op.signature
        key = (signature.name, signature.shapes, signature.dtypes)
        group = groups.get(key)
        if group is None:
            group = groups[key] = _Group(signature.name, *_words(signature))
        places.append(group)
        group.self_s.append(op.device_s if on_device else op.self_s)
        group.total_s += device_total_s[place] if on_device else op.duration_s
        group.cpu_s += op.self_s
        group.device_s += op.device_s
        if inner[place]:
            group.inner = inner[place]
        else:
            if id(signature) not in works:
                works[id(signature)] = work(signature, list_dtype)
            group.counted.append(works[id(signature)])
    launched: list[Kernel | Copy] = [*trace.kernels, *trace.copies]
    for each in launched:
        if each.op >= 0:
            places[each.op].kernels[each.name] += each.duration_s
    whole_s = sum(sum(group.self_s) for group in groups.values()) or 1.0
    rows = (_row(group, whole_s) for group in groups.values())
    return tuple(sorted(rows, key=lambda row: (-row.self_time_s, -row.self_cpu_s)))


def _row(group: _Group, whole_s: float) -> Operator:
    calls, self_s = len(group.self_s), sum(group.self_s)
    unknown = next((w.why for w in group.counted if w.why), "")
    flops = nbytes = None
    if not group.counted:
        unknown = f"{HANDED_ON} {group.inner} it calls"
    elif not unknown:
        flops = sum(w.flops or 0.0 for w in group.counted) / calls
        nbytes = sum(w.nbytes or 0.0 for w in group.counted) / calls
    if flops is None and any(map(PRODUCT_KERNEL.search, group.kernels)):
        unknown = f"{unknown}; {PRODUCTS_INSIDE}"
    kernels = sorted(group.kernels, key=lambda k: -group.kernels[k])[:KERNELS]
    return Operator(
        name=group.name,
        shapes=group.shapes,
        dtypes=group.dtypes,
        calls=calls,
        self_time_s=self_s,
        share=self_s / whole_s,
        total_time_s=group.total_s,
        mean_s=self_s / calls,
        min_s=min(group.self_s),
        max_s=max(group.self_s),
        self_cpu_s=group.cpu_s,
        self_device_s=group.device_s,
        kernels=tuple(kernels),
        flops=flops,
        nbytes=nbytes,
        intensity=flops / nbytes if flops is not None and nbytes else None,
        why=unknown,
    )


def _inner(ops: Sequence[Op]) -> list[str]:
    """For each operator that delegates its work, one that does it; "" for those that do their own.

    Copies made on the way do not count: a product that first makes its operand contiguous is still
    the product.
    """
    found = [""] * len(ops)
    for op in ops:
        own, outer = kind(op.name), op.parent
        while own is not None and outer >= 0:
            theirs = kind(ops[outer].name)
            if hands_on(ops[outer].name) or (
                own is Kind.PRODUCT if theirs is None else theirs <= own
            ):
                found[outer] = op.name
            outer = ops[outer].parent
    return found


def _device_totals(ops: Sequence[Op]) -> list[float]:
    totals = [op.device_s for op in ops]
    # operators are in order of start: an inner one comes after its outer one
    for place in range(len(ops) - 1, -1, -1):
        if ops[place].parent >= 0:
            totals[ops[place].parent] += totals[place]
    return totals


def _parameter_dtype(trace: Trace) -> str:
    """The type of all gradients; "" if they are of several types, or there are none.

    In an optimizer's step, lists of tensors, whose types a trace does not record, are lists of
    parameters.
    """
    found = {dtype for op in trace.ops if op.name == GRADIENT for _, dtype in op.signature.tensors}
    return found.pop() if len(found) == 1 else ""


def _words(signature: Signature) -> tuple[str, str]:
    """Shapes and types of the tensor arguments: ``[64, 3, 32, 32] [16, 3, 3, 3]``, ``float32
    float32``.
    """
    operands = [(s, d) for s, d in zip(signature.shapes, signature.dtypes) if d]
    shapes = " ".join(_shape_words(shape) for shape, _ in operands)
    if len(shapes) > LONGEST_SHAPES:
        shapes = shapes[: LONGEST_SHAPES - 1] + "…"
    return shapes, " ".join(dtype for _, dtype in operands)


def _shape_words(shape: Shape | tuple[Shape, ...]) -> str:
    return str([list(s) if isinstance(s, tuple) else s for s in shape])


def to_csv(rows: Sequence[Operator]) -> str:
    """All rows with all columns, times in seconds; cells of unknown figures are empty."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(f.name for f in fields(Operator))
    writer.writerows(_cells(row) for row in rows)
    return buffer.getvalue()


def _cells(row: Operator) -> Iterator[object]:
    for column in fields(row):
        value = getattr(row, column.name)
        yield "; ".join(value) if isinstance(value, tuple) else value
