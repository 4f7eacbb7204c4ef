//! A chain as a drawn graph, as SVG.
//!
//! The jobs of the chain run down the middle, each continued by the next one. The chains that a job waits for are to its
//! left, and the jobs that wait for the chain are to the right of its end.

use maud::{Markup, html};

use super::part::{short, word};
use crate::api::excerpt::{ChainLine, Excerpt, JobLine, SIDE_MAX};
use crate::api::wire::State;

const NODE_WIDTH: f64 = 230.0;
const NODE_HEIGHT: f64 = 58.0;
const ROW: f64 = 86.0;
const COLUMN_GAP: f64 = 70.0;
const MARGIN: f64 = 8.0;

/// Characters of a type that fit into a node.
const TYPE_CHARS: usize = 26;

/// A box of the picture.
struct Node {
    x: f64,
    y: f64,
    href: Option<String>,
    title: String,
    state: Option<State>,
    note: String,
    is_own: bool,
}

/// A line between two boxes.
struct Edge {
    path: String,
    class: &'static str,
}

#[derive(Default)]
struct Picture {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
    rows: usize,
    /// Where the columns begin.
    middle: f64,
    right: f64,
}

/// Returns the picture of a chain.
pub(super) fn draw(base: &str, graph: &Excerpt) -> Markup {
    let picture = Picture::of(base, graph);
    let has_right = !graph.dependents.is_empty();
    let width = if has_right { picture.right } else { picture.middle } + NODE_WIDTH + MARGIN;
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let height = (picture.rows as f64 - 1.0) * ROW + NODE_HEIGHT + 2.0 * MARGIN;
    let name = format!(
        "Graph of the chain: {} jobs, waits for {} chains, {}{} jobs wait for it. The tables below have the same content.",
        graph.chain.latest.index + 1,
        graph.blockers.len(),
        if graph.has_more_dependents { "more than " } else { "" },
        graph.dependents.len()
    );
    html! {
        svg class="graph" viewBox={ "0 0 " (width) " " (height) } width=(width) height=(height) role="group"
            aria-label=(name) {
            defs {
                marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
                    orient="auto-start-reverse" { path d="M0 0L8 4L0 8Z" {} }
            }
            @for edge in &picture.edges {
                path class={ "edge " (edge.class) } d=(edge.path) marker-end="url(#arrow)" {}
            }
            @for node in &picture.nodes { (node.draw()) }
        }
    }
}

impl Picture {
    fn of(base: &str, graph: &Excerpt) -> Self {
        let has_blockers = graph.first.iter().chain(&graph.newest).any(|job| !job.blockers.is_empty());
        let middle = if has_blockers { MARGIN + NODE_WIDTH + COLUMN_GAP } else { MARGIN };
        let mut picture = Self { middle, right: middle + NODE_WIDTH + COLUMN_GAP, ..Self::default() };
        let mut above: Option<f64> = None;
        for shown in shown_jobs(graph) {
            let row = picture.rows;
            let y = top(row);
            match shown {
                Shown::Job(job) => {
                    picture.nodes.push(Node::of_job(base, job, middle, y, true));
                    let beside = picture.blockers(base, graph, job, row);
                    picture.rows = row + beside.max(1);
                }
                Shown::Between(count) => {
                    picture.nodes.push(Node::plain(middle, y, super::chain::between(count)));
                    picture.rows = row + 1;
                }
            }
            if let Some(above) = above {
                let x = middle + NODE_WIDTH / 2.0;
                let path = format!("M{x} {}L{x} {}", above + NODE_HEIGHT, y - 2.0);
                picture.edges.push(Edge { path, class: "next" });
            }
            above = Some(y);
        }
        if let Some(above) = above {
            picture.dependents(base, graph, above);
        }
        picture
    }

    /// Draws the chains that a job waits for. Returns the number of their rows.
    fn blockers(&mut self, base: &str, graph: &Excerpt, job: &JobLine, row: usize) -> usize {
        let shown = job.blockers.len().min(SIDE_MAX);
        let is_cut = shown < job.blockers.len();
        let job_y = top(row);
        for (index, blocker) in job.blockers.iter().take(SIDE_MAX).enumerate() {
            let y = top(row + index);
            let chain = graph.blockers.iter().find(|chain| chain.id == blocker.chain);
            self.nodes.push(match chain {
                Some(chain) => Node::of_chain(base, chain, MARGIN, y),
                None => Node::plain(MARGIN, y, format!("{}, not stored", short(&blocker.chain))),
            });
            let class = if blocker.resolved { "resolved" } else { "waits" };
            self.edges.push(side_edge((MARGIN + NODE_WIDTH, y), (self.middle, job_y), class));
        }
        if is_cut {
            let text = format!("{} more chains", job.blockers.len() - shown);
            self.nodes.push(Node::plain(MARGIN, top(row + shown), text));
        }
        shown + usize::from(is_cut)
    }

