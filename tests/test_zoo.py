"""The training recipe of the embedded models, on generated text and models of a few thousand parameters."""

from __future__ import annotations

import gzip
import json
import math
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from paceline.models.embedded import DEFAULT, WEIGHTS_FOLDER
from paceline.zoo import checkpoint, stages
from paceline.zoo.card import target_card
from paceline.zoo.chat import CHAT_TEMPLATE, END_OF_TEXT, render
from paceline.zoo.errors import RecipeError
from paceline.zoo.measure import measure
from paceline.zoo.optimizers import Schedule
from paceline.zoo.options import Options
from paceline.zoo.pack import IGNORED, Stream, build_pool, fill, inputs_and_targets, pieces
from paceline.zoo.plot import plot_losses
from paceline.zoo.sources import (
    TAGGED,
    Corpus,
    built_in,
    from_files,
    official_spelling,
    without_calculator,
)
from paceline.zoo.stages import Workshop, make_model, make_tokenizer
from paceline.zoo.tokenizer import train_tokenizer
from paceline.zoo.train import app
from shared import DATA, WHY

OPTIONS = Options(
    seed=3,
    vocab_size=300,
    tokens=4_000,
    context=64,
    short_context=16,
    batch_tokens=64,
    batches_per_step=2,
    warmup_steps=2,
    decay_share=0.4,
    matrix_rate=0.02,
    other_rate=0.01,
    compiled=False,
    steps=8,
    minutes=None,
    hidden=32,
    layers=2,
    heads=2,
    kv_heads=1,
    intermediate=48,
    draft_steps=4,
    draft_minutes=None,
    draft_hidden=16,
    draft_layers=1,
    draft_heads=1,
    draft_kv_heads=1,
    draft_intermediate=16,
    draft_data_share=0.1,
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only get slower with more threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sentences(count: int) -> list[str]:
    draw = random.Random(1)
    nouns = ["mill", "river", "café", "pub", "miller", "table"]
    lines = []
    for _ in range(count):
        words = [draw.choice(nouns) for _ in range(draw.choice([3, 5, 40]))]
        lines.append(f"The {' '.join(words)} costs £{draw.randrange(100)}.")
    return lines


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "lines.jsonl"
    path.write_text("\n".join(json.dumps({"text": line}) for line in sentences(120)))
    return path


def workshop(text_file: Path, out: Path) -> Workshop:
    made = Workshop(OPTIONS, DATA, [text_file], out)
    if not made.tokenizer_folder.exists():
        make_tokenizer(made)
    return made


@pytest.fixture(scope="module")
def trained(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """A target and a draft, each trained without a pause."""
    made = workshop(text_file, tmp_path_factory.mktemp("run"))
    make_model(made, "target", None, 1e9)
    make_model(made, "draft", None, 1e9)
    return made


def weights(run: Workshop, stage: str) -> dict[str, torch.Tensor]:
    place = checkpoint.latest(run.out / stage)
    assert place is not None
    return load_file(place / "model.safetensors")


def test_training_lowers_the_loss(trained: Workshop) -> None:
    place = checkpoint.latest(trained.out / "target")
    assert place is not None
    progress = checkpoint.read_progress(place)
    assert progress.step == progress.steps == OPTIONS.steps == len(progress.losses)
    assert progress.losses[-1] < progress.losses[0] - 0.3


@pytest.mark.parametrize("stage", ["target", "draft"])
def test_a_resumed_run_equals_an_uninterrupted_one(trained: Workshop, text_file: Path, tmp_path: Path, stage: str) -> None:
    halting = workshop(text_file, tmp_path)
    if stage == "draft":
        (tmp_path / "target").symlink_to(trained.out / "target")
    make_model(halting, stage, 3, 1e9)
    paused = checkpoint.latest(tmp_path / stage)
    assert paused is not None
    assert paused.name == "step-000003"
    make_model(workshop(text_file, tmp_path), stage, None, 1e9)
    expected, found = weights(trained, stage), weights(halting, stage)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_checkpoints_hold_no_pickle_and_no_leftovers(trained: Workshop) -> None:
    names = sorted(path.name for path in (trained.out / "target").rglob("*") if path.is_file())
    assert names == ["model.safetensors", "optimizer.safetensors", "options.json", "progress.json"]


def test_stream_is_a_pure_function_of_seed_and_step(trained: Workshop) -> None:
    def rows(seed: int, step: int) -> list[list[list[int]]]:
        stream = Stream(trained.pool, seed, OPTIONS.batch_tokens, OPTIONS.batches_per_step)
        return [batch.tolist() for batch in stream.batches(step)]

    late = rows(3, 57)
    for step in range(60):
        rows(3, step)
    assert rows(3, 57) == late
    assert rows(4, 57) != late
    assert rows(3, 58) != late


def test_one_epoch_of_the_stream_reads_every_row_once(trained: Workshop) -> None:
    pool = trained.pool
    stream = Stream(pool, 3, pool.long.shape[1] - 1, 1)
    total_long, total_short = len(pool.long), len(pool.short)
    seen_long: list[tuple[int, ...]] = []
    seen_short: list[tuple[int, ...]] = []
    step = 0
    while len(seen_long) < total_long or len(seen_short) < total_short:
        (batch,) = stream.batches(step)
        kind = seen_long if batch.shape[1] == pool.long.shape[1] else seen_short
        kind.extend(tuple(row) for row in batch.tolist())
        step += 1
    assert set(seen_long[:total_long]) == {tuple(row) for row in pool.long.tolist()}
    assert set(seen_short[:total_short]) == {tuple(row) for row in pool.short.tolist()}


def test_packing_keeps_documents_whole_and_rows_begin_with_one() -> None:
    draw = random.Random(0)
    documents = [[number + 1] * draw.randint(1, 9) + [0] for number in range(300)]
    packed = fill(documents, 10, end_token=0)
    assert packed.shape[1] == 10
    found: list[tuple[int, ...]] = []
    for row in packed.tolist():
        assert row[0] != 0
        part: list[int] = []
        for token in row:
            part.append(token)
            if token == 0:
                found.append(tuple(part))
                part = []
        assert not part
    padding = (0,)
    assert sorted(set(found) - {padding}) == sorted({tuple(document) for document in documents})
    assert len([part for part in found if part != padding]) == len(documents)
    assert pieces(list(range(7)), 3) == [[0, 1, 2], [3, 4, 5], [6]]


def test_padding_is_no_target_but_the_end_of_a_document_is() -> None:
    inputs, targets = inputs_and_targets(torch.tensor([[5, 6, 0, 7, 0, 0, 0]]), end_token=0)
    assert inputs.tolist() == [[5, 6, 0, 7, 0, 0]]
    assert targets.tolist() == [[6, 0, 7, 0, IGNORED, IGNORED]]


def test_schedule_warms_up_stays_and_decays() -> None:
    schedule = Schedule(steps=100, decay_share=0.25, warmup_steps=10)
    factors = [schedule.factor(step) for step in range(100)]
    assert factors[0] == 0.1
    assert factors[9] == 1.0
    assert set(factors[9:75]) == {1.0}
    assert all(later < earlier for earlier, later in pairwise(factors[75:]))
    assert 0 < factors[-1] < 0.05
    longer = Schedule(steps=200, decay_share=0.25, warmup_steps=10)
    assert [longer.factor(step) for step in range(75)] == factors[:75]


ANSWERED = [
    (TAGGED["e2e"].format("name[The Mill], priceRange[£20-25]"), "The Mill costs £20-25."),
    (TAGGED["sql"].format("How many players scored 21 points?"), "SELECT COUNT PLAYER FROM TABLE"),
    (TAGGED["gsm8k"].format("Tom has 3 bags of 4 apples?"), "3*4 = 12 apples.\n#### 12"),
    (TAGGED["gsm8k"].format("How many?"), "$5 remain"),
    (TAGGED["gsm8k"].format("How many?"), "48/2"),
    (TAGGED["e2e"].format("name[Café]"), "(closed)"),
]


@pytest.mark.parametrize(("prompt", "answer"), ANSWERED)
def test_a_prompt_tokenises_to_a_prefix_of_its_document(trained: Workshop, prompt: str, answer: str) -> None:
    whole = trained.tokenizer.encode(f"{prompt} {answer}").ids
    begin = trained.tokenizer.encode(prompt).ids
    assert whole[: len(begin)] == begin


def test_code_prompts_that_end_a_line_are_prefixes(trained: Workshop) -> None:
    begin = trained.tokenizer.encode("def f(x):\n").ids
    whole = trained.tokenizer.encode("def f(x):\n    return x\n").ids
    assert whole[: len(begin)] == begin


@pytest.mark.parametrize("text", ["", " a  b\n\n\tc ", "naïve £5 日本語 🙂\r\n", "don't 'SOUTH' 1234", "\x00\x7f"])
def test_tokenizer_round_trips(trained: Workshop, text: str) -> None:
    fast = AutoTokenizer.from_pretrained(trained.tokenizer_folder)
    assert fast.decode(fast(text).input_ids) == text


def test_digits_stand_alone(trained: Workshop) -> None:
    tokens = trained.tokenizer.encode("costs 1234").tokens
    assert [token.strip("Ġ") for token in tokens[-4:]] == list("1234")


def test_chat_template_writes_what_was_trained_on(trained: Workshop) -> None:
    fast = AutoTokenizer.from_pretrained(trained.tokenizer_folder)
    assert fast.chat_template == CHAT_TEMPLATE
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Good day."},
        {"role": "user", "content": "And again"},
    ]
    asked = fast.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    whole = render([("Hello", "Good day."), ("And again", "Yes.")])
    assert whole.startswith(asked)
    with_system = [{"role": "system", "content": "Be brief."}, *messages]
    asked = fast.apply_chat_template(with_system, tokenize=False)
    assert asked.startswith("<|user|>Be brief.\nHello<|end|>")


def test_small_domains_repeat_and_shares_hold() -> None:
    corpus = Corpus({"a": ["one two"] * 3, "b": sentences(200)}, {}, {"a": 0.25, "b": 0.75})
    tokenizer = train_tokenizer(corpus, 280, 0)
    pool = build_pool(corpus, tokenizer, tokenizer.token_to_id(END_OF_TEXT), 4_000, 16, 64, 0)
    assert pool.tokens["a"] == pytest.approx(1_000, abs=30)
    assert pool.tokens["b"] == pytest.approx(3_000, abs=300)
    assert pool.epochs["a"] > 5
    real = (pool.short != pool.end_token).sum() + (pool.long != pool.end_token).sum()
    assert real > 0.85 * (sum(pool.tokens.values()) - 400)


def test_a_model_measured_against_itself_is_always_accepted(trained: Workshop) -> None:
    target = trained.trained_model("target")
    found = measure(target, target, trained.tokenizer, sentences(20), trained.end_token)
    assert found.same_argmax == 1.0
    assert found.acceptance == pytest.approx(1.0, abs=1e-5)
    assert found.target_loss == pytest.approx(found.draft_loss)


def test_export_loads_in_transformers_and_says_how_it_was_made(trained: Workshop, tmp_path: Path) -> None:
    from paceline.zoo.export import export

    export(trained, tmp_path, tmp_path / "loss.png", "tiny")
    for name, stage in (("tiny", "target"), ("tiny-draft", "draft")):
        folder = tmp_path / name
        stored = load_file(folder / "model.safetensors")
        assert "lm_head.weight" not in stored
        assert all(value.dtype == torch.float16 for value in stored.values())
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        expected = trained.trained_model(stage)
        ids = torch.tensor([[5, 6, 7, 8]])
        assert torch.allclose(model(ids).logits, expected(ids).logits, atol=2e-2)
        assert model.generation_config.eos_token_id == trained.stop_tokens
        recipe = json.loads((folder / "recipe.json").read_text())
        assert recipe["stages"][stage]["steps"] == (8 if stage == "target" else 4)
        assert set(recipe["held_out"]["text"]) >= {"target_loss", "draft_loss", "same_argmax"}
        card = (folder / "README.md").read_text()
        assert "not good for" in card
        assert recipe["stages"][stage]["options"]["vocab_size"] == trained.tokenizer.get_vocab_size() < OPTIONS.vocab_size
        assert "--text lines.jsonl" in card
        assert f"--vocab-size {trained.tokenizer.get_vocab_size()} " in card
        for word in ("E2E", "novels", "restaurant", "SQL", "=> text", "two CPU cores", "zoo-loss.png", "--data"):
            assert word not in card, "the word belongs to the built-in mixture, which these models have never seen"
        assert str(tmp_path) not in card
    assert (tmp_path / "loss.png").stat().st_size > 5_000


def test_text_files_of_every_form(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("A line.\n" * 2_000)
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "a =>", "completion": " b"}\n\n')
    corpus = from_files([tmp_path / "plain.txt", tmp_path / "pairs.jsonl"])
    documents = corpus.train["text"] + corpus.held_out["text"]
    assert "a => b" in documents
    assert all(len(document) < 4_000 for document in documents)
    assert len(documents) > 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": 5}\n', "needs the field"),
        (b"{not json\n", "is not JSON"),
        (b"[1]\n", "is not a JSON object"),
        pytest.param(b"[" * 100_000, "is not JSON", id="deep"),
        (b"\xff\xfe\xfa", "is not UTF-8"),
        (b"\n\n", "there is no text"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match=message):
        from_files([path])


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt.gz"
    path.write_bytes(gzip.compress(b"")[:10] + b"\xff" * 20)
    with pytest.raises(RecipeError, match="cannot be read"):
        from_files([path])


def command(text: Path, out: Path, *more: str) -> list[str]:
    """The recipe's command line with the options of these tests."""
    given = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in asdict(OPTIONS).items()
        if value is not None and name != "compiled"
    ]
    return ["--text", str(text), "--out", str(out), "--weights", str(out / "w"), *given, *more]


