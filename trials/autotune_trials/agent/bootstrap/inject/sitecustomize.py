"""The entry point into the user's process: Python runs this file at start-up because its directory
is on PYTHONPATH.

    AUTOTUNE_SESSION set? ── no ──▶ only hand over to the environment's own sitecustomize
           │ yes
    make autotune_trials and autotune_spaces importable, from their files, without touching sys.path
    (the job may run in another virtual environment, and may have modules called ``trials`` or
    ``autotune``)
           │
    watch for the import of torch; processes that never import torch pay for nothing else
           │
    hand over to the environment's own sitecustomize (Debian ships one)
"""

import os
import sys


def _register(name: str, directory: str) -> None:
    """Put the package at ``directory`` into sys.modules as ``name``."""
    import importlib.util

    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(directory, "__init__.py"), submodule_search_locations=[directory]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} cannot be loaded from {directory}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _find_spaces(trials: str) -> str:
    """The directory of autotune_spaces: beside autotune_trials when installed, under search_spaces/
    in the source tree.
    """
    beside = os.path.dirname(trials)
    places = [
        os.path.join(beside, "autotune_spaces"),
        os.path.join(os.path.dirname(beside), "search_spaces", "autotune_spaces"),
    ]
    for place in places:
        if os.path.isfile(os.path.join(place, "__init__.py")):
            return place
    raise ImportError("autotune_spaces was not found in any of: " + ", ".join(places))


def _start_agent(here: str) -> None:
    # ``here`` is agent/bootstrap/inject below it
    trials = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    _register("autotune_trials", trials)
    _register("autotune_spaces", _find_spaces(trials))
    from autotune_trials.agent.bootstrap import start

    start.watch()


def _report_failure() -> None:
    import traceback

    try:
        directory = os.path.dirname(os.environ["AUTOTUNE_SESSION"])
        with open(os.path.join(directory, "agent.log"), "a", encoding="utf-8") as log:
            log.write(f"[{os.getpid()}] sitecustomize\n{traceback.format_exc()}\n")
    except OSError:
        pass
    try:
        from autotune_trials.agent.bootstrap.log import tell

        tell(f"the job runs without its tuned settings ({sys.exc_info()[1]})")
    except Exception:  # our package itself may be broken: the job goes on regardless
        pass


def _hand_over(here: str) -> None:
    """Run the sitecustomize that would have been found without us; its errors are its own."""
    import importlib.machinery
    import importlib.util

    others = [p for p in sys.path if os.path.abspath(p or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_here = os.path.dirname(os.path.abspath(__file__))
if os.environ.get("AUTOTUNE_SESSION"):
    try:
        _start_agent(_here)
    except Exception:  # whatever it is, the job starts regardless
        _report_failure()
_hand_over(_here)
