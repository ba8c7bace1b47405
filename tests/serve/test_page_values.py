"""What the page says is what is used: boxes of values, filters, units of costs, and files that show
everything.
"""

import json

import pytest
from browser import PHONE, WIDE, go, key, opened, settled
from test_page_access import violations

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.check


def alter(page, path: str, change) -> None:
    """Change what the server says, on the way."""

    def pass_on(route) -> None:
        response = route.fetch()
        found = response.json()
        change(found)
        route.fulfill(response=response, json=found)

    page.route(f"**/api/v1/{path}", pass_on)


def state_domain(found: dict) -> None:
    next(entry for entry in found["columns"] if entry["name"] == "age")["domain"] = [18, 99]


def test_a_box_says_the_value_in_use(browser, server):
    with opened(browser, server) as page:
        settled(page)
        box, note = key(page, "number-age"), page.locator("[data-column=age] .value-note")
        own = box.input_value()
        # On the way to 1e400 the box holds 10000, which counts until another number does.
        cases = (
            ("", "Empty", own),
            ("e", "Not a number", own),
            ("1e400", "Not a number", "10000"),
        )
        for typed, said, used in (*cases, ("1e300", "Too large", "1000")):
            box.fill("")
            box.press_sequentially(typed)
            expect(box).to_have_attribute("aria-invalid", "true")
            expect(note).to_contain_text(said)
            box.press("Tab")
            expect(note).to_have_text("")
            expect(box).to_have_value(used)
            assert box.evaluate(
                "(box) => !box.validity.badInput && !box.hasAttribute('aria-invalid')"
            )

        def decided(r):
            return (
                r.url.endswith("/predict") and json.loads(r.post_data)["rows"][1]["age"] == 43
            )

        with page.expect_request(decided):
            box.fill("42.7")
            box.press("Tab")
        expect(box).to_have_value("43")
        expect(page.locator("#live-decision")).to_contain_text("With your values")


def test_a_value_outside_the_stated_domain_is_told_and_still_decided(browser, server):
    with opened(browser, server) as page:
        alter(page, "schema", state_domain)
        page.reload()
        settled(page)
        box, note = key(page, "number-age"), page.locator("[data-column=age] .value-note")
        expect(note).to_have_text("")
        box.fill("150")
        expect(note).to_have_text("outside 18 to 99")
        expect(page.locator("#live-decision")).to_contain_text("With your values")
        box.press("Tab")
        expect(box).to_have_attribute("aria-invalid", "true")
        box.fill("50")
        expect(note).to_have_text("")


def test_no_decision_stands_beside_an_error(browser, server):
    with opened(browser, server) as page:
        settled(page)
        expect(page.locator("#live-decision .chip")).to_be_visible()
        refused = json.dumps(
            {"error": {"code": "failed", "message": "This failed.", "field": None}}
        )
        page.route(
            "**/predict",
            lambda route: route.fulfill(
                status=500, content_type="application/json", body=refused
            ),
        )
        key(page, "value-income").press("ArrowRight")
        expect(page.locator("#decision .notice")).to_contain_text("This failed.")
        expect(page.locator("#decision .chip")).to_have_count(0)
        page.unroute("**/predict")
        key(page, "value-income").press("ArrowRight")
        expect(page.locator("#live-decision .chip")).to_be_visible()
        expect(page.locator("#decision .notice")).to_have_count(0)


def test_filters_say_how_many_rows_fit(browser, server):
    with opened(browser, server) as page:
        settled(page)
        said = page.locator("#people-count")
        expect(said).to_have_text("All 200 rows of people.csv.")
        page.get_by_label("Filter by", exact=True).select_option(label="age")
        page.get_by_label("age from").fill("60")
        expect(said).not_to_contain_text("All")
        total = page.locator(".pager span").inner_text().rpartition(" ")[2]
        expect(said).to_have_text(f"{total} of 200 rows of people.csv.")
        page.get_by_label("age to").fill("30")
        expect(page.locator(".filter-line .wrong")).to_contain_text("above")
        expect(said).to_have_text("All 200 rows of people.csv.")
        page.get_by_label("age to").fill("70")
        expect(page.locator(".filter-line .wrong")).to_have_text("")


def test_units_gates_and_the_models_own_confidence_are_told(browser, server):
    with opened(browser, server) as page:
        alter(
            page,
            "model",
            lambda found: (
                found["model"].update(confidence=0.75),
                found["limits"].update(options=1),
            ),
        )
        page.reload()
        settled(page)
        expect(key(page, "confidence").locator("option").first).to_have_text(
            "the model's own: 75%"
        )
        expect(page.locator("#plans-content .cost-note")).to_contain_text("standard deviations")
        go(page, "compare")
        # The rival has no gate.
        expect(page.locator(".side").nth(1).locator(".facts").first).to_contain_text(
            "not judged"
        )
        expect(page.locator(".side").nth(0).locator(".facts").first).to_contain_text(
            "usual than"
        )
        go(page, "map")
        expect(page.locator(".map-words")).to_contain_text("may end in the other colour")


def test_an_exported_file_shows_everything_at_any_width(browser, server, tmp_path):
    with opened(browser, server) as page:
        settled(page)
        page.locator("#export").click()
        page.get_by_role("checkbox", name="People").check()
        with page.expect_download() as waiting:
            page.get_by_role("button", name="Save file").click()
        path = tmp_path / "export.html"
        waiting.value.save_as(path)
    for size in (WIDE, PHONE):
        # axe needs scripts of its own; the file has none.
        context = browser.new_context(viewport=size, bypass_csp=True)
        copy = context.new_page()
        copy.goto(path.as_uri())
        assert copy.evaluate("document.documentElement.scrollWidth") <= size["width"]
        cut = (
            "(e) => e.scrollHeight > e.clientHeight + 1 && getComputedStyle(e).overflowY !== "
            "'visible'"
        )
        assert not copy.locator("#panel-people").evaluate(cut)
        assert not [e for e in copy.locator(".scroll").all() if e.evaluate(cut)]
        assert copy.locator(".scroll:not([tabindex='0'][role=region][aria-label])").count() == 0
        assert violations(copy) == []
        copy.emulate_media(media="print")
        expect(copy.locator("table.people tbody tr").last).to_be_visible()
        expect(copy.locator(".cost-note").first).to_be_visible()
        context.close()
