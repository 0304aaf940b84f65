//! Configuration files of one run, for `roadweave client`, `server` and `emulate`.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::scenario::Scenario;
use super::world;
use crate::sandbox::tunnel::{self, TunnelFiles, TunnelSpec};

pub const LANE: &str = "video";

#[derive(Clone, Debug)]
pub struct Configs {
    pub emulator: PathBuf,
    pub tunnel: TunnelFiles,
}

impl Configs {
    pub fn write(directory: &Path, scenario: &Scenario, strategy: &str) -> anyhow::Result<Self> {
        let spec = TunnelSpec {
            uplinks: scenario.uplinks().collect(),
            server: world::SERVER,
            lane: LANE,
            strategy: strategy.parse()?,
            into_tunnel: world::CLOUD_NETWORK,
            behind_client: Some(world::VEHICLE_NETWORK),
        };
        let emulator = toml::to_string(&scenario.file).context("cannot express the links")?;
        Ok(Self {
            emulator: tunnel::write(directory, "emulator.toml", &emulator)?,
            tunnel: spec.write(directory)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roadweave_config::{ClientFile, load};

    #[test]
    fn the_files_are_read_back_by_those_who_need_them() {
        let directory = tempfile::tempdir().unwrap();
        let scenario = Scenario::synthetic(3).unwrap();
        let configs = Configs::write(directory.path(), &scenario, "single:lte").unwrap();
        let client: ClientFile = load(&configs.tunnel.client).unwrap();
        assert_eq!(client.uplinks.include, ["att", "verizon", "tmobile", "lte"]);
        let text = std::fs::read_to_string(&configs.emulator).unwrap();
        let emulator: crate::emulate::EmulateFile = toml::from_str(&text).unwrap();
        assert_eq!(emulator, scenario.file);
    }
}
