"""Every panel of the page, in a real browser."""

import json
import re
from pathlib import Path

import pytest
from browser import PHONE, ask_again, changed_columns, go, key, opened, settled

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.check


@pytest.fixture
def page(browser, server):
    with opened(browser, server) as page:
        expect(page.locator("#people-rows tbody tr")).to_have_count(25)
        yield page


@pytest.fixture
def several(browser, server):
    """The same, with up to three plans."""
    with opened(browser, server, options=3) as page:
        expect(page.locator("#people-rows tbody tr")).to_have_count(25)
        yield page


def bodies(page, name: str) -> list[dict]:
    """Bodies of the requests of one kind, as they are sent from now on."""
    sent: list[dict] = []
    page.on(
        "request",
        lambda r: sent.append(json.loads(r.post_data)) if r.url.endswith(f"/{name}") else None,
    )
    return sent


# ---- people --------------------------------------------------------------------------------------


def test_people_are_filtered_sorted_and_paged(page):
    rows = page.locator("#people-rows tbody tr")
    expect(rows).to_have_count(25)
    expect(page.locator(".pager span")).to_have_text("1–25 of 200")
    # A list that is still coming would put the first page back.
    settled(page)
    key(page, "next").click()
    expect(page.locator(".pager span")).to_have_text("26–50 of 200")
    key(page, "sort-age").click()
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("age")
    key(page, "sort-age").click()
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("age")
    page.get_by_label("Decision", exact=True).select_option(label="denied")
    expect(page.locator("#people-rows tbody .chip").first).to_have_text("denied")
    page.get_by_label("Filter by", exact=True).select_option(label="job")
    page.get_by_role("group", name="Filter by job").get_by_label("pilot").check()
    page.get_by_label("Filter by", exact=True).select_option(label="age")
    page.get_by_label("age from").fill("40")
    page.get_by_label("age to").fill("60")
    expect(page.locator(".pager span")).not_to_contain_text("of 200")
    settled(page)
    heads = page.locator("#people-rows thead th").all_inner_texts()
    age, job = (
        next(i for i, text in enumerate(heads) if text.strip().startswith(name))
        for name in ("age", "job")
    )
    for row in rows.all():
        cells = row.locator("th, td").all_inner_texts()
        assert cells[job] == "pilot" and 40 <= int(cells[age]) <= 60 and "denied" in cells[1]
    page.get_by_label("Search", exact=True).fill("no such text anywhere")
    expect(page.locator("#people-rows .notice")).to_contain_text("Nobody fits")


def test_columns_of_the_table_can_be_hidden(page):
    key(page, "columns").click()
    key(page, "column-debt").uncheck()
    expect(page.locator("#people-rows thead")).not_to_contain_text("debt")
    expect(page.locator("#people-rows thead")).to_contain_text("income")


def test_choosing_a_row_opens_the_person(page):
    page.locator("#people-rows tbody tr").nth(4).click()
    expect(page.locator("#decision-title")).to_have_text("Row 4")
    settled(page)
    expect(page.locator("#people-rows tr.chosen")).to_have_count(1)
    expect(page.locator("#plans-content .plan").first).to_be_visible()


def test_phone_shows_one_panel_at_a_time(browser, server):
    with opened(browser, server, size=PHONE) as page:
        settled(page)
        expect(page.locator("#panel-people")).to_be_visible()
        expect(page.locator("#panel-plans")).to_be_hidden()
        page.locator("#people-rows tbody tr").nth(2).click()
        expect(page.locator("#panel-plans")).to_be_visible()
        expect(page.locator("#panel-people")).to_be_hidden()
        for name in ("people", "plans", "map", "compare", "groups", "receipt"):
            go(page, name)
            assert page.evaluate("document.documentElement.scrollWidth") <= 400, name


# ---- plans and feature cards ---------------------------------------------------------------------


def denied(page) -> None:
    """The page starts with the first person who is denied, and asks for plans."""
    expect(page.locator("#live-decision .chip")).to_have_text("denied")
    settled(page)


