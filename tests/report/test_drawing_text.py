"""A drawing in fewer bytes is the same drawing: what shows stays, and texts are as they were."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from ddbench.report.drawing_text import compact

SVG = """<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9" xmlns="http://www.w3.org/2000/svg">
 <defs>
  <style type="text/css">*{stroke-linejoin: round}</style>
 </defs>
 <g id="figure_1">
  <g id="patch_1">
   <path d="M 0 9
L 9.123456 -0.001
z
" style="fill: none"/>
  </g>
  <g id="line_1">
   <path d="M 0.125678 9
L 9.999 0.5
z
" clip-path="url(#pab)" style="fill: none; stroke: #010203"/>
   <g id="line_2"/>
   <defs>
    <path id="mcd" d="M 0 3
C 1 2 3 4 5 6.126
z
" style="stroke: #010203"/>
   </defs>
   <g clip-path="url(#pab)">
    <use xlink:href="#mcd" x="1.239" y="2" style="stroke: #010203"/>
   </g>
   <text style="font-size: 10px; font-family: 'A B'; fill: #1" x="1" y="2" transform="rotate(-0 1 2)">%s</text>
   <text style="font-size: 10px; font-family: 'A B'; fill: #1" x="1" y="2" transform="rotate(-90 1 2)">turned</text>
  </g>
 </g>
 <defs>
  <clipPath id="pab">
   <rect x="1.5" y="2" width="3.33333" height="4"/>
  </clipPath>
 </defs>
</svg>"""
WORDS = 'a  3.14159 url(#pab) "#mcd" font-family: evil; style="fill: none"'


def test_what_is_drawn_stays_and_what_is_not_goes() -> None:
    found = compact(SVG % WORDS)
    root = ET.fromstring(found)
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert (tags.count("g"), tags.count("path"), tags.count("text"), tags.count("use")) == (1, 2, 2, 1)
    assert 'd="M0.13 9L10 0.5z"' in found
    assert 'd="M0 3C1 2 3 4 5 6.13z"' in found
    assert "rotate(-90 1 2)" in found
    assert "rotate(-0" not in found


def test_texts_are_no_markup_to_it() -> None:
    """A label that looks like attributes comes out as it went in, and gives no style to others."""
    found = compact(SVG % WORDS)
    assert f">{WORDS}</text>" in found
    assert re.findall(r"text\{([^}]*)\}", found) == ["font-family: 'A B'"]


def test_every_name_is_one_that_something_refers_to() -> None:
    found = compact(SVG % WORDS)
    tags = re.findall(r"<[^<>]*>", found)
    named = {name for tag in tags for name in re.findall(r' id="([^"]*)"', tag)}
    meant = {name for tag in tags for name in re.findall(r'(?:url\(|href=")#([^")]*)', tag)}
    assert named == meant == {"0", "1"}
    assert "".join(re.findall(r'<clipPath id="(\d)"', found)) == re.findall(r'clip-path="url\(#(\d)\)', found)[0]


def test_a_style_that_comes_again_is_told_once_under_a_name_that_means_it_everywhere() -> None:
    """Two drawings of one page may share a class: it says the same in both."""
    one, other = compact(SVG % WORDS), compact((SVG % "0").replace("fill: #1", "fill: #2"))
    rules = [dict(re.findall(r"\.(s\w+)\{([^}]*)\}", found)) for found in (one, other)]
    assert sorted(rules[0].values()) == ["font-size:10px;fill:#1", "stroke:#010203"]
    assert rules[0].keys() & rules[1].keys() == {name for name, rule in rules[0].items() if rule == "stroke:#010203"}
    for name, rule in rules[0].items():
        assert one.count(f' class="{name}"') == 2
        assert f'style="{rule}"' not in one
