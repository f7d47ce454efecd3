"""`paceline methods` and `paceline models`: lists of methods and embedded models."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from paceline.cli.options import Json
from paceline.cli.terminal import fail, need_output, out, tell_json


def methods(
    name: Annotated[str | None, typer.Argument(help="One method, to show it in full with its options.")] = None,
    as_json: Json = False,
) -> None:
    """List drafters and their combinations, verifiers, policies and caches, each with a description."""
    need_output()
    from paceline.display import method_entry, methods_table
    from paceline.methods import FAMILIES, approximations, composed, compositions, described, listed

    if as_json or name is not None:
        families = {family: listed(family) for family in FAMILIES}
        families |= {"approximations": approximations(), "compositions": composed()}
        if name is not None:
            families = _named(families, name)
        if as_json:
            tell_json(families)
            return
        for rows in families.values():
            for row in rows:
                out.print(method_entry(row), highlight=False)
        return
    found = {family: described(registry) for family, registry in FAMILIES.items()} | {"compositions": compositions()}
    for family, rows in found.items():
        out.print(methods_table(family, rows, out.width))


def _named(families: dict[str, list[dict[str, Any]]], name: str) -> dict[str, list[dict[str, Any]]]:
    """Only the method of that name."""
    from paceline.registry import suggestion

    found = {family: [row for row in rows if row["name"] == name] for family, rows in families.items()}
    if not any(found.values()):
        if "." in name or ":" in name:
            fail(f"'{name}' is a file of your own or has options: only the methods of Paceline are listed, by their names")
        names = [row["name"] for rows in families.values() for row in rows]
        fail(f"there is no method '{name}'; {suggestion(name, names)}")
    return {family: rows for family, rows in found.items() if rows}


def models(as_json: Json = False) -> None:
    """List the embedded models."""
    need_output()
    from rich.table import Table

    from paceline.models.embedded import embedded_models

    found = embedded_models()
    if as_json:
        rows = [
            {"name": m.name, "role": m.role, "parameters": m.parameters, "size_bytes": m.size_bytes, "draft": m.draft}
            for m in found
        ]
        tell_json({"models": rows})
        return
    table = Table(header_style="dim")
    for column in ("name", "role", "parameters", "size", "draft"):
        # a name is copied, so it is never cut
        table.add_column(column, overflow="fold")
    for m in found:
        table.add_row(m.name, m.role, f"{m.parameters / 1e6:.1f}M", f"{m.size_bytes / 1e6:.1f} MB", m.draft or "")
    out.print(table if found else "no embedded models are installed")
