//! A member's state as found in its state directory before anything is started.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use roadweave_fleet::{Agent, AgentEvent, PersistedState, Role, VerifiedServer, Version};
use roadweave_identity::{Identity, PublicKey};
use roadweave_linux::Clock;
use roadweave_proto::{Instant, VERSION};

use super::store::{StateStore, StoreError};

/// This member's place in a fleet, restored and verified.
pub struct Membership {
    pub(crate) clock: Clock,
    pub(super) agent: Agent,
    pub(super) store: StateStore,
    pub(super) identity: Arc<Identity>,
    pub(super) events: Vec<AgentEvent>,
    pub(super) role: Role,
    pub(super) name: String,
}

/// Why a membership cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// The state directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The state directory belongs to a member of another role.
    #[error(
        "{} holds the state of a {}, and this is a {}; give each its own state directory",
        directory.display(),
        found.name(),
        wanted.name()
    )]
    OtherRole {
        /// The state directory.
        directory: PathBuf,
        /// The role of the state.
        found: Role,
        /// The role of this program.
        wanted: Role,
    },
}

impl Membership {
    /// Whether the state in `directory` shows that a join was begun.
    pub fn is_there(directory: &Path) -> bool {
        StateStore::is_there(directory)
    }

    /// The membership in `directory`, if there is one. Fails if the state cannot be read, another
    /// program uses it, or it is not of the role `wanted`.
    pub fn open(directory: &Path, wanted: Role) -> Result<Option<Self>, MembershipError> {
        if !StateStore::is_there(directory) {
            return Ok(None);
        }
        let mut store = StateStore::open(directory)?;
        let Some(persisted) =
            store.read::<PersistedState>().filter(|persisted| persisted.chain().is_some())
        else {
            return Ok(None);
        };
        let identity = Arc::new(store.key()?);
        let key = identity.public_key();
        let (found, name) = about(&persisted, key).unwrap_or_else(|why| {
            tracing::error!("the admission to the fleet is no longer valid: {why}");
            (wanted, key.to_string())
        });
        if found != wanted {
            let directory = directory.to_owned();
            return Err(MembershipError::OtherRole { directory, found, wanted });
        }
        let agent = Agent::restore(Instant::ZERO, key, wanted, &software(), persisted);
        let (clock, events) = (Clock::start(), Vec::new());
        let mut this = Self { clock, agent, store, identity, events, role: wanted, name };
        this.take_events();
        Ok(Some(this))
    }

    /// Its key pair.
    pub fn identity(&self) -> Arc<Identity> {
        self.identity.clone()
    }

    /// Its name in the fleet.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its tenant.
    pub fn tenant(&self) -> &str {
        self.agent.persisted().tenant().as_str()
    }

    /// The configuration to put in force.
    pub fn configuration(&self) -> (Option<Version>, Option<String>) {
        self.agent.persisted().configuration_in_force()
    }

    /// Refuses the configuration in force, so that another takes its place.
    pub fn refuse(&mut self, version: Version, why: &str) {
        self.agent.refuse(Instant::ZERO, version, why);
        self.take_events();
    }

    /// The proxies to choose from, the best first.
    pub fn candidates(&self) -> &[VerifiedServer] {
        let last = self.events.iter().rev().find_map(|event| match event {
            AgentEvent::Candidates(servers) => Some(servers),
            _ => None,
        });
        last.map_or(&[], Vec::as_slice)
    }

    fn take_events(&mut self) {
        let mut is_dirty = false;
        while let Some(event) = self.agent.poll_event() {
            match event {
                AgentEvent::Persist => is_dirty = true,
                AgentEvent::Warning(text) => tracing::warn!("{text}"),
                event => self.events.push(event),
            }
        }
        // The starts of a version on trial are counted, in case it ends the program.
        if is_dirty {
            self.store.write(self.agent.persisted());
        }
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership").field("role", &self.role).finish_non_exhaustive()
    }
}

fn about(persisted: &PersistedState, key: PublicKey) -> Result<(Role, String), String> {
    let chain = persisted.chain().ok_or("this key has not been admitted")?;
    let who = chain.verify(persisted.trust()).map_err(|error| error.to_string())?.statement;
    match who.key == key {
        true => Ok((who.role, who.name.to_string())),
        false => Err(format!("it admits the key {}, but the key here is {key}", who.key)),
    }
}

/// The software of this machine, for the controller.
pub(super) fn software() -> String {
    format!("roadweave {VERSION}")
}
