"""The registries: every row names a module that can be built and that describes itself."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from runpy import run_path

import pytest

from fakes import FakeTokenizer, TableModel
from paceline.cache.base import Branching
from paceline.compose import build_drafter, build_verifier
from paceline.drafters.base import Drafter, Surroundings
from paceline.methods import FAMILIES, approximations, composed, compositions, described, listed, options
from paceline.models.base import WEIGHTS
from paceline.registry import DRAFTERS, POLICIES, VERIFIERS, Registry, UnknownMethod, __file__ as registry_file
from paceline.spec import Method, SpecError, bind, parse
from paceline.tree import Proposal

ROWS = [(family, name) for family, registry in FAMILIES.items() for name in registry]
FIELDS = {
    "drafters": {"source", "proposals", "taps", "branching", "trained", "cost"},
    "verifiers": {"source", "exactness", "lossless"},
    "policies": {"source"},
    "caches": set(),
}


@pytest.mark.parametrize(("family", "name"), ROWS)
def test_every_row_names_a_module_that_describes_itself(family: str, name: str) -> None:
    row = next(row for row in described(FAMILIES[family]) if row["name"] == name)
    assert row["summary"]
    assert "\n" not in row["summary"]
    assert FIELDS[family] <= row.keys()
    assert all(row[field] for field in FIELDS[family])


@pytest.mark.parametrize("family", ["drafters", "verifiers", "policies"])
def test_every_file_of_methods_has_a_row(family: str) -> None:
    """Without a row a method cannot be named. base, merge: base classes, and the mixture of drafters."""
    folder = Path(registry_file).parent / family
    files = {file.stem for file in folder.glob("*.py")} - {"__init__", "base", "merge"}
    assert {f"paceline.{family}.{name}" for name in files} == {row.module for row in FAMILIES[family].values()}


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


def classes(name: str) -> list[type[Drafter]]:
    """The drafter classes defined in a method's module."""
    module = DRAFTERS[name].load()
    found = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Drafter)]
    return [kind for kind in found if kind.__module__ == module.__name__]


def built(name: str) -> list[Drafter]:
    """A method's examples, built for every rule that can use them; none for a method that needs a file."""
    tokenizer, found = FakeTokenizer.of_letters(7), []
    for example in DRAFTERS[name].examples:
        for rule in (build_verifier(row.example) for row in VERIFIERS.values()):
            around = Surroundings(TableModel(7), tokenizer, lambda path: (TableModel(7), tokenizer), rule.prefers)  # pyright: ignore[reportArgumentType, reportReturnType]
            # a dynamic tree is refused for rules that want drawn tokens
            with suppress(SpecError):
                found.append(build_drafter(example.format(draft="x"), around))
    return found


DRAFTERS_BUILT = [name for name, row in DRAFTERS.items() if "{datastore}" not in row.example]


@pytest.mark.parametrize("name", DRAFTERS_BUILT)
def test_the_kinds_a_drafter_lists_are_those_it_is_built_with(name: str) -> None:
    row = next(row for row in listed("drafters") if row["name"] == name)
    assert {kind.name for drafter in built(name) for kind in drafter.kinds} == {*row["kinds"]}


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_branching_a_drafter_lists_is_what_its_class_declares(name: str) -> None:
    """The first word is what a target must support; options named after `TREE with` are refused for other targets."""
    row = next(row for row in described(DRAFTERS) if row["name"] == name)
    first, *more = row["branching"].replace(",", "").replace(";", "").split()
    assert {kind.branching for kind in classes(name)} == {Branching[first]}
    asked = {drafter.trees_by.partition("=")[0] for drafter in built(name)} if name in DRAFTERS_BUILT else set()
    assert asked <= {"", *more}


@pytest.mark.parametrize("name", VERIFIERS)
def test_a_rules_listed_exactness_is_what_its_class_and_docstring_declare(name: str) -> None:
    rule = build_verifier(VERIFIERS[name].example)
    row = next(row for row in listed("verifiers") if row["name"] == name)
    assert row["kinds"] == {kind.name: kept.value for kind, kept in rule.exactness.items()}
    kept = {*row["kinds"].values()} or {"none"}
    assert {row["exactness"].split()[0].rstrip(":")} == kept
    assert row["lossless"] == ("no" if kept == {"none"} else "yes")
    # the module's docstring states it too
    doc = VERIFIERS[name].load().__doc__ or ""
    assert f"\nExactness: {next(iter(kept))}" in doc
    assert f"\nLossless: {row['lossless']}" in doc
    assert {drafter["exactness"][name] for drafter in listed("drafters")} == kept


