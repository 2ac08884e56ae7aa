"""Runs one of our modules in a Python process isolated from the user's environment: no ``PYTHON…``
variables, no site-packages.
"""

from __future__ import annotations

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Appended at the end of sys.path: packages next to this one in site-packages must not shadow the
# standard library.
_CODE = "import sys; sys.path.append(sys.argv.pop(1)); from {module} import main; main()"


def isolated(module: str, *arguments: str) -> list[str]:
    """The command that runs ``main()`` of ``module`` with ``arguments`` in sys.argv; the module may
    use only the standard library.
    """
    return [sys.executable, "-I", "-S", "-c", _CODE.format(module=module), ROOT, *arguments]
