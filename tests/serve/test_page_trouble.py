"""What goes wrong: refused and slow requests, a server that dies, a token, no rows, and names that
try to be HTML.
"""

import json
import re

import pytest
from browser import (
    ODD_CATEGORY,
    ODD_CLASS,
    ODD_NAMES,
    PHONE,
    ask_again,
    go,
    key,
    opened,
    settled,
)
from serving import app_of, running

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.check


def refusal(status: int, code: str, message: str) -> dict:
    body = json.dumps({"error": {"code": code, "message": message, "field": None}})
    return {"status": status, "content_type": "application/json", "body": body}


def refuse(status: int, code: str):
    return lambda route: route.fulfill(**refusal(status, code, f"No: {status}."))


# ---- errors --------------------------------------------------------------------------------------


def test_a_refused_search_is_told_and_can_be_tried_again(browser, server):
    with opened(browser, server) as page:
        settled(page)
        notice = page.locator("#plans-content .notice")
        for status, code in ((400, "bad_request"), (503, "busy")):
            page.route("**/api/v1/explain", refuse(status, code))
            key(page, "ask").click()
            expect(notice).to_contain_text(f"No: {status}.")
            page.unroute("**/api/v1/explain")
            notice.get_by_role("button", name="Try again").click()
            expect(page.locator("#plans-content .plan").first).to_be_visible()
            expect(notice).to_have_count(0)
        # A proxy in between answers with pages of its own.
        page.route(
            "**/api/v1/explain",
            lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"),
        )
        key(page, "ask").click()
        expect(notice).to_contain_text("The server answered 502")


def test_a_search_out_of_time_shows_what_was_found(browser, server):
    def late(route):
        found = route.fetch().json()
        route.fulfill(json={**found, "complete": False})

    with opened(browser, server) as page:
        page.route("**/api/v1/explain", late)
        expect(page.locator("#plans-content .notice.warn")).to_contain_text("time ran out")
        expect(page.locator("#plans-content .plan").first).to_be_visible()


def test_answers_of_other_panels_may_fail_too(browser, server):
    with opened(browser, server) as page:
        settled(page)
        page.route(
            "**/api/v1/*", lambda route: route.fulfill(**refusal(500, "failed", "This failed."))
        )
        for name, place in (
            ("map", "#map-picture"),
            ("compare", "#compare-content"),
            ("card", "#card-content"),
        ):
            page.locator(f"#nav a[href='#{name}']").click()
            expect(page.locator(f"{place} .notice")).to_contain_text("This failed.")
        page.locator("#nav a[href='#groups']").click()
        page.locator("#run-audit").click()
        expect(page.locator("#audit .notice")).to_contain_text("This failed.")
        page.locator("#nav a[href='#plans']").click()
        key(page, "receipt-1").click()
        expect(page.locator("#plans-content .notice")).to_contain_text("This failed.")
        key(page, "sort-age").click()
        expect(page.locator("#people-rows .notice")).to_contain_text("This failed.")
        page.locator("[data-column=income] input[type=range]").press("ArrowRight")
        expect(page.locator("#decision .notice")).to_contain_text("This failed.")


def test_only_the_newest_answer_counts(browser, server):
    """Answers to a slider that come late must not overwrite those to where it stands."""
    with opened(browser, server) as page:
        settled(page)
        held: list = []

        def hold(route):
            if held:
                return route.continue_()
            held.append(route)

        page.route("**/api/v1/predict", hold)
        slider = page.locator("[data-column=income] input[type=range]")
        sent: list = []
        page.on("request", lambda r: sent.append(r.url) if r.url.endswith("/predict") else None)
        for _ in range(5):
            slider.press("PageUp")
        page.locator("html[data-timers='0']").wait_for(state="attached")
        assert len(sent) == 1, "one request at a time"
        stood = float(slider.input_value())
        with page.expect_request("**/api/v1/predict") as later:
            held[0].continue_()
        assert later.value.post_data_json["rows"][1]["income"] == stood


# ---- the connection ------------------------------------------------------------------------------


def test_the_page_goes_on_after_the_server_was_killed(browser, served, tmp_path):
    with running(lambda: app_of(served)) as server, opened(browser, server) as page:
        settled(page)
        key(page, "lock-debt").check()
        with page.expect_download() as waiting:
            key(page, "receipt-1").click()
        receipt = tmp_path / "receipt.json"
        waiting.value.save_as(receipt)
        person = page.locator("#decision-title").inner_text()
        server.kill()
        # In the middle of a question: it is answered when the server is back.
        key(page, "ask").click()
        expect(page.locator("#connection")).to_be_visible()
        expect(page.locator("#connection")).to_contain_text("Connection lost")
        server.start()
        expect(page.locator("#connection")).to_be_hidden()
        expect(page.locator(".asked").first).to_contain_text("debt locked")
        settled(page)
        expect(page.locator("#decision-title")).to_have_text(person)
        expect(key(page, "lock-debt")).to_be_checked()
        go(page, "receipt")
        page.locator("#receipt-file").set_input_files(receipt)
        expect(page.locator("#receipt-result")).to_contain_text("The receipt holds.")


