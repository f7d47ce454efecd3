"""Mistakes in users' own drafters, rules and policies: each gives one sentence that names the file, and the engine goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from commandline import run, save_pair
from paceline import LLM, PacelineError, SamplingParams
from paceline.registry import UnknownMethod

DRAFTER = '''
from pydantic import BaseModel
from paceline.budget import Budget
from paceline.drafters.base import Drafter, StatefulDrafter
from paceline.tree import DraftTree, Proposal

class Options(BaseModel):
    """None."""

class Mine(Drafter):
    name = "mine"
    kinds = frozenset({Proposal.POINT})
    budget = Budget(4, 4)

    def propose(self, sequences, budgets):
        return [DraftTree.chain(one.root, [5, 6][: room.levels], self.name) for one, room in zip(sequences, budgets, strict=True)]

def build(options, surroundings):
    return Mine()
'''
RULE = '''
from pydantic import BaseModel
from paceline.step import Verdict
from paceline.tree import Proposal
from paceline.verifiers.base import Exactness, Verifier, follow_choices

class Options(BaseModel):
    """None."""

class Mine(Verifier):
    name = "mine"
    exactness = dict.fromkeys(Proposal, Exactness.TEXT)

    def __call__(self, sequences, trees, logits):
        return follow_choices(sequences, trees, logits)

def build(options):
    return Mine()
'''
POLICY = '''
from pydantic import BaseModel
from paceline.policies.base import Policy

class Options(BaseModel):
    """None."""

class Mine(Policy):
    name = "mine"

    def budgets(self, drafter, sequences, trees):
        return [drafter.budget] * len(sequences)

def build(options):
    return Mine()
'''
CHAIN, FOLLOWED, GRANTED = (
    re.search(rf"return ({begin}.*)", source).group(1)  # pyright: ignore[reportOptionalMemberAccess]
    for source, begin in ((DRAFTER, r"\[Draft"), (RULE, "follow"), (POLICY, r"\[drafter"))
)
PARAMS = SamplingParams(max_tokens=6)
BUILT = [
    ("draft", 'name = "mine"', "", "its Mine has no 'name', a text"),
    ("draft", "kinds = frozenset({Proposal.POINT})", "", "its Mine has no 'kinds', a frozenset of Proposal"),
    ("draft", "frozenset({Proposal.POINT})", "Proposal.POINT", "the 'kinds' of its Mine is not a frozenset of Proposal"),
    ("draft", "budget = Budget(4, 4)", "", "its Mine has no 'budget', a Budget of whole numbers from 0 on"),
    ("draft", "Budget(4, 4)", "Budget(4, 'x')", "the 'budget' of its Mine is not a Budget"),
    ("draft", 'name = "mine"', 'name, taps = "mine", 8', "the 'taps' of its Mine is not a tuple of layers"),
    ("draft", 'name = "mine"', 'name, taps = "mine", ("last",)', "the 'taps' of its Mine is not a tuple of layers"),
    ("draft", 'name = "mine"', 'name, trees_by = "mine", None', "the 'trees_by' of its Mine is not a text"),
    ("draft", "def propose", "def proposes", "its 'build' raised TypeError: Can't instantiate abstract class Mine"),
    ("draft", "return Mine()", "Mine()", "is no drafter: its 'build' returned None"),
    (
        "draft",
        "build(options, surroundings)",
        "build(options)",
        "is no drafter: the 'build' of one takes options and",
    ),
    ("draft", "return Mine()", "return Mine().gone", "has no attribute 'gone', at mine.py:19"),
    ("draft", "class Options(BaseModel)", "class Options", "its 'Options' are no pydantic model"),
    (
        "draft",
        "from pydantic",
        "exit('gone')\nfrom pydantic",
        "cannot be imported (SystemExit: gone, at mine.py:2)",
    ),
    (
        "draft",
        "Mine(Drafter):",
        "Mine(StatefulDrafter):\n    def __init__(self): ...\n    _one = _begun = None",
        "its Mine has no '_states', what super().__init__() makes",
    ),
    ("draft", 'name = "mine"', 'name = "ngram"', "the 'name' of its Mine is 'ngram', as another drafter is called: give it one"),
    ("draft", 'name = "mine"', 'name = "auto"', "the 'name' of its Mine is 'auto', as another drafter is called"),
    (
        "draft",
        "return Mine()",
        "Mine.name = 'recycle'\n    from paceline.drafters import merge\n    return merge.MergedDrafter([Mine(), Mine()])",
        "the 'name' of its Mine is 'recycle', as another drafter is called",
    ),
    ("verify", 'name = "mine"', 'name = "match"', "the 'name' of its Mine is 'match', as another verifier is called"),
    ("policy", 'name = "mine"', 'name = "fixed"', "the 'name' of its Mine is 'fixed', as another policy is called"),
    ("verify", "exactness = dict", "kept = dict", "its Mine has no 'exactness', a mapping from Proposal to Exactness"),
    ("verify", "Mine()", "3", "is no verifier: its 'build' returned something of the type 'int'"),
    (
        "verify",
        'name = "mine"',
        'name = "mine"\n    def __init_subclass__(cls): raise TypeError("no heirs")',
        "its 'build' raised TypeError: no heirs, at mine.py:12",
    ),
    ("verify", RULE, POLICY, "is no verifier: its 'build' returned a policy"),
    ("verify", RULE, DRAFTER, "is no verifier: the 'build' of one takes options alone"),
    ("policy", POLICY, RULE, "is no policy: its 'build' returned a verifier"),
    (
        "policy",
        'name = "mine"',
        'name = "mine"\n    def __init__(self): ...',
        "its Mine has no 'costs', what super().__init__() makes: call it in its __init__",
    ),
]
ANSWERED = [
    ("draft", CHAIN, "None", "its 'propose' returned None, not a list of one DraftTree for each sequence"),
    ("draft", CHAIN, "[]", "its 'propose' returned 0 for 1 sequences, not one DraftTree for each"),
    (
        "draft",
        CHAIN,
        "[[5, 6]]",
        "its 'propose' returned a list with something of the type 'list' in it, not one DraftTree for each sequence",
    ),
    ("draft", CHAIN, "[None]", "its 'propose' returned a list with None in it"),
    ("draft", "[5, 6]", "[5, 1 << 20]", "its 'propose' returned the token 1048576, of a vocabulary from 0 to"),
    ("draft", "[5, 6]", "[-1]", "its 'propose' returned the token -1, of a vocabulary from 0 to"),
    ("draft", "[5, 6]", "[5.0]", "its 'propose' returned something of the type 'float' where a token id belongs"),
    ("draft", "one.root, [5", "7, [5", "its 'propose' returned a tree with the root 7, not with"),
    ("draft", "[5, 6][: room.levels]", "[5] * 40", "its 'propose' returned a tree of 40 nodes on 40 levels, for a budget of"),
    ("draft", "self.name)", "'ngram')", "its 'propose' returned a node whose source is 'ngram', not its name 'mine'"),
    ("draft", CHAIN, "[one.tokens.append(5) for one in sequences]", "its 'propose' wrote into 'tokens' of a sequence"),
    ("draft", "def propose", "def suits(self, _): ...\n    def propose", "its 'suits' returned None, not True or False"),
    (
        "draft",
        "self.name)",
        "self.name, Proposal.IID)",
        "of the kind IID, which is none of its 'kinds': add it to them, or pass 'kind='",
    ),
    (
        "draft",
        "self.name)",
        "self.name, confidences=[0.5, 1.5])",
        "returned confidences that are not all from 0 to 1: 1.0, 0.5",
    ),
    ("draft", "self.name)", "self.name, confidences=[0.5, float('nan')])", "returned confidences that are not all from 0 to 1"),
    (
        "draft",
        CHAIN,
        "[DraftTree.root(sequence.root) for sequence in sequences if 1 // 0]",
        "its 'propose' raised ZeroDivisionError: integer division or modulo by zero, at mine.py:16",
    ),
    ("draft", CHAIN, "exit(1)", "its 'propose' raised SystemExit: 1, at mine.py:16"),
    ("draft", "def propose", "def release(self, key): raise KeyError('a\\nb')\n    def propose", "its 'release' raised KeyError"),
    (
        "draft",
        CHAIN,
        "[tree for tree in (DraftTree.root(one.root) for one in sequences) if not vars(tree).update(kind='point')]",
        "its 'propose' returned what cannot be read: AttributeError: 'str' object has no attribute 'drawn'",
    ),
    (
        "verify",
        FOLLOWED,
        "[Verdict((), 5)]",
        "its '__call__' returned what cannot be read: TypeError: 'int' object is not iterable",
    ),
    ("verify", FOLLOWED, "[Verdict(None, (5,))]", "its '__call__' returned what cannot be read: TypeError: 'NoneType' object is"),
    ("verify", FOLLOWED, "None", "its '__call__' returned None, not a list of one Verdict for each sequence"),
    ("verify", FOLLOWED, "[Verdict((), (1 << 20,))]", "its '__call__' returned the token 1048576, of a vocabulary from 0 to"),
    ("verify", FOLLOWED, "[Verdict()]", "its '__call__' returned the tokens none for a path of none"),
    ("verify", FOLLOWED, "[Verdict((9,), (5, 5), 1)]", "its '__call__' returned the path (9,), where 9 is no child of 0"),
    ("verify", FOLLOWED, "logits[3]", "its '__call__' raised IndexError: list index out of range, at mine.py:15"),
    ("policy", GRANTED, "[]", "its 'budgets' returned 0 for 1 sequences, not one Budget for each"),
    (
        "policy",
        GRANTED,
        "[4]",
        "its 'budgets' returned a list with something of the type 'int' in it, not one Budget for each sequence",
    ),
    (
        "policy",
        "def budgets",
        "def trimmed(self, *_): ...\n    def budgets",
        "its 'trimmed' returned None, not a list of one DraftTree",
    ),
    ("policy", "def budgets", "def predicted(self, _): ...\n    def budgets", "its 'predicted' returned None, not a number"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return save_pair(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def llm(models: tuple[str, str]) -> LLM:
    return LLM(models[0], "ngram")


Written = Callable[[str, str, str], dict[str, str]]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Writes a file with a mistake; returns the arguments of `use` for it."""
    monkeypatch.chdir(tmp_path)

    def write(family: str, right: str, wrong: str) -> dict[str, str]:
        source = {"draft": DRAFTER, "verify": RULE, "policy": POLICY}[family]
        assert right in source
        Path("mine.py").write_text(source.replace(right, wrong, 1), encoding="utf-8")
        return {"draft": "ngram"} | {family: "./mine.py"}

    return write


