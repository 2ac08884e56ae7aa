"""Values that look like secrets are not written, and others stay readable."""

import json
import re

import pytest

from autotune.secrets import (
    is_secret,
    mask,
    mask_command,
    mask_text,
    mask_url,
    secret_texts,
    split_secret_flags,
)


@pytest.mark.parametrize(
    "name",
    [
        "WANDB_API_KEY",
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "db_password",
        "apiKey",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "--hub-token",
        "PGPASSWORD",
        "SSHPASS",
        "DB_CREDS",
        "AZURE_STORAGE_CONNECTION_STRING",
    ],
)
def test_secret_names(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "PWD",
        "TOKENIZERS_PARALLELISM",
        "MAX_TOKENS",
        "MONKEY",
        "OMP_NUM_THREADS",
        "AUTHOR",
        "KEYBOARD",
        "COMPASS",
        "PASSES",
    ],
)
def test_other_names(name: str) -> None:
    assert not is_secret(name)


def test_mask_keeps_the_names() -> None:
    assert mask({"HF_TOKEN": "hf_1", "EPOCHS": "5", "DB": "postgresql://me:pw@host/x"}) == {
        "HF_TOKEN": "***",
        "EPOCHS": "5",
        "DB": "postgresql://***@host/x",
    }


def test_values_are_found_in_text() -> None:
    env = {"HF_TOKEN": "hf_abcdef0123", "PIN_KEY": "12"}
    assert (
        mask_text("failed: hf_abcdef0123 refused, 12 times", env) == "failed: *** refused, 12 times"
    )
    assert (
        mask_text("train.py --api-key abc --lr 0.1 API_KEY=abc", {})
        == "train.py --api-key *** --lr 0.1 API_KEY=***"
    )
    assert (
        mask_url("https://me:pw@host/a and https://host:80/b")
        == "https://***@host/a and https://host:80/b"
    )
    assert (
        mask_url("postgresql://me@host/db?password=hunter2&ssl=1, http://host/?page=2")
        == "postgresql://me@host/db?password=***&ssl=1, http://host/?page=2"
    )
    assert (
        mask_url("pip install git+https://ghp_0123456789abcdef@h/a/b ssh://git@host/a http://h/a@b")
        == "pip install git+https://***@h/a/b ssh://git@host/a http://h/a@b"
    )


def test_flags_of_training_programs_are_not_secrets() -> None:
    text = "train.py --pad-token <pad> --sort-key label --max-tokens 100 --token-type bpe"
    assert mask_text(text, {}) == text
    assert split_secret_flags(text.split()) == []


def test_secrets_on_a_command_line() -> None:
    argv = ["--api-key", "abc", "--hub-token=hf_0123456789ab", "--password", "x y"]
    assert split_secret_flags(argv) == [
        (1, "", "API_KEY"),
        (2, "--hub-token=", "HUB_TOKEN"),
        (4, "", "PASSWORD"),
    ]


def test_a_line_for_a_shell_is_masked_within() -> None:
    line = "cd src && MY_SECRET=hunter2 python train.py --api-key abc --lr 0.1"
    assert mask_command(["/bin/sh", "-c", line]) == [
        "/bin/sh",
        "-c",
        "cd src && MY_SECRET=*** python train.py --api-key *** --lr 0.1",
    ]


def test_every_form_in_which_a_value_is_printed() -> None:
    env = {
        "HF_TOKEN": 'hf "ü"\\ 01',
        "DEPLOY_KEY": "first line\nsecond line",
        "DB": "postgresql://me:hunter2@host/x",
        "SSH_AUTH_SOCK": "/tmp",
        "A_KEY": "12345",
    }
    for value in (env["HF_TOKEN"], env["DEPLOY_KEY"]):
        for text in (value, repr(value), json.dumps(value), str({"x": value}), *value.splitlines()):
            assert not {"hf", "first", "second"} & set(re.findall(r"\w+", mask_text(text, env))), (
                text
            )
    assert mask_text("hunter2 at /tmp, 12345", env) == "*** at /tmp, 12345"
    assert "abcdefg" in secret_texts({}, ["--api-key", "abcdefg"])
    for line in ("python t.py --api-key abcdefg", "API_KEY='abcdefg' python t.py"):
        assert "abcdefg" in secret_texts({}, ["/bin/sh", "-c", line])


@pytest.mark.parametrize(
    "url",
    [
        "https://host/data?access_token=s3cretpw99",
        "https://account.blob.core.windows.net/c/data?sv=2024&se=2030&sig=AbC%2Bs3cret%3D",
        "https://bucket.s3.amazonaws.com/k?X-Amz-Credential=a&X-Amz-Signature=s3cretpw99",
        "https://host/data?api_key=s3cretpw99",
        "https://h/k?X-Amz-Security-Token=s3cret1&X-Amz-Signature=s3cret2&sig=s3cret3",
    ],
)
def test_signed_addresses(url: str) -> None:
    assert "s3cret" not in mask_url(url)
    assert mask_url("http://h/x?signal=1&page=2") == "http://h/x?signal=1&page=2"


def test_tokens_without_digits() -> None:
    token = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYzAbCdEfGh"
    for words in (["--hub_token", token], [f"--hf-token={token}"], ["--token", token]):
        assert token not in " ".join(mask_command(["python", "train.py", *words]))
    assert token in secret_texts({}, ["python", "train.py", "--hub_token", token])
    for word in ("<|endoftext|>", "endoftext", "timestamp_desc", "[PAD]"):
        assert word in mask_command(["python", "train.py", "--pad-token", word])
