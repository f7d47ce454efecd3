"""docs/benchmarks*.md: losses are listed for whole answers, decoding, the first token and batches, with both numbers."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paceline.bench import markdown, page as benchmarks_page
from paceline.bench.circumstances import circumstances
from paceline.bench.errors import BenchError
from paceline.bench.files import title
from paceline.bench.gpu_page import plot_gpu
from paceline.bench.load.plots import body_label
from paceline.bench.machines import machine_name
from paceline.bench.page import pages
from paceline.bench.plots import COLOURS, _acceptance, _colours, _names, _speedup, _step, plot
from paceline.bench.report import against_peers, speedups
from paceline.bench.settings import Settings

RECORDS = Path(__file__).parents[2] / "benchmarks"


def page(*records: Any, **more: Any) -> str:
    """All pages, joined."""
    return "\n".join(pages(*records, **more).values())


def row(mode: str, rate: float, decoding: float, first_s: float, peer: str | None = None) -> dict[str, Any]:
    told = {"tau": 2.0} if peer is None else {}
    return {
        "task": "e2e", "mode": mode, "peer": peer, "prompts": 2, "equal_prompts": 2, "tokens": 20, "first_s": first_s,
        "tokens_per_s": rate, "decode_tokens_per_s": decoding, **told,
    }  # fmt: skip


def record(*rows: dict[str, Any], prefill: dict[str, float], batches: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {
        "model": {"name": "small", "parameters": 1_000_000, "weights": "fp32"}, "grown": None, "threads": 1,
        "machine": {"processor": "one", "cores": 2, "system": "Linux"}, "versions": {"paceline": "0"}, "commit": "c", "date": "d",
        "argv": ["bench"], "settings": {"drafts": ["auto"]}, "equal": True, "rows": list(rows), "speedup": speedups(list(rows)),
        "against_peers": against_peers(list(rows)), "prefill": {"tokens": 512, "ms": prefill}, "batches": batches or [],
        "verify_cost": {"context_tokens": 256, "ms": {"paceline": {"1": 1.0}}, "relative": {"paceline": {"1": 1.0}}},
        "peers": {"other": {"version": "1", "weights": "Q8_0"}}, "failed": {}, "not_installed": [], "tasks": {},
        "memory": {"peak_resident_bytes": None},
    }  # fmt: skip


def lost(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("| whole answers", "| decoding,", "| first token", "| batch"))]


@pytest.mark.parametrize(
    ("told", "times"),
    [
        ({}, None),
        ({"contended": 0, "lost": None}, None),
        ({"contended": 1}, "Once "),
        ({"contended": 7, "lost": 0.01}, "7 times "),
        ({"lost": 0.2}, "Other work had the core for 20% of the time"),
    ],
)
def test_a_run_beside_other_work_says_so(told: dict[str, int], times: str | None) -> None:
    lines = circumstances({**record(row("plain", 50, 100, 0.4), prefill={"plain": 1.0}), **told}, "one.json")
    said = [line for line in lines if "ther work" in line]
    assert len(said) == (times is not None)
    assert all(line.startswith(f"- {times}") for line in said)


def test_whole_answers_and_the_first_token_lose_where_decoding_wins() -> None:
    rows = (
        row("plain", 50, 100, 0.4),
        row("auto", 60, 300, 0.4),
        row("other plain", 55, 90, 0.2, "other"),
        row("other draft model", 70, 200, 0.2, "other"),
    )
    text = page({"one.json": record(*rows, prefill={"plain": 300.0, "other plain": 200.0})}, {})
    assert lost(text) == [
        "| whole answers, tokens/s | e2e | 50.0 plain | 55.0 other plain | 0.91 |",
        "| whole answers, tokens/s | e2e | 60.0 auto | 70.0 other draft model | 0.86 |",
        "| first token, ms, mean of the prompts | e2e | 200.0 plain | 100.0 other plain | 2.00 |",
        "| first token after 512 tokens, ms |  | 300.0 plain | 200.0 other plain | 1.50 |",
    ]
    assert "Nothing lost" not in text
    whole = "60.0 auto | 70.0 other draft model | 0.86"
    assert f"| e2e | other | best | {whole} | 300.0 auto | 200.0 other draft model | 1.50 |" in text
    short = "[small-fp32-1-thread](#small-fp32-1-thread)"
    assert f"| {short} | 50.0 | 60.0 auto | 1.20 | 100.0 | 300.0 auto | 3.00 |" in text
    whole = "60.0 auto | 70.0 draft model | 0.86"
    assert f"| {short} | other | {whole} | 300.0 auto | 200.0 draft model | 1.50 | 300 | 200 |" in text


def test_drafts_that_lose_to_plain_decoding_are_named() -> None:
    batch = {
        "task": "e2e", "mode": "auto", "batch": 4, "tokens_per_s": 90.0, "plain_tokens_per_s": 100.0, "ratio": 0.9,
        "prompts": 2, "equal_prompts": 2,
    }  # fmt: skip
    rows = (row("plain", 50, 100, 0.4), row("auto", 40, 80, 0.4))
    text = page({"one.json": record(*rows, prefill={"plain": 300.0}, batches=[batch])}, {})
    assert lost(text) == [
        "| whole answers, tokens/s | e2e | 40.0 auto | 50.0 plain | 0.80 |",
        "| decoding, tokens/s | e2e | 80.0 auto | 100.0 plain | 0.80 |",
        "| batch 4, tokens/s of all | e2e | 90.0 auto | 100.0 plain | 0.90 |",
    ]


def test_a_page_without_losses_says_what_was_compared() -> None:
    rows = (row("plain", 50, 100, 0.2), row("auto", 60, 300, 0.2), row("other plain", 40, 90, 0.3, "other"))
    text = page({"one.json": record(*rows, prefill={"plain": 200.0, "other plain": 300.0})}, {})
    assert "Nothing lost of what was measured: whole answers, decoding and the first token." in text
    assert lost(text) == []


@pytest.mark.parametrize("file", sorted(RECORDS.glob("serve-*.json")), ids=lambda file: file.stem)
def test_a_server_under_load_is_told_with_its_command_and_its_texts(file: Path) -> None:
    served = json.loads(file.read_text())
    text = page({}, {file.name: ["images/x-load.png"]}, {file.name: served})
    assert "paceline bench serve" in text
    assert "8 distinct prompts of e2e" in text
    pairs = sum(len(level["bodies"]["body"]["requests"]) for level in served["levels"])
    assert pairs >= 1024
    assert f"the same text in {pairs} of {pairs} pairs" in text
    last = served["levels"][-1]
    rate = last["bodies"]["body"]["tokens_per_s"]
    assert f"| {last['load']['value']:.0f} | drafting on | {rate:.1f} |" in text
    assert "requests at once: the server under load" in text, "pictures have alternative text"


def test_how_a_server_was_started_is_said_where_it_told() -> None:
    file = min(RECORDS.glob("serve-*.json"))
    served = json.loads(file.read_text())
    told = {"target": "m", "default": ["ngram", "model"], "policy": "adaptive", "verifier": "match", "batch": 16}
    text = page({}, {}, {file.name: {**served, "server": {**served["server"], "speculation": told}}})
    assert "m, ngram+model drafting, match verifying, adaptive deciding, up to 16 requests at once" in text
    assert "does not say" not in text
    older = {**served, "server": {name: value for name, value in served["server"].items() if name != "speculation"}}
    assert "the record does not say" in page({}, {}, {file.name: older})


def test_requests_that_were_not_answered_are_told_with_their_reasons() -> None:
    file = min(RECORDS.glob("serve-*.json"))
    served = json.loads(file.read_text())
    assert "Requests that were not answered" not in page({}, {}, {file.name: served})
    level = served["levels"][1]
    level["bodies"]["body"] |= {"answered": 2040, "errors": {"503": 6, "cut off": 2}, "messages": {"503": "the server is full"}}
    text = page({}, {}, {file.name: served})
    lines = [line for line in text.splitlines() if line.startswith("| 4 |")]
    assert [("2040/2048" in line, "2048/2048" in line) for line in lines] == [(True, False), (False, True)]
    told = "- 4 at once, drafting on: 6 times 503, the server is full\n- 4 at once, drafting on: 2 times cut off\n"
    assert f"Requests that were not answered:\n\n{told}" in text


def test_bodies_are_called_by_what_they_switch() -> None:
    off = {"speculation": {"off": True}}
    assert body_label("body", {"settings": {"body": {}, "against": off}}) == "drafting on"
    assert body_label("against", {"settings": {"body": {"top_k": 1}, "against": off}}) == "drafting off"
    assert body_label("against", {"settings": {"body": off, "against": off}}) == "against"
    assert body_label("body", {"settings": {"body": {}, "against": {"top_k": 1}}}) == "body"


def test_a_spec_in_a_plot_is_short() -> None:
    spec = 'model:"/a/long/path/paceline-14m-draft",depth=5@int8'
    other = 'model:"/a/long/path/other/paceline-14m-draft",depth=5@int8'
    assert _names([spec, "auto"]) == {spec: "model:paceline-14m-draft,depth=5@int8", "auto": "auto"}
    assert list(_names([spec, other]).values()) == [
        "model:path/paceline-14m-draft,depth=5@int8",
        "model:other/paceline-14m-draft,depth=5@int8",
    ]


def test_drafts_that_only_folders_tell_apart_have_bars_of_their_own() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    rows = [
        {**row(mode, 50, 100, 0.4), "step_ms": {"draft": 1.0, "forward": 2.0}}
        for mode in ("plain", 'model:"/one/draft",depth=5', 'model:"/two/draft",depth=5')
    ]
    figure, axes = pyplot.subplots()
    _step(axes, record(*rows, prefill={"plain": 1.0}))
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["plain", "model:one/draft,depth=5", "model:two/draft,depth=5"]
    pyplot.close(figure)


def test_prompts_that_were_left_out_and_a_temperature_are_told() -> None:
    one = record(row("plain", 50, 100, 0.4), row("auto, block", 60, 300, 0.4), prefill={"plain": 1.0})
    one["tasks"] = {"e2e": {"prompts": 2, "left_out": 3}}
    one["settings"] |= {"temperature": 0.7, "drafts": ["auto, block"]}
    text = page({"one.json": one}, {})
    assert "- e2e: 3 prompts too long for the model and left out, 2 run" in text
    assert "- Sampled at temperature 0.7" in text
    assert ", at temperature 0.7 | 50.0 | 60.0 auto, block | 1.20 |" in text


def test_more_modes_than_can_be_told_apart_are_a_grid() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    for file, gridded in (("paceline-14m-fp16-1-thread", False), ("paceline-14m-grown-16x768-w16a16-1-thread-methods", True)):
        record = json.loads((RECORDS / f"bench-{file}.json").read_text())
        for draw in (partial(_speedup, kind=""), _acceptance):
            figure, axes = pyplot.subplots()
            draw(axes, record)
            assert bool(axes.images) == gridded
            assert len(axes.get_yticklabels()) == 15 or not gridded
            pyplot.close(figure)


def test_runs_of_the_same_settings_are_told_apart_by_name() -> None:
    record = json.loads((RECORDS / "bench-paceline-14m-grown-16x768-w16a16-1-thread-methods.json").read_text())
    assert title(record) == "paceline-14m-grown-16x768-w16a16-1-thread-methods"
    with pytest.raises(BenchError, match=r"--name '\.\./x': letters, digits"):
        settings_named("../x")


def settings_named(name: str) -> Settings:
    return Settings.of(
        None, ["ngram"], verify=[], policy=[], lossy=False, tasks="e2e", weights=None, kv_cache=None, grow=None, peers="",
        batch="1", threads=None, temperature=0.0, seed=0, max_tokens=8, repeats=1, limit=None, context=0, name=name,
    )  # fmt: skip


def test_the_benchmarks_pages_are_up_to_date_with_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of a record redraw the pages: `python -m paceline.bench.page benchmarks docs`. Pictures are not compared."""
    docs = RECORDS.parent / "docs"

    def drawn(_record: dict[str, Any], place: Path) -> list[Path]:
        names = [f"{place.name}-{kind}.png" for kind in markdown._ALTS]
        return [place.with_name(name) for name in names if (docs / place.relative_to(tmp_path)).with_name(name).exists()]

    for drawing in ("plot", "plot_load"):
        monkeypatch.setattr(benchmarks_page, drawing, drawn)
    benchmarks_page.main(RECORDS, tmp_path)
    written, kept = ({file.name: file.read_text() for file in folder.glob("benchmarks*.md")} for folder in (tmp_path, docs))
    assert written.keys() == kept.keys()
    assert [name for name, text in written.items() if text != kept[name]] == []


