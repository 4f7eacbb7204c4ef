//! `cargo xtask sim`: runs the seeded simulation on any number of seeds, or replays one seed.

use crate::{HELP, Result, Workspace};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    seeds: Option<u64>,
    start: Option<u64>,
    seed: Option<u64>,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Result<Self> {
        let mut options = Self::default();
        for pair in words.chunks(2) {
            let &[name, number] = pair else {
                return Err(format!("`{}` of `sim` needs a number\n\n{HELP}", pair.concat()));
            };
            let option = match name {
                "--seeds" => &mut options.seeds,
                "--start" => &mut options.start,
                "--seed" => &mut options.seed,
                unknown => return Err(format!("unknown option `{unknown}` of `sim`\n\n{HELP}")),
            };
            let number = number.parse().map_err(|_| format!("`{name} {number}`: expected a whole number"))?;
            *option = Some(number);
        }
        Ok(options)
    }
}

pub(crate) fn run(options: Options) -> Result {
    let mut workspace = Workspace::locate();
    let variables = [
        ("WINDLASS_SEEDS", options.seeds),
        ("WINDLASS_SEED_START", options.start),
        ("WINDLASS_SEED", options.seed),
    ];
    for (name, number) in variables {
        if let Some(number) = number {
            workspace.set(name, &number.to_string());
        }
    }
    workspace.cargo(&[
        "test",
        "--package",
        "windlass-core",
        "--test",
        "sim",
        "--",
        "--exact",
        "every_invariant_holds_for_every_seed",
        "--nocapture",
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_in_any_order() {
        assert_eq!(Options::parse(&[]), Ok(Options::default()));
        let some = Options { seeds: Some(9), start: Some(7), seed: None };
        assert_eq!(Options::parse(&["--start", "7", "--seeds", "9"]), Ok(some));
    }

    #[test]
    fn invalid_options_are_named() {
        let check = |words: &[&str], expected: &str| {
            let message = Options::parse(words).unwrap_err();
            assert!(message.starts_with(expected), "{message}");
        };
        check(&["--seeds"], "`--seeds` of `sim` needs a number");
        check(&["--seed", "x"], "`--seed x`: expected a whole number");
        check(&["--sed", "1"], "unknown option `--sed`");
    }
}
