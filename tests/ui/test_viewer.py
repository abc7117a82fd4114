"""The pages of what is stored: entries, records, objects, datasets, state machines, and lists."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import quire
from quire.client.datasets.format import DatasetLedger
from quire.client.write.writer import LedgerWriter
from tests.support.processes.cli import Quire
from tests.support.processes.http import TOKEN
from tests.support.state_machines import Counter
from tests.support.ui.browser import expect
from tests.support.ui.dashboard import HOSTILE, Dashboard, Tab, Windows, line, open_lines

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SHOP = "/shop"
NUMBER = "12345678901234567890"
"""Too large for JavaScript's numbers."""
PAYLOADS = [
    f'{{"id": {NUMBER}, "tags": ["a", {{"b": 1e400}}, []], "text": "{"x" * 60}"}}'.encode(),
    HOSTILE.encode(),
    bytes(range(256)),
    "left \u202eright\u202c \x00\x1b[31m zero\u200bwidth".encode(),
    b"\xff\xfe not UTF-8",
    b"",
    b"long " * 20_000,
    b"[" * 3_000,
    b"h\0i\0" * 1_000,
]
PASSWORD = "open sesame"
WINDOWS = {
    "light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True},
}


@dataclass
class Stored:
    """The ledgers and streams that the tests look at."""

    payloads: int
    """A ledger with `PAYLOADS`."""
    many: int
    """A ledger with 50 entries."""
    locked: int
    """A ledger with a password."""
    unfinished: int
    """A ledger that nobody closed."""


@pytest.fixture(scope="module")
def stored(dashboard: Dashboard) -> Stored:
    # Playwright runs an event loop in this thread.
    with ThreadPoolExecutor(1) as other:
        return other.submit(lambda: asyncio.run(_fill(dashboard.cluster.uri))).result()


async def _ledger(client: quire.Client, entries: list[bytes], **options: Any) -> LedgerWriter:
    writer = await client.create_ledger(**options)
    assert isinstance(writer, LedgerWriter)
    for entry in entries:
        await writer.append(entry)
    return writer


async def _fill(uri: str) -> Stored:
    async with quire.connect(uri) as client:
        payloads = await _ledger(client, PAYLOADS)
        many = await _ledger(client, [b"entry %d" % number for number in range(50)])
        locked = await _ledger(client, [b"treasure"], password=PASSWORD.encode())
        for one in (payloads, many, locked):
            await one.close()
        unfinished = await _ledger(client, [b"one", b"two", b"three"])
        unfinished.abandon()
        async with client.namespace(SHOP, create=True) as shop:
            for first in (0, 30, 60):
                async with shop.open_writer("orders", create=True) as writer:
                    for number in range(first, first + 30):
                        await writer.append(b'{"order": %d}' % number)
            async with shop.open_reader("orders", follow=False) as reader:
                records = [record async for record in reader]
            await shop.subscription("orders", "billing").commit(records[69].position.next_slot())
            await shop.truncate("orders", records[10].position)
            await shop.create_stream("quiet")
        objects = client.objects()
        await objects.put("jobs/42/state", b"state" * 100, metadata={"by": HOSTILE})
        await objects.put(f"odd {HOSTILE}", b"x")
        part = DatasetLedger(many.ledger_id, 0, 49, 50, 400)
        await client.datasets.publish("flights", [part], txn=HOSTILE)
        async with client.state_machine(SHOP, "accounts", Counter(), create=True) as leader:
            for _ in range(4):
                await leader.execute(b"deposit")
            await leader.snapshot()
            await leader.execute(b"deposit")
        return Stored(payloads.ledger_id, many.ledger_id, locked.ledger_id, unfinished.ledger_id)


def pages(stored: Stored) -> dict[str, str]:
    """Name -> path."""
    return {
        "entries": f"ledger/{stored.payloads}/entries",
        "entry": f"ledger/{stored.payloads}/entries/0",
        "entries-locked": f"ledger/{stored.locked}/entries",
        "ledgers-filtered": "ledgers?state=CLOSED&owner=stream",
        "streams-shop": "streams/%2Fshop",
        "stream-shop": "stream/%2Fshop/orders",
        "records": "stream/%2Fshop/orders/records",
        "buckets": "objects",
        "objects": "objects/default",
        "object": "object/default/jobs%2F42%2Fstate",
        "datasets": "datasets",
        "dataset": "dataset/flights",
        "machines": "machines",
        "machine": "machine/shop%2Faccounts",
    }


