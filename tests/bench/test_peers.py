"""Installed peers decode the same weights to the same text; exported models equal their checkpoints."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.bench.contest import DecoderFailed, answer
from paceline.bench.errors import BenchError
from paceline.bench.mode import Mode, draft_model
from paceline.bench.peers import PEERS, chosen
from paceline.bench.peers.base import Material, PeerDecoder, guarded
from paceline.bench.peers.gguf_file import gguf_file
from paceline.bench.peers.host import HostedPeer
from paceline.models.base import ModelError
from paceline.models.embedded import DEFAULT, WEIGHTS_FOLDER, draft_of
from tiny import save_tiny

SHAPE = {"hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(PEERS))
def test_every_mode_says_what_plain_decoding_says(tmp_path: Path, name: str) -> None:
    if not PEERS[name].installed:
        pytest.skip(f"{name} is not installed here")
    target, draft = (save_tiny(tmp_path / n, 3, disturbed=d, **SHAPE) for n, d in (("target", 0.0), ("draft", 0.2)))
    llm = LLM(str(target), "none")
    ends = llm.target.eos_token_ids
    prompt = llm.encode("the thin thing in the inn and the thin thing in the")
    expected = answer(llm.generate([prompt], SamplingParams(max_tokens=24))[0].token_ids, ends)
    peer = HostedPeer(name, Material(target, draft, tmp_path, "fp32", 128, ends, 1))
    try:
        for mode, load in peer.modes().items():
            decoded = PeerDecoder(peer, mode, load).decode(prompt, 24)
            assert answer(decoded.token_ids, ends) == expected, mode
            assert 0 < decoded.first_s <= decoded.total_s
        forward = peer.forward(20)
        assert forward is None or all(forward(rows) > 0 for rows in (1, 4, 1))
    finally:
        peer.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(PEERS))
def test_no_mode_goes_on_behind_the_end_of_a_text(tmp_path: Path, name: str) -> None:
    """The end may be a drafted token; tokens computed behind it would be timed without being part of the answer."""
    if not PEERS[name].installed:
        pytest.skip(f"{name} is not installed here")
    # the draft is the target, so that most ends are drafted
    target, draft = (save_tiny(tmp_path / n, 3, **SHAPE) for n in ("target", "draft"))
    llm = LLM(str(target), "none")
    prompt = llm.encode("the thin thing in the inn and the thin thing in the")
    whole = llm.generate([prompt], SamplingParams(max_tokens=24, ignore_eos=True))[0].token_ids
    for end in dict.fromkeys(whole[2:12]):
        expected = whole[: whole.index(end) + 1]
        peer = HostedPeer(name, Material(target, draft, tmp_path, "fp32", 128, frozenset({end}), 1))
        try:
            for mode, load in peer.modes().items():
                told = PeerDecoder(peer, mode, load).decode(prompt, 24).token_ids
                assert told[: len(expected) - 1] == expected[:-1], mode
                # some peers omit the end; transformers' assisted mode stops after the round that contains it
                assert len(told) <= len(expected) + (5 if mode == "assisted" else 0), (mode, end)
        finally:
            peer.close()


@pytest.mark.filterwarnings("ignore")
def test_peers_ignore_the_penalties_of_a_checkpoint(tmp_path: Path) -> None:
    target = save_tiny(tmp_path / "target", 3, **SHAPE)
    (target / "generation_config.json").write_text('{"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "num_beams": 2}')
    llm = LLM(str(target), "none")
    prompt = llm.encode("the thin thing in the inn and the thin thing in the")
    expected = llm.generate([prompt], SamplingParams(max_tokens=24, ignore_eos=True))[0].token_ids
    peer = HostedPeer("transformers", Material(target, None, tmp_path, "fp32", 128, frozenset(), 1))
    try:
        for mode, load in peer.modes().items():
            assert PeerDecoder(peer, mode, load).decode(prompt, 24).token_ids == expected, mode
    finally:
        peer.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["llama.cpp", "openvino"])
def test_a_draft_may_be_called_as_its_target(tmp_path: Path, name: str) -> None:
    if not PEERS[name].installed:
        pytest.skip(f"{name} is not installed here")
    target, draft = (save_tiny(tmp_path / n / "model", 3, disturbed=d, **SHAPE) for n, d in (("target", 0.0), ("draft", 0.2)))
    work = tmp_path / "work"
    work.mkdir()
    peer = HostedPeer(name, Material(target, draft, work, "fp32", 128, frozenset(), 1))
    try:
        PeerDecoder(peer, "draft model", peer.modes()["draft model"])
    finally:
        peer.close()
    pattern = "*.gguf" if name == "llama.cpp" else "openvino_model.bin"
    assert len({file.read_bytes() for file in work.rglob(pattern)}) == 2


@pytest.mark.filterwarnings("ignore")
def test_an_assistant_that_is_padded_otherwise_is_refused_in_words(tmp_path: Path) -> None:
    target = save_tiny(tmp_path / "target", 3)
    draft = save_tiny(tmp_path / "draft", 3, vocab_size=320)
    peer = HostedPeer("transformers", Material(target, draft, tmp_path, "fp32", 64, frozenset(), 1))
    try:
        with pytest.raises(DecoderFailed, match=r"as many tokens as the model, \d+, and 'draft' has 320"):
            PeerDecoder(peer, "assisted", peer.modes()["assisted"])
    finally:
        peer.close()


def test_the_model_that_drafts_is_found_in_any_spec(tmp_path: Path) -> None:
    source, draft = tmp_path / "source", tmp_path / "draft"
    draft.mkdir()

    def found(*drafts: str) -> Path | None:
        return draft_model([Mode.of(one, None, None, str(source)) for one in drafts], source)

    assert found("ngram", "auto", "model") is None
    for spec in (
        f"model:{draft}",
        f"model:path={draft},depth=2",
        f"auto:{draft}",
        f"ngram^model:{draft}",
        f"ngram+model:{draft}@int8",
    ):
        assert found("ngram", spec, "model:/nowhere") == draft, spec
    shipped = WEIGHTS_FOLDER / DEFAULT
    assert draft_model([Mode.of("ngram", None, None, str(shipped))], shipped) == draft_of(shipped)


_STRETCHED = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "over"),
    [("mistral", {"sliding_window": None}), ("qwen2", {}), ("qwen3", {}), ("llama", {"rope_parameters": _STRETCHED})],
)
def test_what_is_exported_is_the_same_model_in_every_family(tmp_path: Path, kind: str, over: dict[str, Any]) -> None:
    if not PEERS["llama.cpp"].installed:
        pytest.skip("llama.cpp is not installed here")
    target = save_tiny(tmp_path / "target", 3, kind=kind, **SHAPE, **over)
    llm = LLM(str(target), "none")
    prompt = llm.encode("the thin thing in the inn and the thin thing in the " * 3)
    expected = answer(llm.generate([prompt], SamplingParams(max_tokens=24))[0].token_ids, llm.target.eos_token_ids)
    peer = HostedPeer("llama.cpp", Material(target, None, tmp_path, "fp32", 128, llm.target.eos_token_ids, 1))
    try:
        decoded = PeerDecoder(peer, "plain", peer.modes()["plain"]).decode(prompt, 24)
    finally:
        peer.close()
    assert answer(decoded.token_ids, llm.target.eos_token_ids) == expected


@pytest.mark.parametrize(
    ("kind", "over"),
    [
        ("gemma", {}),
        ("mistral", {"sliding_window": 16}),
        ("llama", {"attention_bias": True}),
        ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    ],
)
def test_what_cannot_be_exported_is_refused_by_name(tmp_path: Path, kind: str, over: dict[str, Any]) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed here")
    target = save_tiny(tmp_path / "target", 3, kind=kind, **SHAPE, **over)
    with pytest.raises(ModelError, match=r"'target' (cannot be written as GGUF here|has .*bias)"):
        gguf_file(target, tmp_path, "fp32")


def test_names_are_checked_and_sorted_by_what_is_installed(monkeypatch) -> None:
    monkeypatch.setitem(PEERS, "openvino", type(PEERS["openvino"])("openvino", ("no_such_package_anywhere",)))
    assert chosen("transformers, openvino,transformers") == (["transformers"], ["openvino"])
    assert chosen("") == ([], [])
    with pytest.raises(BenchError, match="vllm"):
        chosen("vllm")


def test_whatever_a_peer_raises_is_one_line() -> None:
    def broken() -> None:
        raise ValueError("first\n  second " + "long " * 200)

    with pytest.raises(DecoderFailed) as failed:
        guarded(broken)
    assert str(failed.value).startswith("first second long")
    assert len(str(failed.value)) < 300


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_peer_is_stopped_while_it_is_not_asked(tmp_path: Path) -> None:
    """Its threads would spin on cores on which others are measured."""
    peer = HostedPeer("transformers", Material(save_tiny(tmp_path / "target", 3), None, tmp_path, "fp32", 64, frozenset(), 1))
    decoder = PeerDecoder(peer, "plain", peer.modes()["plain"])
    for _ in range(2):
        assert len(decoder.decode([1, 2, 3], 4).token_ids) == 4
        state, until = "", monotonic() + 10
        while state != "T" and monotonic() < until:
            state = Path(f"/proc/{peer.process_id}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "T"
    peer.close()
    assert not Path(f"/proc/{peer.process_id}").exists()


def test_a_peer_that_crashes_ends_alone_and_its_row_says_how(tmp_path: Path) -> None:
    target = save_tiny(tmp_path / "target", 3)
    peer = HostedPeer("transformers", Material(target, None, tmp_path, "fp32", 64, frozenset(), 1))
    decoder = PeerDecoder(peer, "plain", peer.modes()["plain"])
    assert len(decoder.decode([1, 2, 3], 4).token_ids) == 4
    os.kill(peer.process_id, signal.SIGSEGV)
    for _ in range(2):
        with pytest.raises(DecoderFailed, match="SIGSEGV"):
            decoder.decode([1, 2, 3], 4)
    peer.close()


def test_a_peer_that_cannot_load_says_why_and_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(DecoderFailed, match="nowhere"):
        HostedPeer("transformers", Material(tmp_path / "nowhere", None, tmp_path, "fp32", 64, frozenset(), 1))
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
