"""The API page in a real browser: every route, its fields and an example call that the server accepts."""

from __future__ import annotations

import shlex
import urllib.request
from itertools import pairwise

import pytest

from serve.page.browser import Browser, needs_chromium
from serve.page.words import WordService

from selenium.webdriver import Keys  # isort: skip

pytestmark = needs_chromium

READ = "!document.getElementById('reference').hidden"
ROW = "[...document.querySelectorAll('#{route} dt > code')].find((one) => one.textContent === '{field}').closest('div')"
CHAT = "post-v1-chat-completions"


@pytest.mark.parametrize("dark", [False, True])
def test_every_route_and_its_fields(tab: Browser, service: WordService, dark: bool):
    service.reset()
    tab.complaints()
    tab.open(360, 780, dark=dark, path="/docs")
    tab.until(READ)
    described = tab.js("fetch('openapi.json').then((answer) => answer.json())")
    routes = {f"{method.upper()} {path}" for path, methods in described["paths"].items() for method in methods}
    assert "POST /v1/chat/completions" in routes
    assert {one.text for one in tab.all("#routes h3")} == routes
    assert {one.text.replace("\n", " ") for one in tab.all("#index a")} == routes
    assert all(tab.js("document.getElementById(arguments[0])", link.get_attribute("hash")[1:]) for link in tab.all("#index a"))
    assert tab.text(f"#{CHAT} .told") == "Answer a conversation."

    row = ROW.format(route=CHAT, field="temperature")
    assert tab.js(f"{row}.checkVisibility()") is False
    tab.find(f"#{CHAT} > details > summary").click()
    assert tab.js(f"{row}.checkVisibility()") is True
    assert tab.js(f"{row}.textContent") == "temperaturenumber | null 0 to 100"
    assert tab.js(f"{ROW.format(route=CHAT, field='messages')}.querySelector('dd').textContent").startswith(
        "Message[] 1 to 4,096 items"
    )
    fields = described["components"]["schemas"]["ChatRequest"]["properties"]
    shown = tab.js(f"[...document.querySelectorAll('#{CHAT} dt > code')].map((one) => one.textContent)")
    assert set(fields) <= set(shown)

    # with all foldable parts unfolded
    tab.driver.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    for width in (320, 360):
        tab.cdp("Emulation.setDeviceMetricsOverride", width=width, height=780, deviceScaleFactor=1, mobile=True)
        assert tab.js("document.documentElement.scrollWidth") <= width
    assert tab.complaints() == []
    assert {url for url in tab.requested() if not url.startswith((f"{tab.address}/", "data:"))} == set()


def test_the_server_accepts_every_example_call_of_the_docs_page(tab: Browser, service: WordService):
    service.reset(pause_s=0.0)
    tab.open(path="/docs")
    tab.until(READ)
    calls = [shlex.split(one.text) for one in tab.all(".call")]
    assert len(calls) > 10
    for call in calls:
        assert call[0] == "curl"
        assert call[1].startswith(f"{tab.address}/")
        headers = dict(one.split(": ") for flag, one in pairwise(call) if flag == "-H")
        body = call[call.index("-d") + 1].encode() if "-d" in call else None
        url = call[1].replace("/MODEL", f"/{service.model}")
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=20) as answer:
            assert answer.status == 200, call


def test_an_api_key_opens_the_docs_page_and_is_never_shown(tab: Browser, service: WordService):
    service.reset(model="locked")
    tab.open(path="/docs")
    tab.until("!document.getElementById('key-form').hidden")
    assert tab.js("document.activeElement.id") == "key"
    tab.type("#key", "right-key" + Keys.ENTER)
    tab.until(READ)
    assert 'Authorization: Bearer $API_KEY"' in tab.text(".call")
    assert "right-key" not in tab.js("document.documentElement.textContent")
    # the live page in this tab uses the key too
    tab.find(".links a").click()
    tab.until("document.querySelectorAll('#side-a input').length > 0")
    tab.find(".links a").click()
    tab.until(READ)
    tab.js("sessionStorage.clear()")
    # the browser itself logs failed requests
    assert all("401" in line for line in tab.complaints())
