"""The page in Chromium, opened from its file."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest

from interp.results import Result, save
from reports import page
from tests.reports import specialized, synthetic
from tests.reports.chapter_parts import in_two_stacks
from tests.reports.test_page import HOSTILE, only

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


@dataclass
class Seen:
    """What a browser page complained of and asked for."""

    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def opened(browser, drawn: Path) -> Iterator:
    yield from _open(browser, drawn)


def _open(browser, path: Path, fragment: str = "", **options) -> Iterator:
    seen = Seen()
    context = browser.new_context(accept_downloads=True, viewport={"width": 1440, "height": 900}, **options)
    tab = context.new_page()
    tab.on("console", lambda said: seen.complaints.append(said.text) if said.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: seen.complaints.append(str(error)))
    tab.on("request", lambda request: seen.requests.append(request.url))
    tab.goto(path.as_uri() + fragment)
    tab.wait_for_function("document.readyState === 'complete'")
    yield tab
    assert seen.complaints == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in seen.requests), seen.requests
    context.close()


def cells(tab, table: str, column: int) -> list[str]:
    return tab.locator(f'section.table[data-id="{table}"] tbody tr td:nth-child({column})').all_inner_texts()


def wait_for_table(tab, table: str):
    section = tab.locator(f'section.table[data-id="{table}"]')
    section.scroll_into_view_if_needed()
    section.locator("tbody tr").first.wait_for()
    return section


def test_it_opens_with_sentence_map_and_pattern_on_the_first_screen(opened):
    for selector in ("h1", ".plate.opening .map", ".reading .token.query"):
        box = opened.locator(selector).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 900, selector
    assert opened.locator("h1 a.head").inner_text() == "L18H6"
    assert opened.locator(".reading .arcs path").count() >= 1


def test_a_table_is_sorted_by_a_click_and_back(opened):
    section = wait_for_table(opened, "induction-heads/reach")
    section.locator("th button", has_text="value").click()
    down = [float(text) for text in cells(opened, "induction-heads/reach", 3)]
    assert down == sorted(down, reverse=True)
    assert section.locator('th[aria-sort="descending"]').inner_text().startswith("value")
    section.locator("th button", has_text="value").click()
    up = [float(text) for text in cells(opened, "induction-heads/reach", 3)]
    assert up == sorted(up)


def test_a_table_is_filtered_by_heads_words_and_conditions(opened):
    section = wait_for_table(opened, "induction-heads/kinds")
    filtered = section.get_by_role("searchbox")
    filtered.fill("L18H6")
    assert cells(opened, "induction-heads/kinds", 1) == ["L18H6"] * 3
    filtered.fill("kind=induction value>0.55")
    assert set(cells(opened, "induction-heads/kinds", 1)) == {"L18H6", "L17H3", "L17H4", "L20H1"}
    filtered.fill("called=true previous")
    assert set(cells(opened, "induction-heads/kinds", 1)) == {"L16H2", "L9H4", "L3H0"}
    filtered.fill("weight=3")
    assert "no column weight" in section.locator(".status").inner_text()


def test_a_sentence_leads_to_the_rows_it_is_read_from(opened):
    opened.locator(".findings li").first.locator("a.rows").first.click()
    section = opened.locator('section.table[data-id="induction-heads/kinds"]')
    section.locator("tbody tr").first.wait_for()
    assert section.get_by_role("searchbox").input_value() == "kind=induction called=true"
    assert cells(opened, "induction-heads/kinds", 1) == ["L18H6", "L17H3", "L17H4", "L20H1", "L22H5"]


def test_the_address_of_rows_far_down_shows_them(browser, drawn: Path):
    for tab in _open(browser, drawn, "#rows/induction-heads/behaviour?metric=copying_gain"):
        section = tab.locator('section.table[data-id="induction-heads/behaviour"]')
        section.locator("tbody tr").first.wait_for()
        tab.wait_for_timeout(200)
        box = section.bounding_box()
        assert box is not None
        assert 0 <= box["y"] < 200
        assert cells(tab, "induction-heads/behaviour", 1) == ["copying_gain"]


def test_a_head_has_a_card_with_all_that_is_known_of_it(browser, drawn: Path):
    for tab in _open(browser, drawn, "#L18H6"):
        card = tab.locator("#card")
        card.locator("figure.reading .token.query").wait_for()
        assert card.get_by_role("heading", level=2).inner_text() == "L18H6"
        assert card.locator(".pill").all_inner_texts() == ["induction head"]
        text = card.inner_text()
        for part in (
            "prefix matching",
            "0.90 [0.84, 0.96]",
            "1 of 270",
            "fed by L16H2",
            "resample",
            "256",
            "at least 0.840",
        ):
            assert part in text, part
        tab.keyboard.press("Escape")
        assert card.is_hidden()
        assert tab.evaluate("location.hash") == ""


def test_heads_are_reached_from_prose_map_and_field_alike(opened):
    def card(name: str) -> None:
        opened.locator("#card h2", has_text=name).wait_for()

    opened.locator("h1 a.head").click()
    card("L18H6")
    opened.keyboard.press("Escape")
    box = opened.locator(".plate.opening .map").bounding_box()
    opened.mouse.click(box["x"] + box["width"] * 3.5 / 9, box["y"] + box["height"] * 17.5 / 30)
    card("L17H3")
    opened.keyboard.press("Escape")
    opened.get_by_role("textbox", name="Head").fill("20, 1")
    opened.keyboard.press("Enter")
    card("L20H1")
    opened.goto(opened.url.split("#")[0] + "#L99H0")
    opened.locator("#card", has_text="There is no L99H0").wait_for()


def test_the_map_answers_the_pointer_and_the_keyboard(opened):
    tip = opened.locator("#tip")
    box = opened.locator(".plate.opening .map").bounding_box()
    opened.mouse.move(box["x"] + box["width"] * 6.5 / 9, box["y"] + box["height"] * 18.5 / 30)
    tip.get_by_text("L18H6: 0.90 [0.84, 0.96], chance 0.058").wait_for()
    opened.locator(".plate.opening .map").focus()
    for _ in range(2):
        opened.keyboard.press("ArrowRight")
    tip.get_by_text("L18H8: ").wait_for()
    opened.keyboard.press("Enter")
    opened.locator("#card h2", has_text="L18H8").wait_for()


def test_another_token_shows_where_it_looks(opened):
    token = opened.locator(".opening .token").nth(30)
    token.click()
    opened.locator(".opening .act", has_text="From “").wait_for()
    assert opened.locator(".opening .token.query").get_attribute("data-position") == "30"
    opened.keyboard.press("ArrowRight")
    opened.locator('.opening .token.query[data-position="31"]').wait_for()
    strongest = max(
        opened.locator(".opening .token").all(),
        key=lambda span: float(span.get_attribute("style").split(":")[1].strip(" ;")),
    )
    assert strongest.get_attribute("data-position") == "8"  # 31 repeats token 7; what followed it is token 8


def test_tables_and_figures_can_be_taken_away(opened):
    section = wait_for_table(opened, "induction-heads/behaviour")
    with opened.expect_download() as csv:
        section.get_by_role("button", name="save CSV").click()
    lines = Path(csv.value.path()).read_text(encoding="utf-8").splitlines()
    assert lines[0] == "metric,data,value,ci_low,ci_high,n,note"
    assert lines[4].startswith("in_context_learning,text,-0.31,-0.43,-0.19,32")
    with opened.expect_download() as figure:
        opened.locator(".plate button.save").nth(2).click()
    assert Path(figure.value.path()).read_text(encoding="utf-8").startswith("<?xml")
    assert figure.value.suggested_filename.endswith(".svg")


def test_hostile_tokens_are_shown_and_do_nothing(browser, tmp_path: Path):
    made = only(synthetic.result(synthetic.SMALL, "".join(HOSTILE), texts=HOSTILE * 4), "heads", "patterns", "tokens")
    heads = made.tables["heads"].copy()
    heads.loc[heads.index[:9], "note"] = HOSTILE
    save(Result(made.analysis, {**made.tables, "heads": heads}, made.provenance), tmp_path / "run")
    for tab in _open(browser, page.write(tmp_path / "run")):
        section = wait_for_table(tab, "induction-heads/heads")
        section.get_by_role("searchbox").fill("layer=0 data=repeated metric=prefix_matching")
        shown = section.locator("tbody").inner_text()
        assert "<script>alert(1)</script>" in shown
        assert "[U+202E]evil" in tab.locator("body").inner_text()
        section.get_by_role("searchbox").fill("")
        with tab.expect_download() as csv:
            section.get_by_role("button", name="save CSV").click()
        text = Path(csv.value.path()).read_text(encoding="utf-8")
        assert ",'=1+1," in text  # no formula
        assert tab.evaluate(
            "document.scripts.length === [...document.scripts].filter((s) => s.id || s.dataset.table || !s.type).length"
        )


def test_an_address_names_the_stack_where_two_have_a_head_of_one_number(browser, tmp_path: Path):
    save(in_two_stacks(synthetic.result(synthetic.SMALL)), tmp_path / "run")
    for tab in _open(browser, page.write(tmp_path / "run"), "#decoder/L1H1"):
        card = tab.locator("#card")
        card.locator("table").first.wait_for()
        assert card.locator("h2").inner_text() == "decoder L1H1"
        told = card.inner_text()
        assert "decoder: induction head" in told
        assert "encoder:" not in told
        tab.evaluate("location.hash = '#L1H1'")  # without a stack: both
        card.get_by_text("encoder: ").first.wait_for()
        section = wait_for_table(tab, "induction-heads/kinds")
        section.get_by_role("searchbox").fill("site=encoder_blocks.1.attn kind=induction L1H1")
        section.locator("tbody a.head").first.click()
        card.get_by_text("encoder L1H1").first.wait_for()
        assert tab.evaluate("location.hash") == "#encoder/L1H1"


def test_a_row_about_a_layer_or_the_whole_model_links_to_no_head(browser, tmp_path: Path):
    made = only(synthetic.result(synthetic.SMALL), "heads")
    heads = pd.DataFrame({"layer": [1, 1, None], "head": [2, None, None], "value": [1024.0, 512.0, 65536.0]})
    tables = {**made.tables, "checks": heads.astype({"layer": "Int64", "head": "Int64"})}
    save(Result(made.analysis, tables, made.provenance), tmp_path / "run")
    for tab in _open(browser, page.write(tmp_path / "run")):
        wait_for_table(tab, "induction-heads/checks")
        assert cells(tab, "induction-heads/checks", 1) == ["L1H2", "L1", "–"]
        assert cells(tab, "induction-heads/checks", 2) == ["1,024", "512", "65,536"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_window_does_not_scroll_sideways(browser, drawn: Path, scheme: str):
    for tab in _open(browser, drawn, color_scheme=scheme):
        tab.set_viewport_size({"width": 420, "height": 900})
        wait_for_table(tab, "induction-heads/kinds")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 420
        ink, paper = tab.evaluate(
            "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
        )
        assert (sum(_rgb(ink)) > sum(_rgb(paper))) == (scheme == "dark")


def _rgb(colour: str) -> list[float]:
    return [float(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]


@pytest.fixture(scope="module")
def specialization(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run of head-specialization on a 2-layer x 4-head model."""
    folder = tmp_path_factory.mktemp("specialization") / "run"
    save(
        only(specialized.result(specialized.SMALL), *(set(specialized.tables(specialized.SMALL)) - {"stability"})),
        folder,
    )
    return page.write(folder)


def test_the_card_of_a_specialised_head_joins_kinds_distances_relations_and_sentences(browser, specialization: Path):
    kinds = specialized.planted(specialized.SMALL)
    _, layer, head = next(head for head, called in kinds.items() if called == ["previous_token"])
    for tab in _open(browser, specialization, f"#L{layer}H{head}"):
        card = tab.locator("#card")
        card.locator("figure.reading").nth(2).wait_for()
        assert card.locator(".pill").all_inner_texts() == ["previous-token head"]
        text = card.inner_text()
        for part in ("tokens back", "strongest there", "attends most like", "feeds"):
            assert part in text, part
        assert card.locator("figure.reading .token.query").count() == 3


def test_the_map_of_kinds_says_what_a_head_is_called(browser, specialization: Path):
    _, layer, head = next(head for head, called in specialized.planted(specialized.SMALL).items() if "sink" in called)
    for tab in _open(browser, specialization):
        box = tab.locator(".plate.opening .map").bounding_box()
        tab.mouse.move(box["x"] + box["width"] * (head + 0.5) / 4, box["y"] + box["height"] * (layer + 0.5) / 2)
        tab.locator("#tip").get_by_text(f"L{layer}H{head}: sink head").wait_for()