def test_every_link_of_the_pages_leads_somewhere() -> None:
    docs = RECORDS.parent / "docs"
    headings = {
        file.name: {markdown.anchor(line.lstrip("# ")) for line in file.read_text().splitlines() if line.startswith("#")}
        for file in docs.glob("*.md")
    }
    found = []
    for file in docs.glob("*.md"):
        for place in re.findall(r"\]\(((?:benchmarks[\w-]*\.md)?(?:#[^)]*)?)\)", file.read_text()):
            name, _, heading = place.partition("#")
            name = name or file.name
            assert name in headings, (file.name, place)
            if name.startswith("benchmarks"):
                assert not heading or heading in headings[name], (file.name, place)
                found.append(place)
    assert len(found) > 100


def test_each_other_machine_has_a_page_of_its_own() -> None:
    one = record(row("plain", 50, 100, 0.2), row("auto", 60, 300, 0.2), prefill={"plain": 200.0})
    other = one | {"machine": one["machine"] | {"processor": "another"}}
    found = pages({"one.json": one, "far/one.json": other}, {})
    assert list(found) == ["benchmarks.md", "benchmarks-far.md"]
    assert "[small-fp32-1-thread, far](benchmarks-far.md#small-fp32-1-thread)" in found["benchmarks.md"]
    assert "- [Runs on another](benchmarks-far.md), from `benchmarks/far`: 1\n" in found["benchmarks.md"]
    assert found["benchmarks.md"].count("\n## small-fp32-1-thread\n") == 1
    assert found["benchmarks-far.md"].startswith("# Benchmarks: another\n")
    assert "\n## small-fp32-1-thread\n" in found["benchmarks-far.md"]


