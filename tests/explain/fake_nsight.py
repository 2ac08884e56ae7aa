"""Stand-ins for ``nsys`` and ``ncu``: they record their arguments, run the command, and write the
same files as the real ones.

The tables and columns are those of NVIDIA's "SQLite Schema Reference" for Nsight Systems, and ncu's
raw page.
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path

NSYS = '''#!{python}
import json, os, sqlite3, subprocess, sys
from pathlib import Path
words = sys.argv[1:]
with open({log!r}, "a") as file:
    file.write(json.dumps(words) + "\\n")

def schema(path):
    database = sqlite3.connect(path)
    database.executescript("""
    CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
        streamId INTEGER NOT NULL, correlationId INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL);
    CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
        streamId INTEGER NOT NULL, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
    CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, textId INTEGER,
        globalTid INTEGER, domainId INTEGER);
    """)
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(1, "sgemm"), (2, "vectorized_elementwise_kernel"),
        (3, "void at::native::vectorized_elementwise_kernel<4>()"), (4, "iteration"), (5, "autotune"), (6, "theirs")])
    ms = 1_000_000
    for step in range(10):  # 10 ms each: sgemm 4 ms, elementwise 2 ms half of it at the same time, 1 ms of copying
        at = step * 10 * ms
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 7, 1, 1, 1)", (at + 1 * ms, at + 5 * ms))
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 8, 2, 3, 2)", (at + 4 * ms, at + 6 * ms))
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, 0, 7, 4000000, 1)", (at, at + ms))
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, 0, 7, 64, 2)", (at, at + ms))
        database.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, NULL, 4, 1, 3)", (at, at + 10 * ms))
    database.execute("INSERT INTO NVTX_EVENTS VALUES (0, NULL, 75, 'autotune', NULL, 1, 3)")
    database.execute("INSERT INTO NVTX_EVENTS VALUES (0, NULL, 75, 'theirs', NULL, 1, 4)")
    database.execute("INSERT INTO NVTX_EVENTS VALUES (0, 5000000000, 59, 'iteration', NULL, 1, 4)")  # of the job's own domain
    for table in os.environ.get("FAKE_NSYS_DROP", "").split():
        database.execute(f"DROP TABLE {{table}}")
    database.commit()

if words[0] == "profile":
    rest = words[1:]
    output = ""
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-t", "-o"):
            value = rest.pop(0)
            output = value if option == "-o" else output
    code = subprocess.run(rest).returncode  # as the real one, it is done when the application is
    Path(output + ".nsys-rep").write_text("report")
    sys.exit(code)
if words[0] == "export":
    schema(words[words.index("--output") + 1])
'''
NCU = """#!{python}
import json, subprocess, sys
from pathlib import Path
words = sys.argv[1:]
with open({log!r}, "a") as file:
    file.write(json.dumps(words) + "\\n")
if "--import" in words:
    print("==PROF== Connected")
    print('"ID","Kernel Name","gpu__time_duration.sum","sm__throughput.avg.pct_of_peak_sustained_elapsed",'
          '"gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"')
    print('"","","nsecond","%","%"')
    print('"0","sgemm","1,250,000","81.5","n/a"')
    print('"1","vectorized_elementwise_kernel","20000","3","92.25"')
else:
    at = words.index("--export")
    subprocess.run(words[at + 2:])
    Path(words[at + 1] + ".ncu-rep").write_text("report")
"""


def put(folder: Path, name: str) -> Path:
    """Put the stand-in ``name`` into ``folder``; returns the file with its arguments, one JSON list
    per line.
    """
    folder.mkdir(exist_ok=True)
    log = folder / f"{name}.calls"
    program = folder / name
    program.write_text({"nsys": NSYS, "ncu": NCU}[name].format(python=sys.executable, log=str(log)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return log