def test_plans_are_told_in_words_with_cost_and_certainty(several):
    page = several
    denied(page)
    plan = page.locator("#plans-content .plan").first
    expect(plan.locator(".sentence")).to_contain_text("granted")
    expect(plan.locator(".facts")).to_contain_text("Cost")
    expect(plan.locator(".facts")).to_contain_text(
        re.compile(r"(more|less) usual than .* real ‘granted’ rows")
    )
    expect(plan.locator(".badge")).to_contain_text("‘granted’")
    assert page.locator("#plans-content .plan").count() > 1


def test_dragging_a_slider_moves_the_decision(page):
    denied(page)
    live = page.locator("#live-decision")
    slider = page.locator("[data-column=income] input[type=range]")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + box["height"] / 2)
    page.mouse.down()
    seen = set()
    for step in range(1, 11):
        page.mouse.move(box["x"] + step * box["width"] / 10, box["y"] + box["height"] / 2)
        settled(page)
        seen.add(live.inner_text())
    expect(live.locator(".chip")).to_have_text("granted")
    page.mouse.up()
    assert len(seen) > 2, "the decision is to follow while dragging"
    # What the box says is what was decided on.
    assert float(page.locator("[data-key='number-income']").input_value()) == float(
        slider.input_value()
    )
    key(page, "reset").click()
    expect(live.locator(".chip")).to_have_text("denied")
    expect(page.locator("[data-column=income]")).not_to_have_class(re.compile("moved"))


def test_selects_and_flags_can_be_tried_too(page):
    denied(page)
    own = page.locator("[data-key='value-job']").input_value()
    sent = bodies(page, "predict")
    key(page, "value-owner").select_option(label="yes")
    expect(page.locator("#decision .who")).to_contain_text("1 value moved: owner")
    key(page, "value-job").select_option(label="clerk" if own != "0" else "pilot")
    expect(page.locator("#decision .who")).to_contain_text("2 values moved: job and owner")
    settled(page)
    assert sent[-1]["rows"][1]["owner"] is True and sent[-1]["rows"][0]["owner"] is False


def test_locked_columns_stay(page):
    denied(page)
    first = changed_columns(page)
    column = first[0][0]
    key(page, f"lock-{column}").check()
    expect(page.locator(".asked").first).to_contain_text("rules have changed")
    ask_again(page)
    assert all(column not in columns for columns in changed_columns(page))
    expect(page.locator(".asked").first).to_contain_text(f"{column} locked")
    # The rule holds for the next person as well, until it is cleared.
    page.locator("#people-rows tbody tr").nth(3).click()
    settled(page)
    assert all(column not in columns for columns in changed_columns(page))
    key(page, "clear").click()
    expect(key(page, f"lock-{column}")).not_to_be_checked()


def test_ranges_and_categories_are_kept(page):
    denied(page)
    own = float(page.locator("[data-key='number-income']").input_value())
    key(page, "high-income").fill(str(own + 3))
    key(page, "allowed-job").click()
    page.locator("[data-column=job]").get_by_label("nurse").check()
    sent = bodies(page, "explain")
    ask_again(page)
    assert sent[-1]["domain"] == {"income": [None, own + 3], "job": ["nurse"]}
    for plan in page.locator("#plans-content .plan").all():
        for line in plan.locator(".changes li").all():
            name, to = line.locator(".name").inner_text(), line.locator("strong").inner_text()
            assert name != "income" or float(to.split()[0]) <= own + 3
            assert name != "job" or to == "nurse"
    key(page, "low-income").fill(str(own + 10))
    key(page, "low-income").press("Tab")
    expect(page.locator("[data-column=income] .wrong")).to_contain_text("above")


def test_difficulty_confidence_and_counts_are_sent(several):
    page = several
    denied(page)
    column = changed_columns(page)[0][0]
    cost = float(page.locator("#plans-content .facts dd").first.inner_text())
    key(page, f"difficulty-{column}").select_option(label="very hard")
    key(page, "confidence").select_option(label="at least 80%")
    key(page, "changes").select_option(label="at most 2")
    key(page, "options").select_option(label="up to 2")
    sent = bodies(page, "explain")
    ask_again(page)
    assert [body["options"] for body in sent] == [2]
    assert (
        sent[-1]["difficulty"] == {column: 5}
        and sent[-1]["confidence"] == 0.8
        and sent[-1]["max_changes"] == 2
    )
    assert all(len(columns) <= 2 for columns in changed_columns(page))
    assert float(page.locator("#plans-content .facts dd").first.inner_text()) > cost
    expect(page.locator(".asked").first).to_contain_text("very hard to change")


