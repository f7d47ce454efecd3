"""The registries: every row is a real module that can be built and that says what it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paceline.compose import build_verifier
from paceline.drafters.base import Surroundings
from paceline.methods import FAMILIES, described
from paceline.registry import DRAFTERS, POLICIES, VERIFIERS, Registry
from paceline.spec import Method, bind, parse
from paceline.tree import Proposal

ROWS = [(family, name) for family, registry in FAMILIES.items() for name in registry]
FIELDS = {
    "drafters": {"source", "proposals", "taps", "branching", "trained", "cost"},
    "verifiers": {"source", "exactness", "lossless"},
    "policies": {"source"},
    "approximations": {"source", "cost"},
    "caches": set(),
}


@pytest.mark.parametrize(("family", "name"), ROWS)
def test_every_row_names_a_module_that_describes_itself(family: str, name: str) -> None:
    row = next(row for row in described(FAMILIES[family]) if row["name"] == name)
    assert row["summary"]
    assert "\n" not in row["summary"]
    assert FIELDS[family] <= row.keys()
    assert all(row[field] for field in FIELDS[family])


@pytest.mark.parametrize(("name", "example"), [(name, spec) for name, row in DRAFTERS.items() for spec in row.examples])
def test_every_drafter_has_options_and_examples_that_bind(name: str, example: str) -> None:
    module = DRAFTERS[name].load()
    method = parse(example.format(draft="somewhere", datastore="somewhere"))
    assert isinstance(method, Method)
    assert method.name == name
    assert bind(method, module.Options).model_fields_set == {
        *list(module.Options.model_fields)[: len(method.arguments)],
        *method.options,
    }
    assert callable(module.build)


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_proposals_a_drafter_declares_are_kinds_there_are(name: str) -> None:
    row = next(row for row in described(DRAFTERS) if row["name"] == name)
    assert {word.strip() for word in row["proposals"].split(",")} <= {kind.name for kind in Proposal}


@pytest.mark.parametrize("name", VERIFIERS)
def test_every_verifier_is_built_under_its_name(name: str) -> None:
    verifier = build_verifier(VERIFIERS[name].example)
    assert verifier.name == name


@pytest.mark.parametrize("registry", [POLICIES, VERIFIERS])
def test_every_method_can_be_built(registry: Registry) -> None:
    assert all(callable(registry[name].load().build) for name in registry)


def test_a_table_of_methods_is_read_without_loading_any() -> None:
    code = (
        "import sys, paceline.registry as r; list(r.DRAFTERS);"
        "sys.exit(any(m.startswith('paceline.drafters') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_surroundings_are_all_a_drafter_is_built_from() -> None:
    assert set(Surroundings.__dataclass_fields__) == {"target", "tokenizer", "load", "prefers", "amateur"}
