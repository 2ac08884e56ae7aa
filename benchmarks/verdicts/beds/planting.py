"""What can be planted into a bed: ``--plant WORD,WORD``. Without a word, no method here changes the
job.

    plant = planting.from_arguments()
    loader = plant.loader(data, batch_size=32)
    net = plant.model(Net(dropout=plant.dropout(0.1)), head="head")
    optimizer = plant.optimizer(torch.optim.AdamW(net.parameters()))
    for inputs, targets in loader:
        with plant.forward():                        other arithmetic, other random numbers
            loss = loss_function(net(plant.inputs(inputs)), targets)
        optimizer.zero_grad()
        plant.loss(loss).backward()                  gradients are changed inside backward
        plant.before_step()
        optimizer.step()

What a wrong setting would do inside torch is planted inside torch's own calls: ``backward`` returns
wrong gradients, and the learning rate or momentum differs only inside ``step``, so that no setting
of the job shows it. The words marked "shows" do change visible settings of the job.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from number_formats import Float16, RoundedProducts, format_of
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

WORDS = {
    "lr-x2": "the step is taken with twice the learning rate",
    "lr-half": "the step is taken with half the learning rate",
    "fp16": (
        "fp16=SCALE: operands and gradients of products rounded to float16 under this loss scale,"
        " flushed to zero"
    ),
    "tf32": "operands and gradients of products rounded to 10 bits",
    "head-dropped": "the head's gradients come out as zeros",
    "stale": "each gradient is the one of the step before",
    "quarter": "gradients come out four times too small",
    "skip-fourth": "every fourth step has no gradients and changes nothing",
    "momentum-0": "the step is taken without momentum",
    "late": "late=STEP: lr-x2, lr-half, stale and quarter begin at that step",
    "nan-50": "the loss of step 50 is not a number",
    "sorted": "samples come sorted by their target, from a sampler that looks like the usual one",
    "dropout-hidden": "dropout does nothing although its p is as before",
    "dropout-off": "dropout p = 0 (shows)",
    "dropout-x3": "dropout p three times as high (shows)",
    "wd-x10": "weight decay ten times as high (shows)",
    "frozen-head": "the head is not trained (shows)",
    "bf16-weights": "parameters are bfloat16 (shows)",
    "jitter-inputs": "inputs changed by 1e-6 of themselves",
    "jitter-weights": "initial weights changed by 1e-6 of themselves",
    "dropout-stream": "other random numbers in the forward pass",
    "augmentation-stream": "other random numbers in the augmentation",
}
JITTER = 1e-6
ANOTHER_STREAM = 987_654_321


def from_arguments(argv: Sequence[str] | None = None) -> Plant:
    """The plant requested on the bed's command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plant", default="", help="words, comma separated: " + ", ".join(WORDS))
    return Plant(tuple(w for w in parser.parse_args(argv).plant.split(",") if w))


