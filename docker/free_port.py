"""`free_port.py PREFERRED`: prints that port if nobody on this machine listens on it, else another
that is free.
"""

import socket
import sys

for port in (int(sys.argv[1]), 0):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        print(probe.getsockname()[1])
        break
