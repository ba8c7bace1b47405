"""Pages: self-contained, and everything they are given is escaped."""

from counterfactual_lab.reports.files import Image, Section, fill_template
from counterfactual_training.text_table import TextTable

TABLE = TextTable(
    "Costs in %", ("data", "ours"), (("LS", "1.0 ± 0.2*"), ("a_b", "−3")), ("A note.",)
)


def test_the_page_is_self_contained_and_escapes_what_it_is_given():
    section = Section("Main & more", (TABLE,), (Image("a", "a <b> caption", b"png"),))
    values = {
        "title": "Title",
        "subtitle": "Sub",
        "warning": "A quick look <script>",
        "settings": {"torch": "2"},
    }
    html = fill_template(
        "sections.html", sections=[section], commands=["ct reproduce main"], **values
    )
    assert (
        "a &lt;b&gt; caption" in html
        and "A quick look &lt;script&gt;" in html
        and "<script>" in html
    )
    assert 'id="main---more"' in html and 'href="#main---more"' in html
    assert "data:image/png;base64,cG5n" in html and "ct reproduce main" in html
    assert (
        "src=" not in html.replace('src="data:', "")
        and "@import" not in html
        and "http" not in html
    )
