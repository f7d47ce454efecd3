"""All commands. A new one is a function in its own file, and a line here."""

from __future__ import annotations

import typer

import paceline
from paceline.cli.bench import bench
from paceline.cli.chat import chat
from paceline.cli.check import check
from paceline.cli.datastore import datastore
from paceline.cli.generate import generate
from paceline.cli.groups import Command, Group
from paceline.cli.listings import methods, models
from paceline.cli.serve import serve
from paceline.cli.terminal import tell

app = typer.Typer(cls=Group, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=paceline.__doc__)
app.callback()(tell)
for command in (generate, chat, check, serve):
    app.command(
        cls=Command, epilog="The environment variable OMP_NUM_THREADS sets the number of threads, at most one per processor."
    )(command)
for command in (methods, models):
    app.command(cls=Command)(command)
app.add_typer(bench, name="bench")
app.add_typer(datastore, name="datastore")
