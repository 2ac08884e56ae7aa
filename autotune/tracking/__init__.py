"""Where a study is recorded: always on disk, and in MLflow when it can be reached."""

from autotune.tracking.base import Tracker
from autotune.tracking.stores import preflight
from autotune.tracking.sync import SyncReport, sync
from autotune.tracking.tracker import open_tracker

__all__ = ["SyncReport", "Tracker", "open_tracker", "preflight", "sync"]
