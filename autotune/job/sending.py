"""The files in a job's folder that are never sent to another machine, however they are sent.

Patterns as in .gitignore.
"""

from __future__ import annotations

NEVER = """
    .git/ .hg/ .svn/ __pycache__/ *.py[cod] .venv/ venv/ .tox/ node_modules/ .ipynb_checkpoints/
    .mypy_cache/ .pytest_cache/ .ruff_cache/ autotune-runs/ mlruns/ mlartifacts/ mlflow.db* wandb/
    .env .netrc .ssh/ .aws/ .kaggle/ id_rsa id_ed25519 *.pem
""".split()
