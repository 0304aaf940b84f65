//! Files for packages: man pages by program, completions by shell.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::{CALLED, PRODUCT, completions, fields, owner, product};

/// Writes the completions and man pages of all programs, as installed by packages
#[derive(Debug, clap::Args)]
pub struct PagesArgs {
    /// The folder to write to; each program gets its own folder in it
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

impl PagesArgs {
    pub fn run(&self) -> Result<()> {
        write(&self.folder)
    }
}

fn write(folder: &Path) -> Result<()> {
    let mut tree = product();
    // This gives each command its full name.
    tree.build();
    page(&tree, &folder.join(PRODUCT))?;
    put(&folder.join(PRODUCT).join("man5/roadweave.toml.5"), fields::page().as_bytes())?;
    for command in tree.get_subcommands() {
        pages(command, &folder.join(owner(command.get_name())))?;
    }
    let mut controller = roadweave_control::controller::command();
    controller.build();
    pages(&controller, &folder.join("roadweave-controller"))?;
    for program in CALLED {
        for (shell, name) in [
            (Shell::Bash, format!("bash/{program}")),
            (Shell::Zsh, format!("zsh/_{program}")),
            (Shell::Fish, format!("fish/{program}.fish")),
        ] {
            let script = completions(program, shell).expect("it is called by its name");
            put(&folder.join(program).join(name), script.as_bytes())?;
        }
    }
    Ok(())
}

fn pages(command: &Command, folder: &Path) -> Result<()> {
    if command.get_name() == "help" || command.is_hide_set() {
        return Ok(());
    }
    page(command, folder)?;
    command.get_subcommands().try_for_each(|below| pages(below, folder))
}

fn page(command: &Command, folder: &Path) -> Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let source = format!("roadweave {}", env!("CARGO_PKG_VERSION"));
    let mut text = Vec::new();
    Man::new(command.clone()).title(name.clone()).source(source).render(&mut text)?;
    put(&folder.join("man1").join(format!("{name}.1")), &text)
}

fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    let problem = || format!("cannot write {}", path.display());
    fs::create_dir_all(path.parent().expect("it is in a folder")).with_context(problem)?;
    fs::write(path, bytes).with_context(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_the_package_that_has_it() {
        let folder = tempfile::tempdir().expect("a folder");
        write(folder.path()).expect("written");
        for page in [
            "roadweave/man1/roadweave.1",
            "roadweave/man1/roadweave-client.1",
            "roadweave/man1/roadweave-uplink-set.1",
            "roadweave-admin/man1/roadweave-peer-add.1",
            "roadweave-admin/man1/roadweave-completions.1",
            "roadweave-fleet/man1/roadweave-fleet-device-show.1",
            "roadweave-web/man1/roadweave-web.1",
            "roadweave-lab/man1/roadweave-lab-compare.1",
            "roadweave-controller/man1/roadweave-controller-backup.1",
            "roadweave/man5/roadweave.toml.5",
        ] {
            let text = fs::read_to_string(folder.path().join(page)).expect(page);
            assert!(text.contains(".SH SYNOPSIS"), "{page}");
        }
        let of_product = folder.path().join("roadweave/man1");
        let names: Vec<_> = fs::read_dir(of_product).expect("pages").flatten().collect();
        // Only its own commands, without hidden ones.
        assert!(names.iter().all(|name| {
            let name = name.file_name().into_string().expect("a name");
            !name.contains("peer") && !name.contains("emulate") && !name.contains("help")
        }));
    }
}
