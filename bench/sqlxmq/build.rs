//! Finds the migrations of sqlxmq, which are files of its package. The library cannot run them itself.

use std::error::Error;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn main() -> Result<(), Box<dyn Error>> {
    let cargo = std::env::var_os("CARGO").ok_or("cargo runs build scripts")?;
    let metadata = Command::new(cargo).args(["metadata", "--format-version=1", "--locked"]).output()?;
    let metadata: Value = serde_json::from_slice(&metadata.stdout)?;
    let packages = metadata["packages"].as_array().ok_or("cargo lists no packages")?;
    let package = packages.iter().find(|package| package["name"] == "sqlxmq").ok_or("no package sqlxmq")?;
    let manifest = package["manifest_path"].as_str().ok_or("a package has a manifest")?;
    let directory = Path::new(manifest).parent().ok_or("a manifest is in a directory")?;
    println!("cargo::rustc-env=MIGRATIONS={}", directory.join("migrations").display());
    println!("cargo::rerun-if-changed=Cargo.lock");
    Ok(())
}