def test_a_promise_that_only_the_docstring_makes_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.verifiers.base import Exactness
    from paceline.verifiers.match import Match

    monkeypatch.setattr(Match, "exactness", {Proposal.POINT: Exactness.TEXT, Proposal.IID: Exactness.LAW})
    row = next(row for row in listed("verifiers") if row["name"] == "match")
    assert row["exactness"] == "text for POINT; law for IID; text when greedy"
    kept = {drafter["name"]: drafter["exactness"]["match"] for drafter in listed("drafters")}
    assert (kept["ngram"], kept["jacobi"]) == ("text", "none")
    monkeypatch.setattr(Match, "exactness", {})
    assert next(row for row in described(VERIFIERS) if row["name"] == "match")["lossless"] == "no"


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, name in ROWS if family != "caches"])
def test_every_option_is_listed_with_what_it_takes_and_means(family: str, name: str) -> None:
    module = FAMILIES[family][name].load()
    found = {option.name: option for option in options(module)}
    assert [*found] == [*module.Options.model_fields]
    assert all(option.meaning for option in found.values())
    assert all(option.needed == module.Options.model_fields[one].is_required() for one, option in found.items())


def test_options_are_told_as_a_spec_would_say_them() -> None:
    told = {(name, option.name): option for name in ("ngram", "reference", "model") for option in options(DRAFTERS[name].load())}
    assert told["ngram", "min"].values == "1 to 32"
    assert told["ngram", "min"].meaning.startswith("max, min: ")
    assert (told["reference", "prompt"].values, told["reference", "prompt"].default) == ("yes or no", True)
    assert told["model", "tree"].values == "chain, static or dynamic"
    assert told["model", "width"].default is None
    (needed,) = [option for option in options(DRAFTERS["datastore"].load()) if option.needed]
    assert needed.name == "path"


def test_every_composition_and_approximation_describes_itself() -> None:
    assert all(row["summary"] and f"`{row['name']}`" in row["summary"] for row in compositions())
    for row in composed():
        for field in ("source", "proposals", "taps", "branching", "trained", "cost", "kinds", "exactness"):
            assert row.get(field), (row["name"], field)
    assert [row["name"] for row in approximations()] == [*WEIGHTS]


def test_the_generated_page_says_where_its_words_are_explained() -> None:
    docs = Path(__file__).parents[1] / "docs"
    generate = run_path(str(docs / "generate.py"))
    headings = [line.lstrip("# ") for line in (docs / "architecture.md").read_text().splitlines() if line.startswith("#")]
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    for word, place in generate["DEFINED"].items():
        assert place.removeprefix("architecture.md#") in anchors, word
    page = generate["page"]()
    assert "- `tree` (chain; chain, static or dynamic): " in page
    assert "- [branching]: [REPLAY], or [TREE] with tree" in page
    assert "`@` binds tightest" in page


@pytest.mark.parametrize("name", VERIFIERS)
def test_every_verifier_is_built_under_its_name(name: str) -> None:
    verifier = build_verifier(VERIFIERS[name].example)
    assert verifier.name == name


@pytest.mark.parametrize("registry", [POLICIES, VERIFIERS])
def test_every_method_can_be_built(registry: Registry) -> None:
    assert all(callable(registry[name].load().build) for name in registry)


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen2.5-0.5B-Instruct", "./small.model", "small.model", "small", "/no/such/folder", "paceline-14m-draft"]
)
def test_a_model_is_no_drafter_and_it_is_said_how_one_drafts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    for folder in ("small.model", "small"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownMethod) as refused:
        DRAFTERS[name]
    assert str(refused.value) == f"'{name}' names no drafter: a smaller model drafts as 'model:{name}' or 'auto:{name}'"
    with pytest.raises(UnknownMethod) as refused:
        VERIFIERS[name].load()
    assert "model:" not in str(refused.value)


@pytest.mark.parametrize("name", ["Qwen2.5-0.5B", "1.5", "ngram.", "a b.c", "x" * 300])
def test_a_name_that_cannot_be_a_module_is_an_unknown_drafter(name: str) -> None:
    with pytest.raises(UnknownMethod, match="there is no drafter"):
        DRAFTERS[name]


def test_a_table_of_methods_is_read_without_loading_any() -> None:
    code = (
        "import sys, paceline.registry as r; list(r.DRAFTERS);"
        "sys.exit(any(m.startswith('paceline.drafters') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_surroundings_are_all_a_drafter_is_built_from() -> None:
    assert set(Surroundings.__dataclass_fields__) == {"target", "tokenizer", "load", "prefers", "amateur", "deepest"}
