"""The live page in a real browser: it streams, stops and replays; shown text does not move, and long texts stay smooth."""

from __future__ import annotations

import pytest

from serve.page.browser import Browser, needs_chromium
from serve.page.live import RAN, generate, shown
from serve.page.words import TEXT, WordService

from selenium.webdriver import ActionChains  # isort: skip

pytestmark = needs_chromium


def test_types_and_streams(opened: Browser, service: WordService):
    opened.type("#prompt", "Once upon <b>a</b> time")
    opened.type("#seed", "7")
    generate(opened, 46)
    assert shown(opened) == (TEXT * 2)[: len(shown(opened))]
    assert "café 🪁 by" in shown(opened)
    ask = service.asked[-1][0]
    assert (ask.drafters, ask.params.seed, ask.params.max_tokens, ask.trace) == (None, 7, 46, True)
    readings = {one.get_attribute("data-reading"): one.text for one in opened.all("[data-reading]")}
    assert (readings["tau"], readings["tokens"], readings["steps"]) == (f"{46 / 16:.2f}", "46", "16")
    # 16 steps alternate between 3 and 4 rejected tokens; 15 of them emit three tokens, the last one
    assert readings["accepted"] == f"{round(100 * 30 / (30 + 56))} %"
    assert "seed 7" in opened.text(".state")
    assert "lossless" in opened.text(".facts")
    assert "46 tokens" in opened.text("#status")
    legend = {item.text.rsplit(" ", 1)[0]: int(item.text.rsplit(" ", 1)[1]) for item in opened.all(".legend li")}
    assert legend["target alone"] + legend["ngram"] + legend["model"] == 46
    assert legend["drafted in vain"] == 56
    drawn = "[...document.querySelectorAll('canvas')].every((one) =>"
    assert opened.js(drawn + " one.getContext('2d').getImageData(0, 0, one.width, one.height).data.some((value) => value))")
    assert opened.js(drawn + " one.getAttribute('aria-label'))")


def test_tokens_are_coloured_by_who_proposed_them(opened: Browser):
    generate(opened, 30)
    hues = opened.js("[...document.querySelectorAll('.token')].map((token) => token.dataset.hue)")
    assert set(hues) == {"0", "1", "target"}
    tokens = [opened.find(f".token[data-hue='{hue}']") for hue in (0, 1)]
    borders = [token.value_of_css_property("border-bottom-color") for token in tokens]
    labels = [opened.find(f"#side-a label:has([value={name}])") for name in ("ngram", "model")]
    chips = [label.value_of_css_property("border-top-color") for label in labels]
    assert borders == chips
    assert borders[0] != borders[1]


def test_shown_tokens_and_charts_do_not_move_while_streaming(opened: Browser, service: WordService):
    service.pause_s = 0.05
    generate(opened, 90, wait=False)
    opened.until("document.querySelectorAll('.token').length > 30")
    places = "[...document.querySelectorAll('.token')].slice(0, 30).map((one) => [one.offsetLeft, one.offsetTop])"
    charts = "[...document.querySelectorAll('.run canvas, .run dd')].map((one) => [one.offsetTop, one.offsetHeight])"
    before, stood = opened.js(places), opened.js(charts)
    assert opened.js("document.querySelectorAll('.ghost').length") > 5
    opened.until(RAN)
    assert opened.js(places) == before
    assert opened.js(charts) == stood


def test_rejected_tokens_are_struck_out_and_fade(opened: Browser):
    generate(opened, 30)
    ghosts = opened.js("[...document.querySelectorAll('.ghost')].map((one) => one.textContent)")
    # a rejected chain and its sibling are shown above the first token of a step
    assert ghosts[0] == "red cloudsank"
    assert "line-through" in opened.js("getComputedStyle(document.querySelector('.ghost s')).textDecorationLine")
    opened.until("[...document.querySelectorAll('.ghost')].every((one) => getComputedStyle(one).display === 'none')")
    opened.find("#keep").click()
    assert opened.js("[...document.querySelectorAll('.ghost')].every((one) => getComputedStyle(one).display === 'block')")


def test_the_stop_button_ends_the_answer_and_its_request(opened: Browser, service: WordService):
    service.pause_s = 0.1
    left = service.left_early
    generate(opened, 900, wait=False)
    opened.until("document.querySelectorAll('.token').length > 3")
    opened.find("#stop").click()
    opened.until(RAN)
    assert opened.text(".state").startswith("stopped after")
    assert opened.text("#error") == ""
    for _ in range(100):
        if service.left_early > left:
            break
        opened.js("new Promise((resume) => setTimeout(resume, 20))")
    assert service.left_early == left + 1


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize(
    ("reason", "told"), [("length", "ended at its length"), ("timeout", "ran out of time"), ("stop", "ended")]
)
def test_says_why_an_answer_ended(opened: Browser, service: WordService, reason: str, told: str, chat: bool):
    service.reason = reason
    generate(opened, 30, **({"chat": True} if chat else {}))
    assert opened.text(".state").startswith(f"{told} after 30 tokens")


def test_replays_slowly(opened: Browser):
    generate(opened, 30)
    text, readings = shown(opened), opened.text(".readings")
    opened.find("#replay").click()
    opened.until("document.querySelector('.state').textContent === 'again, slowly'")
    opened.until("document.querySelectorAll('.token').length > 2")
    assert len(shown(opened)) < len(text)
    opened.find("#stop").click()
    opened.until(RAN)
    opened.until(f"document.querySelector('.readings').textContent === {readings!r}")
    assert shown(opened) == text


def test_chat(opened: Browser, service: WordService):
    opened.type("#prompt", "hello")
    generate(opened, 30, chat=True)
    assert service.chats[-1][0] == [{"role": "user", "content": "hello"}]
    assert shown(opened) == TEXT[: len(shown(opened))]
    ActionChains(opened.driver).move_to_element(opened.all(".token")[3]).perform()
    opened.until("document.getElementById('card').textContent.includes('probability 90.5 %')")


def test_two_thousand_tokens_stay_smooth(opened: Browser, service: WordService):
    service.pause_s = 0.001
    opened.driver.execute_script(
        "window.long = []; window.frames_seen = 0;"
        "new PerformanceObserver((list) => window.long.push(...list.getEntries().map((one) => one.duration)))"
        ".observe({type: 'longtask'});"
        "(function frame() { window.frames_seen++; requestAnimationFrame(frame); })()"
    )
    opened.cdp("Performance.enable")
    before = layouts(opened)
    generate(opened, 2000, wait=False)
    opened.until(RAN, 60)
    assert "2000 tokens" in opened.text(".state")
    assert len(shown(opened)) > 6000
    # one per frame, and a few for the form and the page around it
    assert layouts(opened) - before <= 1.3 * opened.js("window.frames_seen") + 30
    # a shared machine is slow at times; work quadratic in the tokens would take seconds
    assert max(opened.js("window.long"), default=0) < 1000


def layouts(tab: Browser) -> float:
    return next(one["value"] for one in tab.cdp("Performance.getMetrics")["metrics"] if one["name"] == "LayoutCount")


def test_copying_an_answer_copies_only_its_text(opened: Browser):
    generate(opened, 90)
    opened.driver.execute_script("getSelection().selectAllChildren(document.querySelector('.text'))")
    assert opened.js("getSelection().toString()").rstrip() == shown(opened).rstrip()
