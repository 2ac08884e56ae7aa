"""What `autotune submit`, `jobs`, `logs` and `stop` say about errors before a cluster has done
anything.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.cli import main
from autotune.job.package import Package

TOKEN = "0123456789abcdef0123456789abcdef"
JOB = "name: tiny\ncommand: python train.py\n"


class Door(BaseHTTPRequestHandler):
    """Answers as Ray's dashboard does without authorization, and records the requests."""

    answers = (401, "Unauthorized: Missing authentication token")
    asked: list[tuple[str, str]] = []

    def do_GET(self) -> None:
        type(self).asked.append((self.path, self.headers.get("Authorization", "")))
        self.respond(*self.answers)

    def respond(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def door() -> Iterator[type[Door]]:
    handler = type("OneDoor", (Door,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.address = f"http://127.0.0.1:{server.server_address[1]}"  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield handler
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _nobody_s_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "train.py").write_text("print('training')\n")
    return tmp_path / "job.yaml"


COMMANDS = [
    ["submit", "job.yaml"],
    ["jobs"],
    ["logs", "tiny-1"],
    ["logs", "tiny-1", "--follow"],
    ["stop", "tiny-1"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nobody_answers(command: list[str], job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--address", "http://127.0.0.1:9"]) == 2
    said = capsys.readouterr().err
    assert "--address: no answer from http://127.0.0.1:9: Connection refused" in said
    assert "docker/up.sh" in said


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_cluster_that_asks_for_a_token(
    command: list[str], job: Path, door: type[Door], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--address", door.address]) == 2  # type: ignore[attr-defined]
    said = capsys.readouterr().err
    assert "requires a token, and none was given" in said
    assert "RAY_AUTH_TOKEN_PATH" in said
    assert door.asked == [("/api/version", "")]


def test_a_token_that_is_refused_is_not_shown(
    job: Path, door: type[Door], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    door.answers = (403, "Forbidden: Invalid authentication token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", door.address)  # type: ignore[attr-defined]
    assert main(["jobs"]) == 2
    said = capsys.readouterr().err
    assert "rejects the token from RAY_AUTH_TOKEN (HTTP 403)" in said
    assert TOKEN not in said
    assert door.asked == [("/api/version", f"Bearer {TOKEN}")]


def test_a_proxy_with_tls_must_be_known(
    door: type[Door],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    certificate, key = tmp_path / "proxy.pem", tmp_path / "proxy.key"
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
    ]
    make += [
        "-addext",
        "subjectAltName=DNS:localhost",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    subprocess.run(make, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), door)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    address = f"https://localhost:{server.server_address[1]}"
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    try:
        assert main(["jobs", "--address", address]) == 2
        assert "certificate verify failed" in capsys.readouterr().err
        assert door.asked == [], "the token went to a server nobody knows"
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        assert main(["jobs", "--address", address]) == 2
        assert "rejects the token" in capsys.readouterr().err
        assert door.asked == [("/api/version", f"Bearer {TOKEN}")]
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    "answers",
    [(404, "Not Found"), (200, "<html>a page</html>"), (200, '{"version": "3"}'), (500, "down")],
)
def test_something_else_answers(
    answers: tuple[int, str], door: type[Door], capsys: pytest.CaptureFixture[str]
) -> None:
    door.answers = answers
    assert main(["jobs", "--address", door.address]) == 2  # type: ignore[attr-defined]
    assert f"is not a Ray cluster's dashboard (HTTP {answers[0]})" in capsys.readouterr().err


@pytest.mark.parametrize(
    "address",
    [
        "ray://127.0.0.1:10001",
        "auto",
        "ftp://host",
        "http://",
        "http://host:port",
        "http://user:secret-1@host:8265",
        "",
    ],
)
def test_what_is_no_address(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--address", address]) == 2
    said = capsys.readouterr().err
    assert "--address" in said and "http://HOST:8265" in said
    assert "secret-1" not in said


def test_the_address_that_a_browser_shows(door: type[Door]) -> None:
    from autotune.service.cluster import find_cluster

    address = door.address  # type: ignore[attr-defined]
    assert find_cluster(f"{address}/#/overview", None).address == address


def test_the_flag_wins_over_the_environment(
    door: type[Door], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In Ray's own client the environment wins."""
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:9")
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:9")
    assert main(["jobs", "--address", door.address]) == 2  # type: ignore[attr-defined]
    assert len(door.asked) == 1


def test_the_address_of_a_cluster_s_inside_is_no_dashboard(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from autotune.service.cluster import DEFAULT_ADDRESS, find_cluster

    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert find_cluster(None, None).address == DEFAULT_ADDRESS


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "No such file"),
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"two words", "no token has"),
        (b"\xff\xfe", "not text"),
        (b"a\nb", "no token has"),
    ],
)
@pytest.mark.parametrize("by", ["--token-file", "RAY_AUTH_TOKEN_PATH"])
def test_a_token_file_that_holds_none(
    content: bytes | None,
    found: str,
    by: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    if by.startswith("--"):
        code = main(["jobs", "--token-file", str(file)])
    else:
        monkeypatch.setenv(by, str(file))
        code = main(["jobs"])
    said = capsys.readouterr().err
    assert code == 2
    assert f"{by}: {file}" in said or f"{by}: the token contains" in said
    assert found in said


def test_a_token_in_the_usual_place_is_found(
    tmp_path: Path, door: type[Door], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text(TOKEN + "\n")
    main(["jobs", "--address", door.address])  # type: ignore[attr-defined]
    assert door.asked == [("/api/version", f"Bearer {TOKEN}")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("name: tiny\n", "'command' is missing"),
        (JOB + "budget: {minuts: 3}\n", "minuts"),
        (JOB + "tracking: {uri: 'sqlite:///mlflow.db'}\n", "tracking.uri is a file"),
    ],
)
def test_a_job_file_is_checked_before_anything_is_asked(
    text: str, found: str, job: Path, door: type[Door], capsys: pytest.CaptureFixture[str]
) -> None:
    job.write_text(text)
    assert main(["submit", "job.yaml", "--address", door.address]) == 2  # type: ignore[attr-defined]
    assert door.asked == []
    assert found in capsys.readouterr().err


def test_a_folder_apart_from_the_job_file_cannot_be_sent(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "jobs" / "job.yaml").write_text(JOB + "workdir: ../code\n")
    assert main(["submit", "jobs/job.yaml", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "which is not below" in said and "--no-ship" in said


def test_leaving_out_the_job_file_itself(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "job.yaml", "--exclude", "*.yaml", "--dry-run"]) == 2
    assert "the exclude patterns leave out the job file itself" in capsys.readouterr().err


def test_a_dry_run_says_what_would_be_sent_and_no_secret(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.write_text(JOB + "env: {API_KEY: hunter2hunter2}\n")
    assert main(["submit", "job.yaml", "--minutes", "3", "--seed", "20261123", "--dry-run"]) == 0
    entrypoint, *files = capsys.readouterr().out.splitlines()
    assert " autotune run job.yaml --minutes 3.0 --seed 20261123 --run-dir " in entrypoint
    assert "hunter2" not in entrypoint
    assert files == ["job.yaml", "train.py"]
    assert main(["submit", "job.yaml", "--cpus", "2", "--dry-run"]) == 0
    assert " CUDA_VISIBLE_DEVICES= " in capsys.readouterr().out, "it asked for no GPU"


def test_the_list_as_json_is_a_list(
    door: type[Door], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a server that lets everybody in; its answer is a recorded list in Ray's own format."""
    import ray

    recorded = [
        {
            "type": "SUBMISSION",
            "submission_id": "tiny-1",
            "status": "FAILED",
            "entrypoint": "x",
            "message": "gone\n  wrong",
            "driver_exit_code": 3,
            "start_time": 1_700_000_000_000,
            "end_time": 1_700_000_060_000,
            "metadata": {"autotune.job": "tiny", "autotune.user": "ada"},
        },
        {
            "type": "SUBMISSION",
            "submission_id": "foreign",
            "status": "RUNNING",
            "entrypoint": "y",
            "start_time": 1_700_000_000_000,
        },
    ]

    def answer(self: Door) -> None:
        body = (
            {"version": "4", "ray_version": ray.__version__}
            if self.path == "/api/version"
            else recorded
        )
        self.respond(200, json.dumps(body))

    monkeypatch.setattr(door, "do_GET", answer)
    assert main(["jobs", "--json", "--address", door.address]) == 0  # type: ignore[attr-defined]
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["id"], run["name"], run["status"], run["exit_code"], run["message"]) == (
        "tiny-1",
        "tiny",
        "FAILED",
        3,
        "gone wrong",
    )
    assert main(["jobs", "--all", "--address", door.address]) == 0  # type: ignore[attr-defined]
    table = capsys.readouterr().out.splitlines()
    assert table[1].split() == ["tiny-1", "failed", "(3)", *table[1].split()[3:5], "0:01:00", "ada"]
    assert table[2].split()[0] == "foreign"
    assert main(["stop", "tiny-2", "--address", door.address]) == 2  # type: ignore[attr-defined]
    assert "did you mean 'tiny-1'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        ("autotune: tiny-1 ended with exit code 0\n", "SUCCEEDED", 0),
        ("autotune: tiny-1 ended with exit code 4\n", "FAILED", 4),
        ("autotune: tiny-1 ended with exit code 130\n", "STOPPED", 130),
        ("autotune: tiny-2 ended with exit code 0\n", "FAILED", None),  # from another run
        ("step 7\n", "FAILED", None),  # killed
    ],
)
def test_a_run_that_ray_lost_sight_of_ended_as_its_log_says(
    said: str,
    status: str,
    code: int | None,
    door: type[Door],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import ray

    lost = "Unexpected error occurred: failed to get job supervisor."
    recorded = [
        {
            "type": "SUBMISSION",
            "submission_id": "tiny-1",
            "status": "FAILED",
            "entrypoint": "x",
            "message": lost,
            "metadata": {"autotune.job": "tiny"},
        }
    ]
    answers = {
        "/api/version": {"version": "4", "ray_version": ray.__version__},
        "/api/jobs/tiny-1/logs": {"logs": f"one\n{said}"},
    }
    monkeypatch.setattr(
        door, "do_GET", lambda self: self.respond(200, json.dumps(answers.get(self.path, recorded)))
    )
    assert main(["jobs", "--json", "--address", door.address]) == 0  # type: ignore[attr-defined]
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["status"], run["exit_code"], run["message"]) == (
        status,
        code,
        "" if code is not None else lost,
    )


def cluster_that_starts(
    door: type[Door], refusals: int, monkeypatch: pytest.MonkeyPatch, known: str = ""
) -> list[str]:
    """Make the server answer like Ray 2.60 whose head has no agent yet, and then has one.

    ``known``: ID of a run that it lists.

    Returns the IDs of the runs that it was asked to start.
    """
    import ray

    asked: list[str] = []
    run = {
        "type": "SUBMISSION",
        "submission_id": known,
        "status": "FAILED",
        "entrypoint": "x",
        "metadata": {"autotune.job": "tiny"},
    }
    bodies = {
        "/api/version": {"version": "4", "ray_version": ray.__version__, "session_name": "s"},
        "/api/jobs/": [run] if known else [],
    }

    def get(self: Door) -> None:
        self.respond(200, json.dumps(bodies.get(self.path, {})))

    def post(self: Door) -> None:
        asked.append(
            json.loads(self.rfile.read(int(self.headers["Content-Length"])))["submission_id"]
        )
        if len(asked) <= refusals:
            self.respond(500, "No available agent to submit job, please try again later.")
        else:
            self.respond(200, json.dumps({"job_id": asked[-1], "submission_id": asked[-1]}))

    monkeypatch.setattr(door, "do_GET", get)
    monkeypatch.setattr(door, "do_POST", post, raising=False)
    return asked


def test_a_cluster_that_is_still_starting_is_asked_again(
    job: Path, door: type[Door], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = cluster_that_starts(door, refusals=1, monkeypatch=monkeypatch)
    assert (
        main(
            ["submit", "job.yaml", "--no-ship", "--cpus", "0", "--quiet", "--address", door.address]
        )
        == 0
    )  # type: ignore[attr-defined]
    assert asked == capsys.readouterr().out.split() * 2, "one run, whose ID is printed once"


def test_without_gpus_a_whole_node_is_reserved_all_the_same(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.cli.submit import _reserve
    from autotune.job.load import load_job
    from autotune.service.cluster import Cluster
    from autotune.service.submission import Reserve

    monkeypatch.setattr(Cluster, "client", lambda self: None)
    monkeypatch.setattr(Cluster, "nodes", lambda self: [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 64.0}])
    cluster, spec = Cluster("http://127.0.0.1:9", "--address"), load_job(job, check=False)
    assert _reserve(cluster, spec, None, 0.0, ask=True) == Reserve(64.0, 0.0, hides_gpus=True)
    assert _reserve(cluster, spec, 0.0, 0.0, ask=True) == Reserve(hides_gpus=True)
    assert _reserve(cluster, spec, None, None, ask=True) == Reserve(8.0, 2.0)
    assert _reserve(cluster, spec, None, 1.0, ask=True) == Reserve(0.0, 1.0)


def test_a_log_is_followed_on_after_its_connection_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.service import runs
    from autotune.service.cluster import Cluster

    connections = [["one\n", "tw"], ["one\ntwo\nthr"], ["one\n", "two\n", "three\n"]]
    made: list[int] = []

    class Client:
        async def tail_job_logs(self, id: str) -> AsyncIterator[str]:
            made.append(len(made))
            for text in connections[made[-1]]:
                yield text
            if made[-1] == 0:
                raise RuntimeError("WebSocket connection closed unexpectedly with close code 1006")

    def find(self: runs.Runs, id: str) -> SimpleNamespace:
        return SimpleNamespace(ended=len(made) == 3)

    monkeypatch.setattr(runs.Runs, "__init__", lambda self: None)
    monkeypatch.setattr(runs.Runs, "find", find)
    monkeypatch.setattr(runs, "CLOSING_S", 0.0)
    there, shown = runs.Runs(), []
    there.cluster, there._client = Cluster("http://127.0.0.1:9", "--address"), Client()
    assert there.follow("tiny-1", shown.append).ended
    assert "".join(shown) == "one\ntwo\nthree\n" and len(made) == 3


def test_a_cluster_that_never_has_started_says_so(
    job: Path, door: type[Door], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from autotune.service import submission

    monkeypatch.setattr(submission, "START_WAIT_S", 1.0)
    asked = cluster_that_starts(door, refusals=100, monkeypatch=monkeypatch)
    assert main(["submit", "job.yaml", "--no-ship", "--cpus", "0", "--address", door.address]) == 2  # type: ignore[attr-defined]
    assert len(asked) > 1 and "No available agent to submit job" in capsys.readouterr().err


def test_a_full_disk_here_is_told_as_such(
    job: Path, door: type[Door], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(package: Package, archive: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    asked = cluster_that_starts(door, refusals=0, monkeypatch=monkeypatch)
    monkeypatch.setattr(Package, "write", full)
    assert main(["submit", "job.yaml", "--cpus", "0", "--address", door.address]) == 2  # type: ignore[attr-defined]
    said = capsys.readouterr().err
    assert asked == [] and "autotune-submit-" in said and "submit it again" in said


@pytest.mark.parametrize(
    ("id", "more", "known", "code"),
    [
        ("tiny-261101-120000-12ab", ["--no-ship"], "", 0),
        ("tiny-261101-120000-12ab", [], "", 2),
        ("tiny-261101-120000-12ab", ["--no-ship"], "tiny-261101-120100-34cd", 0),
        ("tiny-261101-120100-35cd", ["--no-ship"], "tiny-261101-120100-34cd", 2),  # mistyped
        ("tiny-261101-1201", ["--no-ship"], "tiny-261101-120100-34cd", 2),
        ("tiny-1", ["--no-ship"], "", 2),
    ],
)
def test_a_run_that_a_restarted_head_does_not_know_is_resumed_where_nothing_is_sent(
    id: str,
    more: list[str],
    known: str,
    code: int,
    job: Path,
    door: type[Door],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = cluster_that_starts(door, refusals=0, monkeypatch=monkeypatch, known=known)
    words = ["submit", "job.yaml", "--cpus", "0", "--resume", id, *more]
    assert main([*words, "--address", door.address]) == code  # type: ignore[attr-defined]
    assert len(asked) == (code == 0)
    if code:
        said = capsys.readouterr().err
        assert f"has no run '{id}'" in said and (f"did you mean '{known}'?" in said) == bool(known)
