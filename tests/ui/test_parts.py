"""The parts that pages of the dashboard are made of, each in a real browser."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

from tests.support.long import long_after
from tests.support.ui.browser import expect
from tests.support.ui.dashboard import Dashboard, Tab

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PHONE = {"viewport": {"width": 390, "height": 800}, "has_touch": True}
IMPORTS = """
  const { h, sortable } = await import("/ui/parts/dom.js");
  const { advice, choice, command, empty, tabs, tiles, usage } =
    await import("/ui/parts/controls.js");
  const { chart, forgetCharts } = await import("/ui/parts/chart.js");
"""
BOOKIES = """
  const rows = [
    { id: "b10", adds: 5, used: 0.5 }, { id: "b9", adds: null, used: 0.85, full: "warn" },
    { id: "b1", adds: 70, used: 0.95 },
  ];
  const columns = [{ text: "Bookie", by: (one) => one.id }, { text: "Disk", by: (one) => one.used },
    { text: "Adds", type: "number", by: (one) => one.adds }, { text: "Remark" }];
  const disk = (one) => usage(`disk of ${one.id}`, one.used * 1e9, 1e9, one.full);
  const cells = (one) => [one.id, disk(one), one.adds ?? "–", "none"];
  const drawn = sortable("test", "Bookies", columns, rows, cells, { text: "Bookie", down: false });
"""
TIMES = "const times = Array.from({ length: 60 }, (_, at) => 1780000000 + 10 * at);"
CHART = f"""
  {TIMES}
  const values = times.map((_, at) => at === 30 || at === 31 ? null : 100 + at);
  const drawn = [1, 2].map((number) => chart(`test${{number}}`, {{
    title: `Entries ${{number}}`, unit: "rate", times,
    series: [{{ name: "added", values }},
      {{ name: "read", values: values.map((one) => one && 2 * one) }}],
  }}));
