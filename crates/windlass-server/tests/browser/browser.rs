//! A browser, and the calls that the tests need.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::Method;
use fantoccini::error::NewSessionError;
use fantoccini::wd::{WebDriverCompatibleCommand, WindowHandle};
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use url::{ParseError, Url};
use windlass_testkit::{ChromeDriver, wait_until};

/// Timeout for anything that the page does by itself.
const LIMIT: Duration = Duration::from_secs(120);

/// A busy machine can take longer to start a browser than the driver waits.
const START_ATTEMPTS: u32 = 3;

/// One driver for all tests of the process.
async fn driver() -> &'static ChromeDriver {
    static DRIVER: OnceCell<ChromeDriver> = OnceCell::const_new();
    DRIVER.get_or_init(ChromeDriver::start).await
}

/// A browser with its own profile.
pub(crate) struct Browser {
    client: Client,
    /// The tab that was opened first. The driver lists tabs in no particular order.
    first: WindowHandle,
}

/// A command of the driver beyond the standard.
#[derive(Debug)]
struct Extension {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for Extension {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.path))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.body.to_string()))
    }
}

impl Browser {
    pub(crate) async fn open() -> Self {
        let mut attempts = 1;
        let client = loop {
            match Self::connect().await {
                Ok(client) => break client,
                Err(error) if attempts == START_ATTEMPTS => panic!("the browser did not start: {error}"),
                Err(_) => attempts += 1,
            }
        };
        let first = client.window().await.unwrap();
        let browser = Self { client, first };
        browser.size(1280, 900).await;
        browser
    }

    async fn connect() -> Result<Client, NewSessionError> {
        let driver = driver().await;
        let options = json!({"binary": driver.browser(), "args": driver.arguments()});
        let mut capabilities = serde_json::Map::new();
        capabilities.insert("goog:chromeOptions".to_owned(), options);
        capabilities.insert("goog:loggingPrefs".to_owned(), json!({"browser": "ALL"}));
        capabilities.insert("timeouts".to_owned(), json!({"script": LIMIT.as_millis()}));
        let mut client = ClientBuilder::new(HttpConnector::new());
        client.capabilities(capabilities).connect(&driver.url()).await
    }

    pub(crate) async fn goto(&self, url: &str) {
        self.client.goto(url).await.unwrap();
    }

