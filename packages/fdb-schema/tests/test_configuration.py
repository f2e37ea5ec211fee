"""Settings: options before environment before file before default; nothing unknown goes unheard."""

from __future__ import annotations

import json
import logging
import os
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from fdb_schema.cli import ClusterOption, DbOption
from fdb_schema.serving.configuration import ConfigurationError, read_configuration, without_credentials
from fdb_schema.serving.logs import LogFormat, LogLevel, configure_logging
from fdb_schema.serving.service import service_app

SEEN: list[dict[str, Any]] = []


def work(
    slots: Annotated[int, typer.Option(help="How many.")] = 1,
    log_level: LogLevel = LogLevel.info,
    db: DbOption = None,
    cluster: ClusterOption = "mainspring",
) -> None:
    """Work."""
    SEEN.append({"slots": slots, "db": db, "cluster": cluster, "log_level": log_level})


APP = service_app("mainspring-worker", "worker", work)


@pytest.fixture(autouse=True)
def logging_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr(root, "level", root.level)
    for name in list(os.environ):
        if name.startswith("MAINSPRING_"):
            monkeypatch.delenv(name)


def run(*arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    SEEN.clear()
    done = CliRunner().invoke(APP, list(arguments), env=env, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return SEEN[0]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mainspring.toml"
    path.write_text('cluster = "of-file"\nlog-level = "warning"\n[worker]\nslots = 5\n[tender]\npoll = 2\n')
    return path


def test_option_environment_file_default_in_that_order(file: Path) -> None:
    environment = {"MAINSPRING_WORKER_SLOTS": "7", "MAINSPRING_CLUSTER": "of-environment"}
    assert run()["slots"] == 1
    assert run("--config", str(file)) == {
        "slots": 5, "db": None, "cluster": "of-file", "log_level": LogLevel.warning,
    }  # fmt: skip
    assert run("--config", str(file), env=environment)["slots"] == 7
    found = run("--config", str(file), "--slots", "9", env=environment)
    assert (found["slots"], found["cluster"]) == (9, "of-environment")
    assert run(env={"MAINSPRING_CONFIG": str(file)})["slots"] == 5


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[worker]\nslotz = 1\n", "unknown key 'slotz' in [worker]; did you mean 'slots'?"),
        ("[wroker]\nslots = 1\n", "unknown table [wroker]; did you mean 'worker'?"),
        ("clutser = 'x'\n", "unknown key 'clutser' before the first table; did you mean 'cluster'?"),
        ("slots = 1\n", "what only one service has goes into its table"),
        ("[worker]\nslots = {a = 1}\n", "must be a text, a number"),
        ("[worker\n", "is no TOML"),
        ("[worker]\nnothinglikeit = 1\n", "there are: cluster, db, log_format, log_level, otlp_endpoint, slots"),
    ],
)
def test_what_a_file_can_t_mean_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        run("--config", str(path))
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="can't be read"):
        read_configuration(tmp_path / "missing.toml")


def test_a_wrong_value_names_its_option(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("[worker]\nslots = 'many'\n")
    done = CliRunner().invoke(APP, ["--config", str(path)])
    assert done.exit_code == 2
    assert "--slots" in done.output


def test_help_names_variables_and_defaults() -> None:
    text = " ".join(CliRunner().invoke(APP, ["--help"], env={"COLUMNS": "200"}).output.split())
    for word in ("MAINSPRING_WORKER_SLOTS", "MAINSPRING_DB", "MAINSPRING_CONFIG", "default: 1]", "--show-completion"):
        assert word in text
    assert "[worker]" in text


def test_json_logs_are_one_object_per_line_and_hold_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    stream = StringIO()
    configure_logging("tender", LogFormat.json, LogLevel.info, stream)
    log = logging.getLogger("some.package")
    log.debug("not shown")
    log.info("opened %s", "https://user:hunter2@store.example/x", extra={"shard": 3})
    try:
        raise ValueError("key wJalrXUtnFEMI refused")
    except ValueError:
        log.exception("a push\nfailed")
    first, second = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (first["level"], first["logger"], first["service"], first["shard"]) == ("info", "some.package", "tender", 3)
    assert first["message"] == "opened https://***@store.example/x"
    assert second["message"] == "a push\nfailed"
    assert "ValueError: key *** refused" in second["error"]
    assert "hunter2" not in stream.getvalue()
    assert "wJalrXUtnFEMI" not in stream.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:pass@word@host/x", "http://***@host/x"),
        ("https://ghp_token@host:4318/v1", "https://***@host:4318/v1"),
        ('{"a": "http://host/x", "b": "me@example"}', '{"a": "http://host/x", "b": "me@example"}'),
        ('{"a":"http://host","b":"me@example"}', '{"a":"http://host","b":"me@example"}'),
        ("fdb:prod:secret@10.0.0.1:4500", "fdb:prod:secret@10.0.0.1:4500"),
    ],
)
def test_credentials_of_urls_are_hidden_whole(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


def test_a_file_that_is_nested_too_deep_is_an_error_that_says_so(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("db = " + "[" * 100_000)
    with pytest.raises(ConfigurationError, match="nested too deep"):
        read_configuration(file)