class Plant:
    """See the module's docstring.

    Raises:
        ValueError: a word that is not in :data:`WORDS`.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = dict(word.partition("=")[::2] for word in words)
        unknown = sorted(set(self.words) - set(WORDS))
        if unknown:
            raise ValueError(f"cannot plant {', '.join(unknown)}; known are {', '.join(WORDS)}")
        self._step, self._begins = 0, int(self.words.get("late", 0))
        self._parameters: list[nn.Parameter] = []
        # draws nothing from the job's stream
        self._own = torch.Generator().manual_seed(ANOTHER_STREAM)
        self._other_stream: Any = None
        self._format = format_of(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self.words

    # ------------------------------------------------------------------ the parts of the job

    def dropout(self, p: float) -> float:
        return 0.0 if "dropout-off" in self else min(3 * p, 0.9) if "dropout-x3" in self else p

    def loader(self, data: Dataset[Any], *, keys: Any = None, **settings: Any) -> DataLoader[Any]:
        """A shuffling loader of ``data``; ``keys``: one per sample, which "sorted" sorts by."""
        if "sorted" in self:
            return DataLoader(
                data, sampler=RandomSampler(torch.argsort(keys, stable=True).tolist()), **settings
            )
        return DataLoader(data, shuffle=True, **settings)

    def model(self, model: nn.Module, head: str) -> Any:
        """``model`` with what is planted into it; ``head``: name of its last layer."""
        with torch.no_grad():
            for parameter in model.parameters() if "jitter-weights" in self else ():
                parameter.mul_(1 + JITTER * torch.randn(parameter.shape, generator=self._own))
        last = list(model.get_submodule(head).parameters())
        for parameter in last if "frozen-head" in self else ():
            parameter.requires_grad_(False)
        for parameter in last if "head-dropped" in self else ():
            parameter.register_post_accumulate_grad_hook(_zero)
        if "bf16-weights" in self:
            model.bfloat16()
        for module in model.modules() if "dropout-hidden" in self else ():
            if isinstance(module, nn.Dropout):
                module.forward = _identity
        return model

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        self._parameters = [
            p for g in optimizer.param_groups for p in g["params"] if p.requires_grad
        ]
        for group in optimizer.param_groups:
            group["weight_decay"] *= 10 if "wd-x10" in self else 1
        if "lr-x2" in self or "lr-half" in self:
            factor = 2.0 if "lr-x2" in self else 0.5
            _inside_step(
                optimizer, lambda group: {"lr": group["lr"] * (factor if self._acting() else 1)}
            )
        if "momentum-0" in self:
            _inside_step(optimizer, _without_momentum)
        for parameter in self._parameters:
            if "stale" in self:
                parameter.register_post_accumulate_grad_hook(_Stale(self._acting))
            if "quarter" in self:
                parameter.register_post_accumulate_grad_hook(self._quarter)
        return optimizer

    def _acting(self) -> bool:
        return self._step >= self._begins

    def _quarter(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        if self._acting():
            parameter.grad.mul_(0.25)

    # ------------------------------------------------------------------ the parts of each step

    def augmenting(self, stream: Any) -> None:
        """Call before augmenting a sample with random numbers from ``stream`` (``random`` or a
        ``random.Random``).
        """
        if "augmentation-stream" in self:
            stream.random()  # changes all later numbers

    def inputs(self, inputs: torch.Tensor) -> torch.Tensor:
        if not inputs.is_floating_point():
            return inputs
        if "jitter-inputs" in self:
            inputs = inputs * (1 + JITTER * torch.randn(inputs.shape, generator=self._own))
        return inputs.bfloat16() if "bf16-weights" in self else inputs

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Around the forward pass and the loss."""
        if self._format is None and "dropout-stream" not in self:
            yield
            return
        stream = torch.get_rng_state() if "dropout-stream" in self else None
        if stream is not None:
            torch.set_rng_state(self._another(stream))
        try:
            if self._format is None:
                yield
            else:
                with RoundedProducts(self._format):
                    yield
        finally:
            if stream is not None:
                self._other_stream = torch.get_rng_state()
                torch.set_rng_state(stream)

    def loss(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * float("nan") if "nan-50" in self and self._step == 49 else loss

    def before_step(self) -> None:
        """Between ``backward`` and ``optimizer.step``."""
        self._step += 1
        if "skip-fourth" in self and self._step % 4 == 0:
            for parameter in self._parameters:
                parameter.grad = None
        if isinstance(self._format, Float16):
            self._format.report()

    def _another(self, stream: Any) -> Any:
        """The other random stream, seeded from the job's own."""
        if self._other_stream is None:
            own = torch.Generator()
            own.set_state(stream)
            own.manual_seed((own.initial_seed() + ANOTHER_STREAM) % 2**31)
            self._other_stream = own.get_state()
        return self._other_stream


class RandomSampler(Sampler[int]):
    """Not random: a fixed order under the usual sampler's name."""

    def __init__(self, order: list[int]) -> None:
        self.order = order

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


class _Stale:
    """A hook on one parameter that replaces its gradient by the previous step's (except at the
    first step).
    """

    def __init__(self, acting: Callable[[], bool]) -> None:
        self._before: torch.Tensor | None = None
        self._acting = acting

    def __call__(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        new = parameter.grad.clone()
        if self._before is not None and self._acting():
            parameter.grad.copy_(self._before)
        self._before = new


def _zero(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.zero_()


def _identity(inputs: torch.Tensor) -> torch.Tensor:
    return inputs


def _without_momentum(group: dict[str, Any]) -> dict[str, Any]:
    if "momentum" in group:
        return {"momentum": 0.0, "nesterov": False}
    return {"betas": (0.0, group["betas"][1])}


def _inside_step(
    optimizer: torch.optim.Optimizer, changed: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Change settings only while the optimizer steps."""
    kept: list[dict[str, Any]] = []

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            new = changed(group)
            kept.append({name: group[name] for name in new})
            group.update(new)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        for group, own in zip(optimizer.param_groups, kept, strict=True):
            group.update(own)
        kept.clear()

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
