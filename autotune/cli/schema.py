"""``autotune schema``"""

from __future__ import annotations


def schema() -> None:
    """Print the JSON Schema of job.yaml.

    Editors with a YAML language server check the file as you type, given a first line such as
    "# yaml-language-server: $schema=job.schema.json".
    """
    import json

    import typer

    from autotune.job.schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))