def test_an_idle_page_looks_after_the_server(browser, server):
    with opened(browser, server) as page:
        settled(page)
        page.context.set_offline(True)
        look(page)
        expect(page.locator("#connection")).to_be_visible()
        page.context.set_offline(False)
        expect(page.locator("#connection")).to_be_hidden()
        # Another model behind the same address is told, because what is shown is no longer what it
        # would answer.
        page.route(
            "**/health",
            lambda route: route.fulfill(json={"status": "ok", "api": 1, "model": "another"}),
        )
        look(page)
        expect(page.locator("#changed-model")).to_be_visible()


def look(page) -> None:
    """As if somebody came back to the tab: the page then asks at once, not after some seconds."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


# ---- the token -----------------------------------------------------------------------------------


def test_the_token_is_asked_for(browser, odd):
    with opened(browser, odd) as page:
        dialog = page.locator("#token-dialog")
        expect(dialog).to_be_visible()
        page.keyboard.press("Escape")
        expect(dialog).to_be_visible()
        page.get_by_label("Token", exact=True).fill("not the token, of course")
        page.keyboard.press("Enter")
        expect(dialog).to_contain_text("does not accept this token")
        page.get_by_label("Token", exact=True).fill(odd.token)
        page.get_by_role("button", name="Continue").click()
        expect(dialog).to_be_hidden()
        expect(page.locator("#people-rows tbody tr").first).to_be_visible()


def test_the_token_is_taken_from_the_address_and_removed_from_it(browser, odd):
    with opened(browser, odd, f"#token={odd.token}") as page:
        expect(page.locator("#people-rows tbody tr").first).to_be_visible()
        assert odd.token not in page.url
        page.reload()
        expect(page.locator("#people-rows tbody tr").first).to_be_visible()
        expect(page.locator("#token-dialog")).to_be_hidden()


# ---- odd data ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [{"width": 1400, "height": 900}, PHONE], ids=["wide", "phone"])
def test_nothing_from_data_becomes_html(browser, odd, size):
    with opened(browser, odd, f"#token={odd.token}", size=size) as page:
        settled(page)
        for name in ("people", "plans", "map"):
            link = page.locator(f"#nav a[href='#{name}'] >> visible=true")
            if link.count():
                link.click()
                settled(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], name
        made = page.locator("main img, main script, main b, main iframe")
        assert made.count() == 0
        assert page.title() not in ("class", "category")
        page.locator("#nav a[href='#plans']").click()
        expect(page.locator("h4", has_text=ODD_NAMES[0]).first).to_be_visible()
        expect(page.locator("#question select").first).to_contain_text(ODD_CLASS)
        expect(key(page, f"value-{ODD_NAMES[0]}")).to_contain_text(ODD_CATEGORY)


def test_many_columns_can_be_found_by_name(browser, odd):
    with opened(browser, odd, f"#token={odd.token}") as page:
        settled(page)
        cards = page.locator("#feature-cards .feature")
        assert cards.count() <= 48
        page.locator("#find-feature").fill("column 107")
        expect(cards).to_have_count(1)
        page.locator("#find-feature").fill("")
        expect(page.get_by_role("button", name=re.compile("Show more"))).to_be_visible()
        assert "of 113 shown" in page.locator(".picker summary").inner_text()


# ---- without data --------------------------------------------------------------------------------


def test_without_rows_somebody_is_described(browser, bare_server):
    with opened(browser, bare_server) as page:
        settled(page)
        expect(page.locator("#decision-title")).to_have_text("A typical person")
        for name in ("panel-people", "nav-compare", "nav-groups"):
            expect(page.locator(f"#{name}")).to_be_hidden()
        page.locator("[data-key='number-income']").fill("3")
        expect(page.locator("#decision-title")).to_have_text("Your values")
        expect(page.locator("#live-decision .chip")).to_have_text("denied")
        sent: list = []
        page.on(
            "request",
            lambda r: sent.append(r.post_data_json) if r.url.endswith("/explain") else None,
        )
        ask_again(page)
        assert sent[-1]["rows"][0]["income"] == 3
        expect(page.locator("#plans-content .plan").first).to_be_visible()
        go(page, "map")
        expect(page.locator("svg.map .person")).to_be_visible()
        assert page.locator("svg.map .dot").count() == 0
        go(page, "card")
        expect(page.locator("#panel-card h3").first).to_be_visible()
