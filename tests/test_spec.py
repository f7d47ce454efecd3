"""Spec strings: the grammar, and errors that help."""

from __future__ import annotations

from typing import Annotated

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator

from paceline.compose import spelled_out, usual_policy
from paceline.drafters import ngram, none
from paceline.registry import DRAFTERS, POLICIES, VERIFIERS, UnknownMethod
from paceline.spec import Combination, Method, SpecError, bind, parse

settings.register_profile("still", derandomize=True, deadline=None, max_examples=150, database=None)
settings.load_profile("still")


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")

    path: Annotated[str, Field(min_length=1)]
    depth: Annotated[int, Field(ge=1, le=9)] = 4
    ratio: float = 0.5

    @field_validator("ratio")
    @classmethod
    def _halved(cls, ratio: float) -> float:
        if ratio > 0.5:
            raise ValueError("a half at most")
        return ratio


def test_a_name_alone_is_a_method() -> None:
    assert parse("ngram") == Method("ngram")
    assert parse(" ngram ") == Method("ngram")


def test_arguments_come_by_place_and_options_by_name() -> None:
    assert parse("model:runs/draft, 3 ,depth = 5,width=2") == Method("model", ("runs/draft", "3"), {"depth": "5", "width": "2"})


@pytest.mark.parametrize("sign", "+^@")
def test_a_sign_joins_any_number_of_specs(sign: str) -> None:
    assert parse(f"a{sign}b:1 {sign} c") == Combination(sign, (Method("a"), Method("b", ("1",)), Method("c")))


def test_a_weight_format_binds_tightest_and_merging_loosest() -> None:
    a, b, c, d = (Method(name) for name in "abcd")
    assert parse("a@b^c+d") == Combination("+", (Combination("^", (Combination("@", (a, b)), c)), d))
    assert parse("a+b^c@d") == Combination("+", (a, Combination("^", (b, Combination("@", (c, d))))))


def test_the_spec_of_triforce_is_parsed() -> None:
    draft = Combination("@", (Method("model", ("PATH",)), Method("sink", ("16", "240"))))
    assert parse("model:PATH@sink:16,240^retrieval:8,4096") == Combination("^", (draft, Method("retrieval", ("8", "4096"))))


def test_quotes_hold_every_sign() -> None:
    assert parse('model:"runs/a+b^c@d,e=f:g"') == Method("model", ("runs/a+b^c@d,e=f:g",))
    assert parse('model:path="a,b=c"+ngram') == Combination("+", (Method("model", (), {"path": "a,b=c"}), Method("ngram")))
    assert parse('model:runs/"a+b"/c') == Method("model", ("runs/a+b/c",))


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"], exclude_characters='"'), min_size=1))
def test_any_text_without_quotes_survives_quoting(value: str) -> None:
    assert parse(f'model:"{value}",depth=2') == Method("model", (value,), {"depth": "2"})


@given(st.text('ab:,=+^@" ', max_size=12))
def test_any_text_is_a_spec_or_one_sentence(text: str) -> None:
    try:
        parse(text)
    except SpecError as error:
        said = str(error)
    else:
        return
    assert said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("text", "saying"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("a+", "lacks a method"),
        ("^a", "lacks a method"),
        ("a@@b", "lacks a method"),
        ('model:"x', "unclosed quote"),
        ("ngram:max=3,5", "behind an option"),
        (":5", "no name"),
        ("model:a,,b", "empty argument"),
        ("ngram:4,", "empty argument"),
        ("ngram:max=3, ", "empty argument"),
        ("model:a,depth=1,depth=2", "twice"),
    ],
)
def test_a_malformed_spec_is_refused_with_its_reason(text: str, saying: str) -> None:
    with pytest.raises(SpecError, match=saying):
        parse(text)


def test_options_are_typed_and_filled_in_order() -> None:
    assert bind(Method("m", ("x", "7"), {"ratio": "0.25"}), Options) == Options(path="x", depth=7, ratio=0.25)
    assert bind(Method("m", ("x",)), Options).depth == 4


@pytest.mark.parametrize(
    ("method", "saying"),
    [
        (Method("m", ("x", "1", "2", "3")), "at most 3 arguments, not 4"),
        (Method("m", ("x",), {"dept": "2"}), "no option 'dept'; the nearest is 'depth'"),
        (Method("m", ("x",), {"path": "y"}), "given 'path' twice"),
        (Method("m", ("x", "many")), "depth='many'"),
        (Method("m", ("x", "10")), "depth='10'"),
        (Method("m", ("x",), {"ratio": "0.75"}), "'m' cannot use ratio='0.75': a half at most"),
        (Method("m"), "'m' needs path"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(method: Method, saying: str) -> None:
    with pytest.raises(SpecError) as caught:
        bind(method, Options)
    assert saying in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_that_contradict_each_other_are_refused_in_words() -> None:
    with pytest.raises(SpecError, match=r"^'ngram' cannot be built: min must not exceed max$"):
        bind(parse("ngram:max=2,min=3"), ngram.Options)  # pyright: ignore[reportArgumentType]


def test_an_unknown_method_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownMethod, match="no drafter 'ngrams'; the nearest is 'ngram'"):
        DRAFTERS["ngrams"]
    with pytest.raises(UnknownMethod, match=r"no verifier 'K-Seq'; the nearest is 'k-seq'$"):
        VERIFIERS["K-Seq"]


def test_where_no_name_is_near_all_are_listed() -> None:
    with pytest.raises(UnknownMethod, match=r"no policy 'greedy'; choose from fixed, adaptive, bass, confidence$"):
        POLICIES["greedy"]
    with pytest.raises(SpecError, match=r"no option 'far'; choose from path, depth, ratio$"):
        bind(Method("m", ("x",), {"far": "1"}), Options)
    with pytest.raises(SpecError, match=r"no option 'depth'; there are none$"):
        bind(parse("none:depth=1"), none.Options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("text", [None, 3, b"ngram"])
def test_a_spec_that_is_no_text_is_refused(text: object) -> None:
    with pytest.raises(SpecError, match="a spec is a text"):
        parse(text)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("text", ["auto:x,y", "auto:depth=4", "auto:x,depth=4"])
def test_auto_takes_no_options(text: str) -> None:
    with pytest.raises(SpecError, match=r"^'auto' takes no options: spell it out, as in 'ngram"):
        spelled_out(text, "/a/model")


@pytest.mark.parametrize(
    ("text", "said"), [("model:", "nothing behind its ':'"), ("ngram: ", "nothing behind"), ("auto,ngram", "has a ','")]
)
def test_a_spec_with_a_stray_colon_or_comma_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        parse(text)


@pytest.mark.parametrize("text", ["auto+ngram", "ngram+auto", "auto^model:x", "auto@int8"])
def test_auto_is_part_of_no_other_spec(text: str) -> None:
    assert usual_policy(text) == "fixed"
    told = r"^'auto' stands alone, or names a smaller model as in 'auto:PATH'; for this model it is 'ngram\+recycle'$"
    with pytest.raises(SpecError, match=told):
        spelled_out(text, "/a/model")


def test_auto_and_what_it_stands_for() -> None:
    assert usual_policy(" auto ") == "adaptive"
    assert spelled_out("auto", "/a/model") == "ngram+recycle"
    assert usual_policy("auto:/a/small+one") == "fixed"
    assert usual_policy('auto:"/a/small+one"') == "adaptive"
    assert spelled_out('auto:"/a/small+one"', "/a/model").removesuffix("@int8") == 'ngram+model:"/a/small+one",depth=8'
    assert spelled_out("ngram", "/a/model") == "ngram"
