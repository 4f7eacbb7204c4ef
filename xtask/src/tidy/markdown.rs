//! Rules for Markdown: one title per page, a header above the rows of each table, and no broken relative links.
//!
//! The parser reads line by line and supports only the Markdown that this repository uses. It does not find links that
//! span two lines.

/// Returns all violations on a page, by line.
pub(super) fn check(text: &str, resolves: impl Fn(&str) -> bool) -> Vec<(usize, String)> {
    let prose = prose(text);
    let mut complaints = Vec::new();
    let titles: Vec<usize> = titles(&prose);
    match titles.as_slice() {
        [] => complaints.push((1, "the page has no title (`# …`)".to_owned())),
        [_title] => {}
        [_title, others @ ..] => {
            complaints.extend(others.iter().map(|&line| (line, "a second title (`# …`)".to_owned())));
        }
    }
    for line in rows_without_header(&prose) {
        complaints.push((line, "a table row without a header above it is shown as text".to_owned()));
    }
    for (number, line) in &prose {
        for link in links(line) {
            if let Some(target) = relative(link)
                && !resolves(target)
            {
                complaints.push((*number, format!("the link to `{target}` leads nowhere")));
            }
        }
    }
    complaints
}

/// Returns the numbered lines outside fenced code blocks.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fence = None;
    let mut prose = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let start = line.trim_start();
        match fence {
            None => match opening_fence(start) {
                Some(opening) => fence = Some(opening),
                None => prose.push((number, line)),
            },
            Some(opening) => {
                // A closing fence has at least as many marks as the opening one, and nothing else.
                if start.starts_with(opening) && start.trim_end().trim_start_matches(mark(opening)).is_empty()
                {
                    fence = None;
                }
            }
        }
    }
    prose
}

fn opening_fence(line: &str) -> Option<&str> {
    let marks = line.len() - line.trim_start_matches(mark(line)).len();
    (marks >= 3 && (line.starts_with('`') || line.starts_with('~'))).then(|| line.get(..marks))?
}

fn mark(fence: &str) -> char {
    fence.chars().next().unwrap_or('`')
}

/// Returns the line numbers of level-1 titles: `# Title`, or a line underlined with `===`.
fn titles(prose: &[(usize, &str)]) -> Vec<usize> {
    let mut titles = Vec::new();
    let mut above = "";
    for &(number, line) in prose {
        let underline = !line.is_empty() && line.trim_end().chars().all(|c| c == '=');
        if line == "#" || line.starts_with("# ") || underline && !above.trim().is_empty() {
            titles.push(number);
        }
        above = line;
    }
    titles
}

/// Returns the line numbers of table rows that belong to no table: a table begins with a header and a delimiter row
/// (`|---|`), and ends at a line that is not a row.
fn rows_without_header(prose: &[(usize, &str)]) -> Vec<usize> {
    let is_row = |&(_, line): &(usize, &str)| line.trim_start().starts_with('|');
    let tables = prose.chunk_by(|above, below| is_row(above) && is_row(below) && above.0 + 1 == below.0);
    let is_headless = |rows: &&[(usize, &str)]| !rows.get(1).is_some_and(|(_, line)| is_delimiter(line));
    let rows = tables.filter(|rows| rows.first().is_some_and(is_row)).filter(is_headless).flatten();
    rows.map(|(number, _)| *number).collect()
}

fn is_delimiter(row: &str) -> bool {
    row.contains('-') && row.chars().all(|c| "|:- ".contains(c))
}

/// Returns the targets of inline links and images, or of a link definition.
fn links(line: &str) -> Vec<&str> {
    if let Some(definition) = line.trim_start().strip_prefix('[')
        && !definition.starts_with('^')
        && let Some((_, target)) = definition.split_once("]: ")
    {
        return target.split_whitespace().take(1).collect();
    }
    // Text between backticks is code: skip every second piece.
    line.split('`').step_by(2).flat_map(inline_links).collect::<Vec<_>>()
}

