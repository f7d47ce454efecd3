"""Actions on the page, and waiting for their results."""

from __future__ import annotations

from serve.page.browser import Browser

READY = "document.querySelectorAll('#side-a input').length > 0"
IDLE = "!document.getElementById('go').disabled"
RAN = f"{IDLE} && document.querySelectorAll('.token').length > 0"


def generate(tab: Browser, tokens: int = 40, *, wait: bool = True, **ticked: bool) -> None:
    tab.type("#length", str(tokens))
    for name in ticked:
        tab.find(f"#{name.replace('_', '-')}").click()
    tab.find("#go").click()
    if wait:
        tab.until(RAN)


def shown(tab: Browser, run: int = 0) -> str:
    """The visible text of an answer, without rejected drafts."""
    return tab.js(
        "(() => { const text = document.querySelectorAll('.text')[arguments[0]].cloneNode(true);"
        " for (const ghost of text.querySelectorAll('.anchor')) ghost.remove(); return text.textContent; })()",
        run,
    )
