"""The page as a file: what it holds, how it is escaped, what it may import."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from interp.errors import RunFolderError
from interp.results import Result, save
from reports import embed, facts, page, svg
from reports.chapters import Chapter, Sentence, plain
from reports.chapters.declared import find_chapter
from reports.prose import formula, prose
from tests.reports import synthetic

HOSTILE = [
    "<script>alert(1)</script>",
    '"onload="x',
    "</script><b>",
    "\u202eevil",
    "a\nb",
    "=1+1",
    "${x}",
    "`L1H1`",
    "&amp;",
]


class Reader(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def having(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [a for name, a in self.tags if name == tag and attributes.items() <= a.items()]


def only(result: Result, *tables: str) -> Result:
    """A result with a few of its tables, so that a page of it is drawn in a moment."""
    return Result(result.analysis, {name: result.tables[name] for name in tables}, result.provenance)


@pytest.fixture(scope="module")
def html(drawn: Path) -> str:
    return drawn.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def read(html: str) -> Reader:
    return Reader(html)


def test_the_page_opens_with_one_sentence_a_map_and_a_pattern(read: Reader):
    assert len(read.having("h1")) == 1
    order = [a.get("class") or tag for tag, a in read.tags]
    assert order.index("h1") < order.index("plate opening") < order.index("reading")
    assert order.index("reading") < order.index("findings")
    tokens = [a for a in read.having("span") if (a.get("class") or "").startswith("token")]
    assert sum("query" in (a["class"] or "") for a in tokens) == 1


def test_nothing_is_fetched(html: str, read: Reader):
    for _, attributes in read.tags:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            value = attributes.get(name) or ""
            assert value.startswith(("#", "data:")) or not value, (name, value)
    policy = read.having("meta", **{"http-equiv": "Content-Security-Policy"})[0]["content"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]
    assert not re.search(r"url\(\s*['\"]?https?:", html)


def test_heads_in_prose_are_links_and_sentences_link_to_rows(read: Reader):
    links = {a.get("href") for a in read.having("a")}
    assert {"#L18H6", "#L17H3", "#L17H4"} <= links
    assert "#rows/induction-heads/kinds?kind=induction&called=true" in links
    assert "#rows/induction-heads/ablation?chosen=top&ablation=resample&n_heads=5" in links


def test_quantised_weights_are_named_as_such(read: Reader):
    assert read.text.count("weights quantised as Q4_1") >= 2


def test_what_was_left_out_and_what_full_adds_is_said(read: Reader):
    assert "periods beyond 256" in read.text
    assert "--budget full" in read.text


def test_figures_lie_beside_the_tables(drawn: Path):
    folder = drawn.parent / "induction-heads" / "figures"
    names = {path.stem for path in folder.iterdir()}
    assert {"prefix-matching", "ablation", "reach", "which-feeds-which", "loss-by-position", "patterns"} <= names
    for name in names:
        assert (folder / f"{name}.svg").read_bytes().startswith(b"<?xml")
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_tables_give_the_same_page_and_old_figures_go(tmp_path: Path):
    save(only(synthetic.result(synthetic.SMALL), "kinds", "behaviour", "loss_by_position"), tmp_path / "run")
    first = page.write(tmp_path / "run").read_bytes()
    stale = tmp_path / "run" / "induction-heads" / "figures" / "of-yesterday.svg"
    stale.write_text("<svg/>")
    assert page.write(tmp_path / "run").read_bytes() == first
    assert not stale.exists()
    assert not list((tmp_path / "run").glob(".tmp-*"))


def test_hostile_names_and_tokens_stay_text(tmp_path: Path):
    name = "".join(HOSTILE)
    result = only(synthetic.result(synthetic.SMALL, name, texts=HOSTILE * 4), "heads", "patterns", "tokens")
    heads = result.tables["heads"].copy()
    heads.loc[heads.index[:9], "note"] = HOSTILE
    provenance = {**result.provenance, "left_out": [{"part": name, "reason": name}], "notes": [name]}
    save(Result(result.analysis, {**result.tables, "heads": heads}, provenance), tmp_path / "run")
    html = page.write(tmp_path / "run").read_text(encoding="utf-8")
    read = Reader(html)
    assert "\u202e" not in html
    assert "<script>alert" not in html
    assert not any(attribute.startswith("on") for _, a in read.tags for attribute in a)
    kinds = [a.get("type") for a in read.having("script")]
    assert kinds.count(None) == 1  # one script of ours; the rest is data
    assert "<script>alert(1)</script>" in read.text  # shown as it is
    assert "[U+202E]evil" in read.text
    about = re.search(r'<script type="application/json" id="about">(.*?)</script>', html, re.DOTALL)
    assert about is not None
    json.loads(about[1])


def test_an_analysis_without_a_chapter_gets_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = pd.DataFrame({"what": ["a", "b"], "how_much": [1.5, None]})
    small = synthetic.result(synthetic.SMALL)
    save(Result("word-counts", {"counts": table, "heads": small.tables["heads"]}, small.provenance), tmp_path / "run")
    assert find_chapter("word-counts") is plain
    read = Reader(page.write(tmp_path / "run").read_text(encoding="utf-8"))
    assert "Word counts" in read.text
    assert read.having("section", **{"data-id": "word-counts/counts"})
    assert (tmp_path / "run" / "word-counts" / "figures" / "score-maps.svg").exists()


def test_analyses_share_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = find_chapter
    other = SimpleNamespace(chapter=lambda result, run: Chapter("First", "?", lead=Sentence("A sentence of L1H1.")))
    monkeypatch.setattr(page, "find_chapter", lambda analysis: other if analysis == "a-first-one" else found(analysis))
    small = only(synthetic.result(synthetic.SMALL), "heads", "kinds")
    save(small, tmp_path / "run")
    save(Result("a-first-one", {"kinds": small.tables["kinds"]}, small.provenance), tmp_path / "run")
    read = Reader(page.write(tmp_path / "run").read_text(encoding="utf-8"))
    assert read.having("section", id="a-first-one")
    assert read.having("section", id="induction-heads")
    opening, rest = read.text.split("What was run on what")
    assert "one is an induction head" in opening  # the chapter with a sentence and a map opens the page
    assert "A sentence of L1H1." in rest  # and the sentence of the other is in its own part
    links = [a.get("href") for a in read.having("a")]
    assert links.index("#induction-heads") < links.index("#a-first-one")  # and comes before the others


def test_tables_without_room_are_named_with_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embed, "ROOM", 900)
    save(only(synthetic.result(synthetic.SMALL), "kinds", "behaviour"), tmp_path / "run")
    html = page.write(tmp_path / "run").read_text(encoding="utf-8")
    assert "induction-heads/tables/kinds.parquet" in html
    assert 'data-table="induction-heads/kinds"' not in html
    assert 'data-table="induction-heads/behaviour"' in html


def test_a_model_of_5120_heads_makes_a_page_of_reasonable_size(tmp_path: Path):
    save(only(synthetic.result(synthetic.LARGE), "heads", "kinds", "patterns"), tmp_path / "run")
    written = page.write(tmp_path / "run")
    assert written.stat().st_size < 5_000_000
    assert 'data-table="induction-heads/heads"' in written.read_text(encoding="utf-8")


def test_a_folder_without_results_is_refused(tmp_path: Path):
    with pytest.raises(RunFolderError, match="no run folder"):
        page.write(tmp_path)
    save(only(synthetic.result(synthetic.SMALL), "behaviour"), tmp_path / "run")
    (tmp_path / "run" / "induction-heads" / "meta.json").unlink()
    with pytest.raises(RunFolderError, match="no finished analysis"):
        page.write(tmp_path / "run")


def test_importing_the_page_imports_no_torch():
    code = "import sys, reports.page, reports.chapters.induction_heads; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in ("torch", "transformers", "transformer_lens", "analyses"):
        assert f"'{name}'" not in done.stdout


def test_prose_is_escaped_before_it_is_linked():
    of_stacks = prose(lambda layer, head: layer < 2, ["", "decoder", "decoder cross"])
    assert of_stacks("so decoder cross L1H0, decoder L0H2, L1H1 and decoder L7H0") == (
        'so decoder cross <a class="head" href="#decoder%20cross/L1H0">L1H0</a>, '
        'decoder <a class="head" href="#decoder/L0H2">L0H2</a>, '
        '<a class="head" href="#L1H1">L1H1</a> and decoder L7H0'
    )
    convert = prose(lambda layer, head: layer < 2)
    assert convert("<L1H3> & `a<b`") == ('&lt;<a class="head" href="#L1H3">L1H3</a>&gt; &amp; <code>a&lt;b</code>')
    assert convert("L7H0") == "L7H0"  # no such head in this run


def test_formulas_have_subscripts_and_nothing_else():
    assert formula("Σ_{r ≥ 1} W_O <b>") == "Σ<sub>r ≥ 1</sub> W<sub>O</sub> &lt;b&gt;"
    assert formula("ŷ_t = y_t") == "ŷ<sub>t</sub> = y<sub>t</sub>"
    assert formula("|∂L/∂ξ_h| z*_high ‖W‖_F 1_0") == ("|∂L/∂ξ<sub>h</sub>| z*<sub>high</sub> ‖W‖<sub>F</sub> 1_0")


def test_figures_on_one_page_do_not_share_ids_or_style():
    drawing = b"""<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"
      xmlns:xlink="http://www.w3.org/1999/xlink" width="72pt" height="36pt" viewBox="0 0 72 36"><metadata>x</metadata>
      <defs><style>*{fill:red}</style></defs><defs><path id="m1"/></defs><g id="figure_1"><use xlink:href="#m1"/>
      <a xlink:href="#L1H1"><text>L1H1</text></a><g clip-path="url(#p1)"/></g><clipPath id="p1"/></svg>"""
    made = svg.inline(drawing, "reach", 'how "far"')
    assert 'id="reach-m1"' in made
    assert 'xlink:href="#reach-m1"' in made
    assert 'xlink:href="#L1H1"' in made
    assert 'clip-path="url(#reach-p1)"' in made
    assert 'width="96"' in made
    assert 'width="144"' in svg.inline(drawing, "reach", "", scale=1.5)
    assert 'aria-label="how &quot;far&quot;"' in made
    for gone in ("figure_1", "<style", "metadata", "fill:red", "height="):
        assert gone not in made


def test_what_a_model_builds_itself_and_what_its_input_does_not_reach_are_said() -> None:
    told = dict(
        facts.of_model(
            {"name": "m", "model_built_pairs": ["encoder_blocks.0.attn"], "not_reached": ["vision.0", "vision.1"],
             "model_built_patterns": []}
        )
    )  # fmt: skip
    assert told["Queries × keys built by the model"] == "encoder_blocks.0.attn"
    assert told["Attention that its input does not come to"] == "vision.0, vision.1"
    assert "Patterns built by the model" not in told
