"""The command line for users and scripts: output, JSON, exit codes, one sentence for every mistake."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from commandline import believe_drafts, run, save_pair
from paceline import LLM


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    pair = save_pair(tmp_path_factory.mktemp("models"))
    # compiles kernels if they are not cached: that is reported on stderr, where tests count lines
    LLM(pair[0], "none")
    return pair


def test_the_version_is_said(monkeypatch, capsys) -> None:
    import paceline

    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"paceline {paceline.__version__}\n"


def test_generate_prints_the_text_and_one_line_about_it(monkeypatch, capsys, models) -> None:
    target, draft = models
    assert run(monkeypatch, "generate", target, "-p", "the thin", "--draft", f"model:{draft}", "--max-tokens", "24") == 0
    said = capsys.readouterr()
    assert said.out.strip()
    assert "tau" in said.err
    assert "tokens/s" in said.err
    assert "identical" not in said.err, "nothing was compared with plain decoding"


def test_generate_json_is_one_line_with_the_promised_fields(monkeypatch, capsys, models) -> None:
    target, draft = models
    call = (
        "generate",
        target,
        "-p",
        "the thin",
        "--draft",
        f"model:{draft}",
        "--temperature",
        "1",
        "--max-tokens",
        "24",
        "--json",
    )
    assert run(monkeypatch, *call, "--seed", "5") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    answer = json.loads(lines[0])
    assert set(answer) >= {"text", "token_ids", "finish_reason", "usage", "speculation", "seed"}
    speculation = answer["speculation"]
    assert set(speculation) >= {
        "drafter", "verifier", "lossless", "keeps", "steps", "draft_tokens", "accepted_tokens", "tau", "acceptance_by_depth",
        "target_forwards", "wall_s", "target",
    }  # fmt: skip
    assert speculation["drafter"] == "model"
    assert (speculation["lossless"], speculation["keeps"]) == (True, "text")
    assert speculation["target"].endswith("(fp32)")
    assert answer["usage"]["completion_tokens"] == len(answer["token_ids"])
    assert speculation["emitted_tokens"] == len(answer["token_ids"]) == len(answer["sources"])
    assert set(answer["sources"]) == {"", "model"}
    assert answer["memory"]["peak_resident_bytes"] is None or answer["memory"]["peak_resident_bytes"] > 100e6
    assert answer["memory"]["weights_bytes"] > 0
    assert run(monkeypatch, *call[:-1], "--json", "--seed", "5") == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == answer["token_ids"]


def test_sampling_options_of_generate_have_the_names_and_effects_of_sampling_params(monkeypatch, capsys, models) -> None:
    from paceline import LLM, SamplingParams

    shape = {"min_p": 0.05, "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    options = [word for name, value in shape.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    call = (
        "generate",
        models[0],
        "-p",
        "the thin",
        "--draft",
        "ngram",
        "--temperature",
        "1",
        "--max-tokens",
        "24",
        "--seed",
        "5",
    )
    assert run(monkeypatch, *call, *options, "--json") == 0
    shaped = json.loads(capsys.readouterr().out)["token_ids"]
    llm, plain = LLM(models[0], "none"), SamplingParams(max_tokens=24, temperature=1.0, seed=5)
    assert shaped == llm.generate("the thin", plain.model_copy(update=shape))[0].token_ids
    assert all(llm.generate("the thin", plain.model_copy(update=dict([one])))[0].token_ids != shaped for one in shape.items())


PARTS = ("draft", "forward", "verify", "commit", "other")


def test_profile_says_where_the_time_of_a_step_goes(monkeypatch, capsys, models) -> None:
    target, draft = models
    call = ("generate", target, "-p", "the thin", "--draft", f"model:{draft}", "--max-tokens", "24")
    assert run(monkeypatch, *call, "--profile", "--json") == 0
    speculation = json.loads(capsys.readouterr().out)["speculation"]
    profile = speculation["profile"]
    assert set(profile) == {"steps", *PARTS}
    assert profile["steps"] == speculation["target_forwards"]
    assert all(profile[part]["ms_per_step"] >= 0 for part in PARTS)
    assert sum(profile[part]["share"] for part in PARTS) == pytest.approx(1, abs=1e-3)
    whole_s = sum(profile[part]["ms_per_step"] for part in PARTS) * profile["steps"] / 1e3
    assert whole_s == pytest.approx(speculation["wall_s"], rel=0.01)
    assert run(monkeypatch, *call, "--profile") == 0
    said = capsys.readouterr()
    assert all(part in said.err for part in PARTS)
    assert "ms per step" not in said.out
    assert run(monkeypatch, *call, "--json") == 0
    assert "profile" not in json.loads(capsys.readouterr().out)["speculation"]


def test_trace_shows_every_token_once_and_names_the_drafter(monkeypatch, capsys, models) -> None:
    target, draft = models
    assert run(monkeypatch, "generate", target, "-p", "the", "--draft", f"model:{draft}", "--max-tokens", "8", "--trace") == 0
    said = capsys.readouterr().out
    answer, _, legend = said.rpartition("\ntarget")
    assert "[-drafted in vain-]" in legend, "output to a file has no styles"
    assert run(monkeypatch, "generate", target, "-p", "the", "--draft", "none", "--max-tokens", "8") == 0
    assert re.sub(r"\[-.*?-\]", "", answer).strip() == capsys.readouterr().out.strip()
    assert "model" in said, "the legend names the drafters"


def test_check_exits_0_when_lossless_and_3_when_nothing_was_drafted(monkeypatch, capsys, models) -> None:
    target, draft = models
    assert run(monkeypatch, "check", target, "--draft", f"model:{draft}", "--max-tokens", "12", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "lossless"
    assert report["accepted_tokens"] > 0
    assert report["divergences"] == []
    assert run(monkeypatch, "check", target, "--draft", "grammar", "--max-tokens", "6") == 3
    assert "inconclusive" in capsys.readouterr().out
    assert run(monkeypatch, "check", target, "--draft", "none", "--max-tokens", "6") == 0, "never drafts, so there is no doubt"
    few = ("--draft", "none", "--verify", "rejection", "--max-tokens", "1", "--json")
    assert run(monkeypatch, "check", target, *few) == 3
    assert "refuse hardly any verifier" in json.loads(capsys.readouterr().out.splitlines()[-1])["reason"]


def test_check_exits_1_and_says_where_when_the_text_differs(monkeypatch, capsys, models, tmp_path: Path) -> None:
    believe_drafts(monkeypatch)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the thin thing\n")
    target, draft = models
    assert run(monkeypatch, "check", target, "--draft", f"model:{draft}", "--prompts", str(prompts), "--max-tokens", "24") == 1
    said = capsys.readouterr().out
    assert "logit gap" in said
    assert "token" in said


def test_there_is_no_approximate_option_and_help_does_not_mention_approximations(monkeypatch, capsys) -> None:
    """No approximation of a target is registered, so there is none to offer."""
    for command in ("generate", "methods"):
        assert run(monkeypatch, command, "--help") == 0
        assert "pproximat" not in capsys.readouterr().out
    assert run(monkeypatch, "generate", "-p", "x", "--approximate", "int4") == 2


@pytest.mark.parametrize("command", ["generate", "chat", "check", "serve"])
def test_help_says_what_sets_the_number_of_threads(monkeypatch, capsys, command: str) -> None:
    assert run(monkeypatch, command, "--help") == 0
    assert "OMP_NUM_THREADS" in capsys.readouterr().out


def test_methods_speak_json(monkeypatch, capsys) -> None:
    assert run(monkeypatch, "methods", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in found["drafters"]} >= {"none", "ngram", "model"}
    assert all({"source", "proposals", "taps", "branching", "trained", "cost"} <= set(row) for row in found["drafters"])
    assert set(found) >= {"drafters", "verifiers", "policies", "approximations"}
    assert [row["name"] for row in found["compositions"]] == ["auto", "a+b", "a^b", "x@y"]
    assert {option["name"] for row in found["drafters"] if row["name"] == "ngram" for option in row["options"]} >= {"max", "min"}
    assert run(monkeypatch, "methods") == 0
    said = capsys.readouterr().out
    assert "match" in said
    assert "a+b" in said


def test_methods_with_a_name_describes_that_method_and_all_its_options(monkeypatch, capsys) -> None:
    assert run(monkeypatch, "methods", "--json") == 0
    for rows in json.loads(capsys.readouterr().out).values():
        for row in rows:
            assert run(monkeypatch, "methods", row["name"]) == 0
            said = capsys.readouterr().out
            assert said.startswith(row["name"])
            assert all(option["name"] in said for option in row.get("options", []))
    assert run(monkeypatch, "methods", "ngram", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["drafters"]] == ["ngram"]
    assert run(monkeypatch, "methods", "ngrm") == 2
    assert capsys.readouterr().err == "paceline: there is no method 'ngrm'; the nearest is 'ngram'\n"
    assert run(monkeypatch, "methods", "./mine.py") == 2
    assert "a file of your own" in capsys.readouterr().err


def test_embedded_models_speak_json(monkeypatch, capsys) -> None:
    assert run(monkeypatch, "models", "--json") == 0
    assert "models" in json.loads(capsys.readouterr().out)


_LONELY_AUTO = "'auto' stands alone, or names a smaller model as in 'auto:PATH'; for this model it is 'ngram+recycle'"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-p", "x", "--draft", "ngam"], "there is no drafter 'ngam'; the nearest is 'ngram'"),
        (["-p", "x", "--draft", "NGRAM"], "there is no drafter 'NGRAM'; the nearest is 'ngram'"),
        (["-p", "x", "--draft", "confidence"], "'confidence' is a policy, and no drafter"),
        (["-p", "x", "--verify", "ngram"], "'ngram' is a drafter, and no verifier"),
        (["-p", "x", "--draft", "zzz"], "there is no drafter 'zzz'; choose from auto, none, unigram"),
        (["-p", "x", "--draft", "Qwen/Qwen2.5-0.5B"], "'Qwen/Qwen2.5-0.5B' names no drafter: a smaller model drafts as 'model:"),
        (["-p", "x", "--draft", "auto+ngram"], _LONELY_AUTO),
        (["-p", "x", "--draft", "ngram:mx=3"], "'ngram' has no option 'mx'; the nearest is 'max'"),
        (["-p", "x", "--draft", "ngram:max=0"], "max"),
        (["-p", "x", "--draft", "model:/nowhere"], "/nowhere"),
        (["-p", "x", "--draft", "ngram^none"], "'none' is none"),
        (["-p", "x", "--draft", "ngram@sink"], "one weight format"),
        (["-p", "x", "--policy", "bas"], "there is no policy 'bas'; the nearest is 'bass'"),
        (["-p", "x", "--policy", "bass:first=40"], "limit"),
        (["-p", "x", "--policy", ""], "the policy is an empty text: leave it out, or choose from fixed, adaptive"),
        (["-p", "x", "--verify", ""], "the verifier is an empty text"),
        (["-p", "x", "--draft", "ngram", "--verify", "contrastive", "--lossy"], "contrasts the target"),
        (["-p", "x", "--draft", "ngram", "--verify", "typical"], "lossy"),
        (["-p", "x", "--draft", "ngram+"], "lacks a method"),
        (["-p", "x", "--draft", "auto:"], "the spec 'auto:' has nothing behind its ':'"),
        (["-p", "x", "--verify", "mach"], "there is no verifier 'mach'; the nearest is 'match'"),
        (["-p", "x", "--temperature", "-1"], "--temperature"),
        (["-p", "x", "--temperature", "nan"], "--temperature"),
        (["-p", "x", "--temperature", "1e-9"], "--temperature 1e-09: must be 0 (greedy) or at least 1e-6"),
        (["-p", "x", "--max-tokens", "0"], "--max-tokens"),
        (["-p", "x", "--top-p", "0"], "--top-p"),
        (["-p", "x", "--min-p", "2"], "--min-p 2.0: input should be less than or equal to 1"),
        (["-p", "x", "--repetition-penalty", "0"], "--repetition-penalty"),
        (["-p", "x", "--presence-penalty", "3"], "--presence-penalty"),
        (["-p", "x", "--frequency-penalty", "nan"], "--frequency-penalty"),
        (["-p", "x", "--weights", "int3"], "int3"),
        (["-p", "x", "--kv-cache", "int3"], "fp8 or int8, not as 'int3'"),
        (["-p", "x", "--kv-cache", "int8"], "by kernels for a GPU, which need CUDA and Triton"),
        (["-p", "\udcff"], "not valid Unicode"),
        (["-p", "x" * 4000], "fit by the model's context"),
        (["-p", "x" * 40, "--cache-tokens", "8"], "only 7 fit by cache_tokens"),
        (["-p", "x", "--draft", "model"], "no draft is embedded for 'target', so name one as model:PATH"),
        (["-p", "x", "--stop", ""], "--stop '': string should have at least 1 character"),
        (["-p", "x", "--stop", "y" * 100_000], f"--stop '{'y' * 79}...: string should have at most 1024 characters"),
        (["-p", "x", *["--stop", "y"] * 65], "tuple should have at most 64 items"),
        (["-p", "x", "--draft", "a\nb\x1b[1m"], "there is no drafter 'a\\nb\\x1b[1m'"),
        ([], "a prompt is needed"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(monkeypatch, capsys, models, arguments: list[str], expected: str) -> None:
    assert run(monkeypatch, "generate", models[0], *arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert expected in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert "Traceback" not in said.err


@pytest.mark.parametrize("model", ["/no/such/folder", "y" * 300, "~nobody-of-this-name/model"])
def test_a_missing_model_gets_one_sentence_and_exit_code_2(monkeypatch, capsys, model: str) -> None:
    assert run(monkeypatch, "generate", model, "-p", "x") == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


PLACES = [
    ("generate", "--prompt-file"),
    ("check", "--prompts"),
    ("bench", "--out"),
    ("bench", "serve", "--out"),
    ("bench", "serve", "--trace"),
    ("datastore", "build", "told.txt", "--out"),
    ("serve", "--config"),
    ("serve", "--api-key-file"),
]


@pytest.mark.parametrize("place", ["", "~nobody-of-this-name/it"])
@pytest.mark.parametrize("command", PLACES, ids=" ".join)
def test_an_option_that_names_no_place_is_refused_and_nothing_is_written(
    monkeypatch, capsys, tmp_path: Path, command: tuple[str, ...], place: str
) -> None:
    """An empty text, for example of an unset variable, does not mean the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("told.txt").write_text("the thin thing")
    assert run(monkeypatch, *command, place) == 2
    told = "no such home as in '~nobody-of-this-name" if place else f"{command[-1]} is an empty text"
    said = capsys.readouterr()
    assert said.out == ""
    assert told in said.err
    assert len(said.err.splitlines()) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["told.txt"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n \n",
        '{"promt": "x"}',
        "{broken",
        '{"prompt": 3}',
        '{"turns": []}',
        '{"turns": 3}',
        pytest.param('{"prompt": ' + "[" * 100_000, id="deep"),
    ],
)
def test_a_bad_prompt_file_gets_one_sentence_and_exit_code_2(monkeypatch, capsys, models, tmp_path: Path, content: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    assert run(monkeypatch, "check", models[0], "--prompts", str(file)) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_prompts_may_be_those_of_a_benchmark(monkeypatch, capsys, models, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"category": "qa", "turns": ["the thin thing", "more"]}\n{"prompt": "in the inn"}\nthe thin')
    target, draft = models
    call = ("check", target, "--draft", f"model:{draft}", "--prompts", str(file), "--max-tokens", "8", "--temperature", "0")
    assert run(monkeypatch, *call, "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 3
    file.write_text('the thin\n{"question": "who?"}')
    assert run(monkeypatch, *call) == 2
    assert "prompts.jsonl row 2 is neither a prompt nor JSON" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [("--temperature", "nan"), ("--temperature", "-3"), ("--temperature", "0", "--top-p", "7")])
def test_check_refuses_sampling_parameters_out_of_range(monkeypatch, capsys, models, wrong: tuple[str, ...]) -> None:
    assert run(monkeypatch, "check", models[0], "--max-tokens", "2", *wrong) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_row_of_prompts_ends_where_its_line_does(monkeypatch, capsys, models, tmp_path: Path) -> None:
    """Other line separators, inside JSON strings or plain text, do not split a row."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('\ufeff{"prompt": "the\u2028thin"}\r\nthe\x0cthin\n', encoding="utf-8")
    run(
        monkeypatch,
        "check",
        models[0],
        "--draft",
        "none",
        "--prompts",
        str(file),
        "--max-tokens",
        "2",
        "--temperature",
        "0",
        "--json",
    )
    assert json.loads(capsys.readouterr().out)["runs"] == 2


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no device without an end")
@pytest.mark.parametrize(
    "command",
    [
        ("check", "--prompts", "/dev/zero"),
        ("bench", "--tasks", "/dev/zero"),
        ("bench", "serve", "--trace", "/dev/zero"),
        ("serve", "--config", "/dev/zero"),
        ("serve", "--api-key-file", "/dev/zero"),
    ],
    ids=" ".join,
)
def test_a_file_without_an_end_is_refused_in_one_sentence(monkeypatch, capsys, command: tuple[str, ...]) -> None:
    assert run(monkeypatch, *command) == 2
    said = capsys.readouterr().err
    assert "/dev/zero" in said
    assert len(said.strip().splitlines()) == 1


def test_the_public_names_are_the_documented_ones() -> None:
    import paceline

    assert set(paceline.__all__) == {
        "LLM",
        "Completion",
        "Grammar",
        "PacelineError",
        "Progress",
        "SamplingParams",
        "Speculation",
        "__version__",
    }
    assert all(getattr(paceline, name) is not None for name in paceline.__all__)
    assert set(dir(paceline)) == set(paceline.__all__)
