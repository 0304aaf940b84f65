//! `roadweave server`, `roadweave proxy` and `roadweave anchor`.

use std::path::PathBuf;

use anyhow::Result;
use roadweave_config::{AnchorFile, PrivateKey, ProxyFile, ServerFile};
use roadweave_fleet::Role;
use roadweave_node::fleet::Membership;
use roadweave_node::{MemberOptions, run_anchor, run_proxy, run_server};
use roadweave_terminal::exit::BadInput;

use crate::member::{MemberFile, Source};

impl MemberFile for ServerFile {
    const USUAL: &str = "/etc/roadweave/server.toml";
    const ROLE: Role = Role::Proxy;

    fn member(&mut self) -> (&mut PathBuf, &mut PrivateKey) {
        (&mut self.state_directory, &mut self.private_key)
    }

    fn lack(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    fn run(_: Source, options: MemberOptions<Self>) -> Result<()> {
        Ok(run_server(options)?)
    }
}

impl MemberFile for ProxyFile {
    const USUAL: &str = "/etc/roadweave/proxy.toml";
    const ROLE: Role = Role::Proxy;

    fn member(&mut self) -> (&mut PathBuf, &mut PrivateKey) {
        (&mut self.state_directory, &mut self.private_key)
    }

    fn lack(&self) -> Option<(&'static str, &'static str)> {
        self.tenants.is_empty().then_some(("tenants", "tenants is empty; write [[tenants]]"))
    }

    fn run(_: Source, options: MemberOptions<Self>) -> Result<()> {
        Ok(run_proxy(options)?)
    }
}

impl MemberFile for AnchorFile {
    const USUAL: &str = "/etc/roadweave/anchor.toml";
    const ROLE: Role = Role::Anchor;

    fn member(&mut self) -> (&mut PathBuf, &mut PrivateKey) {
        (&mut self.state_directory, &mut self.private_key)
    }

    fn lack(&self) -> Option<(&'static str, &'static str)> {
        self.tenant.is_empty().then_some(("tenant", "tenant is missing; write its name"))
    }

    fn run(source: Source, options: MemberOptions<Self>) -> Result<()> {
        let tenant = &options.file.tenant;
        match options.membership.as_ref().map(Membership::tenant) {
            Some(joined) if !tenant.is_empty() && tenant != joined => {
                let path = source.path.display();
                Err(BadInput::new(format!(
                    "{path}: tenant = \"{tenant}\", but this machine joined the fleet for {joined}"
                ))
                .into())
            }
            None if tenant.is_empty() => Err(source.without("tenant is missing")),
            _ => Ok(run_anchor(options)?),
        }
    }
}
