"""The measures themselves: a page that looks bad must be found to."""

from __future__ import annotations

from tests.browser.layout import overlapping, small_texts, sticks_out, texts_of_plots
from tests.browser.visits import PHONE, Browsers

BAD = """data:text/html,<meta name=viewport content='width=device-width'>
<p style='font-size:9px'>tiny</p><p style='width:500px'>wide</p>
<div class=plot id=p><svg width=200 height=200 font-size=12>
<text x=10 y=20>one label</text><text x=40 y=24>another</text><text x=10 y=60>apart</text>
<g transform='rotate(45 20 90)'><text x=20 y=90>turned a</text></g>
<g transform='rotate(45 45 90)'><text x=45 y=90>turned b</text></g>
</svg></div>"""


def test_a_page_that_looks_bad_is_found_to(browsers: Browsers) -> None:
    visit = browsers.open(BAD.replace("\n", ""), size=PHONE)
    assert sticks_out(visit) > 100
    assert small_texts(visit) == {"tiny": 9.0}
    assert overlapping(texts_of_plots(visit)["p"]) == [("one label", "another")]
