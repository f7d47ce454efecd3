"""The live page in a real browser: it types, streams, hovers, compares and stops; nothing leaves the server's own origin."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from fastapi import Request
from fastapi.responses import JSONResponse

from paceline.serve.errors import APIError
from paceline.serve.routes import chat, completions, listing, page
from serve.front import app_of
from serve.page.browser import Browser, browsing, needs_chromium
from serve.page.words import TEXT, WordService, listening

from selenium.webdriver import ActionChains, Keys  # isort: skip

pytestmark = needs_chromium
ROUTERS = (completions.router, chat.router, listing.router, page.router)
READY = "document.querySelectorAll('#side-a input').length > 0"
IDLE = "!document.getElementById('go').disabled"
RAN = f"{IDLE} && document.querySelectorAll('.token').length > 0"


@pytest.fixture(scope="module")
def service() -> WordService:
    return WordService()


@pytest.fixture(scope="module")
def tab(service: WordService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    app = app_of(service, *ROUTERS)

    @app.middleware("http")
    async def locked(request: Request, go_on):
        shown = request.headers.get("authorization")
        if service.model == "locked" and request.url.path.startswith("/v1/") and shown != "Bearer right-key":
            error = APIError(401, "the API key is missing or wrong")
            return JSONResponse(error.body, 401)
        return await go_on(request)

    with listening(app) as address, browsing(address, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def opened(tab: Browser, service: WordService) -> Iterator[Browser]:
    """The page as it opens. Afterwards: the console said nothing, and every request stayed on the origin."""
    service.reset()
    tab.complaints()
    tab.open()
    tab.until(READY)
    yield tab
    assert tab.complaints() == []
    assert {url for url in tab.requested() if not url.startswith((f"{tab.address}/", "data:"))} == set()


def generate(tab: Browser, tokens: int = 40, *, wait: bool = True, **ticked: bool) -> None:
    tab.type("#length", str(tokens))
    for name in ticked:
        tab.find(f"#{name.replace('_', '-')}").click()
    tab.find("#go").click()
    if wait:
        tab.until(RAN)


def shown(tab: Browser, run: int = 0) -> str:
    """The text as a reader has it: without what was drafted in vain."""
    return tab.js(
        "(() => { const text = document.querySelectorAll('.text')[arguments[0]].cloneNode(true);"
        " for (const ghost of text.querySelectorAll('.anchor')) ghost.remove(); return text.textContent; })()",
        run,
    )


def test_types_and_streams(opened: Browser, service: WordService):
    opened.type("#prompt", "Once upon <b>a</b> time")
    opened.type("#seed", "7")
    generate(opened, 46)
    assert shown(opened) == (TEXT * 2)[: len(shown(opened))]
    assert "café 🪁 by" in shown(opened)
    ask = service.asked[-1][0]
    assert (ask.drafters, ask.params.seed, ask.params.max_tokens, ask.trace) == (("ngram", "model"), 7, 46, True)
    readings = {one.get_attribute("data-reading"): one.text for one in opened.all("[data-reading]")}
    assert (readings["tau"], readings["tokens"], readings["steps"]) == (f"{46 / 16:.2f}", "46", "16")
    # 16 steps draft 3 and 4 in vain by turns; 15 of them emit three tokens, the last but one
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


def test_nothing_that_stands_moves(opened: Browser, service: WordService):
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
    # a chain and its sibling hang over the first token of a step
    assert ghosts[0] == "red cloudsank"
    assert "line-through" in opened.js("getComputedStyle(document.querySelector('.ghost s')).textDecorationLine")
    opened.until("[...document.querySelectorAll('.ghost')].every((one) => getComputedStyle(one).display === 'none')")
    opened.find("#keep").click()
    assert opened.js("[...document.querySelectorAll('.ghost')].every((one) => getComputedStyle(one).display === 'block')")


def test_hover_tells_of_a_token(opened: Browser):
    generate(opened)
    ActionChains(opened.driver).move_to_element(opened.all(".token")[3]).perform()
    opened.until("!document.getElementById('card').hidden")
    card = opened.text("#card")
    assert "probability 90.5 %" in card
    assert "proposed by model" in card
    assert "drafted here in vain by model" in card
    assert len(opened.all("#card li")) == 5
    ActionChains(opened.driver).move_to_element(opened.find("h1")).perform()
    opened.until("document.getElementById('card').hidden")


def test_keys_go_from_token_to_token(opened: Browser):
    generate(opened)
    for _ in range(20):
        ActionChains(opened.driver).send_keys(Keys.TAB).perform()
        if opened.js("document.activeElement.className") == "text":
            break
    at = "[...document.querySelectorAll('.token')].findIndex((one) => one.classList.contains('at'))"
    assert opened.js(at) == 0
    for key, place in ((Keys.ARROW_RIGHT, 1), (Keys.ARROW_RIGHT, 2), (Keys.ARROW_LEFT, 1), (Keys.HOME, 0)):
        ActionChains(opened.driver).send_keys(key).perform()
        assert opened.js(at) == place
    assert opened.js("!document.getElementById('card').hidden")
    ActionChains(opened.driver).send_keys(Keys.ESCAPE).perform()
    assert opened.js("document.getElementById('card').hidden")


@pytest.mark.parametrize("in_turn", [False, True])
def test_compares_two_drafters(opened: Browser, service: WordService, in_turn: bool):
    opened.find("#compare").click()
    generate(opened, 60, **({"in_turn": True} if in_turn else {}))
    opened.until("!document.getElementById('verdict').hidden")
    told = opened.text("#verdict")
    assert told.startswith("Identical text, 60 tokens.")
    assert "ngram + model took" in told
    assert "no drafter took" in told
    assert "÷" in told
    assert ("one after the other" in told) == in_turn
    assert shown(opened, 0) == shown(opened, 1)
    one, other = service.asked[-2][0], service.asked[-1][0]
    assert one.params.seed == other.params.seed
    assert {one.drafters, other.drafters} == {("ngram", "model"), ()}
    ratio = float(told.split(" = ")[1].split(". ")[0])
    assert ratio > 1


def test_texts_that_differ_are_told(opened: Browser, service: WordService):
    whole = service.deltas
    service.script = lambda ask: whole(ask) if ask.drafters else whole(ask)[1:]
    opened.find("#compare").click()
    generate(opened, 20)
    opened.until("!document.getElementById('verdict').hidden")
    assert opened.text("#verdict") == "The texts differ from token 1 on."


def test_stops(opened: Browser, service: WordService):
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


def test_a_model_without_a_template_or_of_another_kind(tab: Browser, service: WordService):
    service.reset(has_chat_template=False, model="other")
    tab.open()
    tab.until(READY)
    assert not tab.find("#chat").is_enabled()
    assert [button.text for button in tab.all("#examples button")] == ["Story", "Code"]


def test_examples_fill_the_prompt(opened: Browser):
    buttons = opened.all("#examples button")
    assert [button.text for button in buttons] == ["Restaurant", "SQL", "Sum", "Story", "Code"]
    buttons[0].click()
    first = opened.js("document.getElementById('prompt').value")
    buttons[0].click()
    assert first.startswith("mr: name[")
    assert opened.js("document.getElementById('prompt').value") not in ("", first)


def test_refusals_are_one_sentence(opened: Browser, service: WordService):
    service.refuses = APIError(429, "the queue is full; try again in 2 seconds", retry_after_s=2)
    generate(opened, 20, wait=False)
    opened.until("!document.getElementById('error').hidden")
    assert opened.text("#error") == "The queue is full; try again in 2 seconds."
    # the browser itself notes that a request failed
    assert all("429" in line for line in opened.complaints())
    service.refuses, service.breaks = None, (service.yielded + 5, APIError(503, "the engine failed"))
    generate(opened, 60, wait=False)
    opened.until("document.getElementById('error').textContent === 'The engine failed.'")
    opened.until(RAN)
    assert opened.text(".state") == "broke off"
    opened.type("#prompt", " ")
    opened.find("#prompt").clear()
    opened.find("#go").click()
    opened.until("document.getElementById('error').textContent === 'The prompt is empty.'")


def test_a_key_is_asked_for_only_when_the_server_wants_one(tab: Browser, service: WordService):
    service.reset(model="locked")
    tab.open()
    tab.until("!document.getElementById('key-form').hidden")
    assert tab.js("document.activeElement.id") == "key"
    assert tab.text("#error") == "The API key is missing or wrong."
    assert tab.js("Object.keys(sessionStorage).length") == 0
    tab.type("#key", "wrong-key" + Keys.ENTER)
    tab.until("!document.getElementById('key-form').hidden && document.getElementById('error').textContent")
    tab.type("#key", "right-key" + Keys.ENTER)
    tab.until(READY)
    assert tab.js("document.getElementById('key-form').hidden && document.getElementById('error').hidden")
    assert tab.js("localStorage.length") == 0
    generate(tab, 10)
    tab.js("sessionStorage.clear()")
    # the browser itself notes that requests failed
    assert all("401" in line for line in tab.complaints())


@pytest.mark.parametrize(("width", "dark"), [*itertools.product([320, 360, 768, 1280], [False, True])])
def test_every_width_in_light_and_dark(tab: Browser, service: WordService, width: int, dark: bool):
    service.reset(pause_s=0.0)
    tab.open(width, 800, dark=dark)
    tab.until(READY)
    tab.find("#compare").click()
    generate(tab, 60)
    assert tab.js("document.documentElement.scrollWidth") <= width
    paper = tab.js("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 200) == dark
    tab.driver.execute_script("document.querySelector('.token').click()")
    edges = tab.js("(({left, right}) => [left, right])(document.getElementById('card').getBoundingClientRect())")
    assert 0 <= edges[0] < edges[1] <= width
    assert tab.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
def test_contrast(tab: Browser, service: WordService, dark: bool):
    service.reset()
    tab.open(dark=dark)
    names = ["paper", "panel", "ink", "quiet", "alarm", "edge", "tint", *(f"hue-{hue}" for hue in range(6))]
    found = tab.js(
        "arguments[0].map((name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim())", names
    )
    values = dict(zip(names, found, strict=True))
    tint = float(values.pop("tint").rstrip("%")) / 100
    colours = {name: tuple(int(value[at : at + 2], 16) / 255 for at in (1, 3, 5)) for name, value in values.items()}
    for ground in ("paper", "panel"):
        for name in ("ink", "quiet", "alarm"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
        assert contrast(colours["edge"], colours[ground]) >= 3, ground
    for hue in range(6):
        colour = colours[f"hue-{hue}"]
        # also the text of what was drafted in vain
        assert contrast(colour, colours["paper"]) >= 4.5, hue
        for share in (tint, 0.34):
            mixed = tuple(share * one + (1 - share) * other for one, other in zip(colour, colours["paper"], strict=True))
            assert contrast(colours["ink"], mixed) >= 4.5, (hue, share)


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """WCAG 2.2, contrast ratio."""

    def luminance(colour: tuple[float, ...]) -> float:
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_everything_has_a_name(opened: Browser):
    generate(opened, 10)
    nameless = (
        "[...document.querySelectorAll('input, textarea, button, [tabindex], [role=img], fieldset')].filter((one) =>"
        " !(one.labels?.length || one.getAttribute('aria-label') || one.textContent.trim())).map((one) => one.outerHTML)"
    )
    assert opened.js(nameless) == []
    assert opened.js("document.documentElement.lang") == "en"
    assert opened.find("#status").get_attribute("aria-live") == "polite"


def test_reduced_motion(tab: Browser, service: WordService):
    service.reset(pause_s=0.0)
    tab.open(calm=True)
    tab.until(READY)
    generate(tab, 30)
    assert tab.js("getComputedStyle(document.querySelector('.ghost')).animationTimingFunction").startswith("steps(1")


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
    # one a frame, and a few for the form and the page around it
    assert layouts(opened) - before <= 1.3 * opened.js("window.frames_seen") + 30
    # a machine that tests share is slow at times; what is quadratic in the tokens takes seconds here
    assert max(opened.js("window.long"), default=0) < 1000


def layouts(tab: Browser) -> float:
    return next(one["value"] for one in tab.cdp("Performance.getMetrics")["metrics"] if one["name"] == "LayoutCount")


def test_what_is_copied_is_the_text(opened: Browser):
    generate(opened, 90)
    opened.driver.execute_script("getSelection().selectAllChildren(document.querySelector('.text'))")
    assert opened.js("getSelection().toString()").rstrip() == shown(opened).rstrip()
