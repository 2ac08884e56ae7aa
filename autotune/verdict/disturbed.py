"""Whether something else on the machine disturbed a window."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from autotune_trials.protocol.messages import Window

# Foreign load: on two cores a quarter of a core changes the time of a job that uses both by about
# an eighth, more than any difference the verdict has to resolve; tuner and agent themselves stay
# below a twentieth.
FOREIGN_CORES = 0.25
# The job itself also causes pressure (PSI "some"), with more runnable threads than cores, so only
# an increase over calm windows of the same configuration counts. Calm windows of one configuration
# differ by less than a tenth.
PRESSURE_RISE = 0.25
# without calm windows: only if it is high and something else demonstrably ran
PRESSURE_WITH_FOREIGN_LOAD = 0.5
SOME_FOREIGN_CORES = 0.1


def disturbed(window: Window, calm: Sequence[Window] = ()) -> str | None:
    """Why ``window`` is unusable: other load on the machine, or a throttled device; None if it is
    fine.

    Args:
        window: the window to check.
        calm: other windows of the *same configuration*. Steady load is in all of them and cancels
            in a paired comparison: only what exceeds their median counts.
    """
    usually_throttled = sum(bool(w.throttled) for w in calm) > len(calm) / 2
    # a card that always hits its power cap does so in production too
    if window.throttled and not usually_throttled:
        return f"the device was throttled ({window.throttled})"
    usual_load = median(w.foreign_load for w in calm) if calm else 0.0
    if window.foreign_load - usual_load > FOREIGN_CORES:
        usual = f" (usually {usual_load:.2f})" if calm else ""
        return f"other processes used {window.foreign_load:.2f} cores{usual}"
    if calm:
        usual_pressure = median(w.cpu_pressure for w in calm)
        if window.cpu_pressure - usual_pressure > PRESSURE_RISE:
            return (
                f"tasks waited for a CPU {window.cpu_pressure:.0%} of the time (usually"
                f" {usual_pressure:.0%})"
            )
    elif (
        window.cpu_pressure > PRESSURE_WITH_FOREIGN_LOAD
        and window.foreign_load > SOME_FOREIGN_CORES
    ):
        return (
            f"tasks waited for a CPU {window.cpu_pressure:.0%} of the time, "
            f"with {window.foreign_load:.2f} cores in use by others"
        )
    return None