@pytest.mark.parametrize(
    ("tab", "window"),
    [
        pytest.param(options, name, marks=pytest.mark.long if name != "light" else ())
        for name, options in WINDOWS.items()
    ],
    indirect=["tab"],
    ids=list(WINDOWS),
)
def test_every_viewer_page_passes_the_checks(stored: Stored, tab: Tab, window: str) -> None:
    """In one window each page is opened by its address, in the others by a move from another."""
    for name, path in pages(stored).items():
        asked = len(tab.seen.answers)
        (tab.open if window == "light" else tab.go)(path)
        tab.check(name)
        tab.picture(f"{name}-{window}")
        answers = tab.seen.of_pages(asked)
        # After a move, the last refresh of the page before may be among them.
        assert window != "light" or len(answers) == 1 or name == "ledgers-filtered", answers
    assert "hacked" not in tab.page.title()


# -- payloads ---------------------------------------------------------------------------------


def payload(page: Page, name: str) -> Any:
    return page.get_by_role("region", name=f"Payload of {name}", exact=True)


def test_entries_are_shown_as_text_json_and_hex(stored: Stored, tab: Tab) -> None:
    page = tab.page
    tab.open(f"ledger/{stored.payloads}/entries")
    open_lines(page)
    json_shown = payload(page, "entry 0")
    expect(json_shown).to_contain_text(
        f'"id": {NUMBER},\n  "tags": [\n    "a",\n    {{\n      "b": 1e400'
    )
    expect(payload(page, "entry 1")).to_have_text(HOSTILE)
    expect(payload(page, "entry 2")).to_contain_text("00000010  10 11 12 13")
    unseen = payload(page, "entry 3")
    expect(unseen).to_have_text("left U+202ErightU+202C NUL ESC[31m zeroU+200Bwidth")
    expect(unseen.locator(".unseen")).to_have_count(4)
    expect(page.locator(".item").filter(has_text="Entry 5")).to_contain_text("empty")
    expect(page.locator(".item").filter(has_text="Entry 6")).to_contain_text(
        "bytes 0 to 4,095 of 100,000"
    )
    expect(payload(page, "entry 7")).to_contain_text("[[[[")
    expect(payload(page, "entry 8")).to_contain_text("68 00 69 00")
    page.get_by_role("radio", name="Hex").check()
    expect(payload(page, "entry 1")).to_contain_text("3c 69 6d 67")
    page.get_by_role("radio", name="Text").check()
    expect(json_shown).to_contain_text(f'{{"id": {NUMBER}, "tags"')
    expect(page.locator(".item").filter(has_text="Entry 4")).to_contain_text("not valid UTF-8")
    expect(payload(page, "entry 8")).to_contain_text("hNULiNULhNUL")
    assert payload(page, "entry 8").locator(".unseen").count() < 1_000
    page.get_by_role("radio", name="JSON").check()
    expect(page.locator(".item").filter(has_text="Entry 1")).to_contain_text("not JSON")
    expect(json_shown).to_contain_text(f'"id": {NUMBER},\n')
    assert page.evaluate("document.querySelectorAll('main img').length") == 0
    page.get_by_role("radio", name="Auto").check()


