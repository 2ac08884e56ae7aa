"""Learning-rate schedules in a live session, in which a job runs far beyond its planned steps."""

from __future__ import annotations

import pytest
from tiny_tuner import CNN, Tuner, block

SCHEDULES = (
    CNN
    + """
from torch.optim import SGD, lr_scheduler as s

class Own(s.LRScheduler):
    def get_lr(self):
        return [[0.1, 0.09, 0.08, 0.07, 0.06, 0.05][self.last_epoch]]

class OwnStep(s.StepLR):
    def step(self, epoch=None):
        assert self.last_epoch < 6, "stepped past its end"
        super().step(epoch)

def build(make):
    own = SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    return own, make(own)

made = {name: build(make) for name, make in {
    "one cycle": lambda o: s.OneCycleLR(o, 0.1, total_steps=6),
    "linear": lambda o: s.LinearLR(o, 1.0, 0.1, total_iters=6),
    "warm-up and decay": lambda o: s.LambdaLR(o, lambda n: min(n / 2, max(0.0, (6 - n) / 4))),
    "sequence": lambda o: s.SequentialLR(o, [s.ConstantLR(o, 0.5, 2), s.OneCycleLR(o, 0.1, total_steps=6)], [2]),
    "chain": lambda o: s.ChainedScheduler([s.ExponentialLR(o, 0.9), s.PolynomialLR(o, 6)]),
    "table": Own,
    "own step": lambda o: OwnStep(o, 2, 0.5),
}.items()}
steps = 0
while True:
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        steps += 1
        for own, schedule in made.values():
            schedule.step()
        print(steps, *(f"{schedule.get_last_lr()[0]:.6f}" for _, schedule in made.values()), flush=True)
"""
)


def test_no_schedule_runs_over_its_end_in_a_live_session(tuner: Tuner) -> None:
    """Schedules are frozen from Hello on. Otherwise five of the seven would fail at the seventh
    step or reach zero.
    """
    tuner.start(SCHEDULES)
    assert type(tuner.receive()).__name__ == "Hello"
    reports = tuner.measure(block("b", 20), block("c", 20, optimizer_impl="foreach"))
    assert [r.error for r in reports] == ["", ""] and [len(r.window.times_s) for r in reports] == [
        20,
        20,
    ]
    assert tuner.process is not None
    tuner.process.kill()
    rows = [line.split() for line in tuner.process.communicate()[0].splitlines()]
    assert len(rows) > 40 and tuner.log == ""
    assert len({tuple(row[1:]) for row in rows[3:]}) == 1, "the learning rates drift"
    assert all(float(lr) > 0 for lr in rows[-1][1:])


@pytest.mark.slow
def test_a_fixed_run_leaves_schedules_to_the_job(tuner: Tuner) -> None:
    source = SCHEDULES.replace("while True:", "for _ in range(1):").replace(
        "steps += 1", "steps += 1\n        if steps == 6: break"
    )
    tuner.start(source, "fixed", steps=4)
    assert type(tuner.receive()).__name__ == "Hello"
    assert type(tuner.receive()).__name__ == "Record"
    tuner.close_connection()
    code, out, err = tuner.finish()
    assert code == 0, err
    rows = [line.split()[1:] for line in out.splitlines()]
    assert len(rows) == 5 and all(len(set(column)) > 1 for column in zip(*rows, strict=True))
