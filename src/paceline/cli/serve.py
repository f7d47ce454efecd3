"""`paceline serve`: an OpenAI-compatible server."""

from __future__ import annotations

from contextlib import nullcontext
from inspect import signature
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.options import VERIFIERS_HELP, KVCache, Lossy, Model, Policy, Weights, path_option
from paceline.cli.terminal import err, out
from paceline.interrupts import raise_again

if TYPE_CHECKING:
    from paceline.serve.service import EngineService

SERVING, ACCESS, SIZES, TIMES, LOGS = "What is served", "Who may call", "How much", "How long", "Logs"


def _option(name: str, text: str, panel: str) -> Any:
    return typer.Option(f"--{name}", help=text, rich_help_panel=panel)


class _Default:
    """A default that help shows as the setting's own, while the command gets None (not given), so variables and the file decide.

    The setting is read only when help is shown: settings need pydantic, which takes as long to import as the whole command line.
    """

    def __init__(self, setting: str) -> None:
        self._setting = setting

    def __call__(self) -> None: ...

    def __str__(self) -> str:
        from paceline.serve.settings import Settings

        # a repeatable flag has another name than its field, which is empty by default
        field = Settings.model_fields.get(self._setting)
        default = field.default if field is not None else None
        # the option's help text explains None and the empty string
        return "" if default in (None, "") else f"{default:g}" if isinstance(default, float) else str(default)


def _with_defaults(command: Any) -> Any:
    """Make help show the defaults of `Settings` for parameters with the default None."""
    original = signature(command, eval_str=True)
    parameters = [
        one.replace(default=_Default(name)) if one.default is None else one for name, one in original.parameters.items()
    ]
    command.__signature__ = original.replace(parameters=parameters)
    return command


@_with_defaults
def serve(
    model: Model = None,
    config: Annotated[
        Path | None, path_option("--config", "JSON file of settings; flags and environment variables take precedence.")
    ] = None,
    draft: Annotated[str | None, _option("draft", "Drafter spec, as for `paceline generate`.", SERVING)] = None,
    offer: Annotated[
        list[str] | None, _option("offer", "Drafter that requests may name; may be repeated; a usual set if left out.", SERVING)
    ] = None,
    verify: Annotated[str | None, _option("verify", VERIFIERS_HELP, SERVING)] = None,
    lossy: Lossy = False,
    policy: Policy = None,
    weights: Weights = None,
    kv_cache: KVCache = None,
    served_name: Annotated[
        str | None, _option("served-name", "Model name in the API; the model's own name if left out.", SERVING)
    ] = None,
    host: Annotated[str | None, _option("host", "Address to listen on.", ACCESS)] = None,
    port: Annotated[int | None, _option("port", "Port to listen on; 0 for any free one.", ACCESS)] = None,
    api_key: Annotated[
        list[str] | None, _option("api-key", "API key, required on every route; may be repeated; none if left out.", ACCESS)
    ] = None,
    api_key_file: Annotated[
        Path | None, path_option("--api-key-file", "File with one API key per line; none if left out.", ACCESS)
    ] = None,
    insecure: Annotated[bool, _option("insecure", "Serve other machines without an API key.", ACCESS)] = False,
    allowed_host: Annotated[
        list[str] | None,
        _option(
            "allowed-host",
            "Accepted Host header; may be repeated; if left out local names, or any if --host is not local.",
            ACCESS,
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None, _option("cors-origin", "Allowed CORS origin; may be repeated; none but its own if left out.", ACCESS)
    ] = None,
    root_path: Annotated[str | None, _option("root-path", "Path prefix that a proxy strips; none if left out.", ACCESS)] = None,
    batch: Annotated[int | None, _option("batch", "Maximum number of concurrent sequences.", SIZES)] = None,
    queue: Annotated[int | None, _option("queue", "Requests that may wait before further requests get HTTP 429.", SIZES)] = None,
    cache_tokens: Annotated[
        int | None, _option("cache-tokens", "Capacity of the KV cache in tokens, over all sequences.", SIZES)
    ] = None,
    prefill_chunk: Annotated[
        int | None, _option("prefill-chunk", "Prompt tokens per step; depends on the model if left out.", SIZES)
    ] = None,
    default_max_tokens: Annotated[
        int | None,
        _option("default-max-tokens", "Answer tokens where a request sets no limit; the API's default if left out.", SIZES),
    ] = None,
    max_body_bytes: Annotated[int | None, _option("max-body-bytes", "Maximum size of a request body.", SIZES)] = None,
    max_header_bytes: Annotated[int | None, _option("max-header-bytes", "Maximum size of the request headers.", SIZES)] = None,
    max_prompt_chars: Annotated[int | None, _option("max-prompt-chars", "Maximum characters of a request's text.", SIZES)] = None,
    max_choices: Annotated[int | None, _option("max-choices", "Maximum choices (n) per prompt.", SIZES)] = None,
    max_prompts: Annotated[int | None, _option("max-prompts", "Maximum prompts per request.", SIZES)] = None,
    max_stop: Annotated[int | None, _option("max-stop", "Maximum stop strings per request.", SIZES)] = None,
    max_json_depth: Annotated[int | None, _option("max-json-depth", "Maximum nesting depth of a body's JSON.", SIZES)] = None,
    request_timeout_s: Annotated[
        float | None, _option("request-timeout-s", "Seconds until an answer is cut off and returned.", TIMES)
    ] = None,
    body_timeout_s: Annotated[float | None, _option("body-timeout-s", "Seconds to receive a request body.", TIMES)] = None,
    drain_timeout_s: Annotated[
        float | None, _option("drain-timeout-s", "Seconds for running answers to finish on shutdown.", TIMES)
    ] = None,
    log_level: Annotated[str | None, _option("log-level", "Log level: debug, info, warning or error.", LOGS)] = None,
    log_json: Annotated[bool, _option("log-json", "Log one JSON object per line.", LOGS)] = False,
    log_prompts: Annotated[bool, _option("log-prompts", "Allow request texts in logs.", LOGS)] = False,
) -> None:
    """Serve a model over HTTP: OpenAI's API at /v1, a live page at /.

    Every option is also an environment variable (PACELINE_PORT) and a key in the --config file (port). Repeatable options
    take comma-separated values in a variable, and those or a JSON list in the file.
    """
    given = {name: value for name, value in locals().items() if name != "config" and _is_set(value)}

    import asyncio

    from paceline.serve.serving import serve as serve_until_stopped
    from paceline.serve.settings import load

    raise_again()
    settings = load(given, config=config)
    waiting = err.status("starting the engine") if err.is_terminal else nullcontext()

    def started(url: str, service: EngineService) -> None:
        waiting.__exit__(None, None, None)
        drafters = "+".join(service.default_drafters) or "nobody"
        address = f"{service.model} at {url}: the API at {url}/v1, a page at {url}/"
        out.print(address, highlight=False, soft_wrap=True)
        facts = f"{service.target}, {drafters} drafting, {service.verifier} verifying, {service.policy} deciding"
        if settings.log_json:
            getLogger("paceline.serve").info(facts)
        else:
            err.print(f"{facts}; Ctrl-C ends it", style="dim", highlight=False, soft_wrap=True)

    waiting.__enter__()
    try:
        asyncio.run(serve_until_stopped(settings, started))
    finally:
        waiting.__exit__(None, None, None)


def _is_set(value: Any) -> bool:
    """Whether a flag was given; otherwise variables and the file decide. 0 is a value."""
    return value is not None and value is not False and value != []