@pytest.mark.long
def test_a_payload_is_expanded_with_the_keyboard(stored: Stored, tab: Tab) -> None:
    page, press = tab.page, tab.page.keyboard.press
    tab.open(f"ledger/{stored.payloads}/entries")
    lines = page.get_by_role("list", name="Entries of ledger").get_by_role("listitem")
    expect(lines).to_have_count(len(PAYLOADS))
    tall = [box["height"] for one in lines.all() if (box := one.bounding_box())]
    assert max(tall) < 40, tall
    expect(page.get_by_role("region", name=re.compile("Payload"))).to_have_count(0)
    expect(line(page, "Entry 1")).to_contain_text(HOSTILE)
    expect(line(page, "Entry 2")).to_contain_text("00 01 02 03")
    expect(line(page, "Entry 3")).to_contain_text("NUL ESC[31m")
    expect(line(page, "Entry 5")).to_contain_text("empty")
    line(page, "Entry 0").focus()
    press("Enter")
    expect(payload(page, "entry 0")).to_contain_text(f'"id": {NUMBER},')
    press("Tab")
    expect(page.get_by_role("link", name="Entry 0 and its copies")).to_be_focused()
    page.get_by_role("radio", name="Hex").check()
    expect(payload(page, "entry 0")).to_contain_text("7b 22 69 64")  # it stays open
    expect(line(page, "Entry 1")).to_contain_text("3c 69 6d 67")
    page.get_by_role("radio", name="Auto").check()
    line(page, "Entry 0").press("Space")
    expect(payload(page, "entry 0")).to_be_hidden()
    open_lines(page)
    expect(page.get_by_role("region", name=re.compile("Payload"))).to_have_count(len(PAYLOADS) - 1)
    page.get_by_role("button", name="Close all").click()
    expect(page.get_by_role("region", name=re.compile("Payload"))).to_have_count(0)
    assert "hacked" not in page.title()


def test_json_is_reformatted_without_changing_its_values(dashboard: Dashboard, tab: Tab) -> None:
    """Numbers, escapes and the order of keys stay as they are, and depth costs little."""
    tab.open("")
    texts = [
        '{"a":1e400,"a":-0.0,"b":"\\u0000\\"{[,:]}\\\\"}', "[]", '[{},[[]],"x"]', NUMBER,
        "[" * 20_000 + "]" * 20_000, '{"a" 1}', "", "nul",
    ]  # fmt: skip
    found = tab.page.evaluate(
        """async (texts) => {
          const { json } = await import("/ui/parts/payload.js");
          const bare = (text) => text.replace(/\\s/g, "");
          return texts.map(json).map((out, at) =>
            out === null ? null : [out.length, bare(out) === bare(texts[at])]);
        }""",
        texts,
    )
    assert [one and one[1] for one in found] == [True] * 5 + [None] * 3
    assert found[4][0] < 100 * len(texts[4])


def test_entries_are_paged_with_the_keyboard(stored: Stored, tab: Tab) -> None:
    page, press = tab.page, tab.page.keyboard.press
    tab.open(f"ledger/{stored.many}")
    page.get_by_role("link", name="Entries", exact=True).focus()
    press("Enter")
    expect(line(page, "Entry 19")).to_contain_text("entry 19")
    expect(line(page, "Entry 20")).to_have_count(0)
    above = page.get_by_role("navigation", name="Pages of entries, above")
    above.get_by_role("link", name="Next").focus()
    press("Enter")
    expect(line(page, "Entry 39")).to_contain_text("entry 39")
    above.get_by_role("link", name="Last").click()
    expect(line(page, "Entry 49")).to_contain_text("entry 49")
    expect(above.get_by_role("link", name="Next")).to_have_count(0)
    above.get_by_role("link", name="Previous").click()
    expect(line(page, "Entry 10")).to_contain_text("entry 10")
    field = page.get_by_label("From entry")
    field.fill("47")
    field.press("Enter")
    expect(line(page, "Entry 47")).to_contain_text("entry 47")
    page.go_back()
    expect(line(page, "Entry 10")).to_contain_text("entry 10")
    field = page.get_by_label("From entry")
    field.fill("999")
    field.press("Enter")
    expect(page.get_by_role("main")).to_contain_text("The last entry is 49")


def test_viewing_an_open_ledger_does_not_close_it(
    dashboard: Dashboard, stored: Stored, tab: Tab
) -> None:
    tab.open(f"ledger/{stored.unfinished}/entries")
    expect(line(tab.page, "Entry 0")).to_contain_text("one")
    expect(tab.page.get_by_role("main")).to_contain_text("is open: the entries")
    tab.go(f"ledger/{stored.unfinished}/entries/0")
    expect(tab.page.locator(".alert.good")).to_contain_text("All 3 copies are good")
    status, found = dashboard.get(f"/api/v1/quire/ledgers/{stored.unfinished}")
    assert (status, found["state"]) == (200, "OPEN")


