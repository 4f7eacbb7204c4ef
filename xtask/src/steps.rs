//! Named steps with their durations.

use std::time::{Duration, Instant};

use crate::Result;

#[derive(Debug, Default)]
pub(crate) struct Steps {
    taken: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    name: &'static str,
    duration: Duration,
    failed: bool,
}

impl Steps {
    /// Runs one step, between a heading and a line with its duration.
    pub(crate) fn run<T>(&mut self, name: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        println!("\n==> {name}");
        let start = Instant::now();
        let outcome = work();
        let duration = start.elapsed();
        let failed = outcome.is_err();
        println!("    {name} {} after {}", if failed { "FAILED" } else { "passed" }, seconds(duration));
        self.taken.push(Step { name, duration, failed });
        outcome.map_err(|message| format!("step `{name}` failed: {message}"))
    }

    pub(crate) fn print_summary(&self) {
        print!("\n{}", self.summary());
    }

    fn summary(&self) -> String {
        let mut table = format!("{:<16}{:>10}\n", "step", "duration");
        for Step { name, duration, failed } in &self.taken {
            let mark = if *failed { "  FAILED" } else { "" };
            table += &format!("{name:<16}{:>10}{mark}\n", seconds(*duration));
        }
        let total = self.taken.iter().map(|step| step.duration).sum();
        table + &format!("{:<16}{:>10}\n", "total", seconds(total))
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_is_named_and_marked() {
        let mut steps = Steps::default();
        assert_eq!(steps.run("first", || Ok(1)), Ok(1));
        let outcome: Result = steps.run("second", || Err("it broke".to_owned()));
        assert_eq!(outcome, Err("step `second` failed: it broke".to_owned()));
        for step in &mut steps.taken {
            step.duration = Duration::from_millis(1500);
        }
        let expected = "\
step              duration
first                1.5 s
second               1.5 s  FAILED
total                3.0 s
";
        assert_eq!(steps.summary(), expected);
    }
}
