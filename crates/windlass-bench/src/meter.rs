//! Resource usage, as Linux reports it. On other systems the values are 0 or `None`.

use std::fs;
use std::time::Duration;

/// The unit of CPU times in `/proc/PID/stat`.
const TICK: Duration = Duration::from_millis(10);

/// Returns the CPU time of a process.
pub(crate) fn cpu_time(pid: &str) -> Duration {
    ticks(pid, 13..=14)
}

/// Returns the CPU time of this process, more precisely than in ticks.
pub(crate) fn precise_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    // Neither is negative, and there are fewer nanoseconds than in a second.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the CPU time of another process, more precisely than in ticks.
pub(crate) fn precise_cpu_time_of(pid: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or_default())
}

/// Returns the CPU time of a process and its child processes, including children that have ended.
pub(crate) fn cpu_time_of_family(pid: u32) -> Duration {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let own = ticks(&pid.to_string(), 13..=16);
    children.split_whitespace().map(|child| ticks(child, 13..=16)).fold(own, |all, one| all + one)
}

/// Resets the peak memory of a process.
pub(crate) fn reset_peak_memory(pid: &str) {
    // Where this is not permitted, the peak is that of the whole run.
    let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

/// Returns the peak memory of a process in bytes.
pub(crate) fn peak_memory(pid: &str) -> u64 {
    status(pid, "VmHWM:")
}

/// Returns the memory of this process in bytes.
pub(crate) fn memory() -> u64 {
    status("self", "VmRSS:")
}

fn status(pid: &str, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kibibytes.unwrap_or_default() * 1_024
}

/// Returns the number of bytes that this process has written to any file or socket, or `None` if the system does not
/// count them.
pub(crate) fn written_bytes() -> Option<u64> {
    let counts = fs::read_to_string("/proc/self/io").ok()?;
    counts.lines().find_map(|line| line.strip_prefix("wchar: "))?.parse().ok()
}

/// Sums fields of `/proc/PID/stat`, numbered from 0. The second field is a name in parentheses that may contain spaces,
/// so the others are counted from its end.
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
    fn cpu_time_and_memory_are_measured() {
        let before = cpu_time("self");
        let mut numbers: Vec<u64> = Vec::new();
        while cpu_time("self") - before < 3 * TICK {
            numbers.push(numbers.iter().sum());
        }
        // Read our own time first, because other threads keep running.
        let own = cpu_time("self");
        assert!(cpu_time_of_family(std::process::id()) >= own - TICK);
        assert!(peak_memory("self") > 1_000_000);
    }
}