def test_the_copies_of_an_entry_are_shown_when_a_bookie_is_lost(
    dashboard: Dashboard, stored: Stored, tab: Tab
) -> None:
    page = tab.page
    _, found = dashboard.get(f"/api/v1/quire/ledgers/{stored.many}")
    lost = found["segments"][0]["bookies"][0]
    bookie = next(one for one in dashboard.cluster.bookies if one.id == lost)
    tab.open(f"ledger/{stored.many}/entries/3")
    row = page.get_by_role("row").filter(has_text=lost)
    expect(row).to_contain_text("✓ good")
    other = page.get_by_role("link", name="Show this copy").first
    other.click()
    expect(payload(page, "entry 3")).to_have_text("entry 3")
    bookie.kill()
    try:
        tab.go(f"ledger/{stored.many}/entries/3")
        expect(page.locator(".alert.bad")).to_contain_text("2 of 3 copies are good")
        expect(row).to_contain_text("✗ does not answer")
        expect(payload(page, "entry 3")).to_have_text("entry 3")
        tab.go(f"ledger/{stored.many}/entries")
        expect(line(page, "Entry 3")).to_contain_text("entry 3")
        tab.go("ledgers")
        expect(page.get_by_role("row").filter(has_text="bookie gone").first).to_contain_text(lost)
    finally:
        bookie.start()


DAMAGED = {
    "what": "entry 1 of ledger 7 could not be read from any replica", "kind": "DigestError",
    "causes": {"b1:3181": f"the digest is wrong {HOSTILE}", "b2:3181": "no such entry"},
    "remedy": "Start the bookies", "status": 503, "outcome_known": True, "code": -5,
}  # fmt: skip


def test_a_damaged_entry_names_its_location(stored: Stored, tab: Tab) -> None:
    """Real damage is tested without a browser. This is how it looks."""
    page = tab.page
    good = {"bytes": 2, "offset": 0, "shown_bytes": 2, "payload": "b2s="}
    answers = {
        "entries": {"ledger_id": 7, "state": "CLOSED", "last_entry_id": 2, "next": None,
                    "stopped": "time", "locked": None, "entries": [
                        {"entry_id": 0, **good}, {"entry_id": 1, "error": DAMAGED}]},
        "1": {"ledger_id": 7, "entry_id": 1, "write_quorum": 2, "locked": None, "from": None,
              "verified": False, "copies": [
                  {"bookie": "b1:3181", "registered": "gone", "state": "damaged",
                   "detail": HOSTILE, "bytes": 2},
                  {"bookie": "b2:3181", "registered": "writable", "state": "new-state",
                   "detail": "", "bytes": None}]},
    }  # fmt: skip

    def fulfil(route: Any) -> None:
        name = route.request.url.rpartition("/")[2]
        body = dict(answers[name])
        if (route.request.post_data_json or {}).get("bookie"):
            body |= {"from": "b1:3181", **good}
        route.fulfill(json=body)

    page.route("**/api/v1/quire/ledgers/7/**", fulfil)
    tab.open("ledger/7/entries")
    item = page.locator(".item").filter(has_text="Entry 1")
    expect(item).to_contain_text(f"b1:3181: the digest is wrong {HOSTILE}")
    expect(item).to_contain_text("b2:3181: no such entry")
    expect(line(page, "Entry 0")).to_contain_text("ok")
    expect(page.get_by_role("main")).to_contain_text("bookies took longer than 10 s")
    item.get_by_role("link", name="Entry 1").click()
    expect(page.get_by_role("row").filter(has_text="b1:3181")).to_contain_text("✗ damaged")
    expect(page.get_by_role("main")).to_contain_text("No bookie sent a good copy")
    page.get_by_role("link", name="Show this copy").click()
    expect(page.locator(".alert.warn")).to_contain_text("may not be those that were written")
    expect(payload(page, "entry 1")).to_have_text("ok")


def test_a_long_entry_is_shown_in_parts(stored: Stored, tab: Tab) -> None:
    page = tab.page
    tab.open(f"ledger/{stored.payloads}/entries/6")
    expect(page.get_by_role("main")).to_contain_text("bytes 0 to 65,535 of 100,000")
    page.get_by_role("link", name="Next part").click()
    expect(page.get_by_role("main")).to_contain_text("bytes 65,536 to 99,999 of 100,000")
    expect(page.get_by_role("link", name="Next part")).to_have_count(0)
    page.get_by_role("link", name="First part").click()
    expect(page.get_by_role("main")).to_contain_text("bytes 0 to 65,535 of 100,000")