"""


def show(tab: Tab, script: str) -> Page:
    """Show the elements of `drawn`, which the script creates, in place of the page."""
    tab.open("")
    tab.page.evaluate(
        f"""async () => {{ {IMPORTS} {script}
          document.getElementById("main").replaceChildren(...[drawn].flat());
        }}"""
    )
    return tab.page


def show_charts(tab: Tab) -> Page:
    """Show two charts, and wait until they are drawn: a chart waits until its width is known."""
    page = show(tab, CHART)
    for number in (1, 2):
        figure = page.get_by_role("group", name=f"Entries {number}")
        expect(figure.locator("canvas")).to_be_visible()
    page.evaluate(
        "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
    )
    return page


def test_a_table_is_sorted_by_its_headings(dashboard: Dashboard, tab: Tab) -> None:
    page = show(tab, BOOKIES)
    names = page.get_by_role("rowheader")
    expect(names).to_have_text(["b1", "b9", "b10"])  # numbers in names count as numbers
    heading = page.get_by_role("columnheader", name="Adds")
    expect(heading).not_to_have_attribute("aria-sort", "descending")
    heading.get_by_role("button").press("Enter")
    expect(names).to_have_text(["b1", "b10", "b9"])  # what is missing comes last
    expect(heading).to_have_attribute("aria-sort", "descending")
    expect(heading.get_by_role("button")).to_be_focused()
    page.keyboard.press("Enter")
    expect(names).to_have_text(["b10", "b1", "b9"])
    expect(heading).to_have_attribute("aria-sort", "ascending")
    expect(page.get_by_role("columnheader", name="Remark").get_by_role("button")).to_have_count(0)


@pytest.mark.parametrize("tab", [PHONE], indirect=True)
def test_a_row_becomes_a_block_on_a_phone(dashboard: Dashboard, tab: Tab) -> None:
    """No column is cut, each cell names its column, and screen readers still find a table."""
    page = show(tab, BOOKIES)
    row = page.get_by_role("row").filter(has_text="b10")
    box, cell = row.bounding_box(), row.get_by_role("cell").filter(has_text="none").bounding_box()
    assert box is not None
    assert cell is not None
    assert cell["x"] + cell["width"] <= 390
    assert cell["y"] > box["y"] + 20, "the last column is below the first"
    label = row.locator("td").nth(1).evaluate("one => getComputedStyle(one, '::before').content")
    assert "Adds" in label
    expect(page.get_by_role("table")).to_be_visible()
    page.get_by_role("button", name="Adds").click()
    expect(page.get_by_role("rowheader").first).to_have_text("b1")


@pytest.mark.long
def test_the_colour_of_a_disk_follows_the_server(dashboard: Dashboard, tab: Tab) -> None:
    page = show(tab, BOOKIES)
    said, colours = [], []
    for name in ("b10", "b9", "b1"):
        bar = page.get_by_role("meter", name=f"disk of {name}", exact=True)
        said.append(bar.get_attribute("aria-valuetext"))
        colours.append(bar.locator("span").evaluate("one => getComputedStyle(one).backgroundColor"))
    assert said == [
        "50 % used, 500 MB free of 1.0 GB",
        "! 85 % used, 150 MB free of 1.0 GB",
        "95 % used, 50.0 MB free of 1.0 GB",
    ]
    assert colours[0] == colours[2] != colours[1]


def test_a_command_is_copied(dashboard: Dashboard, tab: Tab) -> None:
    tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = show(tab, 'const drawn = command("quire bookie recover b1");')
    page.get_by_role("button", name="Copy the command quire bookie recover b1").click()
    expect(page.get_by_role("status").filter(has_text="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "quire bookie recover b1"


@pytest.mark.parametrize("tab", [PHONE], indirect=True)
def test_a_line_of_a_command_does_not_end_within_an_option(dashboard: Dashboard, tab: Tab) -> None:
    """A line once ended after the first dash of `--http-token-file`."""
    text = "quire bookie start --dir /data --http-token-file /f --http-bookies-token-file /f"
    page = show(tab, f"const drawn = command({json.dumps(text)});")
    code = page.locator(".command code")
    expect(code).to_have_text(text)
    lines = code.locator("span").evaluate_all("all => all.map((one) => one.offsetHeight)")
    assert len(set(lines)) == 1, "each word is in one line"


def test_a_command_is_selected_without_a_clipboard(dashboard: Dashboard, tab: Tab) -> None:
    """A page without TLS from another machine has none."""
    page = show(tab, 'const drawn = command("quire bookie recover b1");')
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.get_by_role("button", name="Copy the command").click()
    expect(page.get_by_text("Press Ctrl-C")).to_be_visible()
    assert page.evaluate("getSelection().toString()") == "quire bookie recover b1"


@pytest.mark.parametrize(
    ("text", "commands", "words"),
    long_after(2, [
        ("quire autorecovery start", ["quire autorecovery start"], ["What to do:"]),
        ("Start it again: quire bookie start --dir DIR. If it is lost for good: quire bookie "
         "recover 10.0.0.1:3181",
         ["quire bookie start --dir DIR", "quire bookie recover 10.0.0.1:3181"],
         ["What to do: Start it again:", "If it is lost for good:"]),
        ("Look at one: quire stream show NAME, or quire object show NAME",
         ["quire stream show NAME", "quire object show NAME"],
         ["What to do: Look at one:", "or:"]),
        ("quire bookie decommission b continues it. To end it: quire bookie recover b",
         ["quire bookie recover b"],
         ["What to do: quire bookie decommission b continues it. To end it:"]),
        ("Start it again: quire bookie start --dir /d. If it is lost for good: quire autorecovery "
         "enable. When its ledgers are copied, to remove it: quire bookie decommission b",
         ["quire bookie start --dir /d", "quire autorecovery enable",
          "quire bookie decommission b"],
         ["What to do: Start it again:", "If it is lost for good:",
          "When its ledgers are copied, to remove it:"]),
        ("curl -X PUT http://127.0.0.1:1/a -d '{}'", ["curl -X PUT http://127.0.0.1:1/a -d '{}'"],
         ["What to do:"]),
        ("Look at the disk: smartctl -a /dev/sda. To see its date: openssl x509 -in a.crt",
         ["smartctl -a /dev/sda", "openssl x509 -in a.crt"],
         ["What to do: Look at the disk:", "To see its date:"]),
        ("Start them with this: export QUIRE_PLACEMENT=rack-aware",
         ["export QUIRE_PLACEMENT=rack-aware"], ["What to do: Start them with this:"]),
        ("Start the store", [], ["What to do: Start the store."]),
        ("Start it. To ask it: echo srvr | curl -sm 3 telnet://h:1. In its log, look for fsync",
         ["echo srvr | curl -sm 3 telnet://h:1"],
         ["What to do: Start it. To ask it:", "In its log, look for fsync."]),
        ("quire bookie explain space /d1. It also says how to find other files",
         ["quire bookie explain space /d1"],
         ["What to do:", "It also says how to find other files."]),
        ("Renew it. On the machine of a-1: openssl x509 -in a.crt. On the machine of b-1: openssl "
         "x509 -in b.crt. For c-1, do the same",
         ["openssl x509 -in a.crt", "openssl x509 -in b.crt"],
         ["What to do: Renew it. On the machine of a-1:", "On the machine of b-1:",
          "For c-1, do the same."]),
        ("Start each. " + ". ".join(f"On the machine of b{n}: quire x {n}" for n in range(4))
         + ". If one is lost: quire y",
         [*(f"quire x {n}" for n in range(4)), "quire y"],
         ["What to do: Start each. On the machine of b0:", *(f"On the machine of b{n}:" for n in
          range(1, 4)), "If one is lost:"]),
        ("See the overview, or quire explain", ["quire explain"],
         ["What to do: See the overview, or:"]),
    ]),
)  # fmt: skip
def test_commands_in_advice_are_in_boxes(
    dashboard: Dashboard, tab: Tab, text: str, commands: list[str], words: list[str]
) -> None:
    page = show(tab, f"const drawn = h('div', {{ id: 'test' }}, advice({json.dumps(text)}));")
    expect(page.locator("#test code")).to_have_text(commands)
    said = page.locator("#test > p").all_inner_texts()
    assert [one.strip() for one in said] == words


def test_commands_for_many_bookies_are_folded(dashboard: Dashboard, tab: Tab) -> None:
    each = [f"On the machine of b{n}: quire x {n}" for n in range(5)]
    text = f"Start each. {'. '.join(each)}. For b5, b6, do the same. If one is lost: quire y"
    page = show(tab, f"const drawn = h('div', {{ id: 'test' }}, advice({json.dumps(text)}));")
    shown = page.locator("#test > .command code")
    expect(shown).to_have_text(["quire x 0", "quire x 1", "quire x 2", "quire y"])
    expect(page.locator("#test > p").last).to_have_text("If one is lost:")
    rest = page.locator("#test > details")
    expect(rest.locator("summary")).to_have_text("2 more commands")
    expect(rest.get_by_text("For b5, b6, do the same.")).to_be_hidden()
    rest.locator("summary").click()
    expect(rest.locator("code")).to_have_text(["quire x 3", "quire x 4"])
    expect(rest.get_by_text("For b5, b6, do the same.")).to_be_visible()


PROBLEMS = [
    {"severity": "warn", "what": "10.0.0.1:3181 is read-only because its disk is full: /d1: 2 MB "
     "free", "next": "Start it again: quire bookie start --dir DIR. If it is lost for good: quire "
     "bookie recover 10.0.0.1:3181", "risk": "No stored entry is lost", "doing": "It frees space",
     "bookies": ["10.0.0.1:3181"], "items": [], "since_ms": 1_000, "since_before": True},
    {"severity": "note", "what": "10.0.0.1:31 is gone: nothing listens at its address",
     "next": "quire explain", "risk": "", "doing": "", "bookies": ["10.0.0.1:31"], "items": []},
]  # fmt: skip


def test_a_problem_shows_its_cause_before_its_remedy(dashboard: Dashboard, tab: Tab) -> None:
    page = show(
        tab,
        f"""const {{ problemList }} = await import("/ui/pages/overview.js");
          const drawn = problemList({json.dumps(PROBLEMS)});""",
    )
    warning, note = page.locator(".problems > li").all()
    expect(warning.locator(".cause")).to_have_text(
        re.compile("^! Warning: 10.0.0.1:3181 is read-only because its disk is full")
    )
    expect(warning.locator(".cause .since")).to_have_text(re.compile("^since before .*1 Jan"))
    expect(warning.locator(".more")).to_have_text("/d1: 2 MB free.")
    expect(warning.get_by_role("term")).to_have_text(["What to do", "At risk", "Being done"])
    bookie = warning.get_by_role("link", name="10.0.0.1:3181", exact=True)
    expect(bookie).to_have_count(1)
    expect(bookie).to_have_attribute("href", "#/bookie/10.0.0.1%3A3181")
    expect(warning.locator("p.alternative")).to_have_text("If it is lost for good:")
    expect(warning.locator(".command.alternative code")).to_have_text(
        "quire bookie recover 10.0.0.1:3181"
    )
    summary = note.locator("summary")
    expect(summary).to_have_text("Note: 10.0.0.1:31 is gone")
    expect(note.locator("code")).to_be_hidden()
    summary.click()
    expect(note.locator("code")).to_be_visible()
    expect(note.get_by_role("link")).to_have_text(["10.0.0.1:31"])
    tab.picture("problems")


def test_a_single_note_is_expanded(dashboard: Dashboard, tab: Tab) -> None:
    page = show(
        tab,
        f"""const {{ problemList }} = await import("/ui/pages/overview.js");
          const drawn = problemList({json.dumps(PROBLEMS[1:])});""",
    )
    expect(page.locator(".problems code")).to_be_visible()
    expect(page.locator(".problems .cause a")).to_have_text("10.0.0.1:31")


def test_tabs_are_operated_with_the_keyboard(dashboard: Dashboard, tab: Tab) -> None:
    page = show(
        tab,
        """const drawn = tabs("test", "Views", ["text", "hex"].map((id) =>
          ({ id, title: id, content: () => h("p", null, `as ${id}`) })));""",
    )
    expect(page.get_by_role("tabpanel", name="text")).to_have_text("as text")
    page.get_by_role("tab", name="text").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="hex")).to_be_focused()
    expect(page.get_by_role("tab", name="hex")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("tabpanel", name="hex")).to_have_text("as hex")


def test_key_figures_have_small_units(dashboard: Dashboard, tab: Tab) -> None:
    page = show(tab, 'const drawn = tiles([{ name: "Adds", value: "1,200/s", below: "1 MB/s" }]);')
    expect(page.get_by_role("definition").first).to_have_text("1,200/s")
    small = page.locator(".figure small")
    expect(small).to_have_text("/s")
    sizes = [
        float(one.evaluate("one => getComputedStyle(one).fontSize")[:-2])
        for one in (page.locator(".figure"), small)
    ]
    assert sizes[1] < sizes[0]


def test_a_chart_shows_the_values_under_the_cursor(dashboard: Dashboard, tab: Tab) -> None:
    page = show_charts(tab)
    first, second = (page.get_by_role("group", name=f"Entries {number}") for number in (1, 2))
    expect(first.locator(".legend .at")).to_have_text("now")
    expect(first.locator("figcaption .at")).to_be_empty()
    expect(first.locator(".legend .value")).to_have_text(["159/s", "318/s"])
    box = first.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 1, box["y"] + 20)
    for one in (first, second):  # the cursor is at the same time in both
        expect(one.locator(".legend .value")).to_have_text(["100/s", "200/s"])
        expect(one.locator("figcaption .at")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
        expect(one.locator(".legend .at")).to_be_empty()
    page.mouse.move(0, 0)
    expect(second.locator(".legend .value")).to_have_text(["159/s", "318/s"])


def test_a_chart_without_its_newest_value_shows_the_last_one(
    dashboard: Dashboard, tab: Tab
) -> None:
    """The legend once said that there was no value, beside a line that had one."""
    page = show(
        tab,
        f"""{TIMES}
          const values = times.map((_, at) => (at < 40 || at > 55 ? null : 100 + at));
          const drawn = chart("late", {{ title: "Late", unit: "rate", times,
            series: [{{ name: "adds", values }}], range: [times[0], times.at(-1)] }});""",
    )
    figure = page.get_by_role("group", name="Late")
    expect(figure.locator(".legend .value")).to_have_text("155/s")
    expect(figure.locator(".legend .at")).to_have_text(re.compile(r"^at \d\d:\d\d:\d\d$"))
    expect(figure.locator("canvas")).to_be_visible()
    shaded = page.evaluate(
        """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
          const canvas = document.querySelector(".chart canvas");
          const pixel = (share) => {
            const { width, height } = canvas;
            const at = canvas.getContext("2d").getImageData(width * share, height / 4, 1, 1);
            return at.data[3];
          };
          done([pixel(0.4), pixel(0.88)]);
        })))"""
    )
    assert shaded[0] == 255, "the time before the first value looks like a value of zero"
    assert shaded[1] < 255


def test_a_chart_is_accessible_to_screen_readers_and_keyboards(
    dashboard: Dashboard, tab: Tab
) -> None:
    page = show_charts(tab)
    plot = page.get_by_role("img", name="Entries 1")
    words = plot.get_attribute("aria-label") or ""
    assert "added: last 159/s, from 100/s to 159/s, with a gap" in words
    plot.focus()
    page.keyboard.press("Home")
    figure = page.get_by_role("group", name="Entries 1")
    expect(figure.get_by_role("status")).to_contain_text("added 100/s, read 200/s")
    page.keyboard.press("ArrowRight")
    expect(figure.get_by_role("status")).to_contain_text("added 101/s, read 202/s")
    figure.get_by_text("Table").click()
    expect(figure.get_by_role("row")).to_have_count(61)
    expect(figure.get_by_role("row").nth(30)).to_contain_text("–")
    line = figure.get_by_role("button", name="read")
    line.click()
    expect(line).to_have_attribute("aria-pressed", "false")


def pixels(page: Page) -> list[bool]:
    """Return for each column of the first chart's area whether something other than a grid line is
    drawn in it."""
    found: list[bool] = page.evaluate(
        """() => {
          const canvas = document.querySelector(".chart canvas");
          const over = document.querySelector(".chart .u-over").getBoundingClientRect();
          const scale = canvas.width / canvas.getBoundingClientRect().width;
          const from = canvas.getBoundingClientRect();
          const image = canvas.getContext("2d").getImageData((over.left - from.left) * scale,
            (over.top - from.top) * scale, over.width * scale, over.height * scale);
          return Array.from({ length: image.width }, (_, x) => {
            let drawn = false;
            for (let y = 0; y < image.height; y += 1) {
              const at = 4 * (y * image.width + x);
              const [red, green, blue, alpha] = image.data.subarray(at, at + 4);
              drawn ||= alpha > 100 && Math.max(red, green, blue) - Math.min(red, green, blue) > 60;
            }
            return drawn;
          });
        }"""
    )
    return found


def test_a_gap_is_drawn_as_a_gap(dashboard: Dashboard, tab: Tab) -> None:
    page = show_charts(tab)
    drawn = pixels(page)
    assert drawn[len(drawn) // 4]
    assert drawn[3 * len(drawn) // 4]
    middle = drawn[round(len(drawn) * 30 / 59)]
    assert not middle, "a line was drawn through the gap"


@pytest.mark.long
def test_a_chart_follows_the_chosen_colours(dashboard: Dashboard, tab: Tab) -> None:
    """The button goes from the colours of the system over light to dark, and keeps the choice."""
    page = show_charts(tab)
    image = "document.querySelector('.chart canvas').toDataURL()"
    before = page.evaluate(image)
    button = page.get_by_role("button", name="Colours")
    button.click()
    button.click()
    assert "dark" in (button.get_attribute("aria-label") or "")
    page.wait_for_function(f"(before) => {image} !== before", arg=before)
    tab.open("")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_refresh_does_not_replace_the_chart(dashboard: Dashboard, tab: Tab) -> None:
    page = show_charts(tab)
    same = page.evaluate(
        f"""async () => {{ {IMPORTS} {TIMES}
          const before = document.querySelector(".chart");
          const values = times.map(() => 7);
          const after = chart("test1", {{ title: "Entries 1", unit: "rate", times,
            series: [{{ name: "added", values }}, {{ name: "read", values }}] }});
          const kept = before === after && after.querySelector(".value").textContent;
          forgetCharts();
          return kept;
        }}"""
    )
    assert same == "7.0/s"


def test_an_empty_list_shows_the_command_to_use(dashboard: Dashboard, tab: Tab) -> None:
    page = show(tab, 'const drawn = empty("No ledgers", "Write one.", "quire ledger write");')
    expect(page.get_by_text("No ledgers")).to_be_visible()
    expect(page.get_by_role("button", name="Copy the command quire ledger write")).to_be_visible()


@pytest.mark.parametrize("tab", [PHONE], indirect=True)
def test_the_menu_opens_and_closes_on_a_phone(dashboard: Dashboard, tab: Tab) -> None:
    tab.open("")
    page = tab.page
    menu = page.get_by_role("button", name="Pages")
    expect(page.get_by_role("navigation", name="Pages")).to_be_hidden()
    menu.click()
    expect(menu).to_have_attribute("aria-expanded", "true")
    page.get_by_role("link", name="Streams").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Streams")
    expect(menu).to_have_attribute("aria-expanded", "false")


def test_the_chart_library_has_a_named_version() -> None:
    """The file names its version, and its licence is beside it."""
    vendor = files("quire.http").joinpath("static", "vendor")
    first = vendor.joinpath("uPlot.iife.min.js").read_text(encoding="utf-8").splitlines()[0]
    assert "uPlot (v1.6.32)" in first
    assert "MIT License" in vendor.joinpath("uPlot.LICENSE.txt").read_text(encoding="utf-8")


CONTRAST = """(element) => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };
  const light = (colour) => {
    const [r, g, b] = rgb(colour).map((one) => one / 255)
      .map((one) => (one <= .03928 ? one / 12.92 : ((one + .055) / 1.055) ** 2.4));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const style = getComputedStyle(element);
  if (Number(style.opacity) !== 1) return 0;  // the colours are not those that are seen
  const [one, other] = [light(style.color), light(style.backgroundColor)].sort((a, b) => b - a);
  return (one + .05) / (other + .05);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_words_of_a_disabled_button_can_be_read(
    dashboard: Dashboard, tab: Tab, scheme: str
) -> None:
    """They had a contrast of 3.87, and 4.5 is the least for words of this size."""
    page = show(tab, """
      const drawn = ["", "primary", "danger"].map((kind) =>
        h("button", { type: "button", class: kind || null, disabled: true }, "Decommission"));
    """)  # fmt: skip
    page.evaluate(f"document.documentElement.dataset.theme = '{scheme}'")
    buttons = page.get_by_role("button", name="Decommission")
    expect(buttons).to_have_count(3)
    for button in buttons.all():
        assert button.evaluate(CONTRAST) >= 4.5


@pytest.mark.parametrize("tab", [PHONE], indirect=True, ids=["phone"])
def test_all_orders_of_a_table_are_seen_on_a_phone(dashboard: Dashboard, tab: Tab) -> None:
    """The row of the buttons had to be scrolled sideways, which nothing showed."""
    page = show(tab, """
      const words = ["Stream", "Records", "Size", "Records per second", "Lag", "Last write"];
      const columns = words.map((text) => ({ text, by: (one) => one[text] }));
      const rows = [Object.fromEntries(words.map((text) => [text, 1]))];
      const cells = (one) => words.map((text) => one[text]);
      const drawn = sortable("wide", "Streams", columns, rows, cells, { text: "Stream" });
    """)  # fmt: skip
    row = page.locator("thead tr")
    assert row.evaluate("one => one.scrollWidth - one.clientWidth") <= 0
    for button in row.get_by_role("button").all():
        box = button.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 390
        assert box["height"] >= 24, "it is large enough for a finger"


def test_an_unknown_address_is_no_page(dashboard: Dashboard, tab: Tab) -> None:
    """It showed the overview, so that nobody noticed that the address was wrong."""
    page = tab.page
    for path in ("ledgerz/7", "%E0%A4%A", "constructor"):
        tab.open(path)
        expect(page.get_by_role("heading", level=1)).to_have_text("No such page")
        expect(page.locator("#pages [aria-current]")).to_have_count(0)
        tab.check("unknown address")
    page.get_by_role("link", name="To the overview").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


@pytest.mark.parametrize("tab", [PHONE], indirect=True, ids=["phone"])
def test_the_only_value_of_a_row_has_no_label_on_a_phone(dashboard: Dashboard, tab: Tab) -> None:
    """Each text of several lines was after the word "Value", and aligned at the right."""
    page = show(tab, """
      const { table } = await import("/ui/parts/dom.js");
      const drawn = table("Metadata", [["Key", ""], ["Value", ""]], [["a", "long ".repeat(40)]],
        "rows pairs");
    """)  # fmt: skip
    cell = page.locator("tbody td")
    assert cell.evaluate("one => getComputedStyle(one, '::before').display") == "none"
    assert cell.locator(".cell").evaluate("one => getComputedStyle(one).textAlign") == "left"


@pytest.mark.parametrize("tab", [PHONE], indirect=True, ids=["phone"])
def test_a_number_that_is_a_link_is_large_enough_for_a_finger(
    dashboard: Dashboard, tab: Tab
) -> None:
    page = show(tab, """
      const { link, table } = await import("/ui/parts/dom.js");
      const drawn = table("Objects", [["Object", ""], ["Ledger", ""]],
        [["a", link("7", "ledger", [7])]]);
    """)  # fmt: skip
    box = page.get_by_role("link", name="7", exact=True).bounding_box()
    assert box is not None
    assert min(box["width"], box["height"]) >= 24
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