def test_a_paused_training_is_neither_distilled_nor_exported(trained: Workshop, text_file: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    paused = runner.invoke(app, command(text_file, tmp_path, "--pause-at", "3"))
    assert paused.exit_code == 0
    assert f"the target has 3 of {OPTIONS.steps} steps" in paused.stderr
    for what in ("draft", "export"):
        early = runner.invoke(app, command(text_file, tmp_path, "--what", what))
        assert early.exit_code == 2
        assert f"has 3 of {OPTIONS.steps} steps: finish it first" in early.stderr
    assert not (tmp_path / "draft").exists()
    assert not (tmp_path / "w").exists()
    assert runner.invoke(app, command(text_file, tmp_path)).exit_code == 0
    for stage in ("target", "draft"):
        place = checkpoint.latest(tmp_path / stage)
        assert place is not None
        found, expected = load_file(place / "model.safetensors"), weights(trained, stage)
        assert all(torch.equal(expected[name], found[name]) for name in expected)
    # nothing is left to train, and the exported recipe names the training data, whatever the export command says
    shipped = json.loads((tmp_path / "w" / "paceline-14m" / "recipe.json").read_text())["data"]["packed_tokens"]
    assert runner.invoke(app, [*command(text_file, tmp_path, "--what", "export"), "--tokens", "9000"]).exit_code == 0
    assert json.loads((tmp_path / "w" / "paceline-14m" / "recipe.json").read_text())["data"]["packed_tokens"] == shipped
    options = {stage: (tmp_path / stage / "options.json").read_text() for stage in ("target", "draft")}
    for more, message in (
        (("--matrix-rate", "0.5"), "made with other --matrix-rate"),
        (("--what", "draft", "--seed", "9"), "made with other --seed"),
        (("--steps", "4"), "steps already, more than the 4"),
        (("--steps", "400"), "another length is a new run"),
    ):
        refused = runner.invoke(app, command(text_file, tmp_path, *more))
        assert refused.exit_code == 2
        assert message in refused.stderr
    assert runner.invoke(app, command(text_file, tmp_path, "--what", "target", "--minutes", "5")).exit_code == 0
    for stage, held in options.items():
        assert (tmp_path / stage / "options.json").read_text() == held, "the stored options are unchanged"
    drawn = (tmp_path / "loss.png").read_bytes()
    (tmp_path / "loss.png").unlink()
    assert runner.invoke(app, command(text_file, tmp_path, "--what", "export")).exit_code == 0
    assert (tmp_path / "loss.png").read_bytes() == drawn, "and no picture in the source tree is changed"


def test_export_refuses_checkpoints_and_tokenizers_of_other_data(trained: Workshop, text_file: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained.out, run)

    def refused(text: Path) -> str:
        result = CliRunner().invoke(app, command(text, run, "--what", "export"))
        assert result.exit_code == 2
        assert not (run / "w").exists()
        return result.stderr

    other = tmp_path / "other.txt"
    other.write_text("Another text.\n" * 400)
    assert "target/step-000008 was made with other data" in refused(other)
    file = run / "tokenizer" / "tokenizer.json"
    kept = file.read_text()
    described = json.loads(kept)
    vocabulary = described["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(described))
    assert "target/step-000008 was made with other tokenizer" in refused(text_file)
    file.write_text(kept)
    place = run / "target" / "step-000008" / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(place).items()}, place)
    assert "draft/step-000004 was made with other target" in refused(text_file)