# -- permission -------------------------------------------------------------------------------


def test_a_ledger_with_a_password_asks_for_it(stored: Stored, tab: Tab) -> None:
    page = tab.page
    tab.open(f"ledger/{stored.locked}/entries")
    field = page.get_by_label("Password of the ledger")
    expect(page.get_by_role("main")).not_to_contain_text("treasure")
    field.fill("wrong")
    field.press("Enter")
    expect(page.locator(".alert.warn")).to_contain_text("is wrong")
    tab.seen.errors.clear()  # the browser reports the refused request
    field.fill(PASSWORD)
    field.press("Enter")
    expect(line(page, "Entry 0")).to_contain_text("treasure")
    line(page, "Entry 0").click()
    page.get_by_role("link", name="Entry 0").click()
    expect(payload(page, "entry 0")).to_have_text("treasure")
    assert "sesame" not in page.url
    assert not [one.url for one in tab.seen.answers if "sesame" in one.url or "wrong" in one.url]
    kept = page.evaluate("JSON.stringify({...sessionStorage, ...localStorage})")
    assert "sesame" not in kept
    page.reload()
    expect(page.get_by_label("Password of the ledger")).to_be_visible()


@pytest.fixture
def stranger(dashboard: Dashboard, windows: Windows) -> Iterator[Page]:
    """A page that does not know the token."""
    with windows.tab(dashboard.url) as opened:
        yield opened.page
        opened.seen.errors.clear()  # The browser names the refused requests.


def test_payloads_are_shown_only_with_the_token(
    dashboard: Dashboard, stored: Stored, stranger: Page
) -> None:
    """Although the other pages are shown without it."""
    stranger.goto(f"{dashboard.url}/#/ledger/{stored.many}")
    expect(stranger.get_by_role("region", name="Ensemble over time")).to_be_visible()
    stranger.get_by_role("link", name="Entries", exact=True).click()
    expect(stranger.get_by_role("alert")).to_contain_text("The token is missing or wrong")
    assert "entry 3" not in stranger.content()
    stranger.get_by_role("alert").get_by_label("Token").fill(TOKEN)
    stranger.get_by_role("alert").get_by_role("button").click()
    expect(line(stranger, "Entry 3")).to_contain_text("entry 3")


@pytest.mark.long
def test_a_server_without_payloads_is_marked(
    dashboard: Dashboard, stored: Stored, stranger: Page
) -> None:
    arguments = (*dashboard.cluster.token_arguments, "--http-no-payloads")
    with Quire(dashboard.cluster.uri).start("ui", "--http", "127.0.0.1:0", *arguments) as server:
        url = server.line()
        stranger.add_init_script(f"sessionStorage.setItem('quire.token', '{TOKEN}')")
        for path in (f"ledger/{stored.many}/entries", "stream/%2Fshop/orders/records",
                     "topic/%2Fshop/any/records"):  # fmt: skip
            stranger.goto("about:blank")
            stranger.goto(f"{url}/#/{path}")
            expect(stranger.get_by_role("alert")).to_contain_text("This server shows no payloads")
            expect(stranger.get_by_role("alert")).to_contain_text("--http-no-payloads")


# -- records ----------------------------------------------------------------------------------


def begin_at(page: Page, place: str, value: str = "") -> None:
    page.get_by_label("Begin at").select_option(label=place)
    if value:
        page.locator("#records-value").fill(value)
    page.get_by_role("button", name="Show", exact=True).click()


def orders(page: Page) -> list[int]:
    values = page.locator(".line .line-value")
    expect(values.first).to_be_visible()
    return [json.loads(text[text.index("{") :])["order"] for text in values.all_text_contents()]


