"""A saved view in MLflow's UI: a study's trials in charts, opened by a link.

MLflow stores a shared view ("Share" on an experiment's page) as JSON in a tag of the experiment,
and opens it by the tag's key. There is no other way to choose which parameters and metrics are
drawn. A version that does not know a field draws what it does know.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

VIEW_TAG = "mlflow.sharedViewState."
MOST_KNOBS = 20  # axes of the chart; a tag holds 5,000 characters
MOST_RUNS = 100


def view(study_run_id: str, knobs: Sequence[str], both: Sequence[str] = ()) -> str:
    """The trials of a study: their speed-ups side by side, and by the values of ``knobs``.

    Args:
        both: metrics of two objectives, drawn against each other.
    """
    section = {"uuid": "autotune", "name": "Trials", "display": True, "isReordered": True}
    section |= {"columns": 1, "cardHeight": 420}
    ours = {"metricSectionId": "autotune", "deleted": False, "isGenerated": False}
    charts = [
        {
            "uuid": "autotune-knobs",
            "type": "PARALLEL",
            "selectedParams": [f"knob.{name}" for name in knobs[:MOST_KNOBS]],
            "selectedMetrics": ["speedup"],
            "showAllRuns": False,
        },
        {
            "uuid": "autotune-speedup",
            "type": "BAR",
            "metricKey": "speedup",
            "dataAccessKey": "speedup",
            "runsCountToCompare": MOST_RUNS,
        },
    ]
    if both:
        axes = {
            axis: {"key": name, "dataAccessKey": name, "type": "METRIC"}
            for axis, name in zip(("xaxis", "yaxis"), both, strict=True)
        }
        scatter = {"uuid": "autotune-both", "type": "SCATTER", "runsCountToCompare": MOST_RUNS}
        charts.append({**scatter, **axes})
    state = {
        "searchFilter": f"tags.mlflow.parentRunId = '{study_run_id}'",
        "orderByKey": "metrics.`speedup`",
        "orderByAsc": False,
        "runsHiddenMode": "SHOW_ALL",
        "isAccordionReordered": True,  # otherwise MLflow sorts the sections by name
        "compareRunSections": [{**section, "deleted": False, "isGenerated": False}],
        "compareRunCharts": [{**chart, **ours} for chart in charts],
    }
    return json.dumps(state, separators=(",", ":"))


def link(experiment_id: str, key: str) -> str:
    """The link that opens the view from any of MLflow's pages."""
    how = f"viewStateShareKey={key}&compareRunsMode=CHART&workflowType=machine_learning"
    return f"#/experiments/{experiment_id}/runs?{how}"
