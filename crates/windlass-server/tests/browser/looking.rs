//! Looking things up: login, search, filters, the graph, shortcuts, and all of it without scripts.

use serde_json::json;
use windlass_server::Role;

use crate::browser::Browser;
use crate::site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn a_visitor_logs_in_and_returns_to_the_wanted_page() {
    let site = Site::new().await;
    site.fill().await;
    let browser = Browser::open().await;
    browser.goto(&site.url("/chains?status=failed&type=refund")).await;
    browser.until("document.getElementById('token')").await;
    browser.enter("#token", "wl_wrong").await;
    browser.until_text("the token is not valid").await;
    site.log_in(&browser, Role::Operate).await;
    assert_eq!(browser.path().await, "/chains?status=failed&type=refund");
    assert_eq!(browser.count("table.rows tbody tr").await, 5);
    // The page knows its filters again.
    assert_eq!(browser.eval("document.getElementById('status').value").await, "failed");
    browser.click(".visitor button").await;
    browser.until("document.getElementById('token')").await;
    browser.goto(&site.url("/jobs")).await;
    browser.until("document.getElementById('token')").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_found_by_id_key_state_type_and_time() {
    let site = Site::new().await;
    let sample = site.fill().await;
    let browser = site.visit(Role::Read, "/").await;
    browser.enter("#search", &sample.order).await;
    browser.until(&format!("location.pathname === '/chains/{}'", sample.order)).await;
    browser.keys("/").await;
    browser.until("document.activeElement.id === 'search'").await;
    browser.enter("#search", "return-7").await;
    browser.until("location.search === '?key=return-7'").await;
    assert_eq!(browser.count("table.rows tbody tr").await, 1);
    browser.enter("#search", "return").await;
    browser.until_text("No chains match this filter").await;
    browser.goto(&site.url("/jobs")).await;
    browser.eval("(document.getElementById('status').value = 'failed', document.getElementById('within').value = '1h', 0)").await;
    browser.enter("#type", "refund").await;
    browser.until("location.search === '?status=failed&type=refund&within=1h'").await;
    assert_eq!(browser.count("table.rows tbody tr").await, 5);
    // A list continues behind its first page.
    browser.goto(&site.url("/jobs?limit=10")).await;
    let first = browser.eval("document.querySelector('table.rows a').href").await;
    browser.keys("n").await;
    browser.until("location.search.includes('after=')").await;
    assert_ne!(browser.eval("document.querySelector('table.rows a').href").await, first);
    browser.press("First page").await;
    browser.until("!location.search.includes('after=')").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_is_drawn_with_its_neighbors() {
    let site = Site::new().await;
    let sample = site.fill().await;
    let browser = site.visit(Role::Read, &format!("/chains/{}", sample.order)).await;
    // Two own jobs, and one job of another chain that waits for this one.
    assert_eq!(browser.count("svg.graph a.node.own").await, 2);
    assert_eq!(browser.count("svg.graph a.node").await, 3);
    assert_eq!(browser.count("svg.graph .edge.next").await, 1);
    assert_eq!(browser.count("svg.graph .edge.waits").await, 1);
    browser.goto(&site.url(&format!("/chains/{}", sample.blocked))).await;
    assert_eq!(browser.count("svg.graph .edge.waits").await, 2);
    assert_eq!(browser.count("svg.graph .edge.resolved").await, 1);
    browser.until_text("it waits for chain").await;
    // A node leads to its chain.
    browser.click("svg.graph a.node.completed").await;
    browser.until("document.querySelector('h1')?.innerText.includes('print-label')").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_lead_through_the_pages() {
    let site = Site::new().await;
    site.fill().await;
    let browser = site.visit(Role::Read, "/").await;
    browser.keys("gj").await;
    browser.until("location.pathname === '/jobs'").await;
    browser.keys("jj").await;
    browser.until("document.activeElement.closest('tr')?.rowIndex === 2").await;
    browser.keys("k").await;
    browser.until("document.activeElement.closest('tr')?.rowIndex === 1").await;
    browser.keys("d").await;
    let theme = browser.eval("document.documentElement.dataset.theme").await;
    browser.keys("gw").await;
    browser.until("location.pathname === '/workers'").await;
    assert_eq!(browser.eval("document.documentElement.dataset.theme").await, theme, "the choice is kept");
    // One can do without shortcuts, on all pages.
    browser.keys("?").await;
    browser.until("document.getElementById('help').open").await;
    browser.click("#shortcuts").await;
    browser.press("Close").await;
    browser.keys("gj?").await;
    assert_eq!(browser.eval("document.getElementById('help').open").await, false);
    browser.goto(&site.url("/types")).await;
    browser.keys("gw").await;
    browser.keys("?").await;
    assert_eq!(browser.eval("document.getElementById('help').open").await, false);
    assert_eq!(browser.path().await, "/types");
    browser.click("#help-open").await;
    assert_eq!(browser.eval("document.getElementById('shortcuts').checked").await, false);
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_without_a_field_stay_when_the_form_is_sent() {
    let site = Site::new().await;
    site.fill().await;
    let browser = site.visit(Role::Read, "/chains?status=failed&status=cancelled&top_level=true").await;
    assert_eq!(browser.count("table.rows tbody tr").await, 6);
    browser.enter("#type", "pack").await;
    browser.until("location.search === '?type=pack&status=failed&status=cancelled&top_level=true'").await;
    assert_eq!(browser.count("table.rows tbody tr").await, 1);
    assert_eq!(browser.count(".chip").await, 3);
    browser.click(".chip[href*='status=cancelled']:not([href*='status=failed'])").await;
    browser.until("location.search === '?type=pack&status=cancelled&top_level=true'").await;
    assert_eq!(browser.eval("document.getElementById('status').value").await, "cancelled");
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn times_are_shown_in_the_zone_of_the_viewer() {
    let site = Site::new().await;
    let sample = site.fill().await;
    let browser = Browser::open().await;
    browser.command("Emulation.setTimezoneOverride", json!({"timezoneId": "Asia/Kathmandu"})).await;
    browser.goto(&site.url("/")).await;
    site.log_in(&browser, Role::Read).await;
    browser.goto(&site.url(&format!("/jobs/{}", sample.failed))).await;
    let shown = "document.querySelector('.timeline time')";
    browser.until(&format!("!{shown}.textContent.includes('UTC')")).await;
    let expected = format!(
        "{shown}.textContent === new Date({shown}.dateTime).toLocaleString(undefined, \
         {{dateStyle: 'medium', timeStyle: 'medium', timeZone: 'Asia/Kathmandu'}})"
    );
    assert_eq!(browser.eval(&expected).await, true);
    // The filter takes times of the viewer, and the address has UTC.
    browser.goto(&site.url("/jobs?created_from=2026-01-01T00:00:00Z")).await;
    assert_eq!(browser.eval("document.getElementById('created_from').value").await, "2026-01-01T05:45");
    browser.press("Apply").await;
    // A page that is left before it is complete may get no entry in the history.
    let is_complete = "document.readyState === 'complete'";
    let search = "location.search === '?created_from=2026-01-01T00%3A00%3A00Z'";
    browser.until(&format!("{search} && {is_complete}")).await;
    // A browser may restore the fields of a page that it shows again.
    browser.goto(&site.url("/types")).await;
    browser.eval("(history.back(), 0)").await;
    browser.until(&format!("location.pathname.endsWith('/jobs') && {is_complete}")).await;
    assert_eq!(browser.eval("document.getElementById('created_from').value").await, "2026-01-01T05:45");
    // Times outside of texts, too.
    browser.goto(&site.url("/schedules")).await;
    let run = "document.querySelector('.dots .run')";
    browser.until(&format!("{run}.title.includes('GMT+5:45') && {run}.ariaLabel === {run}.title")).await;
    let later = site.chain(json!({"type": "later", "delay_ms": 3_600_000})).await;
    browser.goto(&site.url(&format!("/chains/{later}"))).await;
    browser.until("!document.querySelector('.warning time').textContent.includes('UTC')").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_can_be_looked_up_without_scripts() {
    let site = Site::new().await;
    let sample = site.fill().await;
    let browser = Browser::open().await;
    browser.command("Emulation.setScriptExecutionDisabled", json!({"value": true})).await;
    browser.goto(&site.url("/")).await;
    site.log_in(&browser, Role::Admin).await;
    for (path, text) in [
        ("/".to_owned(), "Busiest types"),
        ("/types".to_owned(), "refund"),
        ("/jobs?status=failed".to_owned(), "the card has expired"),
        (format!("/chains/{}", sample.order), "await-approval"),
        (format!("/jobs/{}", sample.failed), "it broke"),
        ("/schedules/nightly".to_owned(), "Next runs"),
        ("/bulk".to_owned(), "No bulk operation"),
    ] {
        browser.goto(&site.url(&path)).await;
        let shown = browser.text().await;
        assert!(
            shown.contains(text)
                && shown.contains("UTC") != ["/", "/types", "/bulk"].contains(&path.as_str()),
            "{path}: {shown}"
        );
        let buttons = "[...document.querySelectorAll('.js')].filter((e) => e.offsetParent !== null).length";
        assert_eq!(browser.eval(buttons).await, 0, "{path}: buttons that need a script are not shown");
    }
    browser.close().await;
}