@pytest.mark.parametrize(("name", "begin"), [("loss.png", b"\x89PNG"), ("loss.pdf", b"%PDF"), ("loss.SVG", b"<?xml")])
def test_a_picture_is_what_its_name_says(tmp_path: Path, name: str, begin: bytes) -> None:
    plot_losses({"target": (checkpoint.Progress(0, 2, 2, losses=[2.0, 1.0]), 64)}, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begin)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_card_of_the_embedded_model_tells_of_its_data() -> None:
    folder = WEIGHTS_FOLDER / DEFAULT
    card = target_card(DEFAULT, json.loads((folder / "recipe.json").read_text()))
    for word in ("E2E", "novels", "=> sql", "two CPU cores", "zoo-loss.png", "--data FOLDER", "the embedded target of Paceline"):
        assert word in card
        assert word in (folder / "README.md").read_text()


def test_the_model_card_lists_a_data_file_with_dev_in_its_name() -> None:
    recipe = json.loads((WEIGHTS_FOLDER / DEFAULT / "recipe.json").read_text())
    recipe["data"] |= {"files_sha256": {"my devlog.txt": "0"}, "shares": {"text": 1.0}}
    card = target_card("mine", recipe)
    assert "- `my devlog.txt`\n" in card
    assert "--text 'my devlog.txt' --what target" in card


