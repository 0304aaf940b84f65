//! A small disk that a test fills.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct Disk(pub PathBuf);

impl Disk {
    pub fn mount(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_owned();
        fs::create_dir_all(&path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs"]).arg(&path);
        assert!(mount.status().unwrap().success());
        Self(path)
    }

    pub fn fill(&self) {
        let mut file = File::create(self.0.join("ballast")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    pub fn make_room(&self) {
        fs::remove_file(self.0.join("ballast")).unwrap();
    }

    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name != "ballast");
        names.sort();
        names
    }
}