    pub(crate) async fn path(&self) -> String {
        let url = self.client.current_url().await.unwrap();
        url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()))
    }

    /// Runs a command of the browser's own protocol.
    pub(crate) async fn command(&self, name: &str, parameters: Value) -> Value {
        let body = json!({"cmd": name, "params": parameters});
        self.client.issue_cmd(Extension { path: "goog/cdp/execute", body }).await.unwrap()
    }

    /// Evaluates an expression in the page.
    pub(crate) async fn eval(&self, expression: &str) -> Value {
        self.client.execute(&format!("return {expression};"), Vec::new()).await.unwrap()
    }

    /// Waits until an expression is true on a page that is loaded, so that its scripts run. A page that is just being
    /// replaced counts as not yet.
    pub(crate) async fn until(&self, expression: &str) {
        wait_until(expression, LIMIT, async || {
            let script = format!(
                "return document.readyState === 'complete' && Promise.resolve({expression}).then((value) => !!value);"
            );
            self.client.execute(&script, Vec::new()).await.is_ok_and(|value| value == json!(true))
        })
        .await;
    }

    /// Waits until the page contains a text.
    pub(crate) async fn until_text(&self, text: &str) {
        self.until(&format!("document.body?.innerText.includes({})", json!(text))).await;
    }

    pub(crate) async fn text(&self) -> String {
        self.eval("document.body.innerText").await.as_str().unwrap().to_owned()
    }

    pub(crate) async fn count(&self, selector: &str) -> u64 {
        self.eval(&format!("document.querySelectorAll({}).length", json!(selector))).await.as_u64().unwrap()
    }

    /// Clicks an element as a user does. The page may replace it between the search and the click.
    pub(crate) async fn click(&self, selector: &str) {
        wait_until(&format!("{selector} can be clicked"), LIMIT, async || {
            let Ok(found) = self.client.find(Locator::Css(selector)).await else { return false };
            found.click().await.is_ok()
        })
        .await;
    }

    /// Clicks a button by its text. The page may replace it in between, so the click is part of the script.
    pub(crate) async fn press(&self, text: &str) {
        let found = format!(
            "(() => {{ const found = [...document.querySelectorAll('main button, main a.button, dialog[open] button')]\
             .find((b) => b.textContent.trim() === {} && b.offsetParent !== null); found?.click(); return !!found; }})()",
            json!(text)
        );
        self.until(&found).await;
    }

    /// Types into a field, and submits its form with the Enter key.
    pub(crate) async fn enter(&self, selector: &str, text: &str) {
        let found = self.client.wait().at_most(LIMIT).for_element(Locator::Css(selector)).await.unwrap();
        found.clear().await.unwrap();
        found.send_keys(&format!("{text}\u{e007}")).await.unwrap();
    }

    /// Presses keys while nothing in particular has the focus.
    pub(crate) async fn keys(&self, keys: &str) {
        // In one script: a shortcut of two keys has a timeout.
        let script = "for (const key of arguments[0]) document.activeElement.dispatchEvent(\
                      new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));";
        self.client.execute(script, vec![json!(keys)]).await.unwrap();
    }

    pub(crate) async fn size(&self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.command("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Sets the colors that the system of the viewer prefers.
    pub(crate) async fn prefer(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.command("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// Returns a picture of the whole page.
    pub(crate) async fn picture(&self, width: u32) -> Vec<u8> {
        self.size(width, 400).await;
        let height =
            self.eval("document.documentElement.scrollHeight").await.as_u64().unwrap().clamp(400, 4_000);
        self.size(width, u32::try_from(height).unwrap()).await;
        self.client.screenshot().await.unwrap()
    }

    /// Opens another tab, and continues there.
    pub(crate) async fn new_tab(&self) {
        let tab = self.client.new_window(true).await.unwrap();
        self.client.switch_to_window(tab.handle).await.unwrap();
    }

    /// Continues in the tab that was opened first.
    pub(crate) async fn first_tab(&self) {
        self.client.switch_to_window(self.first.clone()).await.unwrap();
    }

    /// Continues in a tab that was not opened first.
    pub(crate) async fn other_tab(&self) {
        let tabs = self.client.windows().await.unwrap();
        let other = tabs.into_iter().find(|tab| *tab != self.first).unwrap();
        self.client.switch_to_window(other).await.unwrap();
    }

    /// Closes the tab that was opened first, and continues in another one.
    pub(crate) async fn close_first_tab(&self) {
        self.first_tab().await;
        self.client.close_window().await.unwrap();
        self.other_tab().await;
    }

    /// Checks that the pages did nothing that their policy forbids, that no script failed, and ends the browser.
    pub(crate) async fn close(self) {
        let log = Extension { path: "se/log", body: json!({"type": "browser"}) };
        let log = self.client.issue_cmd(log).await.unwrap();
        let bad: Vec<_> = log
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["message"].as_str().unwrap().to_owned())
            .filter(|text| {
                ["Content Security Policy", "Refused to", "Uncaught"].iter().any(|bad| text.contains(bad))
            })
            .collect();
        assert!(bad.is_empty(), "{bad:#?}");
        self.client.close().await.unwrap();
    }

    /// Returns the violations of the accessibility rules on the page, by rule. The page stops to update its parts, because
    /// a check of elements that are being replaced is not reliable.
    pub(crate) async fn accessibility(&self) -> BTreeMap<String, Value> {
        self.eval("(Element.prototype.replaceChildren = () => {}, 0)").await;
        // Through the driver, because the policy forbids a script of another source.
        self.client.execute(include_str!("axe-core/axe.min.js"), Vec::new()).await.unwrap();
        let script = "const done = arguments[arguments.length - 1]; \
                      axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']}) \
                      .then((found) => done(found.violations), (error) => done([{id: String(error), nodes: []}]));";
        let found = self.client.execute_async(script, Vec::new()).await.unwrap();
        let violation = |found: &Value| {
            let nodes = found["nodes"].as_array().unwrap().iter();
            let nodes: Vec<_> =
                nodes.take(4).map(|node| json!([node["html"], node["failureSummary"]])).collect();
            (found["id"].as_str().unwrap().to_owned(), json!(nodes))
        };
        found.as_array().unwrap().iter().map(violation).collect()
    }
}
