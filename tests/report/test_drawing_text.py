"""A drawing in fewer bytes is the same drawing: what shows stays, and texts are as they were."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from ddbench.report.drawing_text import compact, with_shared_styles

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
    assert 'd="M0.1 9L10 0.5z"' in found
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


def test_a_style_that_comes_again_is_told_once() -> None:
    found = compact(SVG % WORDS)
    rules = dict(re.findall(r"\.(s\w+)\{([^}]*)\}", found))
    assert sorted(rules.values()) == ["font-size:10px;fill:#1"]
    for name, rule in rules.items():
        assert found.count(f' class="{name}"') == 2
        assert f'style="{rule}"' not in found


def styled(svg: str, sheet: str) -> list[tuple[str, str]]:
    """(tag, style) of everything that is drawn, however it is told."""
    rules = dict(re.findall(r"\.(\w+)\{([^}]*)\}", sheet))
    drawn = [own for own in ET.fromstring(svg).iter() if own.tag.rpartition("}")[2] in ("path", "text", "use", "g")]
    return [(own.tag, own.get("style") or rules.get(own.get("class", ""), "")) for own in drawn]


def test_drawings_of_a_page_share_classes_that_mean_the_same_in_all_of_them() -> None:
    """Each drawing numbers its own classes; together none says what another one means."""
    svgs = [compact(SVG % WORDS), compact((SVG % "0").replace("fill: #1", "fill: #2")), compact(SVG % ' class="s0"')]
    shared, sheet = with_shared_styles(svgs)
    assert [styled(svg, sheet) for svg in shared] == [styled(svg, svg) for svg in svgs]
    assert sheet.count("font-size:10px;fill:#1") == 1
    assert not [svg for svg in shared if "<style" in svg or 'style="' in re.sub(r">[^<>]*<", "><", svg)]
    assert f">{WORDS}</text>" in shared[0]
    assert '> class="s0"</text>' in shared[2]


def test_a_clip_stays_where_it_hides_something() -> None:
    """The clip is from 1.5 to 4.83 and from 2 to 6: a step, a curve and a mark inside of it need none."""
    inside = SVG.replace("M 0.125678 9\nL 9.999 0.5\nz", "M 1.5 6\nL 4.8333 2\nz").replace('x="1.239"', 'x="1.5"') % "0"
    assert "clip" not in compact(inside)
    for one, other in (('x="1.5" y="2" style', 'x="1.4" y="2" style'), ("M 1.5 6\nL", "M 1.5 6.1\nL")):
        assert one in inside
        assert compact(inside.replace(one, other)).count("clip-path=") == 1


MARKS = """<svg viewBox="0 0 9 9"><defs><style type="text/css">*{}</style></defs>
<defs>
 <path id="ma" d="M 0 3
L 1 2
z
" style="stroke: #1"/>
</defs>
<g><use xlink:href="#ma" x="1" y="2" style="fill: #1; stroke: #1"/><use xlink:href="#ma" x="2" y="2" style="%s"/></g>
<defs>
 <path id="mb" d="M 0 3
L 1 2
z
" style="stroke: #2"/>
</defs>
<g><use xlink:href="#mb" x="3" y="2" style="fill: #2; stroke: #2"/></g>
</svg>"""


def test_marks_of_one_shape_share_it_where_each_use_says_its_colours() -> None:
    found = compact(MARKS % "fill: #1; stroke: #1")
    assert re.findall(r'<path id="0" d="M0 3L1 2z"/>', found) == re.findall(r"<path[^<>]*>", found)
    assert re.findall(
        r'<g style="fill:#1;stroke:#1">\s*<use xlink:href="#0" x="1" y="2"/><use[^<>]*"2"/>\s*</g>', found
    )
    assert '<use xlink:href="#0" x="3" y="2" style="fill:#2;stroke:#2"/>' in found
    apart = compact(MARKS % "fill: #1")  # its edge has the colour that the shape says
    assert re.findall(r'<path id="\d" d="M0 3L1 2z"([^<>]*)/>', apart) == [' style="stroke:#1"', ""]


def test_steps_that_change_one_number_name_one() -> None:
    svg = MARKS.replace("L 1 2", "L 4 3\nL 4.004 7.04\nL 4 7.04\nC 1 2 3 4 5 7.04\nL 6 7.04") % "fill: #1"
    assert 'd="M0 3H4V7.04H4C1 2 3 4 5 7.04H6z"' in compact(svg)
