"""`paceline bench serve` against a server with known delays, and its client against streams split at any byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx2
import pytest

from commandline import run
from load_server import MODEL, FakeServer, serving
from paceline.bench.errors import BenchError
from paceline.bench.load.client import Client, connected
from paceline.bench.load.outcome import Outcome
from paceline.bench.load.server import count_tokens, look

SLACK_S = 0.25
"""Allowed delay on a busy machine."""


class Pieces(httpx2.AsyncByteStream):
    def __init__(self, pieces: list[bytes], pause_s: float = 0.0) -> None:
        self._pieces, self._pause_s = pieces, pause_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            await asyncio.sleep(self._pause_s)
            yield piece


def asked(*answers: httpx2.Response, timeout_s: float = 5.0, retry: bool = False, body: Any = None) -> Outcome:
    """The client's outcome for these answers, given in turn."""
    waiting = iter(answers)

    async def ask() -> Outcome:
        transport = httpx2.MockTransport(lambda request: next(waiting))
        async with httpx2.AsyncClient(base_url="http://server", transport=transport) as http:
            client = Client(http, "/v1/completions", timeout_s, retry)
            return await client.ask(body or {"prompt": "x"}, 3, perf_counter(), perf_counter())

    return asyncio.run(ask())


def stream(*pieces: bytes, pause_s: float = 0.0) -> httpx2.Response:
    return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Pieces(list(pieces), pause_s))


STREAM = (
    b': ping\n\ndata: {"choices": [{"text": "caf\xc3\xa9 "}]}\n\nevent: ping\ndata:\n\nid: 4\n\n'
    b'data: {"choices":\ndata: [{"text": "au lait"}]}\r\n\r\ndata: {"choices": [{"text": "", "finish_reason": "stop"}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 5}}\n\n: bye\n\ndata: [DONE]\n\n'
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_an_answer_is_read_however_it_is_torn(size: int) -> None:
    outcome = asked(stream(*(STREAM[at : at + size] for at in range(0, len(STREAM), size))))
    assert outcome.error is None
    assert outcome.text == "café au lait"
    assert (outcome.chunks, outcome.tokens, outcome.prompt_tokens) == (2, 5, 2)
    assert len(outcome.itl_s) == 4
    assert outcome.index == 3


def test_a_stream_needs_an_end() -> None:
    half = b'data: {"choices": [{"text": "ab"}]}\n\n'
    assert asked(stream(half)).error == "cut off"
    assert asked(stream(half, b"data: [DONE]\n\n")).error is None
    whole = asked(stream(half, b'data: {"choices": [{"text": "c", "finish_reason": "length"}]}\n\n'))
    assert whole.error is None, "a finish without [DONE] is an end too"
    assert whole.tokens is None
    assert whole.counted_tokens == 2, "chunks, for lack of a count"


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (httpx2.Response(500, json={"error": {"message": "broken"}}), "500", "broken"),
        (httpx2.Response(502, content=b"<html>"), "502", ""),
        (httpx2.Response(422, json={"detail": "no such field"}), "422", "no such field"),
        (httpx2.Response(404, content=b"\xff\xfe"), "404", ""),
        (httpx2.Response(307, headers={"location": "http://elsewhere/"}), "307", ""),
        (httpx2.Response(200, json={"choices": []}), "not a stream", None),
        (stream(b'data: {"error": {"message": "out of memory"}}\n\n'), "error in the stream", "out of memory"),
        (stream(b"data: nonsense\n\n"), "error in the stream", None),
        (stream(b"data: [DONE]\n\n", pause_s=30.0), "timeout", None),
    ],
)
def test_what_goes_wrong_is_told_apart(answer: httpx2.Response, error: str, message: str | None) -> None:
    outcome = asked(answer, timeout_s=0.2)
    assert outcome.error == error
    assert message is None or outcome.message == message
    assert not outcome.answered
    assert outcome.ended_s < 0.2 + SLACK_S


def test_a_refusal_is_final_unless_told_to_retry() -> None:
    def full() -> httpx2.Response:
        return httpx2.Response(429, headers={"retry-after": "0.05"}, json={"error": {"message": "full"}})

    refused = asked(full())
    assert (refused.error, refused.refusals, refused.refused) == ("429", 1, True)
    patient = asked(full(), full(), stream(STREAM), retry=True)
    assert (patient.error, patient.refusals) == (None, 2)
    assert patient.first_s is not None
    assert patient.first_s >= 0.1, "the wait counts"
    never = asked(*(full() for _ in range(99)), retry=True, timeout_s=0.3)
    assert never.error == "timeout"
    assert never.refusals >= 2
    assert asked(httpx2.Response(500), retry=True).error == "500", "only a full server is asked again"