fn inline_links(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("](").filter_map(|(at, mark)| {
        let rest = text.get(at + mark.len()..)?;
        let mut depth = 1;
        let end = rest.find(|c| {
            depth += match c {
                '(' => 1,
                ')' => -1,
                _ => 0,
            };
            depth == 0
        })?;
        // A title may follow the target: `[text](target "title")`.
        rest.get(..end)?.split_whitespace().next()
    })
}

/// Returns the path of a link to a file, or `None` for URLs, anchors on the same page and Rust items.
fn relative(link: &str) -> Option<&str> {
    let link = link.trim_start_matches('<').trim_end_matches('>');
    let path = link.split(['#', '?']).next()?;
    let elsewhere = path.contains("://") || path.starts_with("mailto:") || path.contains("::");
    (!path.is_empty() && !elsewhere).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only `there.md` and `a(b).md` exist.
    fn complaints(text: &str) -> Vec<(usize, String)> {
        check(text, |link| link == "there.md" || link == "a(b).md")
    }

    fn complaints_of_links(line: &str) -> Vec<String> {
        complaints(&format!("# Title\n\n{line}\n")).into_iter().map(|(_, message)| message).collect()
    }

    #[test]
    fn a_page_has_one_title() {
        assert_eq!(complaints("# One\n\n## Two\n\n#hashtag\n"), []);
        assert_eq!(complaints("One\n===\n\ntext\n"), []);
        assert_eq!(complaints("## Two\n"), [(1, "the page has no title (`# …`)".to_owned())]);
        let second = "a second title (`# …`)".to_owned();
        assert_eq!(complaints("# One\n\n# Two\n\nThree\n===\n"), [(3, second.clone()), (6, second)]);
    }

    #[test]
    fn fenced_code_is_ignored() {
        assert_eq!(complaints("# One\n```sh\n# comment\n[a](gone.md)\n```\n"), []);
        assert_eq!(complaints("# One\n````md\n```\n# two\n```\n````\n"), []);
        assert_eq!(complaints("# One\n~~~\n# two\n```\n# three\n~~~\n"), []);
        assert_eq!(complaints("# One\n- list\n  ```\n  # two\n  ```\n# Two\n").len(), 1);
    }

    #[test]
    fn a_table_row_needs_a_header() {
        let headless = |line| (line, "a table row without a header above it is shown as text".to_owned());
        assert_eq!(complaints("# One\n\n| a | b |\n|---|:-:|\n| c | d |\n"), []);
        assert_eq!(complaints("# One\n\n- list\n\n  | a |\n  | - |\n"), []);
        assert_eq!(complaints("# One\n\n| a |\n|---|\n| b |\n\n| c |\n| d |\n"), [headless(7), headless(8)]);
        assert_eq!(complaints("# One\n\n| a |\n"), [headless(3)]);
        assert_eq!(complaints("# One\n| a |\n```\n|---|\n```\n|---|\n"), [headless(2), headless(6)]);
        assert_eq!(complaints("# One\n```\n| a |\n```\n"), []);
    }

    #[test]
    fn links_to_files_must_lead_somewhere() {
        let nowhere = ["the link to `gone.md` leads nowhere"];
        assert_eq!(complaints_of_links("See [this](there.md), ![that](gone.md)."), nowhere);
        assert_eq!(complaints_of_links("[a](there.md#part \"title\") [b](gone.md#part)"), nowhere);
        assert_eq!(complaints_of_links("[a]: gone.md"), nowhere);
        assert_eq!(complaints_of_links("[a]: <there.md>"), [""; 0]);
        assert_eq!(complaints_of_links("[a](a(b).md)"), [""; 0]);
        assert_eq!(complaints_of_links("[`code`](gone.md)"), nowhere);
    }

    #[test]
    fn other_links_are_ignored() {
        assert_eq!(complaints_of_links("[a](https://example.org/x) <https://example.org>"), [""; 0]);
        assert_eq!(complaints_of_links("[a](#part) [b](mailto:a@example.org)"), [""; 0]);
        assert_eq!(complaints_of_links("[`Store`](crate::Store)"), [""; 0]);
        assert_eq!(complaints_of_links("`[a](gone.md)` and [^1]: note"), [""; 0]);
        assert_eq!(complaints_of_links("[^1]: a note"), [""; 0]);
    }
}
