"""People of all kinds: keyboard only, screen readers, contrast, dark mode, phones, reduced motion;
on filled panels.
"""

import pytest
from browser import PHONE, WIDE, go, key, opened, settled

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.check

PANELS = ("people", "plans", "map", "compare", "groups", "card", "receipt")
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def filled(browser, server):
    """One page with every panel filled."""
    with opened(browser, server) as page:
        settled(page)
        key(page, "keep-1").click()
        page.locator("[data-column=income] input[type=range]").press("PageUp")
        key(page, "lock-debt").check()
        page.get_by_label("Filter by", exact=True).select_option(label="job")
        go(page, "groups")
        expect(page.locator(".audit-form").get_by_label("sex")).to_be_checked()
        page.get_by_label("People to ask plans for").select_option(label="up to 100 people")
        page.locator("#run-audit").click()
        expect(page.locator("#audit h3").first).to_be_visible()
        go(page, "card")
        expect(page.locator("#panel-card h3").first).to_be_visible()
        go(page, "receipt")
        page.locator("#receipt-text").fill('{"format": 1}')
        page.get_by_role("button", name="Check the receipt").click()
        expect(page.locator("#receipt-result .notice")).to_be_visible()
        yield page


def test_groups_are_audited(filled):
    filled.evaluate("location.hash = 'groups'")
    expect(filled.locator("#audit .measure").first).to_contain_text("Denied")
    # Groups times models.
    by_sex = filled.locator("#audit .block", has_text="By sex")
    assert by_sex.locator(".measure").first.locator("svg.interval-bar").count() == 4
    expect(filled.locator("#audit")).to_contain_text("Do other columns give a group away?")


def test_model_card_is_shown(filled):
    filled.evaluate("location.hash = 'card'")
    expect(filled.locator("#panel-card h3").first).to_have_text("What it is")
    expect(filled.locator("#panel-card")).to_contain_text("Limits")


def violations(page, *rules: str) -> list[str]:
    """What axe finds serious; by all of its rules, or by these."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )
    options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    # The cells of the map are thousands, and none of them says anything.
    found = (
        axe.Axe()
        .run(page, context={"exclude": [[".regions"]]}, options=options)
        .response["violations"]
    )
    return [
        f"{entry['id']}: {entry['help']}: {[node['html'][:200] for node in entry['nodes'][:3]]}"
        for entry in found
        if entry["impact"] in SERIOUS
    ]


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_axe_finds_nothing_serious(filled, look):
    filled.set_viewport_size(PHONE if look == "phone" else WIDE)
    filled.emulate_media(color_scheme="dark" if look == "dark" else "light")
    found = {}
    # On wide screens people stand beside plans, and both are looked at together.
    for name in PANELS if look == "phone" else PANELS[1:]:
        filled.evaluate(f"location.hash = '{name}'")
        settled(filled)
        # Dark mode changes nothing but colours.
        found[name] = violations(filled, *(["color-contrast"] if look == "dark" else []))
    assert not any(found.values()), found


def test_dialogs_are_accessible_too(filled):
    filled.set_viewport_size(WIDE)
    filled.locator("#export").click()
    expect(filled.get_by_role("dialog", name="Export as one HTML file")).to_be_visible()
    assert violations(filled) == []
    filled.keyboard.press("Escape")
    expect(filled.locator("#export-dialog")).to_be_hidden()
    # The focus goes back to what opened it.
    assert filled.evaluate("document.activeElement.id") == "export"


def test_twice_the_size_still_fits(filled):
    """200 % zoom of a 1280-pixel window has 640 pixels."""
    filled.set_viewport_size({"width": 640, "height": 450})
    for name in PANELS:
        filled.evaluate(f"location.hash = '{name}'")
        settled(filled)
        assert filled.evaluate("document.documentElement.scrollWidth") <= 640, name


# ---- the keyboard --------------------------------------------------------------------------------


def tab_to(page, test: str, most: int = 120) -> None:
    """Press Tab until the element with the focus passes a test (JavaScript, of `e`)."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate(f"((e) => {test})(document.activeElement)"):
            return
    raise AssertionError(f"{most} tabs did not lead to {test}")


def test_everything_is_done_by_keyboard_alone(browser, server):
    with opened(browser, server) as page:
        settled(page)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "skip"
        expect(page.locator("#skip")).to_be_in_viewport()
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        tab_to(page, "e.classList.contains('row-number')")
        here = int(page.evaluate("document.activeElement.closest('tr').dataset.row"))
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page.locator("#decision-title")).to_have_text(f"Row {here + 2}")
        settled(page)
        # One stop for the table: the next tabs lead out of it, to the question.
        tab_to(page, "e.dataset.key === 'target'", 12)
        tab_to(page, "e.dataset.key === 'lock-income'")
        page.keyboard.press("Space")
        expect(key(page, "lock-income")).to_be_checked()
        tab_to(page, "e.dataset.key === 'value-income'", 3)
        before = page.locator("[data-key='number-income']").input_value()
        page.keyboard.press("ArrowRight")
        assert page.locator("[data-key='number-income']").input_value() != before
        key(page, "ask").focus()
        page.keyboard.press("Enter")
        expect(page.locator(".asked").first).to_contain_text("income locked")
        # The focus did not get lost when the plans were drawn anew.
        assert page.evaluate("document.activeElement.dataset.key") == "ask"
        page.locator("#nav a[href='#map']").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#panel-map")).to_be_visible()
        assert page.evaluate("document.activeElement.id") == "map-title"


def test_the_focus_is_always_seen_and_never_trapped(browser, server):
    with opened(browser, server) as page:
        settled(page)
        seen, unseen = set(), []
        for _ in range(400):
            page.keyboard.press("Tab")
            name, shown = page.evaluate(
                """() => { const e = document.activeElement; const style = getComputedStyle(e);
                const own = e.id || e.dataset.key || e.outerHTML.slice(0, 80);
                const drawn = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
                return [e === document.body ? 'end' : own, drawn]; }"""
            )
            if name == "end" or (name == "skip" and seen):
                break
            seen.add(name)
            if not shown:
                unseen.append(name)
        else:
            raise AssertionError("the tab key never came to the end of the page")
        assert unseen == [] and len(seen) > 40


def test_results_are_announced(browser, server):
    with opened(browser, server) as page:
        settled(page)
        spoken = page.locator("#spoken")
        expect(spoken).to_have_attribute("aria-live", "polite")
        key(page, "ask").click()
        expect(spoken).to_contain_text("found")
        page.locator("[data-column=income] input[type=range]").press("End")
        expect(spoken).to_contain_text("With your values")


def test_nothing_moves_for_those_who_asked_for_stillness(browser, server):
    with opened(browser, server, reduced_motion="reduce") as page:
        page.route("**/api/v1/explain", lambda route: None)
        spinner = page.locator("#plans-content .spinner").first
        expect(spinner).to_be_visible()
        assert spinner.evaluate("(e) => getComputedStyle(e).animationName") == "none"


def test_cards_stay_where_they_are_while_one_drags(browser, server):
    """A bar that grows would push the slider away from under the pointer."""
    with opened(browser, server) as page:
        settled(page)
        slider = page.locator("[data-column=income] input[type=range]")
        slider.scroll_into_view_if_needed()
        before = slider.bounding_box()["y"]
        slider.press("PageUp")
        expect(page.locator("#decision")).to_contain_text("With your values")
        key(page, "lock-debt").check()
        settled(page)
        assert abs(slider.bounding_box()["y"] - before) < 2
