//! The frame of all pages.

use maud::{DOCTYPE, Markup, html};

use super::Visit;
use super::asset;
use crate::api::Problem;
use crate::auth::{Kind, Role};

/// A page inside of the frame.
#[derive(Debug)]
pub(crate) struct Page {
    pub(super) title: String,
    pub(super) section: Section,
    pub(super) body: Markup,
    pub(super) refresh: Refresh,
    /// The chain that the page shows.
    pub(super) chain: Option<String>,
    /// Whether the page only reports a problem.
    pub(super) is_problem: bool,
}

/// The part of the navigation that a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Overview,
    Types,
    Jobs,
    Chains,
    Workers,
    Schedules,
    Bulk,
    None,
}

/// When a page fetches itself again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refresh {
    Never,
    /// After each sample: such a page costs the store nothing.
    Sample,
    /// After samples that differ, every few seconds.
    List,
    /// Every ten seconds.
    Slow,
    /// After an event of its chain.
    Chain,
    /// After progress of a bulk operation.
    Bulk,
}

impl Refresh {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Sample => "sample",
            Self::List => "list",
            Self::Slow => "slow",
            Self::Chain => "chain",
            Self::Bulk => "bulk",
        }
    }
}

/// Section, name, path and shortcut.
const NAVIGATION: [(Section, &str, &str, &str); 7] = [
    (Section::Overview, "Overview", "", "o"),
    (Section::Chains, "Chains", "/chains", "c"),
    (Section::Jobs, "Jobs", "/jobs", "j"),
    (Section::Types, "Types", "/types", "t"),
    (Section::Workers, "Workers", "/workers", "w"),
    (Section::Schedules, "Schedules", "/schedules", "s"),
    (Section::Bulk, "Bulk", "/bulk", "b"),
];

/// The visitor, as the frame shows them.
pub(super) struct Shell {
    base: String,
    name: String,
    role: Role,
    has_login: bool,
    searched: String,
    /// The time between two heartbeats of an event stream, in milliseconds.
    heartbeat_ms: u128,
}

impl Page {
    pub(super) fn new(title: impl Into<String>, section: Section, refresh: Refresh, body: Markup) -> Self {
        Self { title: title.into(), section, body, refresh, chain: None, is_problem: false }
    }
}

impl Shell {
    pub(super) fn of(visit: &Visit) -> Self {
        let name = visit.call.caller().map(|caller| caller.identity.name.clone()).unwrap_or_default();
        let has_login = matches!(visit.call.app.access.0, Kind::Tokens { .. });
        let searched = visit.pairs.get("key").unwrap_or_default().to_owned();
        let heartbeat_ms = visit.call.app.heartbeat.every.as_millis();
        Self { base: visit.base().to_owned(), name, role: visit.role(), has_login, searched, heartbeat_ms }
    }

    pub(super) fn render(&self, page: &Page) -> Markup {
        let base = self.base.as_str();
        let inner = html! {
            header class="top" {
                a class="brand" href=(home(base)) aria-label="Windlass" {
                    img src=(asset::path(base, "icon.svg")) alt="" width="28" height="28";
                    span { "Windlass" }
                }
                (self.navigation(page.section))
                div class="tools" {
                    form class="search" role="search" action={ (base) "/find" } method="get" {
                        label class="hidden" for="search" { "Find by id or key" }
                        input id="search" name="q" type="search" value=(self.searched) placeholder="Id or key"
                            autocomplete="off" spellcheck="false" maxlength="1024";
                        kbd aria-hidden="true" { "/" }
                    }
                    button id="live" class="live js" type="button" data-live="wait" title="Pause updates (p)" {
                        span class="dot" aria-hidden="true" {}
                        span class="word" { "connecting" }
                    }
                    button id="theme" class="icon js" type="button" aria-label="Change between light and dark"
                        title="Light or dark (d)" { span aria-hidden="true" { "◐" } }
                    button id="help-open" class="icon js" type="button" aria-label="Keyboard shortcuts"
                        title="Shortcuts (?)" { span aria-hidden="true" { "?" } }
                    (self.visitor())
                }
            }
            main id="main" tabindex="-1" { (page.body) }
            (confirmation())
            (help())
            div id="notice" role="status" aria-live="polite" {}
        };
        document(base, page, Some(self.heartbeat_ms), &inner)
    }

