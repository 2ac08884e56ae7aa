"""Tensor subclasses are told of torch's own ``to`` and ``cuda`` while these are watched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from autotune_trials.agent.patches import transfer
from autotune_trials.agent.patches.patch_set import PatchSet

OWN = {torch.Tensor.to, torch.Tensor.cuda}  # as torchvision keeps them from its import on


class Boxes(torch.Tensor):
    """Keeps its type as torchvision's TVTensor does."""

    asked: list[Any] = []

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in OWN:
            cls.asked.append(function)
            return args[0]  # there is no GPU here
        return super().__torch_function__(function, types, args, kwargs or {})


def test_a_subclass_is_told_of_torchs_own_functions() -> None:
    patches, copied = PatchSet(), []

    def copy(original: Any, method: str, tensor: Any, args: Any, kwargs: Any) -> Any:
        copied.append(method)
        return original(tensor, *args, **kwargs)

    transfer.install(patches, torch, SimpleNamespace(copy=copy))  # type: ignore[arg-type]
    try:
        boxes = torch.ones(4).as_subclass(Boxes)
        assert boxes.to("cuda") is boxes and boxes.cuda() is boxes
        assert boxes.to(torch.float64) is boxes, "no copy to a GPU"
        assert copied == ["to", "cuda"] and len(Boxes.asked) == 3
        assert torch.Tensor.to not in OWN
    finally:
        patches.restore_all()
    assert torch.Tensor.to in OWN
