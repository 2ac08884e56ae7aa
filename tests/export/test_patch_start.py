"""`autotune export --format diff`: torch's global switches, environment variables, copies to the
GPU.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from patch_sources import call, changed_lines, library, patched, refusals, settings, tuned

from autotune.export.patch.plan import make_patch
from autotune_spaces.sites import JobSites, SettingSite

ONLY = JobSites("train.py")
EVERYTHING = {
    "matmul_precision": "medium",
    "intra_op_threads": 2,
    "cudnn_benchmark": True,
    "cudnn_benchmark_limit": 0,
}


def test_switches_follow_the_imports(tmp_path: Path) -> None:
    text = (
        '"""Doc."""\n\nimport os\n\nimport torch\nfrom nets import Net  # mine\n\n\nclass A:\n   '
        " import late\n"
    )
    after = patched(tmp_path, text, ONLY, EVERYTHING)
    assert after == text.replace(
        "Net  # mine\n",
        'Net  # mine\n\ntorch.set_float32_matmul_precision("medium")\ntorch.set_num_threads(2)\n'
        "torch.backends.cudnn.benchmark = True\ntorch.backends.cudnn.benchmark_limit = 0\n",
    )


def test_torch_is_imported_where_it_is_not(tmp_path: Path) -> None:
    after = patched(
        tmp_path, "from package.main import main\n\nmain()\n", ONLY, {"intra_op_threads": 2}
    )
    assert (
        after
        == "from package.main import main\nimport torch\n\ntorch.set_num_threads(2)\n\nmain()\n"
    )
    after = patched(
        tmp_path, "import torch as th\nimport torch.nn as nn\n", ONLY, {"intra_op_threads": 2}
    )
    assert after == "import torch as th\nimport torch.nn as nn\n\nth.set_num_threads(2)\n"
    after = patched(
        tmp_path,
        "try:\n    import apex\nexcept ImportError:\n    apex = None\nimport torch.nn\nx = 1\n",
        ONLY,
        {"intra_op_threads": 2},
    )
    assert changed_lines("", after)[5:7] == ["torch.set_num_threads(2)", "x = 1"]


LATE = """import argparse
import os

if "RANK" not in os.environ:
    os.environ["RANK"] = "0"


def seed():
    return 1


import torch as th
from torch import nn

th.manual_seed(seed())
if th.cuda.is_available():
    import extra
