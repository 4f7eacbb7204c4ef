//! Pages that change by themselves.

use serde_json::json;
use windlass_server::Role;

use crate::site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn pages_follow_the_store_without_a_reload() {
    let site = Site::new().await;
    site.fill().await;
    let browser = site.visit(Role::Read, "/").await;
    browser.eval("(window.untouched = true, 0)").await;
    let pending = "Number(document.querySelector('.tile.pending .value').innerText)";
    browser.until("document.querySelector('.plot svg')").await;
    let before = browser.eval(pending).await.as_u64().unwrap();
    site.chain(json!({"type": "mail"})).await;
    browser.until(&format!("{pending} === {}", before + 1)).await;
    assert_eq!(browser.eval("window.untouched").await, true, "the page was not loaded again");
    // A pause holds the page as it is.
    browser.keys("p").await;
    browser.until("document.getElementById('live').dataset.live === 'paused'").await;
    site.chain(json!({"type": "mail"})).await;
    // A second tab shows the change, so the first one has received it, too.
    browser.new_tab().await;
    browser.goto(&site.url("/")).await;
    browser.until(&format!("{pending} === {}", before + 2)).await;
    browser.first_tab().await;
    assert_eq!(browser.eval(pending).await, before + 1);
    browser.keys("p").await;
    browser.until(&format!("{pending} === {}", before + 2)).await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_page_ignores_an_answer_on_its_way() {
    let site = Site::new().await;
    let browser = site.visit(Role::Read, "/").await;
    // Holds the first answer that shows the new type.
    let hold = "(window.fetch = ((real) => async (...call) => { \
                  const answer = await real(...call); \
                  const text = await answer.text(); \
                  if (!window.release && text.includes('held-back')) \
                    await new Promise((pass) => (window.release = pass)); \
                  return new Response(text); \
                })(window.fetch), 0)";
    browser.eval(hold).await;
    site.chain(json!({"type": "held-back"})).await;
    browser.until("window.release").await;
    browser.keys("p").await;
    let release = "new Promise((done) => { window.release(); setTimeout(done, 500); })";
    browser.eval(release).await;
    assert!(!browser.text().await.contains("held-back"), "a paused page changed");
    browser.keys("p").await;
    browser.until_text("held-back").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_shows_its_live_state() {
    let site = Site::new().await;
    let chain = site.chain(json!({"type": "mail", "input": 1})).await;
    let browser = site.visit(Role::Read, &format!("/chains/{chain}")).await;
    browser.until("document.querySelector('svg.graph .node.pending')").await;
    site.api.acquire("mail").await;
    browser.until("document.querySelector('svg.graph .node.running')").await;
    site.post(&format!("/chains/{chain}/cancel"), json!({"running": true})).await;
    browser.until("document.querySelector('svg.graph .node.stopping')").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tabs_share_one_stream() {
    let mut opened = 0;
    let site = Site::new().await;
    site.fill().await;
    let browser = site.visit(Role::Read, "/").await;
    let is_live = "document.getElementById('live')?.dataset.live === 'live'";
    browser.until(is_live).await;
    let sources = "performance.getEntriesByType('resource').filter((e) => e.name.includes('/events')).length";
    for _ in 0..7 {
        browser.new_tab().await;
        browser.goto(&site.url("/types")).await;
        browser.until(is_live).await;
        opened += browser.eval(sources).await.as_u64().unwrap();
    }
    assert_eq!(opened, 0, "only the first tab has a stream");
    let held = browser.eval("navigator.locks.query().then((l) => [l.held.length, l.pending.length])").await;
    assert_eq!(held, json!([1, 7]));
    // Another tab takes over when the first one is closed.
    let leader = browser.eval("navigator.locks.query().then((l) => l.held[0].clientId)").await;
    browser.close_first_tab().await;
    let taken = "navigator.locks.query().then((l) => l.held.length === 1 && l.held[0].clientId !== ";
    browser.until(&format!("{taken}{leader})")).await;
    site.chain(json!({"type": "a-new-type"})).await;
    browser.until_text("a-new-type").await;
    browser.close().await;
}
