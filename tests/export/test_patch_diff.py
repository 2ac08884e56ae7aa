"""`autotune export --format diff` as a file: both `patch` and `git apply` accept it, and its header
lists what it contains and what not.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from patch_sources import ADAM, LOADER, call, comments, loader, optimizer, patched, refusals, tuned

from autotune.errors import InputError
from autotune.export.formats import FORMATS
from autotune.export.load import load_tuned
from autotune.export.tuned import to_yaml, write_tuned
from autotune_spaces.sites import (
    BackwardSite,
    BuiltSite,
    ForwardSite,
    JobSites,
    SettingSite,
    SourceCall,
)

PROGRAM = '''"""A program with something of everything."""
# license: none
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

args = argparse.Namespace(lr=0.1, batch=8)  # instead of a parser


def epoch(model, loader, optimizer):
    """One pass."""
    for x, y in loader:  # batches
        optimizer.zero_grad()
        # the forward
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)  # mean
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(loss.item())


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small
    data = TensorDataset(torch.randn(32, 3, 8, 8), torch.randint(0, 4, (32,)))
    loader = DataLoader(
        data,
        batch_size=args.batch,  # of images
    )
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    epoch(model, loader, optimizer)


if __name__ == "__main__":
    main()
'''
MADE = "DataLoader(\n        data,\n        batch_size=args.batch,  # of images\n    )"


def sites(source: str = PROGRAM, file: str = "train.py") -> JobSites:
    def at(text: str, binding: str = "") -> object:
        return call(source, text, file, binding)

    above = (
        call(source, "epoch(model, loader, optimizer)", file, "model", which=1),
        call(source, "main()", file, which=1),
    )
    return JobSites(
        file,
        BuiltSite(call(source, MADE, file), "torch.utils.data.dataloader.DataLoader", LOADER),
        (
            BuiltSite(
                call(source, "torch.optim.Adam(model.parameters(), lr=args.lr)", file),
                "torch.optim.adam.Adam",
                ADAM,
                0,
                0.1,
            ),
        ),
        (
            ForwardSite(
                "Sequential", (call(source, "model(x)", file, "model"), *above), (("0", 4),)
            ),
        ),
        (BackwardSite((call(source, "loss.backward()", file), *above), 0),),
        (call(source, "optimizer.step()", file),),
        (),
        (SettingSite("set_num_threads", call(source, "torch.set_num_threads(1)", file)),),
    )


EVERY = {
    "num_workers": [0, 2],
    "prefetch_factor": [2, 4],
    "persistent_workers": [True],
    "pin_memory": [True],
    "in_order": [False],
    "batch_size": [16],
    "amp_dtype": ["bfloat16", "float16"],
    "compile_mode": ["default", "max-autotune"],
    "channels_last": [True],
    "optimizer_impl": ["fused", "for-loop"],
    "intra_op_threads": [2],
    "matmul_precision": ["medium"],
    "cudnn_benchmark": [True],
    "cudnn_benchmark_limit": [0],
    "cudnn_workspace_mib": [512],
}


@settings(max_examples=25, deadline=None)
@given(
    st.fixed_dictionaries(
        {}, optional={name: st.sampled_from(values) for name, values in EVERY.items()}
    ).filter(bool)
)
def test_any_settings_give_a_program_that_compiles_with_all_its_comments(
    tmp_path_factory: pytest.TempPathFactory, knobs: dict[str, object]
) -> None:
    folder, rule = tmp_path_factory.mktemp("patch"), {"lr_scaling": "linear", "own_batch_size": 8}
    assert refusals(folder, PROGRAM, sites(), knobs, **rule) == {}
    assert patched(folder, PROGRAM, sites(), knobs, **rule) != PROGRAM


def export(
    folder: Path,
    name: str = "train.py",
    source: str = PROGRAM,
    knobs: dict[str, object] | None = None,
) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, newline="")
    return FORMATS["diff"].write(
        tuned(
            folder,
            sites(source.replace("\r\n", "\n"), name),
            knobs or {"num_workers": 2, "amp_dtype": "bfloat16"},
        )
    )


TOOLS = [["patch", "-p1", "--no-backup-if-mismatch", "-i"], ["git", "apply"]]


@pytest.mark.parametrize("tool", TOOLS, ids=["patch", "git"])
@pytest.mark.parametrize("name", ["train.py", "src/my job/träin.py"])
@pytest.mark.parametrize("inside", ["", "repository", "subfolder"])
def test_both_tools_take_it(tmp_path: Path, tool: list[str], name: str, inside: str) -> None:
    """In a plain folder, at the top of a git repository, and in one of its subfolders."""
    folder = tmp_path / "job" if inside == "subfolder" else tmp_path
    folder.mkdir(exist_ok=True)
    diff = export(folder, name)
    (tmp_path / "tuned.diff").write_text(diff)
    if inside:
        subprocess.run(["git", "init", "--quiet", "."], cwd=tmp_path, check=True)
        subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    done = subprocess.run(
        [*tool, str(tmp_path / "tuned.diff")], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr + done.stdout
    after = (folder / name).read_text()
    assert "num_workers=2," in after and 'with torch.autocast(device_type="cpu"' in after
    assert "rejected" not in done.stdout and "fuzz" not in done.stdout


@pytest.mark.parametrize("tool", TOOLS, ids=["patch", "git"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\n", "\r\n"),
        ("\n    main()\n", "\n    main()"),
        ("# license: none", "\f# license: none\x0b \u2028"),
        ("    ", "\t"),
        ("# batches", "# é 日本"),
        ('"""A', '\ufeff"""A'),
    ],
    ids=["crlf", "no-final-line-feed", "form-feed", "tabs", "wide", "byte-order-mark"],
)
def test_files_of_any_kind(tmp_path: Path, tool: list[str], old: str, new: str) -> None:
    source = PROGRAM.replace(old, new)
    path = tmp_path / "train.py"
    path.write_text(source, newline="")
    plain = source.replace("\r\n", "\n").removeprefix("\ufeff")
    made = MADE if old != "    " else MADE.replace("    ", "\t")
    found = loader(
        plain,
        made,
        optimizers=(optimizer(plain, "torch.optim.Adam(model.parameters(), lr=args.lr)"),),
    )
    diff = FORMATS["diff"].write(
        tuned(
            tmp_path,
            found,
            {"num_workers": 2, "optimizer_impl": "fused", "matmul_precision": "medium"},
        )
    )
    (tmp_path / "d").write_text(diff, newline="")
    done = subprocess.run(
        [*tool, "d", *(["--binary"] if tool[0] == "patch" else [])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    after = path.read_bytes().decode()
    compile(after.encode(), "train.py", "exec")
    assert after.startswith("\ufeff") == source.startswith("\ufeff")
    if old == "\n":
        assert after.count("\n") == after.count("\r\n")
    assert after.endswith("\n") == source.endswith("\n")
    assert "fused=True" in after and "num_workers=2" in after
    assert sum(line not in after for line in source.splitlines()) == 1  # the optimizer's


def test_the_header_says_what_is_in_it_and_what_not(tmp_path: Path) -> None:
    knobs = {"num_workers": 2, "non_blocking": True, "compile_mode": "default"}
    diff = export(tmp_path, knobs=knobs)
    header = diff.partition("\n--- a/train.py")[0]
    assert all(line.startswith("#") for line in header.splitlines())
    written, _, missing = header.partition("# Not in this patch")
    assert (
        "num_workers = 2 (was unset): train.py:29" in written
        and "compile_mode = default" in written
    )
    assert (
        "non_blocking = true" in missing
        and "batch.to(device, non_blocking=True)" in missing
        and "autotune launch" in missing
    )
    assert "if the model has dropout, it draws different" in written.replace("\n#     ", " ")
    assert f"Apply it in {tmp_path}" in header


def test_a_patched_source_is_not_patched_again(tmp_path: Path) -> None:
    diff = export(tmp_path)
    subprocess.run(["patch", "-p1", "--quiet"], cwd=tmp_path, input=diff, text=True, check=True)
    source = (tmp_path / "train.py").read_text()
    with pytest.raises(InputError, match="or is already patched") as caught:
        FORMATS["diff"].write(tuned(tmp_path, sites(), {"num_workers": 2, "amp_dtype": "bfloat16"}))
    assert "autotune launch" in str(caught.value) and caught.value.exit_code == 2
    assert (tmp_path / "train.py").read_text() == source


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    run = tmp_path / "run"
    run.mkdir()
    write_tuned(
        tuned(tmp_path, sites(), {"num_workers": 2, "amp_dtype": "bfloat16"}), run / "tuned.yaml"
    )
    command = [
        sys.executable,
        "-m",
        "autotune",
        "export",
        str(run),
        "--format",
        "diff",
        "-o",
        "tuned.diff",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (
        0,
        "tuned.diff: a patch that writes the settings into your own source\n",
    ), done.stderr
    write_tuned(
        tuned(tmp_path, sites(), {"num_workers": 2, "amp_dtype": "bfloat16", "non_blocking": True}),
        run / "tuned.yaml",
    )
    partly = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert partly.stdout.splitlines()[1:] == [
        "not in the patch: non_blocking; its header says why, and what to do"
    ]
    subprocess.run(["git", "apply", "tuned.diff"], cwd=tmp_path, check=True)
    after = (tmp_path / "train.py").read_text()
    assert comments(after) == comments(PROGRAM)
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 2 and again.stdout == ""
    assert (
        again.stderr.count("no setting can be written into the source") == 1
        and "Traceback" not in again.stderr
    )


def test_nothing_tuned_is_nothing_to_write(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is nothing to write"):
        FORMATS["diff"].write(tuned(tmp_path, sites(), {}))


def test_sites_survive_the_file(tmp_path: Path) -> None:
    config = tuned(tmp_path, sites(), {"num_workers": 2})
    write_tuned(config, tmp_path / "tuned.yaml")
    assert load_tuned(tmp_path) == config
    # readers of YAML 1.1 read the same value
    assert yaml.safe_load(to_yaml(config))["provenance"]["sites"]["optimizers"][0]["lr"] == 0.1


def test_calls_without_a_source_survive_it_too(tmp_path: Path) -> None:
    """`python -c`, and code generated while the job runs: there is no source text, but such a job
    must still launch.
    """
    nowhere = SourceCall("<string>", 3, -1, 3, -1, "", "<module>", True)
    none_seen = JobSites(
        "",
        BuiltSite(nowhere, "DataLoader"),
        (BuiltSite(nowhere, "Adam"),),
        (ForwardSite("Net", (nowhere,)), ForwardSite("Net", ())),
        (BackwardSite((nowhere,)), BackwardSite((), 1)),
        (nowhere,),
        (nowhere,),
        (SettingSite("set_num_threads", nowhere),),
    )
    config = tuned(
        tmp_path,
        none_seen,
        {
            "num_workers": 2,
            "amp_dtype": "bfloat16",
            "compile_mode": "default",
            "channels_last": True,
            "non_blocking": True,
        },
    )
    write_tuned(config, tmp_path / "tuned.yaml")
    assert load_tuned(tmp_path) == config
    with pytest.raises(InputError, match="no setting can be written into the source"):
        FORMATS["diff"].write(config)


def test_a_file_of_the_first_version_still_loads(tmp_path: Path) -> None:
    text = to_yaml(tuned(tmp_path, JobSites(), {"num_workers": 2})).replace(
        "schema_version: 2", "schema_version: 1"
    )
    path = tmp_path / "tuned.yaml"
    path.write_text(text[: text.index("  footprint:")])
    old = load_tuned(path)
    assert old.provenance.sites == JobSites() and old.knobs["num_workers"].value == 2
    with pytest.raises(
        InputError, match="the run did not record where the training DataLoader is built"
    ):
        FORMATS["diff"].write(old)


def test_sites_that_were_written_by_hand_are_checked(tmp_path: Path) -> None:
    text = to_yaml(tuned(tmp_path, sites(), {"num_workers": 2}))
    path = tmp_path / "tuned.yaml"
    for old, new in (
        ("column: 4,", "column: four,"),
        ("own: true", "own: 7"),
        ("lr: 0.1", "lr: {}"),
        ("forwards:", "forwards: 3\n    more:"),
    ):
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(InputError, match="'sites' is malformed"):
            load_tuned(path)
