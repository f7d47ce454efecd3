"""Files of records: no record replaces one of another run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commandline import run
from paceline.bench import runner
from paceline.bench.errors import BenchError
from paceline.bench.files import check_place
from paceline.bench.peers import PeerEntry
from tiny import save_tiny

PLANNED: dict[str, Any] = {
    "model": {"name": "small", "sampled_sha256": "ab"}, "grown": None, "threads": 1,
    "settings": {
        "modes": {"ngram": {"draft": "ngram", "verify": "match", "policy": "fixed"}}, "temperature": 0.0, "seed": 0,
        "max_tokens": 96, "context_tokens": 0, "lossy": False, "name": "",
    },
    "tasks": {"e2e": {"prompts": 4, "left_out": 0, "sha256": "ab"}}, "batches": [{"batch": 4}], "peers": ("llama.cpp",),
    "failed": {}, "not_installed": (),
}  # fmt: skip


def record(**changes: Any) -> dict[str, Any]:
    """A record of a run with these settings, with changed settings or parts."""
    settings = {**PLANNED["settings"], **{name: value for name, value in changes.items() if name in PLANNED["settings"]}}
    parts = {name: value for name, value in changes.items() if name not in PLANNED["settings"]}
    return {**PLANNED, "model": {"name": "small", "weights": "fp16"}, "peers": {"llama.cpp": {}}, **parts, "settings": settings}


def put(folder: Path, content: str) -> None:
    (folder / "bench-small-fp16-1-thread.json").write_text(content)


@pytest.mark.parametrize(
    "same",
    [
        record(),
        record(repeats=9),
        record(tasks={"e2e": {"prompts": 3, "left_out": 1}}),
        record(peers={}, failed={"llama.cpp": "it ended", "memory, ngram": "it ended"}),
        record(peers={}, not_installed=["llama.cpp"]),
    ],
)
def test_a_run_of_the_same_settings_may_be_replaced(tmp_path: Path, same: dict[str, Any]) -> None:
    check_place(PLANNED, ["fp16"], tmp_path)
    put(tmp_path, json.dumps(same))
    check_place(PLANNED, ["fp32", "fp16"], tmp_path)
    (kept,) = tmp_path.iterdir()
    assert kept.read_text() == json.dumps(same), "it is replaced when the run has ended"


def test_a_run_without_a_peer_that_is_not_installed_here_counts_as_the_same(tmp_path: Path) -> None:
    put(tmp_path, json.dumps(record(peers={"llama.cpp": {}, "openvino": {}}, failed={"ctranslate2": "it ended"})))
    here = {"peers": (), "not_installed": ("openvino", "ctranslate2", "llama.cpp")}
    check_place({**PLANNED, **here}, ["fp16"], tmp_path)
    with pytest.raises(BenchError, match="a run with other peers"):
        check_place({**PLANNED, **here, "not_installed": ("openvino",)}, ["fp16"], tmp_path)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (record(modes={"ngram": {"draft": "ngram", "verify": "block", "policy": "fixed"}}), "drafts, verifiers or policies"),
        (record(modes={}), "drafts, verifiers or policies"),
        (record(tasks={"sql": {"prompts": 4, "left_out": 0}}), "tasks"),
        (record(tasks={"e2e": {"prompts": 9, "left_out": 0}}), "tasks"),
        (record(batches=[]), "batches"),
        (record(peers={}), "peers"),
        (record(not_installed=["openvino"]), "peers"),
        (record(temperature=1.0), "temperature"),
        (record(seed=1), "seed"),
        (record(max_tokens=64), "length of answers"),
        (record(context_tokens=320), "context"),
        (record(lossy=True), "leave for lossy verifiers"),
        (record(tasks={"e2e": {"prompts": 4, "left_out": 0, "sha256": "cd"}}), "prompts in 'e2e'"),
        (record(model={"name": "small", "weights": "fp16", "sampled_sha256": "cd"}), "weights"),
        ([], "drafts"),
        ({"kind": "another"}, "drafts"),
    ],
)
def test_a_run_of_other_settings_may_not_be_replaced(tmp_path: Path, other: Any, said: str) -> None:
    put(tmp_path, json.dumps(other))
    with pytest.raises(BenchError, match=f"bench-small-fp16-1-thread.json' is the record of a run with other {said}.*--name"):
        check_place(PLANNED, ["fp32", "fp16"], tmp_path)
    check_place(PLANNED, ["int8"], tmp_path)
    check_place({**PLANNED, "settings": {**PLANNED["settings"], "name": "mine"}}, ["fp16"], tmp_path)


def test_replacing_the_record_of_another_run_is_refused_before_anything_is_run(monkeypatch, capsys, tmp_path: Path) -> None:
    target = str(save_tiny(tmp_path / "target", 3, max_position_embeddings=512))
    out = tmp_path / "out"
    call = ("bench", target, "--tasks", "e2e", "--limit", "1", "--repeats", "1", "--max-tokens", "4", "--out", str(out), "--json")
    ours = (*call, "--draft", "ngram", "--draft", "auto", "--batch", "2")
    assert run(monkeypatch, *ours) == 0
    made = json.loads(capsys.readouterr().out)
    (file,) = out.glob("*.json")
    before = file.read_bytes()
    monkeypatch.setattr(runner, "run", lambda *_: pytest.fail("it was run"))
    absent = (*ours, "--peers", "llama.cpp")
    for other in (call, (*ours, "--temperature", "1"), (*ours, "--verify", "block"), (*ours, "--limit", "2"), absent):
        assert run(monkeypatch, *other) == 2
        said = capsys.readouterr().err
        assert str(file) in said
        assert len(said.splitlines()) == 1
    assert file.read_bytes() == before
    monkeypatch.setattr(runner, "run", lambda *_: {**made, "commit": "newer"})
    assert run(monkeypatch, *ours) == 0
    assert json.loads(file.read_text())["commit"] == "newer"
    assert run(monkeypatch, *call, "--name", "other") == 0


def test_a_record_with_a_peer_may_be_replaced_where_that_is_not_installed(monkeypatch, capsys, tmp_path: Path) -> None:
    target = str(save_tiny(tmp_path / "target", 3, max_position_embeddings=512))
    out = tmp_path / "out"
    call = ("bench", target, "--tasks", "e2e", "--limit", "1", "--repeats", "1", "--max-tokens", "4", "--draft", "ngram")
    call = (*call, "--out", str(out), "--json", "--peers", "llama.cpp")
    monkeypatch.setattr(PeerEntry, "installed", False)
    assert run(monkeypatch, *call) == 0
    (file,) = out.glob("*.json")
    made = json.loads(file.read_text())
    file.write_text(json.dumps({**made, "peers": {"llama.cpp": {"version": "1"}}, "not_installed": []}))
    monkeypatch.setattr(runner, "run", lambda *_: made)
    assert run(monkeypatch, *call) == 0
    assert json.loads(file.read_text())["not_installed"] == ["llama.cpp"]
