"""`paceline bench` for users and scripts: the record, the tables, the files, exit codes, mistakes."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

import commandline
from paceline import LLM
from paceline.bench import files, runner, table
from paceline.bench.contest import DecoderFailed
from paceline.bench.errors import BenchError
from paceline.bench.files import put_text, writable
from paceline.bench.load import files as load_files
from paceline.bench.memory import peak_of_answering
from paceline.bench.page import main as write_page
from paceline.bench.peers import PEERS
from paceline.engine.engine import Engine, OutOfMemory, Progress
from paceline.machine import most_threads
from tiny import save_tiny

FEW = ("--repeats", "1", "--max-tokens", "12", "--threads", "1")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("models")
    longer = {"max_position_embeddings": 512}
    target = str(save_tiny(folder / "target", 3, **longer))
    # compiles missing kernels, whose messages would appear in the tested output
    LLM(target, "auto")
    return target, str(save_tiny(folder / "draft", 3, disturbed=0.3, **longer))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    rows = [
        {"question_id": 1, "category": "writing", "turns": ["the thin", "the thing"]},
        {"prompt": "the thin thing", "task": "raw"},
        {"prompt": "in the inn", "task": "raw"},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


@pytest.fixture(autouse=True)
def same_threads():
    """`--threads` changes the whole process; other tests must not be affected."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    return commandline.run(monkeypatch, "bench", *arguments)