"""


def test_a_switch_stands_behind_an_import_of_torch_that_comes_late(tmp_path: Path) -> None:
    after = patched(tmp_path, LATE, ONLY, {"intra_op_threads": 2})
    assert after == LATE.replace(
        "from torch import nn\n", "from torch import nn\n\nth.set_num_threads(2)\n"
    )


@pytest.mark.parametrize(
    "parts",
    [
        "from torch import nn\n",
        "import torch.nn as nn\n",
        "try:\n    from torch import nn\nexcept ImportError:\n    nn = None\n",
    ],
)
def test_torch_may_be_imported_by_its_parts_only(tmp_path: Path, parts: str) -> None:
    head = 'import os\n\nif "RANK" not in os.environ:\n    os.environ["RANK"] = "0"\n'
    after = patched(tmp_path, head + parts, ONLY, {"intra_op_threads": 2})
    body = after.removeprefix(head)
    assert after.startswith(head) and "import torch\n" in body
    assert body.index("import torch\n") < body.index("torch.set_num_threads(2)")


def test_the_jobs_own_calls_are_changed_instead(tmp_path: Path) -> None:
    text = (
        "import torch\n\n\ndef main():\n    torch.set_num_threads(args.threads)  # was it\n   "
        ' torch.set_float32_matmul_precision("highest")\n'
    )
    sites = settings(
        text, "torch.set_num_threads(args.threads)", 'torch.set_float32_matmul_precision("highest")'
    )
    after = patched(tmp_path, text, sites, {"intra_op_threads": 2, "matmul_precision": "medium"})
    assert after == text.replace("args.threads", "2").replace("highest", "medium")


def test_an_assignment_that_did_not_run_stays(tmp_path: Path) -> None:
    """It would have undone the setting, which was proven."""
    text = "import torch\n\nif args.seed is not None:\n    torch.backends.cudnn.benchmark = False\n"
    after = patched(tmp_path, text, ONLY, {"cudnn_benchmark": True})
    assert after == text.replace(
        "import torch\n", "import torch\n\ntorch.backends.cudnn.benchmark = True\n"
    )


def test_expressions_that_decide_nothing_any_more_are_named(tmp_path: Path) -> None:
    text = "import torch\n\ntorch.set_num_threads(args.threads)\n"
    sites = settings(text, "torch.set_num_threads(args.threads)")
    (tmp_path / "train.py").write_text(text)
    patch = make_patch(tuned(tmp_path, sites, {"intra_op_threads": 2}))
    assert [note for written in patch.written for note in written.change.notes] == [
        ("set_num_threads(2) replaces `args.threads`, which no longer has any effect there")
    ]


ENVIRONMENT = [
    ("import torch\n", 'import os\nos.environ["CUDNN_CONV_WSCAP_DBG"] = "512"\nimport torch\n'),
    (
        (
            '"""Doc."""\nfrom __future__ import annotations\n\nimport argparse\n\n# deep\nimport'
            " torch\n"
        ),
        (
            '"""Doc."""\nfrom __future__ import annotations\n\nimport argparse\nimport'
            ' os\n\nos.environ["CUDNN_CONV_WSCAP_DBG"] = "512"\n\n# deep\nimport torch\n'
        ),
    ),
    (
        "import os\nimport sys\n\nfrom lightning import Trainer\n",
        (
            'import os\nimport sys\n\nos.environ["CUDNN_CONV_WSCAP_DBG"] = "512"\n\nfrom lightning'
            " import Trainer\n"
        ),
    ),
    (
        "import os as o\nimport torch\n",
        'import os as o\nimport os\nos.environ["CUDNN_CONV_WSCAP_DBG"] = "512"\nimport torch\n',
    ),
    (
        "import os\nfrom .nets import Net\n",
        'import os\nos.environ["CUDNN_CONV_WSCAP_DBG"] = "512"\nfrom .nets import Net\n',
    ),
]


@pytest.mark.parametrize(("before", "after"), ENVIRONMENT)
def test_variables_come_before_anything_that_may_import_torch(
    tmp_path: Path, before: str, after: str
) -> None:
    assert patched(tmp_path, before, ONLY, {"cudnn_workspace_mib": 512}) == after


def test_what_is_refused_says_why(tmp_path: Path) -> None:
    text = "import torch\n"
    threads = {"intra_op_threads": 2}
    assert "not its own source" in refusals(tmp_path, text, JobSites(), threads)["intra_op_threads"]
    theirs = JobSites(
        "train.py",
        settings=(
            SettingSite(
                "set_num_threads", library("torch.set_num_threads(1)", "ultralytics/utils.py")
            ),
        ),
    )
    assert (
        "the library ultralytics" in refusals(tmp_path, text, theirs, threads)["intra_op_threads"]
    )
    for name, reason in (
        ("/elsewhere/train.py", "is outside the job's directory"),
        ("../t.py", "is outside"),
        ("gone.py", "No such file"),
    ):
        assert reason in refusals(tmp_path, text, JobSites(name), threads)["intra_op_threads"]
    assert (
        "has no imports at the top"
        in refusals(tmp_path, "def f():\n    import torch\n", ONLY, threads)["intra_op_threads"]
    )
    assert "cannot be parsed" in refusals(tmp_path, "import (\n", ONLY, threads)["intra_op_threads"]


COPIES = [
    ("x.to(device)", "x.to(device, non_blocking=True)"),
    ("x.cuda(non_blocking=args.n)", "x.cuda(non_blocking=True)"),
]


def test_knobs_that_are_set_before_the_first_line(tmp_path: Path) -> None:
    """cpu_affinity can be a line of code; an allocator is preloaded, so it cannot; a variable set
    in the job file is left to the job file.
    """
    after = patched(tmp_path, "import torch\n", ONLY, {"cpu_affinity": "0-1"})
    assert after == "import os\nos.sched_setaffinity(0, {0, 1})\nimport torch\n"
    knobs = {"cuda_alloc_conf": "expandable_segments:True", "malloc": "jemalloc", "gc": "freeze"}
    config = tuned(tmp_path, ONLY, knobs, "cuda")
    own = replace(config, env={"PYTORCH_ALLOC_CONF": "x"})
    missing = {item.knob: item for item in make_patch(own).unwritten}
    assert (
        set(missing) == set(knobs)
        and "the job file already sets PYTORCH_ALLOC_CONF" in missing["cuda_alloc_conf"].reason
    )
    assert (
        "LD_PRELOAD" in missing["malloc"].reason
        and "set it where the job is started: LD_PRELOAD=" in missing["malloc"].instead
    )
    assert "gc.freeze()" in missing["gc"].instead
    (two,) = make_patch(tuned(tmp_path, ONLY, {"malloc": "retain"})).unwritten
    assert (
        two.reason
        == "MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_ and MALLOC_TOP_PAD_ are read before the"
        " program's first line"
    )
    assert {item.knob for item in make_patch(config).unwritten} == {"malloc", "gc"}


@pytest.mark.parametrize(("before", "after"), COPIES)
def test_copies_to_the_gpu(tmp_path: Path, before: str, after: str) -> None:
    text = f"import torch\nx = {before}\n"
    assert f"x = {after}\n" in patched(
        tmp_path,
        text,
        JobSites("train.py", transfers=(call(text, before),)),
        {"non_blocking": True},
    )


def test_copies_that_are_refused(tmp_path: Path) -> None:
    for copy in ("move(x)", "x.cuda(0, True)"):
        text = f"import torch\nx = {copy}\n"
        sites = JobSites("train.py", transfers=(call(text, copy),))
        assert (
            "is not a plain .to(device)"
            in refusals(tmp_path, text, sites, {"non_blocking": True})["non_blocking"]
        )
    text = "import torch\nx = buffer.to(device)\n"
    copies = (call(text, "buffer.to(device)"),)
    sites = JobSites("train.py", transfers=copies, refilled=copies)
    assert (
        "the job may refill while it is being copied"
        in refusals(tmp_path, text, sites, {"non_blocking": True})["non_blocking"]
    )
    assert (
        "no copy of a batch"
        in refusals(tmp_path, text, ONLY, {"non_blocking": True})["non_blocking"]
    )


def test_a_copy_that_may_be_one_to_the_host_is_waited_for(tmp_path: Path) -> None:
    helper = "import torch\ndef move(d, dev):\n    return {{k: {what} for k, v in d.items()}}\n"
    text = helper.format(what="v.to(dev)")
    sites = JobSites("train.py", transfers=(call(text, "v.to(dev)"),))
    after = patched(tmp_path, text, sites, {"non_blocking": True})
    assert 'v.to(dev, non_blocking=not getattr(v, "is_cuda", True))' in after, "a module has none"
    text = helper.format(what="wrap(v).to(dev)")
    sites = JobSites("train.py", transfers=(call(text, "wrap(v).to(dev)"),))
    reason = refusals(tmp_path, text, sites, {"non_blocking": True})["non_blocking"]
    assert "may also be one to the host" in reason


def test_what_would_be_undone_or_depends_on_the_machine_is_refused(tmp_path: Path) -> None:
    text = "import torch\ndef seed():\n    torch.backends.cuda.matmul.allow_tf32 = False\nseed()\n"
    reason = refusals(tmp_path, text, ONLY, {"matmul_precision": "high"})["matmul_precision"]
    assert "train.py:3 sets it in another way" in reason
    reason = refusals(tmp_path, text, ONLY, {"cpu_affinity": "physical"})["cpu_affinity"]
    assert "depends on the machine" in reason