    /// Draws the jobs that wait for the chain, beside its latest job.
    fn dependents(&mut self, base: &str, graph: &Excerpt, latest_y: f64) {
        let row = self.nodes.iter().filter(|node| node.is_own).count().saturating_sub(1);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a row of the picture")]
        let row = row.max(((latest_y - MARGIN) / ROW).round() as usize);
        let own = graph.chain.id.to_string();
        for (index, job) in graph.dependents.iter().enumerate() {
            let y = top(row + index);
            self.nodes.push(Node::of_job(base, job, self.right, y, false));
            let is_resolved = job.blockers.iter().any(|blocker| blocker.chain == own && blocker.resolved);
            let class = if is_resolved { "resolved" } else { "waits" };
            self.edges.push(side_edge((self.middle + NODE_WIDTH, latest_y), (self.right, y), class));
        }
        let shown = graph.dependents.len();
        if graph.has_more_dependents {
            self.nodes.push(Node::plain(self.right, top(row + shown), "… more jobs".to_owned()));
        }
        self.rows = self.rows.max(row + shown + usize::from(graph.has_more_dependents));
    }
}

enum Shown<'a> {
    Job(&'a JobLine),
    Between(u32),
}

fn shown_jobs(graph: &Excerpt) -> impl Iterator<Item = Shown<'_>> {
    let between = (graph.between > 0).then_some(Shown::Between(graph.between));
    graph.first.iter().map(Shown::Job).chain(between).chain(graph.newest.iter().map(Shown::Job))
}

#[expect(clippy::cast_precision_loss, reason = "a small number")]
fn top(row: usize) -> f64 {
    MARGIN + row as f64 * ROW
}

/// Returns a curve from the right edge of one box to the left edge of another.
fn side_edge((x, y): (f64, f64), (to_x, to_y): (f64, f64), class: &'static str) -> Edge {
    let (from_y, to_y, to_x) = (y + NODE_HEIGHT / 2.0, to_y + NODE_HEIGHT / 2.0, to_x - 2.0);
    let half = f64::midpoint(x, to_x);
    Edge { path: format!("M{x} {from_y}C{half} {from_y} {half} {to_y} {to_x} {to_y}"), class }
}

impl Node {
    fn of_job(base: &str, job: &JobLine, x: f64, y: f64, is_own: bool) -> Self {
        let attempt = if job.attempt > 1 { format!(" · attempt {}", job.attempt) } else { String::new() };
        Self {
            x,
            y,
            href: Some(format!("{base}/jobs/{}", job.id)),
            title: job.job_type.clone(),
            state: Some(job.state),
            note: format!("{}{attempt}", short(&job.id)),
            is_own,
        }
    }

    fn of_chain(base: &str, chain: &ChainLine, x: f64, y: f64) -> Self {
        Self {
            x,
            y,
            href: Some(format!("{base}/chains/{}", chain.id)),
            title: chain.chain_type.clone(),
            state: Some(chain.state),
            note: short(&chain.id),
            is_own: false,
        }
    }

    const fn plain(x: f64, y: f64, title: String) -> Self {
        Self { x, y, href: None, title, state: None, note: String::new(), is_own: false }
    }

    fn draw(&self) -> Markup {
        let state = self.state.map(|state| word(&state)).unwrap_or_default();
        let own = if self.is_own { " own" } else { "" };
        let inner = html! {
            rect x=(self.x) y=(self.y) width=(NODE_WIDTH) height=(NODE_HEIGHT) rx="8" {}
            rect class="stripe" x=(self.x) y=(self.y + 8.0) width="4" height=(NODE_HEIGHT - 16.0) rx="2" {}
            text class="title" x=(self.x + 16.0) y=(self.y + 24.0) { (cut(&self.title)) }
            text class="note" x=(self.x + 16.0) y=(self.y + 43.0) {
                tspan class="word" { (state) } @if !state.is_empty() { "  " } (self.note)
            }
        };
        html! {
            @if let Some(href) = &self.href {
                a href=(href) class={ "node " (state) (own) } { (inner) }
            } @else {
                g class="node plain" { (inner) }
            }
        }
    }
}

fn cut(text: &str) -> String {
    if text.chars().count() <= TYPE_CHARS {
        return text.to_owned();
    }
    text.chars().take(TYPE_CHARS - 1).chain(['…']).collect()
}
