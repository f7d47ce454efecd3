"""`paceline datastore`: texts to draft from."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.progress import Progress

from paceline.cli.groups import Command, Group
from paceline.cli.options import Json, path_option
from paceline.cli.terminal import err, out, tell_json
from paceline.interrupts import raise_again

datastore = typer.Typer(cls=Group, no_args_is_help=True, help="Texts to draft from, for the drafter 'datastore'.")


@datastore.command("build", cls=Command)
def build_datastore(
    files: Annotated[
        list[Path], typer.Argument(help="Text files: .jsonl has a document per row, any other is one document; .gz too.")
    ],
    out_dir: Annotated[Path, path_option("--out", "Write the datastore to this directory.")],
    model: Annotated[
        str | None, typer.Option("--model", help="Model whose tokenizer is used; the embedded target if left out.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Build a datastore for 'datastore:DIR'. A row has a 'text', a 'prompt' with its 'completion', or 'messages', of which those
    of the assistant are used."""
    from paceline.datastore import build, size_bytes
    from paceline.models.embedded import DEFAULT
    from paceline.models.load import resolve
    from paceline.models.quiet import quiet
    from paceline.models.tokenizer import Tokenizer

    raise_again()
    tokenizer = Tokenizer(resolve(model if model is not None else DEFAULT))
    began = perf_counter()
    with quiet(), Progress(console=err, transient=True, disable=as_json or not err.is_terminal) as bar:
        tasks = {name: bar.add_task(name, total=None) for name in ("tokenising", "sorting")}
        header = build(
            files,
            out_dir,
            lambda text: tokenizer.encode(text, add_special=False),
            tokenizer.vocab_size,
            tokenizer.fingerprint,
            lambda name, done, total: bar.update(tasks[name], completed=done, total=total),
        )
    built = {
        "out": str(out_dir),
        "documents": header.documents,
        "tokens": header.suffixes,
        "size_bytes": size_bytes(header),
        "wall_s": round(perf_counter() - began, 3),
    }
    if as_json:
        tell_json(built)
    else:
        out.print(
            f"{header.documents} document{'s' * (header.documents != 1)}, {header.suffixes} tokens,"
            f" {built['size_bytes'] / 1e6:.3g} MB in '{out_dir}'",
            highlight=False,
            soft_wrap=True,
        )
