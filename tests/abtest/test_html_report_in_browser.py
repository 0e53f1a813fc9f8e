"""The page in a real browser: it renders, also without network, and fits a phone."""

import json
import re
import struct

import pytest
from made_reports import MADE
from pages import browser, framed, open_in_browser

from ampcompat.abtest import recommendation

pytest.importorskip("matplotlib", reason="pages have charts, which need matplotlib, of the extra `report`")
if browser() is None:
    pytest.skip("no Chromium is installed here to open the page in", allow_module_level=True)

from ampcompat.abtest.report import html  # noqa: E402

#: Measures the page: its width, the charts' sizes, how much of their text sticks out, the number of tables.
MEASUREMENT = """
const root = page.documentElement, sizes = [];
for (const each of page.querySelectorAll('figure svg')) {
  const box = each.getBoundingClientRect();
  let out = 0;
  for (const text of each.querySelectorAll('text')) {
    const at = text.getBoundingClientRect();
    if (at.left < box.left - 2 || at.right > box.right + 2 || at.top < box.top - 2 || at.bottom > box.bottom + 2) out++;
  }
  sizes.push([box.width, box.height, out]);
}
return {content: root.scrollWidth, window: root.clientWidth, charts: sizes,
        tables: page.querySelectorAll('table').length,
        font: Math.min(...[...page.querySelectorAll('figure text')].map(each => each.getBoundingClientRect().height)),
        title: page.title};
"""


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Return a page with the reports that are hardest to lay out."""
    reports = [(name, MADE[name]()) for name in ("good", "broken", "hostile")]
    for name, report in reports[:2]:
        recommendation.recommend(report)
    return html.side_by_side(reports)


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_no_wider_than_its_window(several, tmp_path, width):
    path = tmp_path / "frame.html"
    path.write_text(framed(several, width, MEASUREMENT), encoding="utf-8")
    shown = open_in_browser(path, tmp_path, "--window-size=1300,1000", "--virtual-time-budget=5000", "--dump-dom")
    measured = json.loads(re.search(r'<p id="result">(.*?)</p>', shown).group(1).replace("&amp;", "&"))
    assert measured["content"] <= measured["window"] <= width
    assert len(measured["charts"]) == 15 and measured["tables"] >= 10
    for drawn_width, height, sticking_out in measured["charts"]:
        assert drawn_width > 0.8 * min(width, 360) and height > 100 and sticking_out == 0
    assert measured["font"] >= 9
    assert "3 runs" in measured["title"]


def test_a_picture_of_it_is_not_empty(several, tmp_path):
    path, picture = tmp_path / "page.html", tmp_path / "page.png"
    path.write_text(several, encoding="utf-8")
    open_in_browser(path, tmp_path, "--window-size=1280,1600", "--screenshot=" + str(picture))
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (1280, 1600)
    assert len(data) > 50000  # a blank page of that size has a few thousand