def test_the_record_holds_both_terms_of_every_ratio(monkeypatch, capsys, models, tasks, tmp_path: Path) -> None:
    target, draft = models
    drafts = ("--draft", f"model:{draft}", "--draft", "ngram", "--draft", "none")
    assert run(monkeypatch, target, *drafts, "--tasks", tasks, "--batch", "1,3", *FEW, "--out", str(tmp_path), "--json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    record = json.loads(lines[0])
    assert set(record) >= {"speedup", "tau", "verify_cost", "commit", "argv", "machine", "versions", "threads", "model", "grown"}
    assert record["argv"][0] == "bench"
    assert record["threads"] == 1
    assert record["grown"] is None
    assert record["equal"] is True
    assert list(record["speedup"]) == ["writing", "raw", "all tasks"]
    assert list(record["speedup"]["raw"]) == [f"model:{draft}", "ngram"]
    for modes in record["speedup"].values():
        for terms in modes.values():
            assert terms["ratio"] == pytest.approx(terms["tokens_per_s"] / terms["plain_tokens_per_s"])
            assert terms["decode_ratio"] == pytest.approx(terms["decode_tokens_per_s"] / terms["plain_decode_tokens_per_s"])
    rows = {(row["task"], row["mode"]): row for row in record["rows"]}
    assert rows["writing", "plain"]["prompts"] == 2, "one per turn"
    assert rows["all tasks", "ngram"]["equal_prompts"] == 4
    assert rows["raw", "plain"]["tokens"] == rows["raw", "ngram"]["tokens"] == 24
    assert rows["raw", "plain"]["tau"] == 1.0
    assert record["tau"]["raw"][f"model:{draft}"] > 1.0
    assert 0 < record["acceptance_by_depth"]["raw"][f"model:{draft}"][0] <= 1
    seconds = rows["raw", "plain"]["seconds"]
    assert [len(repeats) for repeats in seconds["total_s"]] == [1, 1], "every measurement, by prompt"
    assert rows["raw", "plain"]["decode_s"] == pytest.approx(
        sum(total - first for (total,), (first,) in zip(seconds["total_s"], seconds["first_s"], strict=True))
    )
    least, most = record["prefill"]["range_ms"]["plain"]
    assert least <= record["prefill"]["ms"]["plain"] <= most
    assert "/" not in record["settings"]["auto"], "no path of this machine"
    assert set(rows["raw", "ngram"]["step_ms"]) == {"draft", "forward", "verify", "commit", "other"}
    assert list(record["verify_cost"]["ms"]["paceline"]) == ["1", "2", "4", "8", "16", "32", "64"]
    floor = record["verify_cost"]["floor"]
    assert floor["bytes"] > 0
    assert floor["ratio"] == pytest.approx(floor["row_ms"] / floor["reading_ms"])
    assert record["prefill"]["ms"]["plain"] > 0
    assert record["failed"] == {}
    assert record["memory"]["of_one_answer"]
    assert record["memory"]["peak_resident_bytes"] is None or record["memory"]["peak_resident_bytes"] > 100e6
    assert {(row["mode"], row["batch"]) for row in record["batches"]} == {(m, 3) for m in ("plain", f"model:{draft}", "ngram")}
    assert all(100 <= row["equal_prompts"] == row["prompts"] <= 150 for row in record["batches"])
    files = {file.name for file in tmp_path.iterdir()}
    stem = "bench-target-fp32-1-thread"
    assert files == {f"{stem}.json", *(f"{stem}-{name}.png" for name in ("speedup", "acceptance", "verify", "step"))}
    assert json.loads((tmp_path / f"{stem}.json").read_text()) == record

    write_page(tmp_path, tmp_path / "docs")
    page = (tmp_path / "docs" / "benchmarks.md").read_text()
    assert "paceline bench" in page
    assert f"images/{stem}-speedup.png" in page
    assert "of weights that every forward reads took" in page
    assert (tmp_path / "docs" / "images" / f"{stem}-verify.png").stat().st_size > 5000


def test_tables_name_what_is_grown_and_what_is_not_installed(monkeypatch, capsys, models, tasks) -> None:
    monkeypatch.setitem(PEERS, "ctranslate2", type(PEERS["ctranslate2"])("ctranslate2", ("no_such_package_anywhere",)))
    call = (models[0], "--draft", "ngram", "--tasks", tasks, "--grow", "3x128", "--peers", "ctranslate2", "--limit", "1", *FEW)
    assert run(monkeypatch, *call) == 0
    said = capsys.readouterr().out
    assert "GROWN from target" in said
    assert "3 layers of width 128" in said
    assert "Not installed, so not run: ctranslate2" in said
    assert "ngram" in said
    assert "peak resident" in said
    assert "of weights are read in" in said


def test_the_record_is_written_though_printing_the_tables_fails(monkeypatch, models, tmp_path: Path) -> None:
    """And names are printed literally, even if they look like markup."""
    tasks, shown = tmp_path / "tasks.jsonl", []
    tasks.write_text(json.dumps({"prompt": "the thin", "task": "a[/b]x[red]"}))

    def gone(console, record) -> None:
        show(console, record)
        shown.append(record["rows"][0]["task"])
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    show = table.show
    monkeypatch.setattr(table, "show", gone)
    ended = run(monkeypatch, models[0], *FEW, "--draft", "ngram", "--tasks", str(tasks), "--out", str(tmp_path / "out"))
    assert (ended, shown) == (141, ["a[/b]x[red]"])
    (file,) = (tmp_path / "out").glob("*.json")
    assert json.loads(file.read_text())["rows"]


def test_a_task_of_which_nothing_fits_is_left_out(monkeypatch, capsys, models, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    rows = [{"prompt": "the thin", "task": "short"}, {"prompt": "the thin " * 600, "task": "long"}]
    tasks.write_text("\n".join(map(json.dumps, rows)))
    call = (models[0], *FEW, "--draft", "ngram", "--tasks", str(tasks))
    assert run(monkeypatch, *call, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    counts = {name: (task["prompts"], task["left_out"]) for name, task in record["tasks"].items()}
    assert counts == {"short": (1, 0), "long": (0, 1)}
    assert {row["task"] for row in record["rows"]} == {"short"}
    assert run(monkeypatch, *call) == 0
    assert "long: 1 prompt too long for the model and left out, none run" in capsys.readouterr().out


def test_a_grown_model_has_no_draft_of_its_own(monkeypatch, capsys) -> None:
    assert run(monkeypatch, "--grow", "8x384", "--draft", "ngram+model:depth=3") == 2
    assert "it is model:paceline-14m-draft that goes with 'paceline-14m'" in capsys.readouterr().err


def test_transformers_runs_beside_and_says_the_same(monkeypatch, capsys, models, tasks) -> None:
    call = (models[0], "--draft", "ngram", "--tasks", tasks, "--peers", "transformers", "--limit", "1", *FEW, "--json")
    assert run(monkeypatch, *call) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["failed"] == {}
    rows = [row for row in record["rows"] if row["peer"] == "transformers" and row["task"] == "raw"]
    assert [row["mode"] for row in rows] == ["transformers plain", "transformers prompt lookup"]
    assert record["peers_draft"] is None
    assert "draft" not in record["peers"]["transformers"]["options"]
    assert all(row["equal_prompts"] == row["prompts"] == row["equal_to_its_own_plain"] for row in rows)
    assert "transformers" in record["verify_cost"]["ms"]
    versus = next(entry for entry in record["against_peers"] if entry["task"] == "raw")
    assert versus["plain"]["ratio"] == pytest.approx(
        versus["plain"]["ours_tokens_per_s"] / versus["plain"]["theirs_tokens_per_s"]
    )


def test_peers_draft_with_the_model_that_drafts_here(monkeypatch, capsys, models, tasks) -> None:
    target, draft = models
    call = (target, "--draft", f"model:{draft}", "--tasks", tasks, "--peers", "transformers", "--limit", "1", *FEW, "--json")
    assert run(monkeypatch, *call) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["failed"] == {}
    assert record["peers_draft"] == "draft"
    assert "draft" in record["peers"]["transformers"]["options"]
    rows = [row for row in record["rows"] if row["mode"] == "transformers assisted"]
    assert rows
    assert all(row["equal_prompts"] == row["prompts"] for row in rows)


def test_a_draft_with_other_tokens_is_not_given_to_peers(monkeypatch, capsys, models, tasks, tmp_path: Path) -> None:
    given: list[Path | None] = []

    def broken(name, material):
        given.append(material.draft)
        raise RuntimeError("out of luck")

    monkeypatch.setattr(runner, "HostedPeer", broken)
    other = tmp_path / "other"
    shutil.copytree(models[1], other)
    described = json.loads((other / "tokenizer.json").read_text())
    vocabulary = described["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (other / "tokenizer.json").write_text(json.dumps(described))
    call = (models[0], "--draft", f"model:{other}", "--tasks", tasks, "--peers", "transformers", "--limit", "1", *FEW)
    assert run(monkeypatch, *call) == 0
    assert given == [None]
    assert "the draft model of peers failed: the tokenizer of 'other' is not the target's" in capsys.readouterr().out


def test_a_peer_that_fails_is_named_with_its_reason(monkeypatch, capsys, models, tasks) -> None:
    def broken(name, material):
        raise RuntimeError("out of\nluck")

    monkeypatch.setattr(runner, "HostedPeer", broken)
    call = (models[0], "--draft", "ngram", "--tasks", tasks, "--peers", "transformers", "--limit", "1", *FEW)
    assert run(monkeypatch, *call) == 0
    assert "transformers failed: out of luck" in capsys.readouterr().out


def test_a_text_that_differs_ends_with_exit_code_1(monkeypatch, capsys, models, tasks) -> None:
    commandline.believe_drafts(monkeypatch)
    call = (models[0], "--draft", f"model:{models[1]}", "--tasks", tasks, *FEW, "--json")
    assert run(monkeypatch, *call) == 1
    assert json.loads(capsys.readouterr().out)["equal"] is False


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_request_that_the_engine_gives_up_ends_the_run(monkeypatch, capsys, models, tasks, at_once: int) -> None:
    """Tokens emitted until then do not count as a short answer."""
    honest = Engine.step

    def step(self: Engine) -> list[Progress]:
        running = self.scheduler.running
        if len(running) == at_once and running[0].generated_tokens > 2:
            return [self._given_up(running[0], OutOfMemory())]
        return honest(self)

    monkeypatch.setattr(Engine, "step", step)
    call = (models[0], "--draft", "ngram", "--tasks", tasks, *FEW, "--batch", str(at_once))
    assert run(monkeypatch, *call) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].endswith("the device has too little memory to go on with this request")
    assert "Traceback" not in "".join(said)


def test_rules_and_policies_run_side_by_side(monkeypatch, capsys, models, tasks) -> None:
    under = ("--verify", "match", "--verify", "block", "--policy", "fixed", "--policy", "adaptive")
    call = (models[0], "--draft", f"model:{models[1]}", "--tasks", tasks, "--temperature", "0.8", "--limit", "1", *under, *FEW)
    assert run(monkeypatch, *call, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    kept = {row["mode"]: row["keeps"] for row in record["rows"] if row["task"] == "raw"}
    assert kept == {
        "plain": "text",
        f"model:{models[1]}, match, fixed": "text",
        f"model:{models[1]}, match, adaptive": "text",
        f"model:{models[1]}, block, fixed": "law",
        f"model:{models[1]}, block, adaptive": "law",
    }
    assert record["equal"], "of the modes that promise the text"
    assert list(record["settings"]["modes"]) == ["plain", *record["settings"]["drafts"]] == list(kept)
    assert record["settings"]["modes"][f"model:{models[1]}, block, adaptive"] == {
        "draft": f"model:{models[1]}", "verify": "block", "policy": "adaptive",
    }  # fmt: skip
    assert record["failed"] == {}, "each was also measured in a process of its own"


def test_what_would_not_fit_into_memory_is_not_measured(monkeypatch, capsys, models, tasks) -> None:
    """A process beside this one that loads the model again, and the time to read as many bytes as its weights have: what was
    measured before would be lost."""
    monkeypatch.setattr("paceline.bench.runner.free_bytes", lambda: 1000)
    monkeypatch.setattr("paceline.bench.runner.peak_of_answering", lambda *_: pytest.fail("another process was started"))
    assert run(monkeypatch, models[0], "--draft", "ngram", "--tasks", tasks, "--limit", "1", *FEW, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["memory"]["peak_resident_bytes"] is None
    assert "0.0 are free" in record["failed"]["memory"]
    assert record["verify_cost"]["floor"] is None
    assert "0.0 are free" in record["failed"]["floor"]


def test_peers_are_not_compared_with_a_gpu(monkeypatch, capsys, models) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert run(monkeypatch, models[0], "--peers", "transformers") == 2
    assert "CUDA_VISIBLE_DEVICES" in capsys.readouterr().err


def test_memory_is_that_of_the_same_draft_rule_policy_and_sampling(monkeypatch, capsys, models, tasks) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(runner, "peak_of_answering", lambda prompt, options, threads: asked.append(list(options)) or len(asked))
    under = ("--verify", "typical:epsilon=0.1", "--verify", "match", "--lossy", "--weights", "fp32")
    drafts = ("--draft", "auto", "--draft", "ngram")
    call = (models[0], *drafts, "--tasks", tasks, *under, "--temperature", "0.7", "--seed", "5", "--limit", "1", *FEW, "--json")
    assert run(monkeypatch, *call) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["memory"]["peak_resident_bytes"] == len(asked) == 5
    shared = {"--max-tokens=12", "--temperature=0.7", "--seed=5", "--weights=fp32", "--lossy"}
    assert all(shared <= set(options) for options in asked)
    assert [tuple(options[-3:]) for options in asked] == [
        ("--draft=none", "--verify=match", "--policy=fixed"),
        ("--draft=ngram+recycle", "--verify=typical:epsilon=0.1", "--policy=adaptive"),
        ("--draft=ngram+recycle", "--verify=match", "--policy=adaptive"),
        ("--draft=ngram", "--verify=typical:epsilon=0.1", "--policy=fixed"),
        ("--draft=ngram", "--verify=match", "--policy=fixed"),
    ]
    auto = record["settings"]["modes"]["auto, match"]
    assert auto == {"draft": "auto", "verify": "match", "policy": "adaptive"}
    assert record["settings"]["lossy"] is True


def test_every_request_has_the_seed_that_is_given(monkeypatch, capsys, models, tasks) -> None:
    seeds: set[int | None] = set()
    add = Engine.add

    def noted(self, prompt, params, *arguments, **options):
        seeds.add(params.seed)
        return add(self, prompt, params, *arguments, **options)

    monkeypatch.setattr(Engine, "add", noted)
    monkeypatch.setattr(runner, "peak_of_answering", lambda prompt, options, threads: None)
    call = (
        models[0],
        "--draft",
        "ngram",
        "--tasks",
        tasks,
        "--temperature",
        "0.8",
        "--batch",
        "2",
        "--limit",
        "1",
        *FEW,
        "--json",
    )
    for given, seed in (((), 0), (("--seed", "41"), 41)):
        seeds.clear()
        assert run(monkeypatch, *call, *given) == 0
        assert json.loads(capsys.readouterr().out)["settings"]["seed"] == seed
        assert seeds == {seed}


@pytest.mark.parametrize(("below", "why"), [("", "it is no folder"), ("deeper", "Not a directory")])
def test_a_folder_that_cannot_be_is_refused_before_anything_is_measured(
    monkeypatch, capsys, models, tasks, tmp_path: Path, below: str, why: str
) -> None:
    def never(settings, watch):
        raise AssertionError("measured")

    monkeypatch.setattr(runner, "run", never)
    file = tmp_path / "file"
    file.write_text("kept")
    assert run(monkeypatch, models[0], "--tasks", tasks, "--out", str(file / below)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"paceline: cannot write to {file / below}: {why}\n"
    assert file.read_text() == "kept"


def test_a_record_is_written_whole_or_not_at_all(monkeypatch, tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    put_text(file, "a folder named \udce9")
    assert file.read_text(encoding="utf-8") == "a folder named \\udce9"

    def refused(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", refused)
    with pytest.raises(BenchError, match=r"cannot write .*record\.json: No space left on device"):
        put_text(file, "lost")
    assert [one.name for one in tmp_path.iterdir()] == ["record.json"]
    assert file.read_text(encoding="utf-8").startswith("a folder")


def test_a_load_never_overwrites_another(tmp_path: Path) -> None:
    record = {
        "find_rate": None, "levels": [{"load": {"kind": "rate", "value": 1.0}}], "server": {"model": "m"},
        "settings": {"endpoint": "chat", "against": None},
    }  # fmt: skip
    written = [load_files.written(record, tmp_path) for _ in range(3)]
    written[1].unlink()
    again = load_files.written(record, tmp_path)
    assert again == written[1]
    assert len(set(tmp_path.iterdir())) == 3


def test_a_load_that_cannot_be_written_leaves_no_file(monkeypatch, tmp_path: Path) -> None:
    """An empty file would be read as a record when the page is drawn."""
    record = {
        "find_rate": None, "levels": [{"load": {"kind": "rate", "value": 1.0}}], "server": {"model": "m"},
        "settings": {"endpoint": "chat", "against": None},
    }  # fmt: skip

    def refused(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", refused)
    with pytest.raises(BenchError, match="No space left on device"):
        load_files.written(record, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_checking_that_a_folder_is_writable_leaves_no_file(monkeypatch, tmp_path: Path) -> None:
    writable(tmp_path / "new" / "deeper")
    assert list((tmp_path / "new" / "deeper").iterdir()) == []

    def refused(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files, "TemporaryFile", refused)
    with pytest.raises(BenchError, match=r"cannot write to .*: Permission denied"):
        writable(tmp_path)


def test_a_lossy_rule_is_run_by_leave_and_named(monkeypatch, capsys, models, tasks, tmp_path: Path) -> None:
    """Its texts differ, and the run succeeds all the same: nothing else was promised."""
    call = (models[0], "--draft", f"model:{models[1]}", "--verify", "typical:epsilon=0.0001", "--tasks", tasks, *FEW)
    assert run(monkeypatch, *call) == 2
    assert "allow it by --lossy, in Python by lossy=True" in capsys.readouterr().err
    call = (*call, "--temperature", "1.5", "--lossy", "--batch", "2", "--out", str(tmp_path))
    assert run(monkeypatch, *call) == 0
    assert "lossy" in capsys.readouterr().out
    record = json.loads(next(tmp_path.glob("*.json")).read_text())
    lossy = [row for row in (*record["rows"], *record["batches"]) if row["mode"] != "plain"]
    assert {row["keeps"] for row in lossy} == {"nothing"}
    assert any(row["equal_prompts"] < row["prompts"] for row in lossy)
    write_page(tmp_path, tmp_path / "docs")
    page = (tmp_path / "docs" / "benchmarks.md").read_text()
    assert "in every drafted run that promises it: yes" in page
    assert "| lossy |" in page


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--tasks", "e3e"], "there is no task 'e3e'"),
        (["--tasks", "/no/where.jsonl"], "cannot read"),
        (["--peers", "vllm"], "there is no peer 'vllm'"),
        (["--grow", "big"], "no size"),
        (["--grow", "1"], "2 layers"),
        (["--batch", "1,zero"], "--batch 1,zero: sizes"),
        (["--batch", "1,,2"], "--batch 1,,2: sizes"),
        (["--batch", "0"], "--batch"),
        (["--threads", "0"], "--threads"),
        (["--threads", "9999"], f"--threads 9999: {most_threads()} can run at once on this machine"),
        (["--repeats", "0"], "--repeats"),
        (["--name", "mine"], "keep it with --out"),
        (["--limit", "0"], "--limit"),
        (["--seed", "-1"], "--seed"),
        (["--seed", str(1 << 63)], "--seed"),
        (["--temperature", "101"], "--temperature"),
        (["--temperature", "1e-9"], "--temperature"),
        (["--context", "-1"], "--context"),
        (["--max-tokens", "0"], "--max-tokens"),
        (["--max-tokens", "600"], "leaves room"),
        (["--draft", "ngam"], "the nearest is 'ngram'"),
        (["--weights", "int3"], "int3"),
        (["--verify", "mach"], "the nearest is 'match'"),
        (["--policy", "fixt"], "the nearest is 'fixed'"),
        (["--lossy", "--peers", "transformers"], "leave out --lossy, or --peers"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(monkeypatch, capsys, models, arguments: list[str], expected: str) -> None:
    assert run(monkeypatch, models[0], *arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert expected in said.err
    assert len(said.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--draft", "ngram", "--draft", "ngam"],
        ["--draft", "ngram:mx=2"],
        ["--weights", "int3"],
        ["--kv-cache", "fp4"],
        ["--verify", "mach"],
        ["--policy", "fixt"],
        ["--verify", "contrastive", "--policy", "adaptive"],
    ],
)
def test_mistyped_options_are_refused_before_a_model_is_looked_for(monkeypatch, capsys, arguments: list[str]) -> None:
    monkeypatch.setattr(runner, "resolve", lambda _: pytest.fail("it was looked for"))
    assert run(monkeypatch, "some/model", "--grow", "4", *arguments) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_peak_memory_is_measured_for_prompts_that_no_command_line_could_hold(monkeypatch, models, tmp_path: Path) -> None:
    options = (models[0], "--max-tokens=2", "--draft=none")
    # files in the current folder must not be imported as modules
    (tmp_path / "queue.py").write_text("raise RuntimeError")
    monkeypatch.chdir(tmp_path)
    assert peak_of_answering("the thin\0thing", options, 1)
    with pytest.raises(DecoderFailed, match="tokens"):
        peak_of_answering("the thin thing in the inn " * 8000, options, 1)
