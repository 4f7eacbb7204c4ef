//! The table of cases and stores.

use std::fmt::Write;

use windlass_core::{Capabilities, Capability};

use crate::case::{Case, cases};

/// Returns a Markdown table of the cases by group, with a column for each store that shows whether the store runs the
/// case. The table follows from the capabilities; whether a store passes is checked by its tests.
#[must_use]
pub fn table(stores: &[(&str, Capabilities)]) -> String {
    let cases = cases();
    let mut text = String::new();
    for group in groups(&cases) {
        let cases: Vec<_> = cases.iter().filter(|case| self::group(case) == group).collect();
        let _ = writeln!(text, "\n## {group}\n");
        let names: Vec<_> = stores.iter().map(|(store, _)| *store).collect();
        let _ = writeln!(text, "| case | rule | sources | {} |", names.join(" | "));
        let _ = writeln!(text, "|---|---|---|{}", ":-:|".repeat(stores.len()));
        for case in cases {
            let _ = write!(text, "| `{}` | {} | {} |", case.id, case.name, case.sources.join(", "));
            for (_, capabilities) in stores {
                let shown = match missing(case, *capabilities) {
                    None => "yes".to_owned(),
                    Some(capability) => format!("lacks {capability:?}"),
                };
                let _ = write!(text, " {shown} |");
            }
            text.push('\n');
        }
    }
    text
}

/// Returns how many cases a store with these capabilities runs, and how many there are.
#[must_use]
pub fn coverage(capabilities: Capabilities) -> (usize, usize) {
    let cases = cases();
    let run = cases.iter().filter(|case| missing(case, capabilities).is_none()).count();
    (run, cases.len())
}

fn missing(case: &Case, capabilities: Capabilities) -> Option<Capability> {
    case.needs.iter().copied().find(|need| !capabilities.has(*need))
}

fn group(case: &Case) -> &'static str {
    case.id.split('.').next().unwrap_or(case.id)
}

/// Returns the groups in the order of their first cases.
fn groups(cases: &[Case]) -> Vec<&'static str> {
    let mut groups = Vec::new();
    for case in cases {
        if !groups.contains(&group(case)) {
            groups.push(group(case));
        }
    }
    groups
}
