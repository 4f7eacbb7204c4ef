//! Texts that users control are shown as texts, whatever they contain.

use serde_json::json;
use windlass_core::{Client, MemoryStore};
use windlass_server::Role;

use crate::site::Site;

/// Attempts to leave a text, an attribute, a comment or a script.
const ATTEMPTS: [&str; 5] = [
    "<script>window.hacked=1</script>",
    "\"><img src=x onerror=window.hacked=1>",
    "' onmouseover='window.hacked=1' autofocus onfocus='window.hacked=1",
    "</title></textarea></style><svg onload=window.hacked=1>",
    "javascript:window.hacked=1//{{constructor.constructor('window.hacked=1')()}}",
];

#[tokio::test(flavor = "multi_thread")]
async fn markup_of_users_is_shown_as_text() {
    let site = Site::with(Client::new(MemoryStore::new()).into_dyn(), |server| server).await;
    let mut paths = vec!["/".to_owned(), "/types".to_owned(), "/jobs".to_owned(), "/chains".to_owned()];
    for attempt in ATTEMPTS {
        // Keys, types, inputs, outputs and errors can be any text.
        let body = json!({"type": "mail", "key": attempt, "input": {attempt: [attempt]}});
        let chain = site.chain(body).await;
        site.post(&format!("/chains/{chain}/complete"), json!({"fail": attempt})).await;
        paths.extend([format!("/chains/{chain}"), format!("/jobs/{chain}")]);
        let body = json!({"type": "mail", "input": attempt});
        let chain = site.chain(body).await;
        site.post(&format!("/chains/{chain}/complete"), json!({"output": {attempt: attempt}})).await;
        paths.push(format!("/chains/{chain}"));
        let named = site.chain(json!({"type": attempt})).await;
        paths.push(format!("/chains/{named}"));
        let encoded: String = attempt.bytes().map(|byte| format!("%{byte:02X}")).collect();
        paths.extend([
            format!("/chains?key={encoded}"),
            format!("/jobs?type={encoded}"),
            format!("/jobs?status={encoded}"),
            format!("/jobs?created_from={encoded}"),
            format!("/jobs?after={encoded}"),
            format!("/find?q={encoded}"),
            format!("/chains/{encoded}"),
            format!("/schedules/{encoded}"),
            format!("/login?next={encoded}"),
            format!("/{encoded}"),
        ]);
    }
    let bulk = json!({"action": "retry", "filter": {"key": format!("{} other", ATTEMPTS[0])}});
    site.post("/bulk", bulk).await;
    paths.push("/bulk".to_owned());
    let browser = site.visit(Role::Admin, "/").await;
    for path in paths {
        browser.goto(&site.url(&path)).await;
        assert_eq!(browser.eval("window.hacked === undefined").await, true, "{path}");
        let foreign = "document.querySelectorAll('main img:not([src$=\"icon.svg\"]), main script, [onerror], [onload], \
                       [onfocus], [onmouseover], a[href^=\"javascript\"], main style').length";
        assert_eq!(browser.eval(foreign).await, 0, "{path}");
    }
    // The texts themselves are there.
    browser.goto(&site.url("/chains?status=failed")).await;
    let text = browser.text().await;
    for attempt in ATTEMPTS {
        assert!(text.contains(attempt), "{attempt}: {text}");
    }
    // A confirmation shows texts too, and a live update replaces parts of the page.
    browser.press("Retry all that match").await;
    browser.until_text("chains match.").await;
    browser.press("Keep as it is").await;
    let chain = site.chain(json!({"type": "mail", "key": format!("fresh {}", ATTEMPTS[1])})).await;
    site.post(&format!("/chains/{chain}/complete"), json!({"fail": ATTEMPTS[1]})).await;
    browser.until_text("fresh ").await;
    assert_eq!(browser.eval("window.hacked === undefined").await, true);
    browser.close().await;
}
