//! Each page in light and dark, wide and narrow: accessibility rules, and pictures to look at.
//!
//! Set `WINDLASS_PICTURES` to a directory to keep the pictures.

use std::path::Path;

use windlass_server::Role;

use crate::browser::Browser;
use crate::site::{Sample, Site};

fn pages(sample: &Sample) -> Vec<(&'static str, String)> {
    vec![
        ("overview", "/".to_owned()),
        ("types", "/types".to_owned()),
        ("jobs", "/jobs".to_owned()),
        ("chains", "/chains?status=failed".to_owned()),
        ("chains-empty", "/chains?key=nothing".to_owned()),
        ("chain", format!("/chains/{}", sample.order)),
        ("chain-blocked", format!("/chains/{}", sample.blocked)),
        ("job", format!("/jobs/{}", sample.failed)),
        ("workers", "/workers".to_owned()),
        ("schedules", "/schedules".to_owned()),
        ("schedule", "/schedules/nightly".to_owned()),
        ("bulk", "/bulk".to_owned()),
        ("missing", "/nothing".to_owned()),
    ]
}

/// Keeps a picture, if someone wants to look at it.
async fn keep(browser: &Browser, name: &str, scheme: &str) {
    let Some(directory) = std::env::var_os("WINDLASS_PICTURES") else { return };
    for (width, kind) in [(1280, "wide"), (390, "narrow")] {
        let picture = browser.picture(width).await;
        std::fs::write(Path::new(&directory).join(format!("{name}-{scheme}-{kind}.png")), picture).unwrap();
    }
    browser.size(1280, 900).await;
}

async fn check(browser: &Browser, name: &str, scheme: &str, path: &str) {
    let found = browser.accessibility().await;
    assert!(found.is_empty(), "{path} in {scheme}: {found:#?}");
    let is_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth";
    browser.size(390, 800).await;
    assert_eq!(browser.eval(is_wide).await, false, "{path} is wider than a narrow screen");
    // The style sheet changes the same parts of all pages, so a few of them are enough.
    if scheme == "light" && ["overview", "chains", "chain", "job"].contains(&name) {
        let found = browser.accessibility().await;
        assert!(found.is_empty(), "{path} in {scheme}, narrow: {found:#?}");
    }
    browser.size(1280, 900).await;
    keep(browser, name, scheme).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_is_accessible_in_light_and_dark() {
    let site = Site::new().await;
    let sample = site.fill().await;
    let browser = Browser::open().await;
    browser.goto(&site.url("/")).await;
    browser.until("document.getElementById('token')").await;
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        check(&browser, "login", scheme, "/login").await;
    }
    site.log_in(&browser, Role::Admin).await;
    for (name, path) in pages(&sample) {
        browser.goto(&site.url(&path)).await;
        // The live marks of the page have settled.
        if name != "missing" {
            browser.until("document.getElementById('live').dataset.live === 'live'").await;
        }
        for scheme in ["light", "dark"] {
            browser.prefer(scheme).await;
            check(&browser, name, scheme, &path).await;
        }
    }
    browser.goto(&site.url("/chains?status=failed")).await;
    browser.keys("?").await;
    browser.until("document.getElementById('help').open").await;
    check(&browser, "help", "dark", "the help").await;
    browser.press("Close").await;
    browser.press("Retry all that match").await;
    browser.until_text("chains match.").await;
    check(&browser, "confirm", "dark", "the confirmation").await;
    browser.close().await;
}
