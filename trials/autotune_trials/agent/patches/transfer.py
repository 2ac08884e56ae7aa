"""Host-to-device copies: how long they take, ``non_blocking``, and copies made ahead. CUDA only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune_trials.agent.patches.patch_set import Patch, PatchSet

if TYPE_CHECKING:
    from autotune_trials.agent.loop.transfers import Transfers

NAMES = ("Tensor.to", "Tensor.cuda")


def install(patches: PatchSet, torch: Any, transfers: Transfers) -> None:
    """Watch ``Tensor.to`` and ``Tensor.cuda`` called on CPU tensors.

    torch passes ``__torch_function__`` of a Tensor subclass what it finds in the class, and some
    compare it (torchvision's TVTensor): they must find torch's own.
    """
    plain = (torch.Tensor, torch.nn.Parameter)

    def make(patch: Patch, original: Any) -> Any:
        def move(self: Any, *args: Any, **kwargs: Any) -> Any:
            # dynamo traces a compiled model with fake tensors
            if not patch.active or type(self).__name__ in ("FakeTensor", "FunctionalTensor"):
                return original(self, *args, **kwargs)
            call = original if type(self) in plain else unseen
            if self.is_cuda or not _target_is_cuda(patch.attribute, args, kwargs):
                return call(self, *args, **kwargs)
            return transfers.copy(call, patch.attribute, self, args, kwargs)

        def unseen(*args: Any, **kwargs: Any) -> Any:
            with patches.suspended(*NAMES):
                return original(*args, **kwargs)

        return move

    for name in NAMES:
        patches.add(name, torch.Tensor, name.removeprefix("Tensor."), make)


def _target_is_cuda(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if method == "cuda":
        return True
    target = kwargs.get("device", args[0] if args else kwargs.get("other"))
    target = getattr(target, "device", target)  # .to(other_tensor)
    return isinstance(target, int) or str(target).startswith("cuda")


def with_flag(
    args: tuple[Any, ...], kwargs: dict[str, Any], on: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's arguments with ``non_blocking=on``; if the job passed the flag by position, it is
    replaced there.

    Positions: ``to(device, dtype, non_blocking)`` (``to(device, non_blocking)`` is not valid);
    ``cuda(device, non_blocking)``.
    """
    for index, value in enumerate(args):
        if isinstance(value, bool) and index > 0:
            return (*args[:index], on, *args[index + 1 :]), kwargs
    return args, {**kwargs, "non_blocking": on}