    fn navigation(&self, section: Section) -> Markup {
        html! {
            nav aria-label="Pages" {
                @for (known, name, path, shortcut) in NAVIGATION {
                    a href={ @if path.is_empty() { (home(&self.base)) } @else { (self.base) (path) } }
                        aria-current=[(known == section).then_some("page")] data-shortcut=(shortcut) { (name) }
                }
            }
        }
    }

    fn visitor(&self) -> Markup {
        html! {
            @if self.has_login {
                form class="visitor" action={ (self.base) "/logout" } method="post" {
                    span { (self.name) " " small { (self.role.as_str()) } }
                    button type="submit" title={ (self.name) ", " (self.role.as_str()) } { "Log out" }
                }
            }
        }
    }
}

/// Returns the address of the first page. A nested router has no slash at the end of its path.
pub(super) fn home(base: &str) -> &str {
    if base.is_empty() { "/" } else { base }
}

fn document(base: &str, page: &Page, heartbeat_ms: Option<u128>, inner: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="robots" content="noindex";
                title { (page.title) " · Windlass" }
                link rel="icon" type="image/svg+xml" href=(asset::path(base, "icon.svg"));
                link rel="stylesheet" href=(asset::path(base, "dashboard.css"));
                script src=(asset::path(base, "theme.js")) {}
                script type="module" src=(asset::path(base, "dashboard.js")) {}
            }
            body data-base=(base) data-refresh=(page.refresh.as_str()) data-chain=[page.chain.as_deref()]
                data-heartbeat=[heartbeat_ms] data-problem=[page.is_problem.then_some("")] {
                a class="skip" href="#main" { "Skip to content" }
                (inner)
            }
        }
    }
}

/// Returns a page without navigation, for visitors who are not known.
pub(super) fn bare(base: &str, page: &Page) -> Markup {
    let inner = html! {
        main id="main" class="bare" tabindex="-1" {
            p class="brand" {
                img src=(asset::path(base, "icon.svg")) alt="" width="28" height="28";
                "Windlass"
            }
            (page.body)
        }
    };
    document(base, page, None, &inner)
}

/// Returns a page that reports a problem.
pub(super) fn problem(problem: &Problem, base: &str) -> Page {
    let refresh = if problem.status().is_server_error() { Refresh::Slow } else { Refresh::Never };
    let body = html! {
        div id="content" data-part="" {
            div class="empty" {
                p class="code" { (problem.status().as_u16()) }
                h1 { (problem.title()) }
                p { (problem.detail()) }
                p { a href=(home(base)) { "Go to the overview" } }
            }
        }
    };
    Page { is_problem: true, ..Page::new(problem.title(), Section::None, refresh, body) }
}

fn confirmation() -> Markup {
    html! {
        dialog id="confirm" aria-labelledby="confirm-title" {
            form method="dialog" {
                h2 id="confirm-title" {}
                p id="confirm-text" {}
                p id="confirm-count" role="status" {}
                label id="confirm-option" class="check" hidden {
                    input type="checkbox" id="confirm-check";
                    span {}
                }
                p id="confirm-error" class="error-line" role="alert" {}
                div class="buttons" {
                    button type="submit" value="cancel" { "Keep as it is" }
                    button type="submit" value="confirm" class="primary" id="confirm-yes" { "Confirm" }
                }
            }
        }
    }
}

fn help() -> Markup {
    let keys = [
        ("/", "Search by id or key"),
        ("g, then o c j t w s b", "Go to Overview, Chains, Jobs, Types, Workers, Schedules, Bulk"),
        ("j, k", "Next, previous row"),
        ("Enter", "Open the row"),
        ("n", "Continue the list"),
        ("f", "Go to the filter"),
        ("p", "Pause or resume updates"),
        ("d", "Light or dark"),
        ("?", "This help"),
    ];
    html! {
        dialog id="help" aria-labelledby="help-title" {
            form method="dialog" {
                h2 id="help-title" { "Keyboard shortcuts" }
                dl class="keys" {
                    @for (key, what) in keys { dt { kbd { (key) } } dd { (what) } }
                }
                label class="check" {
                    input type="checkbox" id="shortcuts" checked autocomplete="off";
                    span { "Use keyboard shortcuts" }
                }
                div class="buttons" { button type="submit" class="primary" { "Close" } }
            }
        }
    }
}