def test_an_interrupt_waits_for_the_end_of_a_step(
    trained: Workshop, text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a step only some of the weights are updated, which a checkpoint could not show."""
    halting, stepped = workshop(text_file, tmp_path), torch.optim.AdamW.step
    calls = iter(range(100))

    def step(self: torch.optim.AdamW, *arguments: object) -> None:
        if next(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        stepped(self)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    with pytest.raises(KeyboardInterrupt):
        make_model(halting, "target", None, 1e9)
    place = checkpoint.latest(tmp_path / "target")
    assert place is not None
    assert place.name == "step-000003"
    monkeypatch.setattr(torch.optim.AdamW, "step", stepped)
    make_model(workshop(text_file, tmp_path), "target", None, 1e9)
    expected, found = weights(trained, "target"), weights(halting, "target")
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_loss_that_is_no_number_ends_the_run_before_it_is_learned(
    text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = workshop(text_file, tmp_path)
    make_model(made, "target", 2, 1e9)
    monkeypatch.setattr(stages, "next_token_loss", lambda model: lambda inputs, targets: model(inputs).logits.sum() * math.nan)
    with pytest.raises(RecipeError, match="target step 3 is no number"):
        make_model(workshop(text_file, tmp_path), "target", None, 1e9)
    place = checkpoint.latest(tmp_path / "target")
    assert place is not None
    assert place.name == "step-000002"


def test_a_checkpoint_in_the_place_of_another_is_never_missing(
    trained: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run stopped while a checkpoint is replaced finds the old one or the new one."""
    shutil.copytree(trained.out / "target", tmp_path / "target")
    model, seen, renamed = trained.trained_model("target"), [], Path.rename
    progress = checkpoint.read_progress(checkpoint.latest(tmp_path / "target") or Path())

    def rename(self: Path, target: Path) -> Path:
        seen.append(self.name)
        assert any((tmp_path / "target").glob("*/progress.json"))
        return renamed(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    checkpoint.save(tmp_path / "target", model, {}, progress)
    assert len(seen) == 2
    assert sorted(path.name for path in (tmp_path / "target").iterdir()) == ["options.json", f"step-{OPTIONS.steps:06d}"]


def test_a_domain_without_documents_is_named(trained: Workshop) -> None:
    corpus = Corpus({"some": ["one"], "none": []}, {}, {"some": 0.5, "none": 0.5}, {})
    with pytest.raises(RecipeError, match="no document of 'none'"):
        build_pool(corpus, trained.tokenizer, 0, 100, 8, 16, 0)


def test_what_is_held_out_is_never_trained_on(tmp_path: Path) -> None:
    for count in (1, 2, 25):
        path = tmp_path / f"{count}.jsonl"
        path.write_text("\n".join(json.dumps({"text": f"document {number}"}) for number in range(count)))
        corpus = from_files([path])
        assert len(corpus.held_out["text"]) == (0 if count == 1 else max(len(corpus.held_out["text"]), 1))
        assert corpus.train["text"]
        assert not {*corpus.train["text"]} & {*corpus.held_out["text"]}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "2.jsonl").write_text(json.dumps({"text": "another"}))
    assert len(from_files([tmp_path / "2.jsonl", tmp_path / "other" / "2.jsonl"]).files) == 2


def test_half_a_character_is_named(tmp_path: Path) -> None:
    path = tmp_path / "half.jsonl"
    path.write_text('{"text": "caf\\u00e9 \\ud83d\\ude00"}\n{"text": "a\\ud800b"}\n')
    with pytest.raises(RecipeError, match="line 2 holds half of a surrogate pair"):
        from_files([path])


def test_damaged_checkpoint_is_named(trained: Workshop, tmp_path: Path) -> None:
    place = tmp_path / "target" / "step-000001"
    place.mkdir(parents=True)
    (place / "progress.json").write_text("{}")
    (place / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(RecipeError, match="step-000001"):
        checkpoint.load_weights(place, trained.trained_model("target"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "/nowhere", "--what", "tokenizer"], "there is no data folder"),
        ([], "nothing to train on: name the folder of the mixture with --data, or files with --text"),
        (["--text", "/nowhere.txt", "--what", "tokenizer"], "there is no file"),
        (["--heads", "5"], "heads must divide"),
        (["--heads", "0"], "--heads must be at least 1"),
        (["--kv-heads", "0"], "--kv-heads must be at least 1"),
        (["--draft-layers", "0"], "--draft-layers must be at least 1"),
        (["--threads", "0"], "--threads must be at least 1"),
        (["--what", "draft", "--text", __file__], "no tokenizer|no target"),
        (["--text", __file__, "--curve", "loss.txt"], "--curve loss.txt: its name must end in .png, .pdf or .svg"),
        (["--text", __file__, "--vocab-size", "280"], "name a folder with --weights"),
        (["--hidden", "30", "--heads", "2"], "an even number of channels"),
        (["--seed", "99999999999999999999999"], "--seed must lie between"),
        (["--matrix-rate", "nan"], "--matrix-rate must be a number"),
        (["--draft-data-share", "-3"], "--draft-data-share must lie between 0 and 1"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["--out", str(tmp_path), *arguments])
    assert result.exit_code == 2
    assert re.search(message, result.stderr)
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir()), "a refused command trains nothing"


def test_runs_as_a_module(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "paceline.zoo.train", "--out", str(tmp_path), "--text", "/nowhere.txt", "--what", "tokenizer"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert result.stderr == "error: there is no file /nowhere.txt\n"


def test_calculator_marks_and_tag_spellings_are_cleaned() -> None:
    assert without_calculator("He had 48/2 = <<48/2=24>>24.\n#### 24") == "He had 48/2 = 24.\n#### 24"
    assert official_spelling("priceRange[£ 20 - 25], customerrating[low]") == ("priceRange[£20-25], customer rating[low]")


@pytest.mark.skipif(not DATA.is_dir(), reason=WHY)
def test_built_in_mixture_keeps_its_held_out_documents_apart() -> None:
    corpus = built_in(DATA, seed=20)
    assert corpus.shares.keys() == corpus.train.keys() == corpus.held_out.keys()
    for domain in ("gsm8k", "code", "stories", "novels"):
        assert corpus.held_out[domain]
        assert not set(corpus.held_out[domain]) & set(corpus.train[domain])
    assert any(text.startswith("mr: name[") and " => text " in text for text in corpus.train["e2e"])
    assert all(" => sql SELECT" in text for text in corpus.train["sql"][:100])
    assert not any("<<" in text for text in corpus.train["gsm8k"])
