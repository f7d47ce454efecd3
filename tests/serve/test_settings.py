"""Settings come from four sources in a known order, and an invalid one gives one sentence that shows no secret."""

from __future__ import annotations

import json
import re
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.core import TyperGroup
from typer.main import get_command

from commandline import run
from paceline.cli.app import app
from paceline.cli.serve import serve
from paceline.serve.settings import NAMES, Settings, SettingsError, load

KEY, OTHER = "sk-aaaaaaaaaaaa", "sk-bbbbbbbbbbbb"


def written(folder: Path, values: Any) -> Path:
    path = folder / "paceline.json"
    path.write_text(json.dumps(values))
    return path


def refusal(flags: dict[str, Any] | None = None, environ: dict[str, str] | None = None, config: Path | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load(flags, environ or {}, config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_flags_win_over_variables_over_the_file_over_defaults(tmp_path: Path) -> None:
    config = written(tmp_path, {"port": 1, "batch": 2, "queue": 3})
    settings = load({"port": 11, "batch": None}, {"PACELINE_PORT": "21", "PACELINE_BATCH": "22", "HOME": "/"}, config)
    assert (settings.port, settings.batch, settings.queue, settings.host) == (11, 22, 3, "127.0.0.1")


def test_a_variable_may_name_the_file(tmp_path: Path) -> None:
    assert load({}, {"PACELINE_CONFIG": str(written(tmp_path, {"port": 9}))}).port == 9


def test_an_empty_variable_is_not_set() -> None:
    assert load({}, {"PACELINE_PORT": "", "PACELINE_HOST": ""}) == Settings()


def test_every_setting_can_be_a_variable() -> None:
    values = {"lossy": "true", "log_json": "1", "request_timeout_s": "2.5", "allowed_hosts": "a.org, b.org", "log_level": "debug"}
    settings = load({}, {f"PACELINE_{name.upper()}": value for name, value in values.items()})
    assert settings.lossy
    assert settings.log_json
    assert settings.request_timeout_s == 2.5
    assert settings.allowed_hosts == ("a.org", "b.org")
    assert settings.log_level == "debug"


@pytest.mark.parametrize(
    ("flag", "field", "values"),
    [
        ("api_key", "keys", (KEY, OTHER)),
        ("allowed_host", "allowed_hosts", ("a.org", "b.org")),
        ("cors_origin", "cors_origins", ("https://a.org", "https://b.org")),
    ],
)
def test_every_source_knows_a_repeated_flag_by_its_own_name(
    tmp_path: Path, flag: str, field: str, values: tuple[str, ...]
) -> None:
    wanted = tuple(value.encode() for value in values) if field == "keys" else values
    variable = f"PACELINE_{flag.upper()}"
    assert getattr(load({flag: list(values)}, {}), field) == wanted
    assert getattr(load({}, {variable: ", ".join(values)}), field) == wanted
    assert getattr(load({}, {}, written(tmp_path, {flag: list(values)})), field) == wanted
    assert getattr(load({}, {}, written(tmp_path, {flag: values[0]})), field) == wanted[:1]
    # precedence is the same for both names
    assert getattr(load({flag: [values[1]]}, {variable + "S": values[0]}), field) == wanted[1:]
    assert refusal(environ={variable: values[0], variable + "S": values[1]}) == (
        f"{variable} and {variable}S are one setting: leave out one of them"
    )


def test_a_repeated_flag_is_named_as_it_was_written(tmp_path: Path) -> None:
    assert refusal({"api_key": ["short"]}).startswith("--api-key: ")
    assert refusal(environ={"PACELINE_API_KEY": "short"}).startswith("PACELINE_API_KEY: ")
    file = written(tmp_path, {"cors_origin": "example.org"})
    assert refusal(config=file).startswith(f"'cors_origin' in '{file}': ")


def test_an_offer_split_at_a_comma_within_a_drafter_is_refused_with_a_hint(tmp_path: Path) -> None:
    between = "its commas stand between drafters, so one whose options hold commas is given by --offer or in a JSON list of the"
    for text, wrong in (
        ("ngram:max=3,min=1", "'min=1'"),
        ("suffix, ngram:3,1", "'1'"),
        ('model:"/a,b"', "has an unclosed quote"),
        ("model:/a,b", "'b'"),
    ):
        said = refusal(environ={"PACELINE_OFFER": text})
        assert said.startswith(f"PACELINE_OFFER: {between}")
        assert wrong in said
        file = written(tmp_path, {"offer": text})
        assert refusal(config=file).startswith(f"'offer' in '{file}': {between}")
    assert load({}, {"PACELINE_OFFER": "ngram:max=3, suffix+recycle, ./own.py"}).offer == (
        "ngram:max=3",
        "suffix+recycle",
        "./own.py",
    )
    whole = ["ngram:max=3,min=1", "auto"]
    assert load({"offer": whole}, {}).offer == load({}, {}, written(tmp_path, {"offer": whole})).offer == (*whole,)


def test_every_flag_of_the_server_is_a_setting() -> None:
    assert signature(serve).parameters.keys() - {"config"} <= {*NAMES}


def test_help_tells_every_default(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert run(monkeypatch, "serve", "--help") == 0
    lines = {line.split()[1]: line for line in capsys.readouterr().out.splitlines() if " --" in line}
    fields = {"api_key": "api_keys", "allowed_host": "allowed_hosts", "cors_origin": "cors_origins"}
    for name in signature(serve).parameters.keys() - {"model", "config"}:
        line, default = lines["--" + name.replace("_", "-")], getattr(Settings(), fields.get(name, name))
        if default is False:
            assert "default:" not in line
        elif default is None or default in ("", ()):
            assert "default:" not in line
            assert "if left out" in line or "adaptive for auto" in line
        else:
            (told,) = re.findall(r"\[default: (.+?)\]", line)
            assert type(default)(told) == default


def test_options_that_are_not_given_override_no_other_source() -> None:
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    one = command.commands["serve"]
    params = one.make_context("serve", ["--queue", "0"]).params
    assert {name: value for name, value in params.items() if value} == {}
    assert params["queue"] == 0
    assert {params[name] for name in ("batch", "port", "host", "draft", "request_timeout_s")} == {None}


def test_unknown_names_are_refused_and_the_nearest_is_named(tmp_path: Path) -> None:
    assert "nearest is 'batch'" in refusal(config=written(tmp_path, {"bach": 3}))
    assert "nearest is PACELINE_API_KEY" in refusal(environ={"PACELINE_API_KEYZ": KEY})
    assert "nearest is 'port'" in refusal({"prot": 1})


def test_variables_that_kubernetes_sets_are_left_alone() -> None:
    environ = {"PACELINE_SERVICE_HOST": "10.0.0.1", "PACELINE_PORT_8000_TCP": "tcp://10.0.0.1:8000", "PACELINE_SERVICE_PORT": "8"}
    assert load({}, environ) == Settings()
    assert refusal(environ={"PACELINE_PORT": "tcp://10.0.0.1:8000"}).startswith("PACELINE_PORT: ")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"port": 70000}, "--port"),
        ({"batch": 0}, "--batch"),
        ({"request_timeout_s": float("nan")}, "--request-timeout-s"),
        ({"max_body_bytes": 1 << 40}, "--max-body-bytes"),
        ({"log_level": "loud"}, "--log-level"),
        ({"root_path": "api"}, "--root-path"),
        ({"cors_origins": ["example.org"]}, "--cors-origins"),
        ({"cors_origins": ["https://example.org/app"]}, "--cors-origins"),
        ({"cors_origins": ["https://*.example.org"]}, "--cors-origins"),
        ({"cors_origins": ["https://example.org:443"]}, "--cors-origins"),
        ({"cors_origins": ["https://me@example.org"]}, "--cors-origins"),
        ({"allowed_hosts": ["example.org:8443"]}, "--allowed-hosts"),
        ({"allowed_hosts": ["*.example.org"]}, "--allowed-hosts"),
        ({"api_keys": ["short"]}, "--api-keys"),
        ({"api_keys": ["with space in it"]}, "--api-keys"),
        ({"api_keys": ["ключключключ"]}, "--api-keys"),
        ({"api_keys": 5}, "--api-keys"),
    ],
)
def test_a_value_out_of_range_is_named_where_it_was_written(flags: dict[str, Any], named: str) -> None:
    assert refusal(flags).startswith(f"{named}: ")


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, '{"port": 1}x'])
def test_a_file_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text)
    assert str(path) in refusal(config=path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    assert "No such file" in refusal(config=path)
    path.write_bytes(b"\xff\xfe")
    assert "not valid UTF-8" in refusal(config=path)
    path.write_bytes(b" " * (2 << 20))
    assert "larger than" in refusal(config=path)


def test_keys_come_from_a_file_too_and_are_shown_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{OTHER}\n\n")
    settings = load({"api_key_file": path}, {"PACELINE_API_KEYS": KEY})
    assert settings.keys == (KEY.encode(), OTHER.encode())
    for shown in (repr(settings), str(settings), settings.model_dump_json(), str(settings.model_dump())):
        assert KEY not in shown
        assert OTHER not in shown
    path.write_text("\n")
    assert "holds no key" in refusal({"api_key_file": path})


def test_a_refused_key_is_not_told(tmp_path: Path) -> None:
    bad = "secret with spaces"
    assert bad not in refusal({"api_keys": [bad]})
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"api_keys": [bad]})
    assert bad not in str(caught.value)
    path = tmp_path / "keys"
    path.write_text(bad)
    assert bad not in refusal({"api_key_file": path})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org"])
def test_other_machines_are_served_with_a_key_or_on_purpose(host: str) -> None:
    sentence = refusal({"host": host})
    assert "--insecure" in sentence
    assert "key" in sentence
    assert load({"host": host, "insecure": True}, {}).hosts is None
    assert load({"host": host, "api_keys": [KEY]}, {}).hosts is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_this_machine_needs_no_key(host: str) -> None:
    settings = load({"host": host}, {})
    assert settings.loopback
    assert settings.hosts == {"localhost", "127.0.0.1", "::1", host}


def test_allowed_hosts_and_cors_origins_are_exactly_those_given() -> None:
    assert load({"allowed_hosts": ["Example.org", "[::1]"]}, {}).hosts == {"example.org", "::1"}
    assert load({"allowed_hosts": "*"}, {}).hosts is None
    apps = ("tauri://localhost", "app://obsidian.md")
    assert load({"cors_origins": apps}, {}).cors_origins == apps
    assert load({"cors_origins": ["https://Example.org:8443", "*"]}, {}).cors_origins == ("https://example.org:8443", "*")
