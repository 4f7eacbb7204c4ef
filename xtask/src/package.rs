//! Checks the packages of the published crates: what a registry receives must be complete and must build on its own.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Component, Path, PathBuf},
};

use serde_json::Value;

use crate::{Result, Workspace, workspace};

/// Files of the workspace that every package contains.
const LICENSES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// The crate that users depend on. Its documentation contains the README and the guide.
const FACADE: &str = "windlass";

/// Fields of a manifest that every package must set.
const METADATA: [&str; 7] =
    ["description", "license", "readme", "documentation", "rust_version", "keywords", "categories"];

/// Macros that read a file at compile time.
const INCLUDES: [&str; 3] = ["include_str!(", "include_bytes!(", "include!("];

/// A published crate.
#[derive(Debug, PartialEq, Eq)]
struct Package {
    name: String,
    directory: PathBuf,
    /// The fields of [`METADATA`] that its manifest does not set.
    missing: Vec<&'static str>,
}

/// Packages every published crate and checks what the packages contain. With `verify`, also builds each crate from its
/// package.
pub(crate) fn run(workspace: &Workspace, verify: bool) -> Result {
    let (published, internal) = packages(workspace)?;
    for package in &published {
        check(workspace, package).map_err(|error| format!("package {}: {error}", package.name))?;
    }
    check_postgres(workspace)?;
    let exclude: Vec<_> = internal.iter().map(|name| format!("--exclude={name}")).collect();
    // The changes of a commit are tested before it is made, so the work tree is usually dirty.
    let mut arguments = vec!["package", "--quiet", "--workspace", "--offline", "--allow-dirty"];
    arguments.push(if verify { "--all-features" } else { "--no-verify" });
    let mut workspace = workspace.clone();
    if verify {
        // Cargo neither unpacks nor compiles a crate again if only its content has changed, so it would build against the
        // crates of an earlier run.
        let target = workspace.root().join("target/verify");
        let _ = fs::remove_dir_all(&target);
        workspace.set("CARGO_TARGET_DIR", &target.to_string_lossy());
        remove_unpacked(&published);
    }
    arguments.extend(exclude.iter().map(String::as_str));
    let (output, outcome) = workspace::captured(&mut workspace.cargo_command(&arguments))?;
    if let Err(error) = outcome {
        print!("{output}");
        return Err(error);
    }
    println!("    {} packages", published.len());
    Ok(())
}

/// Removes the crates that cargo unpacked for an earlier build from packages.
fn remove_unpacked(published: &[Package]) {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let Some(home) = home.or_else(|| Some(env::home_dir()?.join(".cargo"))) else { return };
    let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    // A registry without a host, such as the temporary one of `cargo package`, has a directory that begins with a hyphen.
    let registries = entries(home.join("registry/src"));
    for registry in registries.filter(|registry| registry.file_name().to_string_lossy().starts_with('-')) {
        for unpacked in entries(registry.path()) {
            let name = unpacked.file_name();
            let is_ours = |package: &Package| {
                let version = name.to_str().and_then(|name| name.strip_prefix(package.name.as_str()));
                version.is_some_and(|version| version.starts_with('-'))
            };
            if published.iter().any(is_ours) {
                let _ = fs::remove_dir_all(unpacked.path());
            }
        }
    }
}

/// Returns the published crates, and the names of the others.
fn packages(workspace: &Workspace) -> Result<(Vec<Package>, Vec<String>)> {
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version=1"];
    let metadata = workspace::output(&mut workspace.cargo_command(&arguments))?;
    let metadata: Value = serde_json::from_slice(&metadata).map_err(|error| error.to_string())?;
    let packages = metadata.get("packages").and_then(Value::as_array).ok_or("cargo lists no packages")?;
    let (mut published, mut internal) = (Vec::new(), Vec::new());
    for package in packages {
        let package = parse(package).ok_or("cargo describes a package in an unknown form")?;
        match package {
            (package, true) => published.push(package),
            (package, false) => internal.push(package.name),
        }
    }
    Ok((published, internal))
}

/// Reads the description of a package, and whether it is published.
fn parse(package: &Value) -> Option<(Package, bool)> {
    let is_set = |field: &&str| match package.get(*field) {
        Some(Value::Array(words)) => !words.is_empty(),
        Some(value) => !value.is_null(),
        None => false,
    };
    // `publish = false` is an empty list of registries.
    let is_published = package.get("publish").and_then(Value::as_array).is_none_or(|names| !names.is_empty());
    let name = package.get("name")?.as_str()?.to_owned();
    let directory = Path::new(package.get("manifest_path")?.as_str()?).parent()?.to_owned();
    let missing = METADATA.into_iter().filter(|field| !is_set(field)).collect();
    Some((Package { name, directory, missing }, is_published))
}

