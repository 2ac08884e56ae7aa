"""Jobs without the start of an interpreter: a process that has torch loaded forks for each, and the
child continues as Python does, with ``sitecustomize`` first and then the script.

There is one difference: torch is imported before ``sitecustomize``. So tests of the start itself,
of variables that are read at the start, and of the interpreter's flags use `Tuner.start`.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import TextIO

SERVER = """# forked_jobs
import json, os, signal, socket, sys, types
import numpy, torch, torch._dynamo, torch.distributed, torch.utils.data

def asked(server):
    "Returns in a child's child, with what it is to be; the child waits for its end, and tells it."
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, files, _, _ = socket.recv_fds(server, 1 << 20, 3)
        if not request:
            os._exit(0)
        if os.fork():
            for file in files:
                os.close(file)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        pid = os.fork()
        if not pid:
            os.setpgid(0, 0)
            for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), *files[:2])):
                os.dup2(file, number)
            os.closerange(3, 1024)
            return json.loads(request)
        os.close(files[0])
        os.close(files[1])
        os.setpgid(pid, pid)
        server.send(b"%d" % pid)
        os.write(files[2], b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)

folder, variables = asked(socket.socket(fileno=int(sys.argv[1])))
os.chdir(folder)
os.environ.clear()
os.environ.update(variables)
sys.path[:1] = os.environ["PYTHONPATH"].split(os.pathsep)
sys.modules.pop("sitecustomize", None)
import sitecustomize
sys.path.insert(0, folder)
sys.argv[:] = ["train.py"]
script = os.path.join(folder, "train.py")
main = sys.modules["__main__"] = types.ModuleType("__main__")
main.__file__ = script
with open(script, encoding="utf-8") as file:
    code = compile(file.read(), script, "exec")
try:
    exec(code, main.__dict__)
except Exception as error:  # is told without this frame
    sys.excepthook(type(error), error, error.__traceback__.tb_next)
    sys.exit(1)
"""


class ForkedJob:
    """A job in its own process group that is no child of this process.

    Offers the part of `subprocess.Popen` that tests use.
    """

    def __init__(self, directory: Path, variables: dict[str, str]) -> None:
        (out, to_out), (err, to_err), (self._ended, to_ended) = os.pipe(), os.pipe(), os.pipe()
        server = _server()
        request = json.dumps([str(directory), variables]).encode()
        socket.send_fds(server, [request], [to_out, to_err, to_ended])
        for file in (to_out, to_err, to_ended):
            os.close(file)
        self.pid = int(server.recv(16))
        self.stdout, self.stderr = open(out), open(err)  # noqa: SIM115
        self.returncode: int | None = None
        self._said: tuple[str, str] | None = None

    def kill(self) -> None:
        """Kill the job and its DataLoader workers.

        Otherwise workers hold its pipes open for the five seconds until they notice its end.
        """
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def poll(self) -> int | None:
        return self._end_within(0.0)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        if self._said is None:
            said = {self.stdout: "", self.stderr: ""}

            def read(file: TextIO) -> None:
                said[file] = file.read()

            readers = [threading.Thread(target=read, args=[file], daemon=True) for file in said]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join(timeout)
            if any(reader.is_alive() for reader in readers) or self._end_within(timeout) is None:
                raise subprocess.TimeoutExpired("train.py", timeout or 0.0)
            self._said = (said[self.stdout], said[self.stderr])
            self.stdout.close()
            self.stderr.close()
        return self._said

    def _end_within(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            self.returncode = int(os.read(self._ended, 16))
            os.close(self._ended)
        return self.returncode


@cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair()
    names = ("PYTHONPATH", "AUTOTUNE_SESSION")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(theirs.fileno())],
        env={k: v for k, v in os.environ.items() if k not in names} | {"OMP_NUM_THREADS": "1"},
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    atexit.register(process.kill)
    return ours