@pytest.mark.parametrize(
    ("family", "instructions", "called"),
    [
        (["26", "2", "1"], ["avx2", "avx512f"], "AMD EPYC (Zen 5)"),
        (["25", "17", "1"], ["avx2", "avx512f"], "AMD EPYC (Zen 4)"),
        (["25", "1", "1"], ["avx2"], "AMD EPYC (Zen 3, AVX2 only)"),
        (["23", "49", "0"], ["avx2"], "AMD EPYC (AVX2 only)"),
        ([], [], "AMD EPYC"),
    ],
)
def test_processors_of_one_name_are_told_apart(family: list[str], instructions: list[str], called: str) -> None:
    assert machine_name({"processor": "AMD EPYC", "family": family, "instructions": instructions}) == called
    assert machine_name({"processor": "Intel(R) Xeon(R) Processor", "family": family}) == "Intel Xeon"


def test_peers_have_other_colours_than_we_have_and_each_a_hue() -> None:
    peers = {"auto": None, "llama.cpp plain": "llama.cpp", "llama.cpp draft model": "llama.cpp", "new plain": "new"}
    colours = _colours(["auto", "llama.cpp plain", "llama.cpp draft model", "ngram", "new plain"], peers)
    assert [colours["auto"], colours["ngram"]] == [*COLOURS[:2]]
    assert len(set(colours.values())) == 5
    assert not {colours[mode] for mode, peer in peers.items() if peer} & {*COLOURS}