def test_a_text_that_is_not_unicode_is_not_sent() -> None:
    assert asked(stream(STREAM), body={"prompt": "\ud800"}).error == "unsendable"


def test_nobody_listening_is_an_error_of_the_connection() -> None:
    async def ask() -> Outcome:
        async with connected("http://127.0.0.1:9", None, 5.0) as http:
            return await Client(http, "/v1/completions", 5.0).ask({}, 0, perf_counter(), perf_counter())

    assert asyncio.run(ask()).error == "connection"


def test_one_request_after_another_has_one_connection() -> None:
    server = FakeServer()

    async def ask(url: str) -> None:
        async with connected(url, None, 5.0) as http:
            client = Client(http, "/v1/completions", 5.0)
            for index in range(5):
                assert (await client.ask({"prompt": "x", "max_tokens": 4}, index, perf_counter(), perf_counter())).answered

    with serving(server) as url:
        asyncio.run(ask(url))
    assert len(server.clients) == 1


def test_a_server_that_does_not_hang_up_has_answered_all_the_same() -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield STREAM
        await asyncio.sleep(60.0)

    class Held(httpx2.AsyncByteStream):
        def __aiter__(self) -> AsyncIterator[bytes]:
            return endless()

    outcome = asked(httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Held()))
    assert outcome.error is None
    assert outcome.ended_s < SLACK_S


