"""Settings of the server: from flags, else PACELINE_* variables, else one JSON file, else the defaults.

They are checked before anything starts. An empty variable counts as not set.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from paceline.errors import PacelineError, validators_words
from paceline.machine import expanded
from paceline.registry import AUTO, DRAFTERS, UnknownMethod
from paceline.spec import SpecError, methods_of, parse

_PREFIX = "PACELINE_"
_LARGEST_FILE_BYTES = 1 << 20
_NEAR = 0.8
"""Similarity to a setting from which an unknown variable counts as misspelt. Others are ignored: Kubernetes sets variables with
any prefix."""
_ORIGIN = re.compile(r"http://[^/?#@*\s]+(?<!:80)|https://[^/?#@*\s]+(?<!:443)|(?!https?:)[a-z][a-z0-9+.-]*://[^/?#@*\s]+")
"""Apps and browser extensions have their own schemes, such as tauri://localhost."""
_HOST_NAME = re.compile(r"[\w.-]+")
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_FLAGS = {"api_key": "api_keys", "allowed_host": "allowed_hosts", "cors_origin": "cors_origins"}
"""Flags that may be repeated, and the lists they fill: every source accepts both names."""


class SettingsError(PacelineError):
    """An invalid or impossible setting; the message is one sentence for the user."""


def _key(secret: SecretStr) -> SecretStr:
    # only what a header can carry: a key that no client can send would lock everyone out
    text = secret.get_secret_value()
    if not (8 <= len(text) <= 512 and text.isascii() and text.isprintable() and " " not in text):
        raise ValueError("a key has 8 to 512 visible ASCII characters and no space")
    return secret


Key = Annotated[SecretStr, AfterValidator(_key)]
Count = Annotated[int, Field(ge=1, le=1 << 24)]
Bytes = Annotated[int, Field(ge=1024, le=1 << 30)]
Seconds = Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)]


class Settings(BaseModel):
    """Settings of `paceline serve`. Immutable. Raises ValidationError, or SettingsError if the file of keys cannot be read.

    model, draft, verify, lossy, policy, weights, kv_cache: as in `LLM`. offer: drafters for requests that name them; if None the
    usual ones, as far as they fit model and verifier. served_name: the model's name in the API; its own name if None. api_keys,
    api_key_file (a key per line): clients must send one of them; without any, only this machine is served, unless `insecure`.
    allowed_hosts: accepted names in a Host header, "*" for any; if empty, those of this machine, or any if the server listens on
    other addresses. cors_origins: other origins whose pages may call. root_path: prefix of all paths that a proxy strips. batch:
    sequences in flight. prefill_chunk: prompt tokens per step; by default what suits the model. cache_tokens: capacity for all
    sequences. queue: waiting requests, beyond which a request gets 429. max_prompt_chars: characters of a request's prompts or
    conversation, and tokens of its prediction and, unless the context is longer, of its prompts, counted once per choice.
    default_max_tokens: for requests that set none; None for the default of the endpoint's API. body_timeout_s: for a body to
    arrive. drain_timeout_s: for running requests to end on shutdown. log_prompts: logs may contain texts of requests.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    model: str | None = None
    draft: str = "auto"
    verify: str = "match"
    lossy: bool = False
    policy: str | None = None
    offer: tuple[str, ...] | None = None
    weights: str | None = None
    kv_cache: str | None = None
    served_name: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    root_path: str = ""
    api_keys: tuple[Key, ...] = ()
    api_key_file: Path | None = None
    insecure: bool = False
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()

    batch: Annotated[int, Field(ge=1, le=1024)] = 8
    prefill_chunk: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    cache_tokens: Annotated[int, Field(ge=2, le=1 << 24)] = 65536
    queue: Annotated[int, Field(ge=0, le=1 << 16)] = 256

    max_body_bytes: Bytes = 4 << 20
    max_header_bytes: Bytes = 32 << 10
    max_prompt_chars: Count = 1_000_000
    max_choices: Annotated[int, Field(ge=1, le=1024)] = 16
    max_prompts: Annotated[int, Field(ge=1, le=1024)] = 64
    max_stop: Annotated[int, Field(ge=1, le=64)] = 16
    max_json_depth: Annotated[int, Field(ge=8, le=256)] = 64
    default_max_tokens: Count | None = None

    request_timeout_s: Seconds = 570.0
    body_timeout_s: Seconds = 30.0
    drain_timeout_s: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] = 30.0

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = False
    log_prompts: bool = False

    @model_validator(mode="before")
    @classmethod
    def _with_keys_of_file(cls, values: Any) -> Any:
        # here and not in `load`, so that settings made in any other way cannot skip the file and leave the server open
        if isinstance(values, dict) and values.get("api_key_file"):
            named = _parts(values.get("api_keys", []))
            if isinstance(named, list | tuple):  # else it is refused below
                return {**values, "api_keys": [*named, *_keys_of_file(str(values["api_key_file"]))]}
        return values

    @field_validator("api_keys", "allowed_hosts", "cors_origins", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return _parts(value)

    @field_validator("offer", mode="before")
    @classmethod
    def _drafters(cls, value: Any) -> Any:
        named = _parts(value)
        if isinstance(value, str) and len(named) > 1:
            # a comma may belong to a drafter's options; the text behind it is then not a drafter
            try:
                for name in (methods_of(parse(spec))[0].name for spec in named):
                    if name != AUTO:
                        _ = DRAFTERS[name]
            except (SpecError, UnknownMethod) as error:
                raise ValueError(
                    "its commas stand between drafters, so one whose options hold commas is given by --offer or in a JSON list of"
                    f" the file of --config: {error}"
                ) from None
        return named

    @field_validator("root_path")
    @classmethod
    def _rooted(cls, path: str) -> str:
        if path and not path.startswith("/"):
            raise ValueError("must begin with '/'")
        return path.rstrip("/")

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin.lower()):
                raise ValueError("an origin looks like https://example.org")
        # as browsers write it
        return tuple(origin.lower() for origin in origins)

    @field_validator("allowed_hosts")
    @classmethod
    def _without_ports(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name != "*" and not _HOST_NAME.fullmatch(name) and not _is_address(name.strip("[]")):
                raise ValueError("a host is a name such as example.org or an address, without a port")
        return names

    @model_validator(mode="after")
    def _guarded(self) -> Settings:
        if not (self.loopback or self.api_keys or self.insecure):
            raise ValueError(f"{self.host} is open to other machines: set an API key, or --insecure to serve everyone")
        return self

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return ip_address(self.host).is_loopback if _is_address(self.host) else self.host == "localhost"

    @property
    def keys(self) -> tuple[bytes, ...]:
        """All keys, including those of the file, as bytes of a header."""
        return tuple(key.get_secret_value().encode() for key in self.api_keys)

    @property
    def hosts(self) -> frozenset[str] | None:
        """Names that a Host header may carry, in lower case and without a port; None for any."""
        if "*" in self.allowed_hosts or (not self.allowed_hosts and not self.loopback):
            return None
        return frozenset(name.lower().strip("[]") for name in self.allowed_hosts or (*_LOOPBACK_NAMES, self.host))


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


NAMES = (*Settings.model_fields, *_FLAGS)
"""Names of settings that every source accepts: `batch`, PACELINE_BATCH, --batch."""


def load(
    flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None, config: str | Path | None = None
) -> Settings:
    """Settings from all sources. Raises SettingsError.

    flags: by the names of flags or fields; None counts as not given. environ: os.environ if None. config: path of a JSON file;
    the variable PACELINE_CONFIG may name it too.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    environ = os.environ if environ is None else environ
    config = config or environ.get(f"{_PREFIX}CONFIG") or None
    variables = _of_environment(environ)
    values: dict[str, Any] = {}
    named: dict[str, str] = {}
    for read, written in (
        (_of_file(Path(config)) if config is not None else {}, lambda name: f"'{name}' in '{config}'"),
        (variables, lambda name: f"{_PREFIX}{name.upper()}"),
        (given, lambda name: "--" + name.replace("_", "-")),
    ):
        fields = {name: _FLAGS.get(name, name) for name in read}
        for one, many in _FLAGS.items():
            if one in read and many in read:
                raise SettingsError(f"{written(one)} and {written(many)} are one setting: leave out one of them")
        values |= {field: read[name] for name, field in fields.items()}
        named |= {field: written(name) for name, field in fields.items()}
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_sentence(error, named)) from None


