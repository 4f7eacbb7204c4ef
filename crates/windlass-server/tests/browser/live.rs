//! Pages that change by themselves.

use std::time::Duration;

use serde_json::json;
use windlass_core::{Client, MemoryStore};
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

const IS_LIVE: &str = "document.getElementById('live')?.dataset.live === 'live'";

/// The number of event streams, as the server counts them.
const STREAMS: &str =
    "fetch('/api/v1/overview').then((answer) => answer.json()).then(({ sampler }) => sampler.streams)";

/// The tab that holds the lock.
const LEADER: &str = "navigator.locks.query().then(({ held }) => held[0]?.clientId)";

#[tokio::test(flavor = "multi_thread")]
async fn tabs_share_one_stream() {
    let site = Site::new().await;
    site.fill().await;
    let browser = site.visit(Role::Read, "/").await;
    browser.until(IS_LIVE).await;
    // Browsers allow six connections per server.
    for _ in 0..7 {
        browser.new_tab().await;
        browser.goto(&site.url("/types")).await;
        browser.until(IS_LIVE).await;
        assert_eq!(browser.eval(STREAMS).await, 1, "only the first tab has a stream");
    }
    let held = browser.eval("navigator.locks.query().then((l) => [l.held.length, l.pending.length])").await;
    assert_eq!(held, json!([1, 7]));
    // Another tab takes over when the first one is closed.
    let leader = browser.eval(LEADER).await;
    browser.close_first_tab().await;
    browser.until(&format!("{LEADER}.then((leader) => leader && leader !== {leader})")).await;
    site.chain(json!({"type": "a-new-type"})).await;
    browser.until_text("a-new-type").await;
    browser.until(&format!("{STREAMS}.then((streams) => streams === 1)")).await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tab_takes_over_from_one_that_is_suspended() {
    let client = Client::new(MemoryStore::new()).into_dyn();
    let site = Site::with(client, |server| server.heartbeat(Duration::from_secs(1))).await;
    let browser = site.visit(Role::Read, "/types").await;
    browser.until(IS_LIVE).await;
    let leader = browser.eval(LEADER).await;
    browser.new_tab().await;
    browser.goto(&site.url("/types")).await;
    browser.until(IS_LIVE).await;
    browser.first_tab().await;
    browser.command("Page.setWebLifecycleState", json!({"state": "frozen"})).await;
    browser.other_tab().await;
    browser.until(&format!("{LEADER}.then((leader) => leader && leader !== {leader})")).await;
    site.chain(json!({"type": "while-it-slept"})).await;
    browser.until_text("while-it-slept").await;
    // The tab that was suspended follows again.
    browser.first_tab().await;
    browser.command("Page.setWebLifecycleState", json!({"state": "active"})).await;
    site.chain(json!({"type": "after-it-woke"})).await;
    browser.until_text("after-it-woke").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_no_tab_needs_is_dropped() {
    let site = Site::new().await;
    let chain = site.chain(json!({"type": "mail"})).await;
    let browser = site.visit(Role::Operate, "/types").await;
    browser.until(IS_LIVE).await;
    let note = "(window.EventSource = class extends EventSource { \
                  constructor(url) { super(url); window.latest = url; } \
                }, 0)";
    browser.eval(note).await;
    let (has_jobs, has_none) =
        ("window.latest?.includes('topic=jobs')", "!window.latest.includes('topic=jobs')");
    browser.new_tab().await;
    browser.goto(&site.url(&format!("/chains/{chain}"))).await;
    browser.until(IS_LIVE).await;
    browser.first_tab().await;
    browser.until(has_jobs).await;
    // A chain that has closed changes rarely. Its tab no longer needs the events of jobs.
    browser.other_tab().await;
    site.post(&format!("/chains/{chain}/cancel"), json!({})).await;
    browser.until("document.querySelector('h1 .state.cancelled')").await;
    browser.first_tab().await;
    browser.until(has_none).await;
    // The tab needs them again when the chain is retried there.
    browser.other_tab().await;
    browser.press("Retry").await;
    browser.click("#confirm-yes").await;
    browser.until("document.querySelector('h1 .state.pending')").await;
    browser.first_tab().await;
    browser.until(has_jobs).await;
    // And no tab needs them when it is left.
    browser.other_tab().await;
    browser.goto(&site.url("/types")).await;
    browser.first_tab().await;
    browser.until(has_none).await;
    browser.close().await;
}