def measured(monkeypatch: pytest.MonkeyPatch, capsys: Any, url: str, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Runs the command; returns its record."""
    assert run(monkeypatch, "bench", "serve", "--url", url, "--tasks", "e2e", "--json", *arguments) == code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    return json.loads(lines[0])


def fake(**fields: Any) -> str:
    return json.dumps({"fake": fields})


def test_known_times_are_measured(monkeypatch, capsys) -> None:
    """First text after 60 ms, then 4 chunks of 3 tokens 20 ms apart: TTFT 60, TPOT 80 / 14, end-to-end 140."""
    app = FakeServer()
    with serving(app) as url:
        record = measured(
            monkeypatch, capsys, f"{url}/v1/", "--requests", "6", "--concurrency", "2",
            "--slo", f"ttft={0.06 + SLACK_S},tpot=0.1", "--api-key", "very-secret", "--seed", "40",
            "--extra-body", fake(first_s=0.06, gap_s=0.02, tokens=15, chunk=3),
        )  # fmt: skip
    found = record["levels"][0]["bodies"]["body"]
    assert found["answered"] == 6
    assert found["tokens"] == 90
    assert found["chunks"] == 30
    assert 0.06 <= found["ttft_s"]["p50"] < 0.06 + SLACK_S
    assert 0.08 / 14 <= found["tpot_s"]["p50"] < (0.08 + SLACK_S) / 14
    assert found["itl_s"]["p50"] == 0.0, "two tokens of three arrive with another"
    assert found["itl_s"]["mean"] == pytest.approx(found["tpot_s"]["mean"])
    assert 0.02 <= found["inter_chunk_s"]["mean"] < 0.02 + SLACK_S / 4
    assert 0.14 <= found["e2e_s"]["p50"] < 0.14 + SLACK_S
    assert found["tokens_per_s"] == pytest.approx(90 / found["wall_s"])
    assert 3 * 0.14 <= found["wall_s"] < 3 * (0.14 + SLACK_S)
    assert found["goodput"]["share"] == 1.0
    assert found["tau"] == pytest.approx(3.0)
    assert record["levels"][0]["counted_by"] == "usage"
    assert record["server"]["model"] == MODEL
    assert record["server"]["context_tokens"] == 1024
    assert record["server"]["speculation"] == {"policy": "adaptive", "default": ["ngram"], "batch": 8}
    assert "very-secret" not in json.dumps(record)
    assert set(app.authorizations) == {"Bearer very-secret"}
    assert app.most_in_flight == 2
    assert sorted(body["seed"] for body in app.bodies[1:]) == list(range(40, 46)), "the first request was the warm-up"
    assert all(body["stream"] and body["temperature"] == 0.0 and body["max_tokens"] == 96 for body in app.bodies)
    assert {"machine", "versions", "argv", "date", "commit"} <= set(record)


def test_an_open_loop_does_not_wait_for_answers(monkeypatch, capsys) -> None:
    """A server of one request at a time, half as fast as requests arrive: waiting is measured from the time a request was due."""
    app = FakeServer(slots=1)
    with serving(app) as url:
        record = measured(
            monkeypatch, capsys, url, "--requests", "12", "--rate", "40", "--extra-body", fake(first_s=0.05, tokens=1),
        )  # fmt: skip
    found = record["levels"][0]["bodies"]["body"]
    assert found["answered"] == 12
    rows = found["requests"]
    assert rows[-1]["due_s"] < 0.05 * 12 * 0.8, "the last one was due long before the server could answer it"
    assert rows[-1]["ttft_s"] > 0.05 * 12 - rows[-1]["due_s"] - 0.01
    assert found["requests_per_s"] <= 1 / 0.05
    assert app.most_waiting >= 4, "they were sent when they were due"
    assert 0.0 <= min(row["lag_s"] for row in rows) < SLACK_S


def test_tokens_are_counted_by_chunks_where_a_server_reports_no_usage(monkeypatch, capsys) -> None:
    knows_nothing = FakeServer(knows_usage=False, tokenizer=False)
    with serving(knows_nothing) as url:
        record = measured(
            monkeypatch, capsys, url, "--endpoint", "chat", "--requests", "2", "--extra-body", fake(tokens=6, chunk=2)
        )
    found = record["levels"][0]
    assert found["counted_by"] == "chunks"
    assert found["bodies"]["body"]["tokens"] == 6
    assert "stream_options" not in knows_nothing.bodies[-1]
    assert [message["role"] for message in knows_nothing.bodies[-1]["messages"]] == ["user"]
    with serving(FakeServer()) as url:
        record = measured(monkeypatch, capsys, url, "--requests", "2", "--extra-body", fake(tokens=6, chunk=2, usage=False))
    assert record["levels"][0]["counted_by"] == "tokenize"
    assert record["levels"][0]["bodies"]["body"]["tokens"] == 12


def test_errors_are_counted_by_status(monkeypatch, capsys) -> None:
    with serving(FakeServer()) as url:
        record = measured(
            monkeypatch, capsys, url, "--requests", "4", "--extra-body", fake(status=503), "--slo", "ttft=1", code=1
        )  # fmt: skip
        found = record["levels"][0]["bodies"]["body"]
        assert (found["answered"], found["refused"], found["errors"]) == (0, 4, {"503": 4})
        assert found["messages"] == {"503": "as it was told"}
        assert found["goodput"]["share"] == 0.0
        assert run(monkeypatch, "bench", "serve", "--url", url, "--requests", "2", "--extra-body", fake(status=503)) == 1
        assert "2 times 503, as it was told" in capsys.readouterr().out
    with serving(FakeServer()) as url:
        record = measured(
            monkeypatch, capsys, url, "--requests", "4", "--retry", "--extra-body", fake(status=429, after=3, retry_after=0.01),
        )  # fmt: skip
    found = record["levels"][0]["bodies"]["body"]
    assert (found["answered"], found["refusals"]) == (4, 0), "refused while warming up"


def test_two_bodies_take_turns(monkeypatch, capsys, tmp_path: Path) -> None:
    app = FakeServer()
    slow, quick = fake(gap_s=0.01, tokens=8), fake(gap_s=0.01, tokens=8, chunk=4)
    with serving(app) as url:
        call = ("--requests", "6", "--extra-body", quick, "--against", slow)
        record = measured(monkeypatch, capsys, url, *call, "--out", str(tmp_path))
        seen = [body["fake"].get("chunk", 1) for body in app.bodies]
        assert seen == [4, 1] + [4, 1, 1, 4] * 3, "warm-up; then the order of the two bodies alternates"
        against = record["levels"][0]["against"]
        terms = against["means"]["tokens_per_s"]
        assert terms["ratio"] == pytest.approx(terms["body"] / terms["against"])
        assert terms["ratio"] > 2, "2 chunks instead of 8"
        assert against["equal_texts"] == {"equal": 6, "of": 6}
        assert against["interval"][0] <= terms["ratio"] * 1.001
        assert against["interval"][1] >= terms["ratio"] * 0.999
        assert [body["seed"] for body in app.bodies[2:]] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
        assert len(list(tmp_path.glob("*.json"))) == 1
        assert len(list(tmp_path.glob("*-latencies.png"))) == 1
        assert json.loads(next(tmp_path.glob("*.json")).read_text()) == record
        app.bodies.clear()
        assert (
            run(
                monkeypatch, "bench", "serve", "--url", url, "--concurrency", "1,2", "--block", "3", "--out", str(tmp_path), *call
            )
            == 0
        )
        seen = [body["fake"].get("chunk", 1) for body in app.bodies]
        assert seen[2:14] == [4, 4, 4, 1, 1, 1, 1, 1, 1, 4, 4, 4], "block by block"
    said = capsys.readouterr().out
    assert "6 of 6 answers have the same text" in said
    assert "ratio" in said
    assert len(list(tmp_path.glob("*-load.png"))) == 1


def test_a_search_for_the_highest_rate(monkeypatch, capsys) -> None:
    """A server of one request at a time and 20 ms each can serve at most 50 per second, and fewer within the objective."""
    with serving(FakeServer(slots=1)) as url:
        record = measured(
            monkeypatch, capsys, url, "--find-rate", "--rate", "25", "--requests", "15", "--slo", "ttft=0.08",
            "--slo-share", "0.9", "--extra-body", fake(first_s=0.02, tokens=1),
        )  # fmt: skip
        found = record["find_rate"]
        assert found["runs"] == len(record["levels"])
        assert 1 <= found["held_per_s"] < found["failed_per_s"] < 200
        shares = {level["load"]["value"]: level["bodies"]["body"]["goodput"]["share"] for level in record["levels"]}
        assert shares[found["held_per_s"]] >= 0.9 > shares[found["failed_per_s"]]
        record = measured(
            monkeypatch, capsys, url, "--find-rate", "--rate", "200", "--requests", "1", "--slo", "ttft=0.0001",
            "--extra-body", fake(first_s=0.01, tokens=1), code=1,
        )  # fmt: skip
        assert record["find_rate"]["held_per_s"] is None


def test_a_trace_sets_times_and_lengths(monkeypatch, capsys, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:17:{second:02}.0000000,{1000 * (second + 1)},{10 * (second + 1)}\n" for second in range(4))
    )
    app = FakeServer()
    with serving(app) as url:
        record = measured(monkeypatch, capsys, url, "--trace", str(file), "--speed-up", "20", "--extra-body", fake(tokens=99))
    scale = record["settings"]["trace_scale"]
    assert scale == pytest.approx(0.9 * 1024 / 4040)
    assert record["settings"]["most_tokens"] == sum(round(10 * n * scale) for n in (1, 2, 3, 4))
    rows = record["levels"][0]["bodies"]["body"]["requests"]
    assert [row["due_s"] for row in rows] == pytest.approx([0, 0.05, 0.1, 0.15])
    assert [row["tokens"] for row in rows] == [round(10 * n * scale) for n in (1, 2, 3, 4)]
    for number, row in enumerate(rows, 1):
        assert row["prompt_tokens"] == pytest.approx(1000 * number * scale, rel=0.15), "counted by the server's tokenizer"


def test_salt_gives_every_request_a_cache_salt_of_its_own(monkeypatch, capsys) -> None:
    app = FakeServer()
    with serving(app) as url:
        measured(monkeypatch, capsys, url, "--requests", "3", "--salt")
    assert len({body["cache_salt"] for body in app.bodies}) == 4


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--url", "ftp://x"], "--url"),
        (["--url", "http://u:p@host"], "--api-key"),
        (["--url", "http://host:99999"], "--url"),
        (["--url", "http://[::1"], "--url"),
        (["--url", "http://a b/"], "--url"),
        (["--url", "http://"], "--url"),
        (["--url", "http://x/?y"], "--url"),
        (["--url", "http://127.0.0.1:9"], "does not answer"),
        (["--api-key", "a\nb"], "--api-key"),
        (["--endpoint", "responses"], "--endpoint"),
        (["--tasks", "nothing"], "no task 'nothing'"),
        (["--requests", "0"], "--requests"),
        (["--rate", "0"], "--rate"),
        (["--rate", "1,x"], "--rate"),
        (["--rate", "nan"], "--rate"),
        (["--concurrency", "1.5"], "--concurrency"),
        (["--concurrency", ""], "--concurrency : whole numbers from 1"),
        (["--find-rate", "--slo", "ttft=1", "--rate", ""], "--rate : numbers above 0"),
        (["--concurrency", "9999"], "--concurrency"),
        (["--rate", "1", "--concurrency", "1"], "choose one"),
        (["--trace", "/nowhere.csv"], "/nowhere.csv"),
        (["--speed-up", "2"], "--trace"),
        (["--scale-lengths", "2"], "--trace"),
        (["--max-tokens", "0"], "--max-tokens"),
        (["--temperature", "nan"], "--temperature"),
        (["--seed", "-1"], "at least 0 and at most 9223372036854675807"),
        (["--slo", "ttft"], "--slo"),
        (["--find-rate"], "--slo"),
        (["--find-rate", "--slo", "ttft=1", "--concurrency", "2"], "--find-rate"),
        (["--find-rate", "--slo", "ttft=1", "--rate", "1,2"], "--find-rate"),
        (["--find-rate", "--slo", "ttft=1", "--against", "{}"], "--find-rate"),
        (["--slo-share", "0"], "--slo-share 0: it must be at least 0.01 and at most 1"),
        (["--max-tokens", "2000000"], "--max-tokens 2000000: it must be at least 1 and at most 1048576"),
        (["--extra-body", "{"], "--extra-body"),
        (["--extra-body", "[]"], "--extra-body"),
        (["--extra-body", '{"temperature": NaN}'], "--extra-body"),
        (["--extra-body", '{"x": 1e999}'], "--extra-body"),
        (["--against", '{"x": [-1e999]}'], "--against"),
        (["--extra-body", '{"stream": false}'], "stream"),
        (["--against", '{"n": 2}'], "'n'"),
        (["--block", "2"], "--against"),
        (["--block", "2", "--against", "{}", "--concurrency", "4"], "--block"),
        (["--timeout", "0"], "--timeout"),
        (["--warmup", "0"], "--warmup"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(monkeypatch, capsys, arguments: list[str], expected: str) -> None:
    assert run(monkeypatch, "bench", "serve", *arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert expected in said.err
    assert len(said.err.strip().splitlines()) == 1


def test_a_server_that_answers_nothing_useful_is_one_sentence(monkeypatch, capsys) -> None:
    with serving(FakeServer()) as url:
        for arguments, expected in (
            (["--extra-body", fake(status=401)], "status 401, as it was told"),
            (["--extra-body", fake(cut=True)], "cut off"),
            (["--url", f"{url}/elsewhere"], "--model"),
            (["--url", f"{url}/elsewhere", "--model", "m"], "status 404"),
        ):
            assert run(monkeypatch, "bench", "serve", "--url", url, *arguments) == 2
            said = capsys.readouterr().err
            assert expected in said
            assert len(said.strip().splitlines()) == 1


def asked_over(transport: httpx2.MockTransport, ask: Any) -> Any:
    """The result of `ask`, called with a client."""

    async def asking() -> Any:
        async with httpx2.AsyncClient(base_url="http://server", transport=transport) as http:
            return await ask(http)

    return asyncio.run(asking())


@pytest.mark.parametrize("listed", [5, True, "models", {"id": "m"}, [5], None])
def test_a_list_of_models_that_is_none_is_one_sentence(listed: Any) -> None:
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, json={"data": listed}))
    with pytest.raises(BenchError, match="/v1/models: status 200, no model; name a model with --model"):
        asked_over(transport, lambda http: look(http, "http://server", None))


def test_half_a_surrogate_pair_is_counted_as_another_character() -> None:
    sent: list[str] = []

    def counted(request: httpx2.Request) -> httpx2.Response:
        sent.append(json.loads(request.content)["prompt"])
        return httpx2.Response(200, json={"tokens": [1, 2]})

    transport = httpx2.MockTransport(counted)
    assert asked_over(transport, lambda http: count_tokens(http, "m", ["caf\u00e9 \ud83d", "b"])) == [2, 2]
    assert sent == ["caf\u00e9 ?", "b"]


def test_bench_is_a_command_and_a_group(monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(monkeypatch, "bench", "--help") == 0
    said = capsys.readouterr().out
    assert "--peers" in said
    assert "serve" in said
    assert run(monkeypatch, "bench", "serve", "--help") == 0
    said = capsys.readouterr().out
    assert "--find-rate" in said
    assert "paceline bench serve [OPTIONS]" in said
    for arguments in (["--tasks", "nothing"], ["paceline-14m", "--tasks", "nothing"], ["--tasks", "nothing", "paceline-14m"]):
        assert run(monkeypatch, "bench", *arguments) == 2
        assert "no task 'nothing'" in capsys.readouterr().err
    assert run(monkeypatch, "bench", "a", "b") == 2
    assert "unexpected" in capsys.readouterr().err


def test_a_slip_in_the_name_of_a_command_is_no_model(monkeypatch, capsys, tmp_path: Path) -> None:
    """A folder of such a name is accepted; and the name is not looked up on the Hub."""
    monkeypatch.chdir(tmp_path)
    for slip in ("sreve", "server", "Serve"):
        assert run(monkeypatch, "bench", slip, "--url", "http://127.0.0.1:9") == 2
        said = capsys.readouterr()
        assert said.err == f"paceline: there is no command 'bench {slip}'; the nearest is 'bench serve'\n"
        assert said.out == ""
    Path("server").mkdir()
    assert run(monkeypatch, "bench", "server", "--tasks", "nothing") == 2
    assert "no task 'nothing'" in capsys.readouterr().err