def test_speed_ups_of_whole_answers_stand_beside_those_of_decoding(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = (row("plain", 50, 100, 0.4), row("auto", 60, 300, 0.4), row("other plain", 40, 90, 0.4, "other"))
    one = record(*rows, prefill={"plain": 300.0})
    assert [file.name for file in plot(one, tmp_path / "one")] == ["one-speedup.png", "one-verify.png"]


def test_what_a_run_was_made_with_is_said_where_it_is_known() -> None:
    old = record(row("plain", 50, 100, 0.4), prefill={"plain": 300.0}) | {"threads": 2}
    lines = circumstances(old, "one.json")
    assert "- Peer: other 1, weights Q8_0" in lines
    assert any("were not stopped between their turns" in line for line in lines)
    machine = {"family": ["25", "17", "1"], "instructions": ["avx2", "avx512_vnni"], "huge_pages": "madvise"}
    peer = {"version": "1", "weights": "int8", "options": {"draft": "5 tokens"}, "stopped_between": True}
    new = old | {"machine": old["machine"] | machine, "peers": {"other": peer}, "settings": {"drafts": [], "auto": "ngram"}}
    lines = circumstances(new, "one.json")
    assert "- Machine: one (family 25, model 17), 2 cores, Linux; 2 threads" in lines
    assert "- Instructions: avx2, avx512_vnni; large pages: madvise" in lines
    assert "- `auto` is `ngram` under `adaptive`" in lines
    assert "- Peer: other 1, weights int8; draft: 5 tokens" in lines
    assert not any("stopped" in line for line in lines)
    assert not any("raft model of the peers" in line for line in lines), "older records do not contain it"
    assert "- Draft model of the peers: small-draft" in circumstances(new | {"peers_draft": "small-draft"}, "one.json")
    assert "- Draft model of the peers: none was given to them" in circumstances(new | {"peers_draft": None}, "one.json")
    assert not any(
        "raft model of the peers" in line for line in circumstances(new | {"peers_draft": None, "peers": {}}, "one.json")
    )


def test_what_a_gpu_was_measured_at_stands_on_the_page(tmp_path: Path) -> None:
    gpu = json.loads((RECORDS / "gpu.json").read_text(encoding="utf-8"))
    text = page({}, {"gpu.json": ["images/gpu-rows.png"]}, gpu=gpu)
    first = gpu["forward"][0]
    assert f"| 1 | {first['seconds'] * 1e3:.2f} | 1.00 |" in text
    bits = [gpu[part] for part in ("bits", "model_bits")]
    assert f": {sum(part['equal'] for part in bits)} of {sum(part['compared'] for part in bits)}" in text
    assert f"{first['share_of_roofline']:.2f} of the memory's speed" in text
    assert f"\n| {gpu['prefill'][0]['tokens']} | " in text
    assert f" {gpu['engine'][1]['over_none']:.2f} |" in text
    assert "failed" not in text
    gpu["engine"].append({"failed": "OutOfMemoryError: no room\nfor it"})
    gpu["beside"] = [{"failed": "ImportError: transformers"}]
    gpu["left_out"] = ["batch 64 at 1024 tokens over 32 layers: 9 bytes of keys and values"]
    told = page({}, {"gpu.json": ["images/gpu-rows.png"]}, gpu=gpu)
    assert "\n- Answers through the engine failed: OutOfMemoryError: no room for it\n" in told
    assert "\n- Answers beside transformers failed: ImportError: transformers\n" in told
    assert "\n- Left out for want of memory: batch 64 at 1024 tokens" in told
    assert plot_gpu(gpu, tmp_path / "gpu").stat().st_size > 10_000