def test_records_are_found_by_position_time_and_number(
    dashboard: Dashboard, stored: Stored, tab: Tab
) -> None:
    page = tab.page
    tab.open("stream/%2Fshop/orders")
    page.get_by_role("link", name="Records", exact=True).click()
    expect(line(page, "Position 1:10:0")).to_be_visible()
    assert orders(page) == list(range(10, 30))
    page.get_by_role("navigation", name="Pages of records, above").get_by_role(
        "link", name="Newer"
    ).click()
    expect(line(page, "Position 2:0:0")).to_be_visible()
    assert orders(page) == list(range(30, 50))
    page.get_by_role("navigation", name="Pages of records, above").get_by_role(
        "link", name="Older"
    ).click()
    expect(line(page, "Position 1:10:0")).to_be_visible()
    begin_at(page, "the newest records")
    expect(line(page, "Position 3:29:0")).to_be_visible()
    assert orders(page) == list(range(89, 69, -1))
    begin_at(page, "a position", "2:5:0")
    expect(line(page, "Position 2:5:0")).to_be_visible()
    assert orders(page)[0] == 35
    begin_at(page, "a sequence number", "61")
    expect(line(page, "Position 3:1:0")).to_be_visible()
    assert orders(page)[0] == 61
    txid = page.evaluate(
        """async (token) => {
          const answer = await fetch("/api/v1/quire/stream/records", { method: "POST",
            headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
            body: JSON.stringify({ namespace: "/shop", name: "orders", from: "3:4:0" }) });
          return (await answer.json()).items[0];
        }""",
        TOKEN,
    )
    begin_at(page, "a transaction id", str(txid["txid"]))
    expect(page.locator(".line").first).to_be_visible()
    assert 60 <= orders(page)[0] <= 64
    begin_at(page, "a time", "2020-01-01T00:00:00")
    expect(line(page, "Position 1:10:0")).to_be_visible()
    begin_at(page, "a time", "2099-01-01T00:00:00")
    expect(page.get_by_role("main")).to_contain_text("There are no records here")
    expect(page.get_by_label("Begin at")).to_have_value("time")
    begin_at(page, "a position", "1:0:0")
    expect(page.locator(".item .alert")).to_contain_text("were truncated")
    begin_at(page, "a position", HOSTILE)
    expect(page.get_by_role("alert")).to_contain_text("is not a place in a stream")
    tab.seen.errors.clear()
    assert "hacked" not in page.title()


# -- lists ------------------------------------------------------------------------------------


def ledger_ids(page: Page) -> list[str]:
    return page.locator("tbody th").all_inner_texts()


def test_ledgers_are_listed_newest_first_with_owner_and_replicas(
    dashboard: Dashboard, stored: Stored, tab: Tab
) -> None:
    page = tab.page
    tab.open("ledgers")
    wide = page.locator("main .scroll").evaluate("one => one.scrollWidth - one.clientWidth")
    assert wide <= 0, "the last column is not visible"
    ids = [int(text) for text in ledger_ids(page)]
    assert ids == sorted(ids, reverse=True)
    assert ids[0] == dashboard.large
    machine = page.get_by_role("row").filter(has_text="state machine /shop/accounts")
    expect(machine).to_contain_text("✓ complete")
    machine.get_by_role("link", name="state machine").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("State machine /shop/accounts")
    tab.go("ledgers")
    page.get_by_text("Filters").click()
    page.get_by_label("State", exact=True).select_option(label="open")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("link", name=str(stored.unfinished), exact=True)).to_be_visible()
    expect(page.get_by_role("link", name=str(stored.many), exact=True)).to_have_count(0)
    page.get_by_label("State", exact=True).select_option(label="any")
    page.get_by_label("Owner", exact=True).select_option(label="stream")
    page.get_by_label("Part of the owner's name").fill("shop/orders")
    page.get_by_label("Part of the owner's name").press("Enter")
    expect(page.get_by_role("link", name="stream orders").first).to_be_visible()
    assert len(ledger_ids(page)) == 3
    expect(page.get_by_role("main")).to_contain_text("which is all of them")
    page.get_by_role("link", name="Remove all").click()
    page.get_by_text("Filters").click()
    page.get_by_label("From id").fill(str(stored.many))
    page.get_by_label("To id").fill(str(stored.locked))
    page.get_by_label("Order").select_option(label="oldest first")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("row")).to_have_count(3)
    assert ledger_ids(page) == [str(stored.many), str(stored.locked)]
    page.get_by_role("button", name="Ledger", exact=True).click()
    page.get_by_role("button", name="Ledger", exact=True).click()
    assert ledger_ids(page) == [str(stored.locked), str(stored.many)]
    tab.go("ledgers?replication=lacking")
    expect(page.get_by_role("main")).to_contain_text("No ledgers match the filters")


