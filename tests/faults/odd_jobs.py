"""Things jobs should not do, but which must not prevent tuning."""

from __future__ import annotations

NO_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.closerange(0, 256)
    time.sleep(600)
os.wait()
""".strip()
# Lines of 1 MiB: more than a gigabyte in the two sessions of the run.
CHATTERS = "for _ in range(600): sys.stdout.write('x' * (1 << 20) + chr(10))"
ALARMS = (
    "print('ERROR: CUDA out of memory. Traceback (most recent call last): RuntimeError: killed by"
    " signal: Killed', file=sys.stderr)"
)
# more than a gigabyte per session, which has at least two hundred steps
LEAKS = "sys.__dict__.setdefault('leak', []).append(bytearray(b'x' * 8_000_000))"
CLOSES = "os.closerange(3, 256)"

ODD_BUT_WELL = {
    "ignores SIGTERM": (NO_TERM, "pass"),
    "forks a daemon that ignores SIGTERM and closes everything": (DAEMON, "pass"),
    "is a session of its own": (
        "assert os.getsid(0) == os.getpid() and os.getpgid(os.getppid()) != os.getpgid(0)",
        "pass",
    ),
    "prints a gigabyte": (CHATTERS, "pass"),
    "prints errors while it is well": ("pass", ALARMS),
    "changes directory": ("os.chdir('/')", "pass"),
    "closes every file from 3 on at its start": (CLOSES, "pass"),
    "leaks": ("pass", LEAKS),
    "all at once": (f"{NO_TERM}\n{DAEMON}\n{CLOSES}\nos.chdir('/')", ALARMS),
}
