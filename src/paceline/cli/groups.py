"""Commands and groups of them, and a group that is also a command: `paceline bench MODEL` as well as `paceline bench serve`."""

from __future__ import annotations

import os
from difflib import get_close_matches
from typing import Any

from typer.core import TyperCommand, TyperGroup

from paceline.cli.terminal import fail


class Shown:
    """Shows a switch without a type: typer writes `<bool>` behind it, as if it took a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        params = super().get_params(ctx)  # pyright: ignore[reportAttributeAccessIssue]
        for one in params:
            if getattr(one, "is_flag", False):
                one.metavar = ""
        return params


class Command(Shown, TyperCommand):
    """A command."""


class Group(Shown, TyperGroup):
    """A group of commands."""


class DefaultGroup(Group):
    """Runs its callback, with the options and arguments of a command, unless the first word is a command of the group.

    A first word similar to a command is refused, unless a file or folder has that name: it would be searched for on the Hub as a
    model.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] in self.commands:
            # the command parses the words after its name, in `invoke`
            super().parse_args(ctx, [])
            ctx.args = list(args)
            return ctx.args
        if args and not args[0].startswith("-") and not os.path.exists(args[0]):
            for near in get_close_matches(args[0], [*self.commands], 1):
                fail(f"there is no command '{ctx.info_name} {args[0]}'; the nearest is '{ctx.info_name} {near}'")
        ctx.allow_extra_args, ctx.allow_interspersed_args = False, True
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        if not ctx.args:
            return super().invoke(ctx)
        name, *rest = ctx.args
        ctx.invoked_subcommand = name
        command = self.commands[name]
        # as a child of the group's parent, so that its usage does not show the group's own arguments
        with ctx, command.make_context(f"{ctx.info_name} {name}", rest, parent=ctx.parent) as inner:
            return command.invoke(inner)
