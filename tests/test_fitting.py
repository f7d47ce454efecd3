"""Drafters that a target cannot use: refused in a sentence if requested, left out if offered by default."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from pydantic import BaseModel

from fakes import ChainDrafter, FakeTokenizer, TableModel
from paceline import compose
from paceline.cache.base import Branching
from paceline.compose import IfItFits, build_drafter, build_drafters
from paceline.drafters.base import Drafter, Surroundings
from paceline.drafters.model import ModelDrafter
from paceline.models.base import ModelError
from paceline.params import SamplingParams
from paceline.registry import DRAFTERS, Registry, Row
from paceline.serve.settings import Settings
from paceline.serve.worker import loaded
from paceline.spec import SpecError
from tiny import save_tiny, tiny_hub

USUAL = {"ngram", "suffix", "lookahead", "recycle"}
CHAINS = [Branching.CHAIN, Branching.REPLAY]


def surroundings(branching: Branching = Branching.TREE, drafts: Branching = Branching.TREE) -> Surroundings:
    tokenizer = FakeTokenizer.of_letters(7)
    target, draft = TableModel(7, branching=branching), TableModel(7, seed=1, branching=drafts)
    return Surroundings(target, tokenizer, lambda path: (draft, tokenizer))  # pyright: ignore[reportArgumentType, reportReturnType]


@pytest.mark.parametrize("kind", ["bloom", "lfm2"])
def test_a_server_starts_on_a_target_that_verifies_only_chains(tmp_path: Path, kind: str) -> None:
    """Settings name only the model; a drafter that only drafts trees is then not offered."""
    folder = str(save_tiny(tmp_path / kind, 3, kind=kind))
    llm = loaded(Settings(model=folder))
    assert llm.target.branching < Branching.TREE
    assert {part.name for part in llm.engine.speculative.drafter.parts} == {"reference", "grammar", *USUAL} - {"lookahead"}
    assert llm.generate("the thin", SamplingParams(max_tokens=4))[0].token_ids
    with pytest.raises(SpecError, match=f"'lookahead' drafts trees, and '{kind}' can verify only chains: leave out 'lookahead'"):
        loaded(Settings(model=folder, offer=("ngram", "lookahead")))


def test_a_server_starts_under_a_rule_that_needs_a_model() -> None:
    chosen = {"draft": "model", "verify": "contrastive", "lossy": True}
    llm = loaded(Settings.model_validate(chosen))
    assert [part.name for part in llm.engine.speculative.drafter.parts] == ["model"]
    assert llm.generate("Once upon", SamplingParams(max_tokens=4))[0].token_ids
    with pytest.raises(SpecError, match="contrasts the target with a model that drafts, and 'ngram' is none: leave out 'ngram'"):
        loaded(Settings.model_validate({**chosen, "offer": ["ngram"]}))


def test_the_usual_offers_are_all_there_where_they_fit() -> None:
    assert loaded(Settings()).engine.speculative.on_request == USUAL - {"ngram"}
    assert loaded(Settings(offer=("jacobi",))).engine.speculative.on_request == {"jacobi"}
    assert loaded(Settings(offer=())).engine.speculative.on_request == frozenset()


ASKED = [
    ("unigram:width=4", "width=4"),
    ("bigram:width=2", "width=2"),
    ("model:x,width=3", "width=3"),
    ("model:x,tree=static", "tree=static"),
    ("model:x,tree=dynamic,width=2", "tree=dynamic"),
    ("model:x,samples=2", "samples=2"),
    ("ngram+unigram:width=4", "width=4"),
    ("ngram^model:x,width=3", "width=3"),
]
"""Specs, and the option that makes them draft trees."""
UNASKED = [
    "unigram",
    "bigram:width=1",
    "ngram",
    "ngram:matches=8",
    "suffix",
    "recycle",
    "jacobi",
    "grammar",
    "reference",
    "model:x",
]


@pytest.mark.parametrize("branching", CHAINS)
@pytest.mark.parametrize(("spec", "option"), ASKED)
def test_trees_that_were_asked_for_are_refused_where_they_would_be_cut(spec: str, option: str, branching: Branching) -> None:
    with pytest.raises(SpecError, match=f"is asked for trees, and 'table' can verify only chains: leave out {option}$"):
        build_drafters(spec, (), (), surroundings(branching))
    build_drafters(spec, (), (), surroundings())


@pytest.mark.parametrize("branching", CHAINS)
@pytest.mark.parametrize("spec", UNASKED)
def test_a_drafter_that_was_not_asked_for_trees_drafts_chains_on_a_chain_only_target(spec: str, branching: Branching) -> None:
    drafter, _ = build_drafters(spec, (), (), surroundings(branching))
    assert not drafter.trees_by


def test_trees_inside_a_cascade_are_refused_by_what_its_model_can_verify() -> None:
    around = surroundings(drafts=Branching.CHAIN)
    build_drafters("ngram^model:x", (), (), around)
    with pytest.raises(SpecError, match="leave out width=4"):
        build_drafters("unigram:width=4^model:x", (), (), around)


def test_each_drafter_of_an_extra_sum_becomes_a_part_of_its_own() -> None:
    """A policy identifies drafters by the source names in the nodes of a tree."""
    drafter, _ = build_drafters("ngram", ["suffix+recycle"], (), surroundings())
    assert [part.name for part in drafter.parts] == ["suffix", "recycle", "ngram"]


@pytest.mark.parametrize(("spec", "extra"), [("model:x", ["model:y"]), ("ngram", ["model:x", "model:y"])])
def test_two_different_drafters_of_one_name_are_refused(spec: str, extra: list[str]) -> None:
    with pytest.raises(SpecError, match="'model:y' cannot be an extra drafter: there is another one of the name 'model'"):
        build_drafters(spec, extra, (), surroundings())
    drafter, _ = build_drafters("ngram+model:x", ["ngram", *map(IfItFits, extra)], (), surroundings())
    assert [part.name for part in drafter.parts] == ["ngram", "model"]


def test_only_what_nobody_asked_for_is_left_out() -> None:
    around = surroundings(Branching.CHAIN)
    drafter, offered = build_drafters("ngram", [IfItFits("grammar")], [IfItFits("lookahead"), "recycle"], around)
    assert [part.name for part in drafter.parts] == ["grammar", "ngram", "recycle"]
    assert offered == {"recycle"}
    around = replace(around, amateur=True)
    drafter, offered = build_drafters("model:x", [IfItFits("grammar")], [IfItFits("ngram")], around)
    assert isinstance(drafter, ModelDrafter)
    assert not offered
    with pytest.raises(SpecError, match=r"'unigram' is asked for trees.*leave out 'unigram:width=4'"):
        build_drafters("ngram", (), ["unigram:width=4"], surroundings(Branching.CHAIN))
    # drafters are identified by name, so a second one of the same name could not be requested
    for draft, offers in (("model:a", ["model:b"]), ("ngram", ["model:a", "model:b"]), ("ngram", ["ngram:max=9"])):
        with pytest.raises(SpecError, match="another drafter of the name"):
            build_drafters(draft, (), offers, surroundings())
    for draft, offers in (
        ("ngram:max=9+recycle", ["ngram", "recycle"]),
        ("ngram:max=9", ["ngram:max=9"]),
        ("ngram + suffix:past=1000", ["suffix:past=1000", " ngram "]),
        ('ngram+model:"runs/a+b"', ['model:"runs/a+b"']),
    ):
        assert build_drafters(draft, (), offers, surroundings())[1] == frozenset()
    # a mistake in a spec is an error even where a spec that does not fit is left out
    with pytest.raises(SpecError, match="no option"):
        build_drafters("ngram", [IfItFits("grammar:deep=3")], (), surroundings())


class Tapping(ChainDrafter):
    name = "tapping"


@pytest.fixture
def tapping(monkeypatch: pytest.MonkeyPatch) -> type[Drafter]:
    """Registers a method that reads hidden states of the target."""

    class Options(BaseModel):
        layer: int

    def build(options: Options, surroundings: Surroundings) -> Drafter:
        drafter = Tapping(TableModel(7))
        drafter.taps = (0, options.layer)
        return drafter

    module = ModuleType("tapping")
    module.Options, module.build = Options, build  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "tapping", module)
    monkeypatch.setattr(compose, "DRAFTERS", Registry("drafter", {**DRAFTERS, "tapping": Row("tapping", "tapping:1")}))
    return Tapping


def test_layers_that_a_target_does_not_have_are_refused_at_load(tapping: type[Drafter]) -> None:
    around = replace(surroundings(), target=tiny_hub())
    assert isinstance(build_drafter("tapping:2", around), tapping)
    with pytest.raises(SpecError, match=r"^'tapping' reads .* 'llama' cannot show \(layer 3 .* 0 to 2\): try 'ngram'$"):
        build_drafter("tapping:3", around)
    left, _ = build_drafters("ngram", (), [IfItFits("tapping:3")], around)
    assert left.name == "ngram"


def test_checking_a_targets_layers_for_taps_leaves_nothing_in_its_cache(
    tapping: type[Drafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = TableModel(7)
    cache = target.new_cache()
    monkeypatch.setattr(target, "new_cache", lambda: cache)
    build_drafter("tapping:1", replace(surroundings(), target=target))
    assert cache.held_bytes == 0

    def refuse(*_: object) -> torch.Tensor:
        raise ModelError("it has no list of decoder layers to tap")

    monkeypatch.setattr(target, "score", refuse)
    with pytest.raises(SpecError, match="no list of decoder layers"):
        build_drafter("tapping:1", replace(surroundings(), target=target))
    assert cache.held_bytes == 0


@pytest.mark.parametrize("spec", ["model", "model:depth=2", "model@int8", "ngram^model"])
def test_a_draft_without_path_is_the_one_embedded_for_the_target(spec: str) -> None:
    llm = loaded(Settings(draft=spec, offer=()))
    (drafter,) = [part for part in llm.engine.speculative.drafter.parts if isinstance(part, ModelDrafter)]
    assert drafter.model.name == f"{llm.target.name}-draft"


def test_a_target_without_an_embedded_draft_says_so(tmp_path: Path) -> None:
    # only the name is that of an embedded model
    folder = str(save_tiny(tmp_path / "paceline-14m", 3))
    with pytest.raises(
        SpecError, match=r"^'model' needs path: no draft is embedded for 'paceline-14m', so name one as model:PATH$"
    ):
        loaded(Settings(model=folder, draft="model"))
