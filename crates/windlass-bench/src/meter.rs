//! What a run takes of the machine, as Linux counts it. Elsewhere the counts are 0.

use std::fs;
use std::time::Duration;

/// The length of a tick in which Linux tells times to programs.
const TICK: Duration = Duration::from_millis(10);

/// The processor time of a process.
pub(crate) fn cpu_time(pid: &str) -> Duration {
    ticks(pid, 13..=14)
}

/// The processor time of a process and of its children, also of those that have ended.
pub(crate) fn cpu_time_of_family(pid: u32) -> Duration {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let own = ticks(&pid.to_string(), 13..=16);
    children.split_whitespace().map(|child| ticks(child, 13..=16)).fold(own, |all, one| all + one)
}

/// Forgets the highest memory so far.
pub(crate) fn reset_peak_memory() {
    // Where this is not allowed, the peak is that of the whole run.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// The most memory that this process has had, in bytes.
pub(crate) fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kibibytes.unwrap_or_default() * 1_024
}

/// The bytes that this process has written, to whatever; none where they are not counted.
pub(crate) fn written_bytes() -> Option<u64> {
    let counts = fs::read_to_string("/proc/self/io").ok()?;
    counts.lines().find_map(|line| line.strip_prefix("wchar: "))?.parse().ok()
}

/// The sum of these fields of `/proc/PID/stat`, counted from 0. The second one is a name, which may have spaces.
fn ticks(pid: &str, fields: std::ops::RangeInclusive<usize>) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, rest)) = stat.rsplit_once(") ") else { return Duration::ZERO };
    let values = rest.split(' ').enumerate().filter(|(at, _)| fields.contains(&(at + 2)));
    let count: u32 = values.filter_map(|(_, value)| value.parse::<u32>().ok()).sum();
    TICK * count
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn work_takes_time_and_memory() {
        let before = cpu_time("self");
        let mut numbers: Vec<u64> = Vec::new();
        while cpu_time("self") - before < 3 * TICK {
            numbers.push(numbers.iter().sum());
        }
        // Its own time first: other threads go on working.
        let own = cpu_time("self");
        assert!(cpu_time_of_family(std::process::id()) >= own - TICK);
        assert!(peak_memory() > 1_000_000);
    }
}