def test_what_binds_is_told_where_there_is_no_plan(page):
    denied(page)
    for name in ("income", "debt", "job", "owner"):
        key(page, f"lock-{name}").check()
    ask_again(page)
    expect(page.locator(".asked").first).to_contain_text("No plan was found")
    expect(page.locator("#plans-content .plan h3")).to_have_text("The closest found")
    expect(page.locator("#plans-content .plan .badge")).to_contain_text("Does not reach")
    expect(page.locator("#plans-content .binding")).to_contain_text("may not change")


def test_immutable_columns_are_locked_with_the_reason(page):
    card = page.locator("[data-column=sex]")
    expect(card.locator(".badge")).to_have_text("may not change")
    expect(card.locator("input[type=checkbox]")).to_have_count(0)
    # What the model makes of another value can be seen all the same.
    expect(card.locator("select")).to_be_enabled()
    expect(page.locator("[data-column=debt]")).to_contain_text("may only fall")


def test_plans_are_kept_while_asking_again(page):
    denied(page)
    sentence = page.locator("#plans-content .plan .sentence").first.inner_text()
    key(page, "keep-1").click()
    expect(key(page, "keep-1")).to_have_attribute("aria-pressed", "true")
    page.locator("#people-rows tbody tr").nth(2).click()
    settled(page)
    expect(page.locator("#kept .sentence")).to_have_text(sentence)
    page.reload()
    settled(page)
    expect(page.locator("#kept .sentence")).to_have_text(sentence)
    key(page, "unkeep-1").click()
    expect(page.locator("#kept .plan")).to_have_count(0)


def test_a_plans_values_can_be_tried(page):
    denied(page)
    key(page, "try-1").click()
    expect(page.locator("#live-decision .chip")).to_have_text("granted")
    column = changed_columns(page)[0][0]
    expect(page.locator(f"[data-column={column}]")).to_have_class(re.compile("moved"))
    page.get_by_label("the values set below").check()
    ask_again(page)
    expect(page.locator(".asked").first).to_contain_text("already is ‘granted’")


# ---- map, compare, groups, card ------------------------------------------------------------------


def test_map_shows_paths_and_chooses_people(several):
    page = several
    denied(page)
    go(page, "map")
    picture = page.locator("svg.map")
    expect(picture).to_have_attribute(
        "aria-label", re.compile("Map.*across.*up.*granted.*of the map")
    )
    assert picture.locator(".route").count() == len(changed_columns(page))
    key(page, "axis-0").select_option(label="income")
    key(page, "axis-1").select_option(label="debt")
    expect(picture.locator(".axis-title").first).to_have_text("income (thousand dollars)")
    before = page.locator("#decision-title").inner_text()
    far = page.evaluate(
        """() => { const self = document.querySelector('.person .ring').getBoundingClientRect();
        const drawn = [...document.querySelectorAll('.map .dot')];
        const dots = drawn.map((dot) => dot.getBoundingClientRect());
        const away = (dot) => Math.hypot(dot.x - self.x, dot.y - self.y);
        dots.sort((a, b) => away(b) - away(a));
        return [dots[0].x + dots[0].width / 2, dots[0].y + dots[0].height / 2]; }"""
    )
    page.mouse.click(*far)
    expect(page.locator("#decision-title")).not_to_have_text(before)
    key(page, "axis-0").select_option(label="main directions of the data")
    expect(key(page, "axis-1")).to_have_value("")
    settled(page)
    key(page, "map-table").click()
    expect(page.locator(".map-table table")).to_contain_text(
        page.locator("#decision-title").inner_text()
    )
    near = page.locator(".near button").first
    name = near.inner_text()
    near.click()
    expect(page.locator("#decision-title")).to_have_text(name)


