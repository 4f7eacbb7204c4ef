//! A private driver of the Chromium browser.

use std::{
    env, fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::server::{LOG, Program, Server, free_ports, located};

/// Environment variables with the driver and the browser. If they are not set, the kit searches `PATH`.
const DRIVER_VARIABLE: &str = "WINDLASS_CHROMEDRIVER";
const BROWSER_VARIABLE: &str = "WINDLASS_CHROMIUM";

/// A private driver (`chromedriver`) on a free port of the loopback interface, with a temporary directory.
///
/// Dropping it ends the driver and its browsers. So does the end of the process, for whatever reason.
#[derive(Debug)]
pub struct ChromeDriver {
    server: Server<Driver>,
}

impl ChromeDriver {
    /// Starts the driver. Returns when it accepts sessions.
    ///
    /// # Panics
    ///
    /// Panics if it is not installed, or does not answer within two minutes. The message contains its log.
    pub async fn start() -> Self {
        let directory =
            TempDir::with_prefix("windlass-chrome-").expect("a temporary directory can be created");
        let program = selected(DRIVER_VARIABLE, "chromedriver");
        Self { server: Server::start(Driver { program }, directory, free_ports()).await }
    }

    /// Returns the URL of the driver.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}:{}", Ipv4Addr::LOCALHOST, self.server.port())
    }

    /// Returns the browser to start.
    #[must_use]
    pub fn browser(&self) -> String {
        let name = selected(BROWSER_VARIABLE, "chromium");
        if name.contains('/') {
            return name;
        }
        // The driver searches for other names than Debian's.
        let path = env::var_os("PATH").unwrap_or_default();
        let found =
            env::split_paths(&path).map(|directory| directory.join(&name)).find(|path| path.is_file());
        found.map_or(name, |path| path.to_string_lossy().into_owned())
    }

    /// Returns the arguments for a browser without a window and with a new, empty profile.
    ///
    /// # Panics
    ///
    /// Panics if the directory of the profile cannot be created.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let profile: PathBuf = TempDir::with_prefix_in("profile-", self.server.directory())
            .expect("a temporary directory can be created")
            .keep();
        let fixed = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            // The driver may lose track of a page that the browser restores from memory.
            "--disable-back-forward-cache",
            // The browser ends with its driver, even if that is killed.
            "--remote-debugging-pipe",
        ];
        let fixed = fixed.into_iter().map(str::to_owned);
        fixed.chain([format!("--user-data-dir={}", profile.display())]).collect()
    }
}

#[derive(Debug)]
struct Driver {
    program: String,
}

impl Program for Driver {
    const LAST_SIGNAL: &str = "KILL";

    fn name(&self) -> &str {
        &self.program
    }

    fn command_line(&self, directory: &Path, port: u16) -> Vec<String> {
        // Browsers leave files in all of these. They are removed together with the directory of the driver.
        let places =
            ["TMPDIR", "HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"];
        let places = places.map(|name| format!("{name}={}", directory.display()));
        let driver = [self.program.clone(), format!("--port={port}")];
        ["env".to_owned()].into_iter().chain(places).chain(driver).collect()
    }

    async fn answers(&self, directory: &Path, port: u16, _pid: u32) -> bool {
        // Its own log says so: another process could answer on the port.
        let log = fs::read_to_string(directory.join(LOG)).unwrap_or_default();
        log.contains(&format!("started successfully on port {port}"))
    }
}

fn selected(variable: &str, name: &str) -> String {
    env::var(variable).map_or_else(|_| name.to_owned(), |program| located(variable, program))
}
