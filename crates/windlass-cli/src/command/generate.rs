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
    let folder = &wanted.folder;
    let written =
        fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Arguments::command(), folder));
    written.map_err(|error| Failure::failed(format!("{} cannot be written: {error}", folder.display())))?;
    note(&format!("man pages are in {}", folder.display()));
    Ok(())
}