def test_compare_puts_both_models_side_by_side(several):
    page = several
    denied(page)
    go(page, "compare")
    expect(page.locator(".comparison thead th")).to_have_text(
        ["people.safetensors", "rival.safetensors"]
    )
    expect(page.locator(".side h3")).to_have_text(["people.safetensors", "rival.safetensors"])
    expect(page.locator(".difference")).to_contain_text(re.compile("decide"))
    expect(page.locator(".comparison")).to_contain_text("cost of the cheapest")
    # The rules of the plans hold for both.
    go(page, "plans")
    key(page, "lock-income").check()
    sent = bodies(page, "explain")
    ask_again(page)
    go(page, "compare")
    assert [(body["model"], body["lock"]) for body in sent[-2:]] == [
        ("main", ["income"]),
        ("against", ["income"]),
    ]
    # The bar above asks both.
    key(page, "ask-here").click()
    settled(page)
    expect(page.locator(".side .plan")).not_to_have_count(0)
    assert [body["model"] for body in sent] == ["main", "against"] * 2


# ---- files ---------------------------------------------------------------------------------------


def test_receipts_are_saved_and_checked(page, tmp_path):
    denied(page)
    with page.expect_download() as waiting:
        key(page, "receipt-1").click()
    path = tmp_path / waiting.value.suggested_filename
    assert re.fullmatch(r"receipt-row-\d+-plan-1\.json", path.name)
    waiting.value.save_as(path)
    go(page, "receipt")
    page.locator("#receipt-file").set_input_files(path)
    expect(page.locator("#receipt-result")).to_contain_text("The receipt holds.")
    assert page.locator(".checklist li.good").count() >= 2
    changed = tmp_path / "changed.json"
    changed.write_text(re.sub(r'"debt": [\d.]+', '"debt": 0.1', path.read_text()))
    assert changed.read_text() != path.read_text()
    page.locator("#receipt-file").set_input_files(changed)
    expect(page.locator("#receipt-result")).to_contain_text("does not hold")
    assert page.locator(".checklist li.bad").count() >= 1
    page.locator("#receipt-text").fill("no JSON")
    page.get_by_role("button", name="Check the receipt").click()
    expect(page.locator("#receipt-result")).to_contain_text("not valid JSON")


def test_export_is_one_file_that_needs_nobody(several, browser, tmp_path):
    page = several
    denied(page)
    sentences = page.locator("#plans-content .plan .sentence").all_inner_texts()
    go(page, "map")
    go(page, "plans")
    page.locator("#export").click()
    page.get_by_role("checkbox", name="Map").check()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save file").click()
    path = Path(tmp_path / waiting.value.suggested_filename)
    waiting.value.save_as(path)
    text = path.read_text(encoding="utf-8")
    assert "<script" not in text and "http://127" not in text
    context = browser.new_context(offline=True)
    copy = context.new_page()
    asked: list[str] = []
    copy.on("request", lambda request: asked.append(request.url))
    copy.goto(path.as_uri())
    assert asked == [path.as_uri()]
    assert copy.locator(".plan .sentence").all_inner_texts() == sentences
    expect(copy.locator("svg.map")).to_be_visible()
    expect(copy.locator("body")).to_contain_text("sha256")
    expect(copy.locator("#values-on-paper")).to_contain_text("income")
    assert copy.locator("button, input, select").count() == 0
    # The style came along.
    assert (
        copy.locator(".plan").first.evaluate("(plan) => getComputedStyle(plan).borderLeftWidth")
        == "4px"
    )
    # Rows of other people do not leave the page unless somebody says so.
    assert copy.locator("table.people").count() == 0
    context.close()


def test_paper_shows_plans_and_values_without_controls(page):
    denied(page)
    page.emulate_media(media="print")
    expect(page.locator("#plans-content .plan").first).to_be_visible()
    expect(page.locator("#values-on-paper")).to_be_visible()
    for name in ("#nav", "#question", "#features", "#tools", "#panel-people"):
        expect(page.locator(name)).to_be_hidden()
