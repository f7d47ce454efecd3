"""The live page in a real browser: tokens under the pointer, two drafters compared, refusals, keys."""

from __future__ import annotations

import pytest

from paceline.serve.errors import APIError
from serve.page.browser import Browser, needs_chromium
from serve.page.live import RAN, READY, generate, shown
from serve.page.words import WordService

from selenium.webdriver import ActionChains, Keys  # isort: skip

pytestmark = needs_chromium


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
    assert {one.drafters, other.drafters} == {None, ()}
    ratio = float(told.split(" = ")[1].split(". ")[0])
    assert ratio > 1


def test_drafters_that_were_chosen_are_named(opened: Browser, service: WordService):
    next(label for label in opened.all("#side-a label") if label.text.strip() == "suffix").click()
    generate(opened, 12)
    assert service.asked[-1][0].drafters == ("ngram", "suffix", "model")


def test_texts_that_differ_are_told(opened: Browser, service: WordService):
    whole = service.deltas
    service.script = lambda ask: whole(ask) if ask.drafters is None else whole(ask)[1:]
    opened.find("#compare").click()
    generate(opened, 20)
    opened.until("!document.getElementById('verdict').hidden")
    assert opened.text("#verdict") == "The texts differ from token 1 on."


def test_chat_and_its_examples_are_off_for_a_model_without_a_template(tab: Browser, service: WordService):
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
    # the browser itself logs failed requests
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
    assert tab.text("#error") == ""
    assert not tab.find("#ask").is_displayed()
    assert tab.js("Object.keys(sessionStorage).length") == 0
    tab.type("#key", "wrong-key" + Keys.ENTER)
    tab.until("!document.getElementById('key-form').hidden && document.getElementById('error').textContent")
    assert tab.text("#error") == "The API key is missing or wrong."
    tab.type("#key", "right-key" + Keys.ENTER)
    tab.until(READY)
    assert tab.js("document.getElementById('key-form').hidden && document.getElementById('error').hidden")
    assert tab.js("localStorage.length") == 0
    generate(tab, 10)
    tab.js("sessionStorage.clear()")
    # the browser itself logs failed requests
    assert all("401" in line for line in tab.complaints())
