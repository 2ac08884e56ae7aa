"""``DataLoader``: what the job builds, and which iterators it gets.

DataLoader.__init__       each instance gets a key, "train.py:12#0": where it was built, the n-th one there
DataLoader._get_iterator  hands out a SwitchableIterator (dataloader/switchable_iterator.py)
create_fetcher            measures what fetching costs, in workers too
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable
from typing import Any

from autotune_trials.agent.bootstrap import log
from autotune_trials.agent.core.events import Events
from autotune_trials.agent.core.loop_state import LoopState
from autotune_trials.agent.dataloader.hooks import LoaderHooks
from autotune_trials.agent.dataloader.switchable_iterator import iterator_class
from autotune_trials.agent.facts.construction import construction_spot, site_of
from autotune_trials.agent.patches.patch_set import Patch
from autotune_trials.protocol.messages import SessionConfig


def install(
    data_module: Any,
    events: Events,
    config: SessionConfig,
    state: LoopState,
    on_fault: Callable[[str, str], None],
    on_refusal: Callable[[str, str], None],
) -> LoaderHooks:
    """Hook ``torch.utils.data.dataloader``.

    Args:
        on_fault: called with where and the text of an error that has already been handled.
        on_refusal: called with settings that the training loader cannot take, and why.
    """
    hooks = LoaderHooks(data_module, events, config, state, on_fault, on_refusal)
    worker, patches = data_module._utils.worker, hooks.patches
    switchable = iterator_class(data_module)

    def make_init(patch: Patch, original: Any) -> Any:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if not patch.active:
                return
            try:
                if type(self)._get_iterator is not data_module.DataLoader._get_iterator:
                    hooks.makes_iterators = hooks.makes_iterators or type(self).__name__
                spot = construction_spot(self, sys._getframe(1))
                hooks.track(self, site_of(spot), spot)
                hooks.tell(hooks.events.loader_built, self, sys._getframe(1))
            except Exception:
                hooks.reports.fault("DataLoader.__init__")

        __init__.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        return __init__

    def make_get_iterator(patch: Patch, original: Any) -> Any:
        def _get_iterator(self: Any) -> Any:
            if not patch.active or worker._worker_info is not None:
                return original(self)
            try:
                return switchable(hooks, hooks.tracked(self), self)
            except Exception:
                trouble = traceback.format_exc()
            # an error of the job's own is raised again here, as the job would see it
            iterator = original(self)
            hooks.reports.fault("DataLoader._get_iterator", trouble)
            return iterator

        return _get_iterator

    def make_create_fetcher(patch: Patch, original: Any) -> Any:
        def create_fetcher(*args: Any, **kwargs: Any) -> Any:
            fetcher = original(*args, **kwargs)
            # a forked worker inherits the value it had when the source was built
            if hooks.meters.attaching is not None:
                try:
                    hooks.meters.attaching.attach(fetcher, worker._worker_info)
                except Exception:  # a worker has no one else to report to
                    log.write_exception("create_fetcher")
            return fetcher

        return create_fetcher

    patches.add("DataLoader.__init__", data_module.DataLoader, "__init__", make_init)
    patches.add(
        "DataLoader._get_iterator", data_module.DataLoader, "_get_iterator", make_get_iterator
    )
    patches.add("create_fetcher", data_module._DatasetKind, "create_fetcher", make_create_fetcher)
    return hooks
