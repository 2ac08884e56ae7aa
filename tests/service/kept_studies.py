"""``record``, ``delete`` or check (``has``, ``lacks``) studies in MLflow by name from the command
line, as users of the service do.

    python kept_studies.py record NAME     a study with a metric and a file
    python kept_studies.py delete NAME     as in MLflow's UI: it is only marked as deleted
    python kept_studies.py has NAME        ends with 0 if it exists, with its metric and its file
    python kept_studies.py lacks NAME      ends with 0 if it does not
    python kept_studies.py files FOLDER    prints the number of studies' files in FOLDER
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
FILE = "report.html"


def record(name: str) -> None:
    from mlflow import MlflowClient

    client = MlflowClient()
    run = client.create_run(client.create_experiment(name))
    client.log_metric(run.info.run_id, "speedup", 1.5)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FILE).write_text(name)
        client.log_artifact(run.info.run_id, str(Path(folder) / FILE))
    client.set_terminated(run.info.run_id)


def delete(name: str) -> None:
    from mlflow import MlflowClient

    client = MlflowClient()
    client.delete_experiment(client.get_experiment_by_name(name).experiment_id)


def is_there(name: str) -> bool:
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        return False
    [run] = client.search_runs([experiment.experiment_id])
    with tempfile.TemporaryDirectory() as folder:
        text = Path(client.download_artifacts(run.info.run_id, FILE, folder)).read_text()
    return text == name and run.data.metrics == {"speedup": 1.5}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["record", name]:
            record(name)
        case ["delete", name]:
            delete(name)
        case ["has", name]:
            sys.exit(not is_there(name))
        case ["lacks", name]:
            sys.exit(is_there(name))
        case ["files", folder]:
            print("files of studies:", len(list(Path(folder).rglob(FILE))))
        case _:
            sys.exit(__doc__)
