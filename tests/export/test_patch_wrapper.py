"""`autotune export --format diff`: arguments of DistributedDataParallel, found by name."""

from pathlib import Path

import pytest
from patch_sources import call, patched, tuned

from autotune.export.patch.context import Context
from autotune.export.patch.edits import apply
from autotune.export.patch.source import Refused, SourceTree
from autotune.export.patch.wrapper import wrapper_argument
from autotune_spaces.sites import BuiltSite, JobSites

BUCKET = "DistributedDataParallel(..., bucket_cap_mb=50)"
CALLS = [
    (
        "nn.parallel.DistributedDataParallel(model)",
        "nn.parallel.DistributedDataParallel(model, bucket_cap_mb=50)",
    ),
    (
        "DDP(model, device_ids=[0], bucket_cap_mb=args.cap)",
        "DDP(model, device_ids=[0], bucket_cap_mb=50)",
    ),
    (
        "DistributedDataParallel(model, **options)",
        'DistributedDataParallel(model, **{**options, "bucket_cap_mb": 50})',
    ),
]


@pytest.mark.parametrize(("before", "after"), CALLS)
def test_its_calls_get_the_argument(tmp_path: Path, before: str, after: str) -> None:
    source = f"import torch\n\nmodel = {before}  # ranks\nopt = SGD()\n"
    (tmp_path / "train.py").write_text("import nets\n")
    (tmp_path / "nets.py").write_text(source)
    sites = JobSites("train.py", optimizers=(BuiltSite(call(source, "SGD()", "nets.py"), "SGD"),))
    context = Context(tuned(tmp_path, sites, {}), SourceTree(tmp_path))
    found = wrapper_argument(context, BUCKET)
    assert found.where == ("nets.py:3",)
    assert apply(context.tree.files["nets.py"], found.edits) == source.replace(before, after)


def test_a_program_without_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    context = Context(tuned(tmp_path, JobSites("train.py"), {}), SourceTree(tmp_path))
    with pytest.raises(Refused, match="no call to DistributedDataParallel was found"):
        wrapper_argument(context, BUCKET)


def test_the_knobs_of_distributed_jobs_are_its_arguments(tmp_path: Path) -> None:
    source = "import torch\n\nmodel = DDP(model)\n"
    knobs = {"ddp_bucket_cap_mb": 50, "gradient_as_bucket_view": True, "static_graph": True}
    after = patched(tmp_path, source, JobSites("train.py"), knobs)
    assert after == source.replace(
        "DDP(model)",
        "DDP(model, bucket_cap_mb=50, gradient_as_bucket_view=True, static_graph=True)",
    )
