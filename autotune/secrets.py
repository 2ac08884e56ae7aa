"""Masks values that must not be written down with ``***``.

They are found by the names of their variables or flags. Names are split into words, so that
``WANDB_API_KEY`` is a secret and ``TOKENIZERS_PARALLELISM``, ``MAX_TOKENS`` and ``MONKEY`` are not.
A harmless name taken for a secret costs a readable value; a missed secret costs the secret, so
doubtful words are in the list.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence

from autotune_spaces.shell_line import shell_line
from autotune_trials.supervisor.masking import MASK, Masks

WORDS = frozenset(
    """
        KEY KEYS APIKEY ACCESSKEY TOKEN SECRET SECRETS PASSWORD PASSWD PASSPHRASE PASS PWD
        CREDENTIAL CREDENTIALS CREDS AUTH AUTHORIZATION BEARER COOKIE DSN PAT JWT PRIVATE SSHPASS
    """.split()
)
ENDINGS = ("PASSWORD", "PASSWD", "SECRET", "APIKEY", "CONNECTIONSTRING")  # PGPASSWORD
# The shell's own, and where Ray finds its token, which messages must be able to name.
NOT_SECRET = frozenset({"PWD", "OLDPWD", "XAUTHORITY", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"})
# shorter values are common words and numbers: replacing them in text would only garble it
SHORTEST_IN_TEXT = 6
IMAGES = "docker://", "oci://"  # name:tag@digest, without a password

_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# a name alone, in https://TOKEN@host, is taken for a token if it is long
_USERINFO = re.compile(
    r"(?P<scheme>https?://(?=[^/\s@'\"]{16,}@)|[A-Za-z][A-Za-z0-9+.-]*://(?=[^/\s@'\"]*:[^/\s'\"]*@))"
    r"(?P<user>[^/\s'\"]*)@"
)
_URL = re.compile(r"://[^\s'\"]+")
_QUERY = re.compile(
    r"(?i)(?P<before>[?&](?:[\w-]*(?:password|passwd|pwd|token|secret|signature|api_?key)|sig)=)[^&]+"
)
# what services give out may have no digit in it: hf_AbC…
_ISSUED = re.compile(r"(?:hf|api_org|gh[pousr]|github_pat|glpat|sk|xox[abp]|npm)[_-][\w-]{16,}")


def is_secret(name: str) -> bool:
    """Whether the name of a variable, flag or parameter says that its value is a secret."""
    if name in NOT_SECRET:
        return False
    parts = [part.upper() for part in _PARTS.findall(name)]
    return any(part in WORDS for part in parts) or "".join(parts).endswith(ENDINGS)


def mask_url(text: str) -> str:
    """``text`` without the user names and passwords of the URLs in it."""
    text = _URL.sub(lambda url: _QUERY.sub(lambda m: f"{m['before']}{MASK}", url[0]), text)
    return _USERINFO.sub(lambda m: f"{m['scheme']}{MASK}@", text)


def url_secrets(text: str) -> list[tuple[str, str]]:
    """The passwords and signatures in the URLs of ``text``: (value, a pattern that finds it).

    Not those that stand for something: ``${NAME}``, ``{seed}``. The text may be a shell line.
    """
    found = []
    for match in _USERINFO.finditer(text):
        if match["scheme"] not in IMAGES:
            value = match["user"].partition(":")[2] or match["user"]
            found.append((value, rf"(?<=[:/]){re.escape(value)}(?=@)"))
    for url in _URL.findall(text):
        for match in _QUERY.finditer(url):
            value = re.split(r"[#;|<>()]", match[0].removeprefix(match["before"]))[0]
            found.append((value, rf"(?<==){re.escape(value)}"))
    return [(value, pattern) for value, pattern in found if value and value[0] not in "${"]


def mask(values: Mapping[str, object]) -> dict[str, object]:
    """``values`` with those of secret names, and passwords inside URLs, replaced."""
    return {
        name: MASK if is_secret(name) else mask_url(value) if isinstance(value, str) else value
        for name, value in values.items()
    }


def secret_values(env: Mapping[str, str]) -> list[str]:
    """The values in ``env`` to look for in text, longest first (one may contain another).

    A value that is the path of an existing file is no secret: ``SSH_AUTH_SOCK``,
    ``GOOGLE_APPLICATION_CREDENTIALS``.
    """
    found: set[str] = set()
    for name, value in env.items():
        if is_secret(name) and not (os.path.isabs(value) and os.path.exists(value)):
            found |= _as_printed(value)
        for match in _USERINFO.finditer(value):
            found |= {match["user"], match["user"].partition(":")[2]}
    return sorted(
        (value for value in found if len(value) >= SHORTEST_IN_TEXT), key=len, reverse=True
    )


def secret_texts(env: Mapping[str, str], command: Sequence[str]) -> tuple[str, ...]:
    """Like :func:`secret_values`, including those on the command line."""
    words = [str(word) for word in command]
    given = {
        f"{at} SECRET": words[at].removeprefix(before)
        for at, before, _ in split_secret_flags(words)
    }
    if (line := shell_line(words)) is not None:
        given |= hide_secret_flags(words[line], {})[1]
    return tuple(secret_values({**env, **given}))


def _as_printed(value: str) -> set[str]:
    """A value and each of its lines (a private key has several), also as in ``repr`` and JSON."""
    parts = {value, *(line for line in value.splitlines() if len(line) > SHORTEST_IN_TEXT)}
    return {form for part in parts for form in (part, repr(part)[1:-1], json.dumps(part)[1:-1])}


def mask_text(text: str, env: Mapping[str, str]) -> str:
    """``text`` without secret values of ``env``, passwords in URLs, and values of secret flags.

    Args:
        env: the environment the job runs in.
    """
    return mask_secrets(text, secret_values(env))


def mask_secrets(text: str, secrets: Sequence[str]) -> str:
    """Like :func:`mask_text`, for values that were looked up before."""
    text = Masks(secrets).text(text)

    def masked(match: re.Match[str]) -> str:
        secret = _is_secret_flag(match["name"], match["value"].strip("'\""))
        return f"{match['name']}{match['by']}{MASK}" if secret else match[0]

    return _FLAG.sub(masked, mask_url(text))


# --api-key abc, --api-key=abc, API_KEY=abc; not "key: explanation" in prose
_FLAG = re.compile(
    r"(?P<name>--?[A-Za-z][\w.-]*|\b[A-Za-z]\w*(?==))(?P<by>=|\s+(?!-))(?P<value>'[^']*'|\"[^\"]*\"|[^\s'\",]+)"
)
_PLAIN = frozenset({"KEY", "KEYS", "TOKEN", "AUTH", "PASS", "PRIVATE", "PAT"})


def _is_secret_flag(name: str, value: str) -> bool:
    """Whether a flag's value is a secret.

    Training programs have flags such as ``--pad-token`` and ``--sort-key``: for these, the value
    must look like a secret, too.
    """
    if not is_secret(name):
        return False
    words = {part.upper() for part in _PARTS.findall(name)} & WORDS
    if words - _PLAIN or {"API", "ACCESS"} & {part.upper() for part in _PARTS.findall(name)}:
        return True
    mixed = re.fullmatch(r"(?=.*\d)(?=.*[A-Za-z])[\w.~+/=:-]{12,}", value)
    return bool(mixed or _ISSUED.fullmatch(value))


def split_secret_flags(argv: Sequence[str]) -> list[tuple[int, str, str]]:
    """The secrets on a command line, without those inside a shell line.

    As (index of the word, the word's part before the secret, variable name to keep it in).

    ``["--api-key", "abc", "--hub-token=hf_0123456789"]`` gives ``[(1, "", "API_KEY"), (2,
    "--hub-token=", "HUB_TOKEN")]``.
    """
    found = []
    line = shell_line(argv)
    for index, word in enumerate(argv):
        if index == line:
            continue  # see hide_secret_flags
        name, equals, value = word.partition("=")
        previous = argv[index - 1] if index else ""
        if equals and value and not any(c.isspace() for c in name) and _is_secret_flag(name, value):
            found.append((index, name + "=", _variable(name)))
        elif (
            previous.startswith("-")
            and "=" not in previous
            and not word.startswith("-")
            and _is_secret_flag(previous, word)
        ):
            found.append((index, "", _variable(previous)))
    return found


def hide_secret_flags(line: str, taken: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """A shell line with ``"$NAME"`` in place of its secret flags' values, and these values.

    ``taken``: variables with values of their own.

    ``train --api-key 'abc'`` gives ``train --api-key "$API_KEY"`` and ``{"API_KEY": "abc"}``.
    """
    found: dict[str, str] = {}

    def hidden(match: re.Match[str]) -> str:
        value = match["value"].strip("'\"")
        if value.startswith("$") or not _is_secret_flag(match["name"], value):
            return match[0]
        name = free_name(_variable(match["name"]), value, {**taken, **found})
        found[name] = value
        return f'{match["name"]}{match["by"]}"${name}"'

    return _FLAG.sub(hidden, line), found


def free_name(name: str, value: str, taken: Mapping[str, str]) -> str:
    """``name``, with underscores until it is no variable with another value."""
    while name in NOT_SECRET or taken.get(name, value) != value:
        name += "_"
    return name


def mask_command(argv: Sequence[str]) -> list[str]:
    """The command line with its secrets masked, for whatever is shown or recorded.

    Words that are shell lines are masked, too.
    """
    words = [str(word) for word in argv]
    words = [
        mask_secrets(word, ()) if any(c.isspace() for c in word) else mask_url(word)
        for word in words
    ]
    for index, before, _ in split_secret_flags(words):
        words[index] = before + MASK
    return words


def _variable(name: str) -> str:
    return re.sub(r"\W+", "_", name.strip("-")).upper()