def _parts(value: Any) -> Any:
    """A string, such as a variable's, split at commas; a list as it is."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _nearest(name: str, names: Iterable[str], cutoff: float = 0.0) -> str | None:
    return next(iter(get_close_matches(name, list(names), 1, cutoff)), None)


def _of_environment(environ: Mapping[str, str]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for variable, value in environ.items():
        name = variable.removeprefix(_PREFIX).lower()
        if not variable.startswith(_PREFIX) or name == "config" or not value:
            continue
        if name in NAMES:
            variables[name] = value
        elif near := _nearest(name, NAMES, _NEAR):
            raise SettingsError(f"{variable} is not a setting; the nearest is {_PREFIX}{near.upper()}")
    return variables


def _of_file(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"'{path}' is not JSON: {str(error) or 'it is nested too deeply'}") from None
    if not isinstance(read, dict):
        raise SettingsError(f"'{path}' must hold one JSON object")
    values = cast(dict[str, Any], read)
    for name in values:
        if name not in NAMES:
            near = _nearest(name, NAMES)
            raise SettingsError(f"'{path}' holds '{name}', which is not a setting; the nearest is '{near}'")
    return values


def _keys_of_file(path: str) -> list[str]:
    try:
        file = expanded(path)
    except OSError as error:
        raise SettingsError(f"'{path}' cannot be read: {error}") from None
    keys = [line.strip() for line in _text(file).splitlines() if line.strip()]
    if not keys:
        raise SettingsError(f"'{path}' holds no key")
    return keys


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            # not checked by file size, which a device does not have
            read = file.read(_LARGEST_FILE_BYTES + 1)
        if len(read) > _LARGEST_FILE_BYTES:
            raise SettingsError(f"'{path}' is larger than {_LARGEST_FILE_BYTES >> 20} MiB")
        return read.decode("utf-8-sig")
    except OSError as error:
        raise SettingsError(f"'{path}' cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"'{path}' is not valid UTF-8 at byte {error.start}") from None


def _sentence(error: ValidationError, named: Mapping[str, str]) -> str:
    """One sentence that names the setting as the user wrote it, but not its value, which may be a key."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    what = validators_words(first["msg"])
    if not first["loc"]:
        return what
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return f"'{name}' is not a setting; the nearest is '{_nearest(name, Settings.model_fields)}'"
    return f"{named.get(name, name)}: {what[:1].lower()}{what[1:]}"
