"""Modules of ours in a process of their own that takes nothing from the user's environment: no
``PYTHON…`` variables, no site-packages.
"""

from __future__ import annotations

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Last on the path: what lies beside this package, in site-packages, must not hide the standard
# library.
_CODE = "import sys; sys.path.append(sys.argv.pop(1)); from {module} import main; sys.exit(main())"


def isolated(module: str, *arguments: str) -> list[str]:
    """The command that runs ``main()`` of ``module``, which needs the standard library only, with
    ``arguments`` in sys.argv.
    """
    return [sys.executable, "-I", "-S", "-c", _CODE.format(module=module), ROOT, *arguments]
