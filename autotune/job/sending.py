"""The files in a job's folder that are never sent to another machine, however they are sent.

Patterns as in .gitignore.
"""

from __future__ import annotations

NEVER = """
    .git/ .hg/ .svn/ __pycache__/ *.py[cod] .venv/ venv/ .tox/ node_modules/ .ipynb_checkpoints/
    .mypy_cache/ .pytest_cache/ .ruff_cache/ autotune-runs/ mlruns/ mlartifacts/ mlflow.db* wandb/
    .env .env.* !.env.example .netrc .pypirc .git-credentials .ssh/ .aws/ .kaggle/ id_rsa id_dsa
    id_ecdsa id_ed25519 *.key *.p12 *.pem
""".split()
