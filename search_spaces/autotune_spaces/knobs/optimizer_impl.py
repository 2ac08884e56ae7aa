"""Which implementation the optimizer's step uses."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_spaces.base import Card, Knob, LiveJob, NotApplicable, Numerics, Scope, Value
from autotune_spaces.facts import JobFacts, Machine

WORDS = ("for-loop", "foreach", "fused")
OWN = "default"  # the job requests none, or its optimizers differ


class OptimizerImpl(Knob):
    name = "optimizer_impl"
    scope = Scope.LIVE
    numerics = Numerics.ROUNDING
    example = "fused"
    allowed = (OWN, *WORDS)
    range = "default, for-loop, foreach, fused"
    card = Card(
        what=(
            "How the parameters are updated: one by one (for-loop), many at a time"
            " (foreach), or all in one kernel (fused). default is what torch picks:"
            " foreach on CUDA, for-loop on a CPU."
        ),
        when_it_helps=(
            "Many small parameters, so that the step takes a visible part of the iteration."
        ),
        when_it_does_not=(
            "The step is short compared with forward and backward. Optimizers outside"
            " torch.optim have only their own implementation."
        ),
        changes_loss="The same formula, rounded differently. The loss check covers it.",
        source="https://docs.pytorch.org/docs/stable/optim.html#algorithms",
    )

    def current(self, machine: Machine, job: JobFacts) -> Value:
        implementations = {o.implementation for o in job.optimizers}
        return implementations.pop() if len(implementations) == 1 else OWN

    def candidates(self, machine: Machine, job: JobFacts) -> Sequence[Value]:
        if not job.optimizers:
            raise NotApplicable("no torch.optim optimizer was seen")
        usable = [word for word in WORDS if self.unusable(word, machine, job) is None]
        if (
            self.current(machine, job) == OWN
            and len({o.implementation for o in job.optimizers}) == 1
        ):
            # what "default" already means; Adafactor's is the loop on a GPU, too
            slow = job.device != "cuda" or all(o.name == "Adafactor" for o in job.optimizers)
            implied = "for-loop" if slow else "foreach"
            usable = [word for word in usable if word != implied]
        if not usable:
            fixed = [o for o in job.optimizers if not o.supported] or job.optimizers
            names = " and ".join(dict.fromkeys(o.name for o in fixed))
            raise NotApplicable(f"{names} cannot be switched to another implementation")
        return usable

    def unusable(self, value: Value, machine: Machine, job: JobFacts) -> str | None:
        if value == OWN:
            return None
        if value == "fused" and job.own_scaler and any(o.name == "SGD" for o in job.optimizers):
            return (
                "torch's fused SGD leaves its momenta unwritten if the job's own GradScaler skips"
                " the first step"
            )
        without = [o.name for o in job.optimizers if value not in o.supported]
        return f"{' and '.join(without)} cannot be switched to {value}" if without else None

    def apply(self, live: LiveJob, value: Value) -> None:
        live.control("optimizer_impl").set(None if value == OWN else str(value))

    def effect(self, live: LiveJob, value: Value) -> str | None:
        if value not in ("foreach", "fused"):
            return None
        without = [
            type(optimizer).__name__
            for optimizer in live.optimizers
            if not any(group.get(value) for group in optimizer.param_groups)
        ]
        if live.optimizers and not without:
            return None
        names = " and ".join(dict.fromkeys(without)) or "the optimizer"
        return f"no parameter group of {names} accepted {value}"

    def snippet(self, value: Value) -> str:
        if value == OWN:
            return ""
        if value == "for-loop":
            return "optimizer = Optimizer(..., foreach=False)"
        # see unusable(): the agent scales losses without this flaw, code to paste does not
        remark = "  # for SGD beside a GradScaler: foreach=True" if value == "fused" else ""
        return f"optimizer = Optimizer(..., {value}=True){remark}"
