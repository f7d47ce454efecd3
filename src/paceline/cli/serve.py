"""`paceline serve`: an OpenAI-compatible server."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.options import Lossy, Model, Policy, Weights
from paceline.cli.terminal import err, out

if TYPE_CHECKING:
    from paceline.serve.service import EngineService

SERVING, ACCESS, SIZES, TIMES, LOGS = "What is served", "Who may call", "How much", "How long", "Logs"


def _option(name: str, text: str, panel: str) -> Any:
    return typer.Option(f"--{name}", help=text, rich_help_panel=panel)


def serve(
    model: Model = None,
    config: Annotated[Path | None, typer.Option("--config", help="A JSON file of settings; flags and variables win.")] = None,
    draft: Annotated[str | None, _option("draft", "What drafts: a spec string; auto if left out.", SERVING)] = None,
    offer: Annotated[
        list[str] | None, _option("offer", "A drafter for requests that name it, instead of the usual ones; repeat it.", SERVING)
    ] = None,
    verify: Annotated[str | None, _option("verify", "The rule that accepts drafts; match if left out.", SERVING)] = None,
    lossy: Lossy = False,
    policy: Policy = None,
    weights: Weights = None,
    served_name: Annotated[str | None, _option("served-name", "What clients call the model.", SERVING)] = None,
    host: Annotated[str | None, _option("host", "Address to listen on; 127.0.0.1 if left out.", ACCESS)] = None,
    port: Annotated[int | None, _option("port", "Port to listen on; 8000 if left out, 0 for any free one.", ACCESS)] = None,
    api_key: Annotated[list[str] | None, _option("api-key", "A key that opens every route; repeat it.", ACCESS)] = None,
    api_key_file: Annotated[Path | None, _option("api-key-file", "A file with a key a line.", ACCESS)] = None,
    insecure: Annotated[bool, _option("insecure", "Serve other machines without a key.", ACCESS)] = False,
    allowed_host: Annotated[list[str] | None, _option("allowed-host", "A name the Host header may carry.", ACCESS)] = None,
    cors_origin: Annotated[list[str] | None, _option("cors-origin", "A page's origin that may call.", ACCESS)] = None,
    root_path: Annotated[str | None, _option("root-path", "What a proxy cuts off in front of paths.", ACCESS)] = None,
    batch: Annotated[int | None, _option("batch", "Sequences in flight.", SIZES)] = None,
    queue: Annotated[int | None, _option("queue", "Requests that may wait before the next is told 429.", SIZES)] = None,
    cache_tokens: Annotated[int | None, _option("cache-tokens", "Tokens that all sequences may hold.", SIZES)] = None,
    prefill_chunk: Annotated[int | None, _option("prefill-chunk", "Prompt tokens of one step.", SIZES)] = None,
    default_max_tokens: Annotated[
        int | None, _option("default-max-tokens", "Longest answer where a request names none.", SIZES)
    ] = None,
    max_body_bytes: Annotated[int | None, _option("max-body-bytes", "Largest request body.", SIZES)] = None,
    max_header_bytes: Annotated[int | None, _option("max-header-bytes", "Largest head of a request.", SIZES)] = None,
    max_prompt_chars: Annotated[int | None, _option("max-prompt-chars", "Longest text of a request.", SIZES)] = None,
    max_choices: Annotated[int | None, _option("max-choices", "Most choices (n) of a prompt.", SIZES)] = None,
    max_prompts: Annotated[int | None, _option("max-prompts", "Most prompts of a request.", SIZES)] = None,
    max_stop: Annotated[int | None, _option("max-stop", "Most stop strings of a request.", SIZES)] = None,
    max_json_depth: Annotated[int | None, _option("max-json-depth", "Deepest nesting of a body.", SIZES)] = None,
    request_timeout_s: Annotated[float | None, _option("request-timeout-s", "Seconds an answer may take.", TIMES)] = None,
    body_timeout_s: Annotated[float | None, _option("body-timeout-s", "Seconds a body may take to arrive.", TIMES)] = None,
    drain_timeout_s: Annotated[
        float | None, _option("drain-timeout-s", "Seconds for answers to end once the server is told to stop.", TIMES)
    ] = None,
    log_level: Annotated[str | None, _option("log-level", "debug, info, warning or error.", LOGS)] = None,
    log_json: Annotated[bool, _option("log-json", "One JSON object a line.", LOGS)] = False,
    log_prompts: Annotated[bool, _option("log-prompts", "Texts of requests may be logged.", LOGS)] = False,
) -> None:
    """Serve a model over HTTP: OpenAI's API at /v1, a live page at /.

    Every option is also a variable (PACELINE_PORT) and a name in the file of --config (port). Options that may be
    repeated are written with commas in a variable, and with commas or as a JSON list in the file.
    """
    given = {name: value for name, value in locals().items() if name != "config" and _is_set(value)}

    import asyncio

    from paceline.serve.serving import serve as serve_until_stopped
    from paceline.serve.settings import load

    settings = load(given, config=config)
    waiting = err.status("starting the engine") if err.is_terminal else nullcontext()

    def started(url: str, service: EngineService) -> None:
        waiting.__exit__(None, None, None)
        drafters = "+".join(service.default_drafters) or "nobody"
        out.print(f"{service.model} at {url}: the API at {url}/v1, a page at {url}/", highlight=False, soft_wrap=True)
        err.print(
            f"{service.target}, {drafters} drafting, {service.verifier} verifying, {service.policy} deciding; Ctrl-C ends it",
            style="dim",
            highlight=False,
            soft_wrap=True,
        )

    waiting.__enter__()
    try:
        asyncio.run(serve_until_stopped(settings, started))
    finally:
        waiting.__exit__(None, None, None)


def _is_set(value: Any) -> bool:
    """A flag that was not given leaves the word to variables and the file; 0 is a value."""
    return value is not None and value is not False and value != []
