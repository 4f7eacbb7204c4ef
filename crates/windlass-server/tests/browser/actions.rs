//! Changes from the dashboard, with confirmation.

use serde_json::json;
use windlass_server::Role;

use crate::harness::until;
use crate::site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_job_is_retried_after_a_confirmation() {
    let site = Site::new().await;
    let chain = site.api.start_failed("mail").await;
    let browser = site.visit(Role::Operate, &format!("/chains/{chain}")).await;
    browser.until_text("it broke").await;
    browser.press("Retry").await;
    browser.until("document.getElementById('confirm').open").await;
    browser.press("Keep as it is").await;
    browser.until("!document.getElementById('confirm').open").await;
    assert_eq!(site.api.get(&format!("/chains/{chain}")).await.ok()["status"], "failed");
    browser.press("Retry").await;
    browser.click("#confirm-yes").await;
    // The page shows the new state by itself.
    browser.until("document.querySelector('h1 .state')?.innerText.includes('pending')").await;
    assert_eq!(site.api.get(&format!("/chains/{chain}")).await.ok()["status"], "pending");
    // A change that is refused says why, and the dialog stays.
    browser.press("Cancel").await;
    site.api.acquire("mail").await;
    browser.click("#confirm-yes").await;
    browser.until("document.getElementById('confirm-error').innerText.includes('running')").await;
    browser.press("Keep as it is").await;
    browser.until("document.querySelector('h1 .state.running')").await;
    browser.press("Cancel").await;
    browser.click("#confirm-check").await;
    browser.click("#confirm-yes").await;
    browser.until("document.querySelector('h1 .state.stopping')").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_chains_are_retried_with_progress() {
    let site = Site::new().await;
    for _ in 0..30 {
        site.api.start_failed("mail").await;
    }
    site.api.start_failed("other").await;
    let browser = site.visit(Role::Operate, "/chains?status=failed&type=mail&limit=50").await;
    assert_eq!(browser.count("table.rows tbody tr").await, 30);
    assert!(!browser.text().await.contains("Delete all"), "only administrators delete");
    browser.press("Retry all that match").await;
    browser.until_text("30 chains match.").await;
    browser.click("#confirm-yes").await;
    browser.until("location.pathname === '/bulk'").await;
    browser.until_text("30 changed, 0 skipped of 30 chains visited").await;
    browser.until("document.querySelector('.operations .state.completed')").await;
    until("the chains are retried", async || {
        let counts = site.api.get("/types?type=mail").await.ok();
        counts["types"][0]["pending"] == 30 && counts["types"][0]["failed"] == 0
    })
    .await;
    // Progress of an operation that someone else starts appears without a reload.
    site.api.start_failed("late").await;
    let started = json!({"action": "retry", "filter": {"types": ["late"]}});
    let token = &site.api.tokens[&Role::Operate];
    let script = format!(
        "fetch('/api/v1/bulk', {{method: 'POST', body: {}, headers: {{'content-type': 'application/json', \
         authorization: 'Bearer {token}'}}}}).then((r) => r.status)",
        json!(started.to_string())
    );
    browser.eval(&script).await;
    browser.until_text("types: late").await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_ends_early_cannot_be_confirmed() {
    let site = Site::new().await;
    site.api.start_failed("mail").await;
    let browser = site.visit(Role::Operate, "/chains?status=failed").await;
    for state in ["aborted", "failed"] {
        // The server answers that the count has ended early.
        let script = format!(
            "window.fetch = async (url) => url.endsWith('/bulk') ? new Response(JSON.stringify({{id: 'x', state: \
             '{state}', visited: 0, reason: null}})) : Promise.reject(new Error('away')), true"
        );
        browser.eval(&script).await;
        browser.press("Retry all that match").await;
        browser.until_text("The chains could not be counted").await;
        assert_eq!(browser.eval("document.getElementById('confirm-yes').disabled").await, true);
        browser.press("Keep as it is").await;
        browser.until("!document.getElementById('confirm').open").await;
    }
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn types_and_schedules_are_paused_and_resumed() {
    let site = Site::new().await;
    site.fill().await;
    let browser = site.visit(Role::Operate, "/types").await;
    let row =
        "[...document.querySelectorAll('table.rows tr')].find((row) => row.innerText.includes('resize'))";
    browser
        .until(&format!("({row}.querySelector('button').click(), document.getElementById('confirm').open)"))
        .await;
    browser.click("#confirm-yes").await;
    browser.until(&format!("{row}.innerText.includes('paused')")).await;
    browser.goto(&site.url("/schedules/poll")).await;
    browser.press("Resume").await;
    browser.click("#confirm-yes").await;
    browser.until("document.querySelector('h1 .state.active')").await;
    assert_eq!(site.api.get("/schedules/poll").await.ok()["state"], "active");
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_rights_sees_no_buttons_and_no_hidden_payloads() {
    let client = windlass_core::Client::new(windlass_core::MemoryStore::new()).into_dyn();
    let site = Site::with(client, |server| server.payloads_from(Role::Operate)).await;
    let sample = site.fill().await;
    let browser = site.visit(Role::Read, "/").await;
    let paths = [
        "/types".to_owned(),
        "/chains?status=failed".to_owned(),
        format!("/chains/{}", sample.failed),
        format!("/jobs/{}", sample.failed),
        "/schedules".to_owned(),
        "/schedules/nightly".to_owned(),
        "/bulk".to_owned(),
    ];
    for path in paths {
        browser.goto(&site.url(&path)).await;
        assert_eq!(browser.count("button.action").await, 0, "{path}");
        let html = browser.eval("document.documentElement.outerHTML").await;
        for secret in ["it broke", "the card has expired", "sales"] {
            assert!(!html.as_str().unwrap().contains(secret), "{path}: {secret}");
        }
    }
    // The API refuses what the page does not offer.
    let call = format!(
        "fetch('/api/v1/chains/{}/retry', {{method: 'POST', body: '{{}}', headers: {{'content-type': \
         'application/json'}}}}).then((r) => r.status)",
        sample.failed
    );
    assert_eq!(browser.eval(&call).await, 403);
    browser.close().await;
}
