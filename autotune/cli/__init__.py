"""The command line: one file per command; :func:`main` is the only place that prints errors.

0  done                                     5  the cluster went away; rerun to resume
1  a bug in autotune                       10  judge: a --fail-if condition holds
2  wrong input                             11  judge: undecided
3  the unchanged job fails (baseline)     130  interrupted; rerun to resume
4  the agent cannot hook into the job
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from autotune.errors import AutotuneError
from autotune.service.ending import SUBMISSION, last_words


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code (``autotune`` passes it to ``sys.exit``)."""
    submission = os.environ.pop(SUBMISSION, "")  # the job must not see it
    code = _exit_code(arguments)
    if submission:
        sys.stdout.flush()
        print(last_words(submission, code), file=sys.stderr)
    return code


def _exit_code(arguments: Sequence[str] | None) -> int:
    try:
        from autotune.cli.app import build

        # Standalone: typer handles its own usage errors (exit code 2) and lets everything else
        # through.
        build().main(args=None if arguments is None else list(arguments), prog_name="autotune")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except AutotuneError as error:
        print(f"autotune: {_masked(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("autotune: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            name = str(error.filename)
            print(
                f"autotune: {name[:60]}…: a file name of {len(name)} characters is too long",
                file=sys.stderr,
            )
            return 2
        print(f"autotune: {_defect(error)}", file=sys.stderr)
        return 1
    return 0


def _masked(text: str) -> str:
    from autotune.secrets import mask_text

    return mask_text(text, os.environ)


def _defect(error: Exception) -> str:
    """One line about an unforeseen error, whose traceback is kept in a file."""
    import tempfile
    import traceback

    text = _masked(f"{' '.join(sys.argv)}\n{''.join(traceback.format_exception(error))}")
    head = _masked(f"unexpected {type(error).__name__}: {error}")
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="autotune-error-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError:
        return f"{head}\n{text}"
    return f"{head}\n  this is a bug in autotune; the full traceback is in {file.name}"


if __name__ == "__main__":
    sys.exit(main())