def said(error: PacelineError) -> str:
    """The error's text, which must be one sentence that names the file."""
    assert str(error).startswith("'./mine.py'")
    assert "\n" not in str(error)
    return str(error)


@pytest.mark.parametrize("family", ["draft", "verify", "policy"])
def test_a_file_without_mistakes_keeps_the_text(llm: LLM, written: Written, family: str) -> None:
    llm.use("none")
    plain = llm.generate("the thin thin", PARAMS)[0].text
    llm.use(**written(family, "", ""))
    assert llm.generate("the thin thin", PARAMS)[0].text == plain


@pytest.mark.parametrize("family", ["draft", "verify"])
def test_a_frozen_drafter_or_rule_can_be_used(llm: LLM, written: Written, family: str) -> None:
    frozen = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Mine"
    llm.use(**written(family, "class Mine", frozen))
    assert llm.generate("the thin thin", PARAMS)[0].finish_reason == "length"


@pytest.mark.parametrize(("family", "right", "wrong", "sentence"), BUILT)
def test_a_file_whose_method_cannot_be_built_is_refused(
    llm: LLM, written: Written, family: str, right: str, wrong: str, sentence: str
) -> None:
    with pytest.raises(UnknownMethod) as refused:
        llm.use(**written(family, right, wrong))
    assert sentence in said(refused.value)


