"""The live page in a real browser: widths, light and dark mode, contrast, names of all controls."""

from __future__ import annotations

import itertools

import pytest

from serve.page.browser import Browser, needs_chromium
from serve.page.live import READY, generate
from serve.page.words import WordService

pytestmark = needs_chromium


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
        # the text of rejected tokens too
        assert contrast(colour, colours["paper"]) >= 4.5, hue
        for share in (tint, 0.34):
            mixed = tuple(share * one + (1 - share) * other for one, other in zip(colour, colours["paper"], strict=True))
            assert contrast(colours["ink"], mixed) >= 4.5, (hue, share)


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """The contrast ratio of WCAG 2.2."""

    def luminance(colour: tuple[float, ...]) -> float:
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_control_has_an_accessible_name(opened: Browser):
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