def test_ledgers_are_paged(dashboard: Dashboard, stored: Stored, tab: Tab) -> None:
    page = tab.page
    page.add_init_script("")
    tab.open(f"ledgers?after={stored.many + 1}")
    assert ledger_ids(page)[0] == str(stored.many)
    page.get_by_role("link", name="Newest", exact=True).click()
    expect(page.get_by_role("link", name=str(dashboard.large), exact=True)).to_be_visible()


def test_streams_are_listed_with_size_lag_and_last_write(stored: Stored, tab: Tab) -> None:
    page = tab.page
    tab.open("streams/%2Fshop")
    row = page.get_by_role("row").filter(has_text="orders")
    expect(row).to_contain_text("20 records")
    expect(row).to_contain_text("billing")
    expect(row).to_contain_text("80")
    expect(row).to_contain_text(re.compile(r"\d+(\.\d+)?/s"))
    expect(page.get_by_role("row").filter(has_text="quiet")).to_contain_text("no subscription")
    page.get_by_role("button", name="Records", exact=True).click()
    expect(page.locator("tbody tr").first).to_contain_text("orders")
    page.get_by_label("Part of a name").fill("qui")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("link", name="orders", exact=True)).to_have_count(0)
    expect(page.get_by_role("link", name="quiet", exact=True)).to_be_visible()


def test_the_segments_of_a_stream_are_shown_on_a_timeline(stored: Stored, tab: Tab) -> None:
    page = tab.page
    tab.open("stream/%2Fshop/orders")
    drawn = page.locator(".timeline li a")
    expect(drawn).to_have_count(3)
    expect(drawn.nth(1)).to_have_accessible_name(
        re.compile("Segment 2, completed, 30 records, from")
    )
    boxes = [drawn.nth(at).bounding_box() for at in range(3)]
    left = [box["x"] for box in boxes if box is not None]
    assert left == sorted(left)
    expect(page.get_by_role("row").filter(has_text="billing")).to_contain_text("20")
    largest = page.locator(".tile").filter(has_text="Largest lag")
    expect(largest).to_contain_text("records, by billing")
    page.get_by_role("row").filter(has_text="2:0:0 to").get_by_role("link", name="records").click()
    expect(line(page, "Position 2:0:0")).to_contain_text('{"order": 30}')


def test_objects_are_listed_and_shown(stored: Stored, tab: Tab) -> None:
    page = tab.page
    tab.open("objects")
    page.get_by_role("link", name="default", exact=True).click()
    expect(page.get_by_role("link", name=f"odd {HOSTILE}")).to_be_visible()
    page.get_by_label("Beginning of an object's name").fill("jobs/")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("link", name=f"odd {HOSTILE}")).to_have_count(0)
    page.get_by_role("link", name="jobs/42/state").click()
    expect(page.get_by_role("cell", name=HOSTILE)).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text("500 bytes")
    expect(page.locator(".command code")).to_have_text("quire object get jobs/42/state -o FILE")
    page.get_by_role("link", name="Show its bytes").click()
    expect(line(page, "Entry 0")).to_contain_text("statestate")
    tab.open("object/default/nothing")
    expect(page.get_by_role("alert")).to_contain_text("does not exist in bucket")
    tab.seen.errors.clear()


def test_datasets_are_listed_and_shown(stored: Stored, tab: Tab) -> None:
    page = tab.page
    tab.open("datasets")
    page.get_by_label("Part of a dataset's name").fill("fli")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("link", name="flights").click()
    expect(page.get_by_role("rowheader", name=HOSTILE)).to_be_visible()
    page.get_by_role("link", name="0 to 49").click()
    expect(line(page, "Entry 0")).to_contain_text("entry 0")


def test_state_machines_are_listed_and_shown(stored: Stored, tab: Tab) -> None:
    page = tab.page
    tab.open("machines")
    page.get_by_role("link", name="accounts", exact=True).click()
    tile = page.locator(".tile")
    expect(tile.filter(has_text="Commands in the snapshot")).to_contain_text("4")
    expect(tile.filter(has_text="Commands since")).to_contain_text("1")
    page.get_by_role("link", name="Show the commands since the snapshot").click()
    expect(page.locator(".line .line-value")).to_contain_text("deposit")