@pytest.mark.parametrize(("family", "right", "wrong", "sentence"), ANSWERED)
def test_a_method_that_returns_nonsense_ends_the_request_and_not_the_engine(
    llm: LLM, written: Written, family: str, right: str, wrong: str, sentence: str
) -> None:
    llm.use(**written(family, right, wrong))
    with pytest.raises(PacelineError) as refused:
        llm.generate("the thin the thin the", PARAMS)
    assert sentence in said(refused.value)
    llm.use("none")
    assert llm.generate("the thin", PARAMS)[0].finish_reason == "length"


def test_a_file_that_was_written_anew_is_read_anew(llm: LLM, written: Written) -> None:
    llm.use(**written("draft", "Budget(4, 4)", "Budget(3, 3)"))
    assert llm.engine.speculative.drafter.budget.depth == 3
    llm.use(**written("draft", "Budget(4, 4)", "Budget(2, 2)"))
    assert llm.engine.speculative.drafter.budget.depth == 2


def test_a_file_named_without_its_ending_is_refused_with_its_full_name(llm: LLM, written: Written) -> None:
    written("draft", "", "")
    with pytest.raises(UnknownMethod, match=r"'\./mine' names no drafter: a file of your own is named in full, '\./mine\.py'"):
        llm.use("./mine")