fn check(workspace: &Workspace, Package { name, directory, missing }: &Package) -> Result {
    if !missing.is_empty() {
        return Err(format!("Cargo.toml lacks {}", missing.join(", ")));
    }
    let arguments = ["package", "--list", "--offline", "--allow-dirty", "--package", name];
    let files = workspace::output(&mut workspace.cargo_command(&arguments))?;
    let files = String::from_utf8_lossy(&files);
    let files: BTreeSet<&Path> = files.lines().map(Path::new).collect();
    for file in LICENSES.into_iter().chain(["README.md"]) {
        if !files.contains(Path::new(file)) {
            return Err(format!("{file} is missing"));
        }
    }
    for file in files.iter().filter(|file| is_shared(name, file)) {
        // In a checkout without symbolic links, the text is the path of the target.
        if read(&directory.join(file))? != read(&workspace.root().join(file))? {
            let file = file.display();
            return Err(format!(
                "{file} differs from that of the workspace: it must be a symbolic link to it"
            ));
        }
    }
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs")) {
        let text = read(&directory.join(file))?;
        if let Some(lost) = included(file, &text).into_iter().find(|path| !files.contains(path.as_path())) {
            return Err(format!(
                "{} includes {}, which is not in the package",
                file.display(),
                lost.display()
            ));
        }
    }
    Ok(())
}

/// Whether a file of a package is also a file of the workspace: the licenses, and the pages of the façade.
fn is_shared(package: &str, file: &Path) -> bool {
    let is_page = file == Path::new("README.md") || file.starts_with("docs");
    LICENSES.iter().any(|license| file == Path::new(license)) || package == FACADE && is_page
}

/// Checks that an application that uses PostgreSQL does not build SQLite.
fn check_postgres(workspace: &Workspace) -> Result {
    let tree = ["tree", "--offline", "--package=windlass", "--no-default-features", "--features=postgres"];
    let format = ["--edges=normal,build", "--prefix=none", "--format={p}"];
    let tree = workspace::output(&mut workspace.cargo_command(&[&tree[..], &format[..]].concat()))?;
    let tree = String::from_utf8_lossy(&tree);
    match tree.lines().find(|line| line.contains("sqlite")) {
        Some(line) => Err(format!("the feature `postgres` alone depends on SQLite: {line}")),
        None if tree.contains("windlass-postgres") => Ok(()),
        None => Err("the feature `postgres` does not depend on windlass-postgres".to_owned()),
    }
}

/// Returns the files that a source file includes by a literal path. A path that leaves the package begins with `..`.
fn included(file: &Path, text: &str) -> Vec<PathBuf> {
    let directory = file.parent().unwrap_or(Path::new(""));
    let arguments = INCLUDES.into_iter().flat_map(|name| text.match_indices(name));
    let arguments = arguments.filter_map(|(at, name)| text.get(at + name.len()..));
    let literals = arguments.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
    literals.map(|path| normalized(&directory.join(path))).collect()
}

/// Resolves `..` without the file system.
fn normalized(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        let is_inside = matches!(normal.components().next_back(), Some(Component::Normal(_)));
        match component {
            Component::CurDir => {}
            Component::ParentDir if is_inside => drop(normal.pop()),
            other => normal.push(other),
        }
    }
    normal
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn included_files_are_found_by_their_path_in_the_package() {
        let check = |text: &str, expected: &[&str]| {
            let found = included(Path::new("src/store/mod.rs"), text);
            assert_eq!(found, expected.iter().map(PathBuf::from).collect::<Vec<_>>(), "{text}");
        };
        check("#[doc = include_str!(\"../../README.md\")]", &["README.md"]);
        check(
            "include_str!(\n    \"../sql/a.sql\"), include_bytes!(\"b\")",
            &["src/sql/a.sql", "src/store/b"],
        );
        check("include_str!(\"../../../README.md\")", &["../README.md"]);
        check("include_str!(\"../../../../README.md\")", &["../../README.md"]);
        check("include_str!(concat!(env!(\"OUT_DIR\"), \"/a\")) include!(\"./c.rs\")", &["src/store/c.rs"]);
    }

    #[test]
    fn licenses_and_pages_of_the_facade_are_shared() {
        let is_shared = |package, file| is_shared(package, Path::new(file));
        assert!(is_shared("windlass-core", "LICENSE-MIT") && !is_shared("windlass-core", "README.md"));
        assert!(is_shared(FACADE, "README.md") && is_shared(FACADE, "docs/guide.md"));
        assert!(!is_shared(FACADE, "src/lib.rs"));
    }

    #[test]
    fn missing_metadata_is_named() {
        let manifest = "/w/crates/a/Cargo.toml";
        let mut package = json!({
            "name": "a", "manifest_path": manifest, "publish": null, "description": "An a", "license": "MIT",
            "readme": "README.md", "documentation": "https://example.org", "rust_version": "1.94",
            "keywords": ["a"], "categories": ["b"],
        });
        let complete = Package { name: "a".to_owned(), directory: "/w/crates/a".into(), missing: Vec::new() };
        assert_eq!(parse(&package), Some((complete, true)));
        package["readme"] = Value::Null;
        package["keywords"] = json!([]);
        package["publish"] = json!([]);
        let (found, is_published) = parse(&package).unwrap();
        assert_eq!((found.missing, is_published), (vec!["readme", "keywords"], false));
    }
}
