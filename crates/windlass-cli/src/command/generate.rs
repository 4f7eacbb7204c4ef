//! `windlass completions` and `windlass man`, generated from the argument definitions.

use std::fs;

use clap::CommandFactory;

use crate::arguments::{Arguments, Completions, Man};
use crate::exit::{Failure, Result};
use crate::output::{Output, note};

pub(crate) fn completions(wanted: &Completions, output: Output) -> Result {
    let mut script = Vec::new();
    clap_complete::generate(wanted.shell, &mut Arguments::command(), "windlass", &mut script);
    output.bytes(&script)
}

pub(crate) fn man(wanted: &Man) -> Result {
    let directory = &wanted.directory;
    let written = fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Arguments::command(), directory));
    written.map_err(|error| Failure::failed(format!("cannot write to {}: {error}", directory.display())))?;
    note(&format!("wrote the man pages to {}", directory.display()));
    Ok(())
}