def test_states_come_by_tree_and_node(llm: LLM, written: Written) -> None:
    """The state entering the first layer is the token's embedding, so it must match the token of its node."""
    tapped = """name = "mine"
    seen = {}

    def observe(self, sequences, trees, verdicts, scores):
        assert len(scores.taps_of(trees)) == len(trees)
        for tree, states in zip(trees, scores.taps_of(trees)):
            assert set(states) == set(self.taps)
            assert all(len(rows) == len(tree) for rows in states.values())
            for token, row in zip(tree.tokens, states[0]):
                assert self.seen.setdefault(token, row.clone()).equal(row)
            assert not states[self.taps[1]].equal(states[0])
"""
    written("draft", 'name = "mine"', tapped)
    source = Path("mine.py").read_text("utf-8").replace("return Mine()", "return with_taps(Mine(), surroundings.target.layers)")
    source += "\ndef with_taps(drafter, layers):\n    assert layers > 0\n    drafter.taps = (0, layers)\n    return drafter\n"
    Path("mine.py").write_text(source, "utf-8")
    llm.use("./mine.py")
    answers = llm.generate(["the thin thin", "this"], SamplingParams(max_tokens=12, ignore_eos=True))
    assert all(answer.speculation.steps for answer in answers)
    assert len(type(llm.engine.speculative.drafter).seen) > 1  # pyright: ignore[reportAttributeAccessIssue]


def test_memory_that_ends_in_a_draft_costs_the_draft_alone(llm: LLM, written: Written) -> None:
    llm.use("none")
    plain = llm.generate("the thin thin", PARAMS)[0].text
    llm.use(**written("draft", CHAIN, "[bytearray(1 << 62)]"))
    assert llm.generate("the thin thin", PARAMS)[0].text == plain


def test_drawn_tokens_without_their_proposals_are_one_sentence(llm: LLM, written: Written) -> None:
    written("draft", "frozenset({Proposal.POINT})", "frozenset({Proposal.IID})")
    Path("mine.py").write_text(Path("mine.py").read_text("utf-8").replace("self.name)", "self.name, Proposal.IID)"), "utf-8")
    llm.use("./mine.py", verify="rejection")
    with pytest.raises(PacelineError) as refused:
        llm.generate("the thin", SamplingParams(max_tokens=6, temperature=1.0, seed=1))
    assert "drawn tokens without what they were drawn from" in said(refused.value)


def test_drawn_tokens_whose_proposals_are_none_are_one_sentence(llm: LLM, written: Written) -> None:
    drawn = "[DraftTree((one.root, 5), (-1, 0), Proposal.IID, None) for one in sequences]"
    written("draft", CHAIN, drawn)
    Path("mine.py").write_text(Path("mine.py").read_text("utf-8").replace("{Proposal.POINT}", "{Proposal.IID}"), "utf-8")
    llm.use("./mine.py", verify="rejection")
    with pytest.raises(PacelineError) as refused:
        llm.generate("the thin", SamplingParams(max_tokens=6, temperature=1.0, seed=1))
    assert "its 'propose' returned what cannot be read: AttributeError: 'NoneType'" in said(refused.value)


def test_mistakes_of_an_own_drafter_within_a_sum_or_a_cascade_are_one_sentence(
    llm: LLM, written: Written, models: tuple[str, str]
) -> None:
    written("draft", CHAIN, "None")
    for spec in ("ngram+./mine.py", f'./mine.py^model:"{models[1]}"'):
        llm.use(spec)
        with pytest.raises(PacelineError) as refused:
            llm.generate("the thin", PARAMS)
        assert "its 'propose' returned None" in said(refused.value)


def test_built_in_methods_are_not_wrapped_in_checks(llm: LLM) -> None:
    llm.use("ngram")
    speculative = llm.engine.speculative
    for part in (speculative.drafter, speculative.verifier, speculative.policy):
        assert type(part).__module__.startswith("paceline.")
        assert type(part).__mro__[1].__module__.startswith("paceline.")
        assert "_Watched" not in [kind.__name__ for kind in type(part).__mro__]


@pytest.mark.parametrize("command", [["check"], ["bench", "--tasks", "e2e", "--limit", "1", "--repeats", "1"]])
@pytest.mark.parametrize(
    ("family", "right", "wrong"), [("draft", CHAIN, "[]"), ("verify", FOLLOWED, "1 / 0"), ("policy", "Mine()", "None")]
)
def test_check_and_bench_exit_with_2_where_an_own_file_makes_a_mistake(
    models: tuple[str, str],
    written: Written,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    family: str,
    right: str,
    wrong: str,
) -> None:
    arguments = [word for name, spec in written(family, right, wrong).items() for word in (f"--{name}", spec)]
    assert run(monkeypatch, *command, "--max-tokens", "4", models[0], *arguments) == 2
    told = capsys.readouterr().err
    assert "paceline: './mine.py'" in told
    assert "Traceback" not in told
