"""Where MLflow keeps a study: from a setting in job.yaml or a flag to a store that works.

auto            MLFLOW_TRACKING_URI if set, else sqlite:///<parent of the run directory>/mlflow.db,
                artifacts in mlartifacts/ beside it
sqlite:///p.db  a file; artifacts in mlartifacts/ beside it
http(s)://      a tracking server, which manages the artifacts itself
others          databases and managed services, as MLflow knows them
"""

from __future__ import annotations

import os
import tempfile
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import InputError
from autotune.secrets import mask_url
from autotune_spaces.base import nearest

# MLflow's own variable; a service sets it to where its studies go
OWN_VARIABLE = "MLFLOW_TRACKING_URI"
DATABASES = ("postgresql", "mysql", "mssql", "oracle")
SERVICES = ("databricks", "databricks-uc", "uc")
EXPECTED = "auto, none, sqlite:///file.db, or the http(s):// address of an MLflow server"


@dataclass(frozen=True)
class Store:
    """One place MLflow can write to."""

    uri: str
    kind: str  # "sqlite", "http", "database", "service"
    database: Path | None = None  # of a sqlite store

    @property
    def artifact_location(self) -> str | None:
        """Where a new experiment of this store keeps its files; None leaves it to the server."""
        return None if self.database is None else (self.database.parent / "mlartifacts").as_uri()

    @property
    def shown(self) -> str:
        """The URI without user names and passwords."""
        return mask_url(self.uri)

    @property
    def local(self) -> bool:
        """Whether writing takes only milliseconds, so that it may be done between two trials."""
        return self.kind == "sqlite"


def resolve(
    uri: str | None, run_dir: Path | None = None, where: str = "tracking uri"
) -> Store | None:
    """The store that ``uri`` names; None for no MLflow. Accesses nothing.

    Args:
        run_dir: the directory beside which "auto" puts its database.

    Raises:
        InputError: not a URI that MLflow could write to.
    """
    if uri is None or uri in ("", "none"):
        return None
    if uri == "auto":
        uri = os.environ.get(OWN_VARIABLE, "").strip()
        if uri:
            where = OWN_VARIABLE
        elif run_dir is None:
            return None
        else:
            uri = f"sqlite:///{run_dir.resolve().parent / 'mlflow.db'}"
    scheme = uri.partition("://")[0].partition("+")[0] if "://" in uri else uri.partition(":")[0]
    if scheme == "sqlite" and "://" in uri:
        return _sqlite(uri, where)
    if scheme in ("http", "https") and _host(uri):
        return Store(uri.rstrip("/"), "http")
    if scheme in DATABASES and "://" in uri:
        return Store(uri, "database")
    if scheme in SERVICES:
        return Store(uri, "service")
    if scheme == "file" or ("://" not in uri and ("/" in uri or uri in ("mlruns", "."))):
        path = uri.removeprefix("file://").removeprefix("file:")
        raise InputError(
            f"'{mask_url(uri)}' is a directory, and MLflow no longer writes to plain directories",
            where=where,
            expected=EXPECTED,
            remedy=f"use sqlite:///{(Path(path or '.') / 'mlflow.db').as_posix()}",
        )
    close = nearest(scheme, ("sqlite", "http", "https", *DATABASES, *SERVICES))
    raise InputError(
        f"'{mask_url(uri)}' is not a tracking URI",
        where=where,
        expected=EXPECTED,
        remedy=f"did you mean '{close}'?" if close and close != scheme else "",
    )


def _host(uri: str) -> str:
    """The host that an address names; "" if it names none."""
    try:
        parts = urllib.parse.urlsplit(uri)
        return "" if parts.port == 0 or any(c.isspace() for c in uri) else parts.hostname or ""
    except ValueError:  # a port that is no number, a bracket that does not close
        return ""


def _sqlite(uri: str, where: str) -> Store:
    name = uri.partition("://")[2]
    if not name.startswith("/") or name in ("/", "/:memory:"):
        raise InputError(
            f"'{uri}' names no file",
            where=where,
            expected="sqlite:///relative.db or sqlite:////absolute.db",
            remedy="three slashes, then the path",
        )
    path = Path(os.path.abspath(os.path.expanduser(name[1:])))
    if "?" in str(path):
        raise InputError(
            f"'{path}' contains a '?', which a sqlite URI cannot express",
            where=where,
            remedy="choose another directory",
        )
    return Store(f"sqlite:///{path}", "sqlite", path)


def preflight(
    uri: str | None, run_dir: Path | None = None, where: str = "tracking uri"
) -> Store | None:
    """Check that ``uri`` names a store that could be written to.

    Asks no server and leaves nothing behind. A server that is down may be back in a minute, so it
    is no reason not to start. A sqlite file is on this machine, and so is the person who can fix
    it.

    Raises:
        InputError: not a tracking URI, or a sqlite file that cannot be created or written.
    """
    store = resolve(uri, run_dir, where)
    if store is not None and store.database is not None:
        _check_sqlite(store.database, where)
    return store


def _check_sqlite(path: Path, where: str) -> None:
    try:
        if path.exists():
            with open(path, "r+b") as file:
                head = file.read(16)
            if head and head != b"SQLite format 3\0":
                raise InputError(f"{path} is not a sqlite database", where=where, expected=EXPECTED)
        folder = next(folder for folder in path.parents if folder.exists())
        with tempfile.TemporaryFile(dir=folder):  # SQLite writes its journal beside the database
            pass
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}",
            where=where,
            expected="a file that MLflow can write, or create",
            remedy="change its permissions, or choose another file",
        ) from None
