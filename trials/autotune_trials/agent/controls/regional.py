"""Regional compilation: compiles the repeated blocks of a model instead of the whole model.

Blocks that are alike share code, which is compiled once, however many of them there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any


def repeated_blocks(torch: Any, module: Any) -> list[list[Any]]:
    """The blocks that ``module`` is built of, grouped by kind.

    A block has submodules and sits in a ModuleList or Sequential with others of its class, at least
    two of which are alike: their parameters have the same shapes. Of nested blocks the outer ones
    count.

    Returns: [] if there are none, or if there are fewer than two of a kind on average.
    """
    kinds: dict[Any, list[Any]] = {}
    for block in dict.fromkeys(_blocks(torch, module)):
        kinds.setdefault(_kind(torch, block), []).append(block)
    count = sum(len(alike) for alike in kinds.values())
    return list(kinds.values()) if count >= 2 * len(kinds) else []


def _blocks(torch: Any, module: Any) -> Iterator[Any]:
    children = list(module.children())
    repeated: set[type] = set()
    if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        kinds = Counter(_kind(torch, child) for child in children if any(child.children()))
        repeated = {kind[0] for kind, count in kinds.items() if count > 1 and kind[1]}
    for child in children:
        if type(child) in repeated:
            yield child
        else:
            yield from _blocks(torch, child)


def _kind(torch: Any, module: Any) -> tuple[type, tuple[Any, ...]]:
    is_lazy = torch.nn.parameter.is_lazy  # such a parameter has no shape yet
    shapes = ((name, None if is_lazy(p) else p.shape) for name, p in module.named_parameters())
    return type(module), tuple(shapes)


def block_function(name: str) -> Callable[..., Any]:
    """The function to compile for blocks of one kind.

    Each kind gets a code object and a name of its own: dynamo counts recompilations per code
    object, and remembers by its name which shapes vary.
    """
    code = _call.__code__.replace(co_name=name)
    return FunctionType(code, _call.__globals__, code.co_name, None, None)


def _call(block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return block._call_impl(*args, **kwargs)
