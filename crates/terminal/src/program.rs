//! Finds our programs that run one another, as git and cargo do.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The program `name`: beside this one, or in an absolute directory of `PATH`.
pub fn find(name: &str) -> Option<PathBuf> {
    let beside = env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned()));
    let path = env::var_os("PATH").unwrap_or_default();
    beside
        .into_iter()
        .chain(env::split_paths(&path))
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|program| is_executable(program))
}

fn is_executable(program: &Path) -> bool {
    fs::metadata(program).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}
