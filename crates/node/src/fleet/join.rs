//! Joining a fleet: make a key, show a token, keep the admission and the first documents. A
//! repeated join shows the same key, which costs no use of the token.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use roadweave_fleet::{
    Agent, AgentEvent, Chain, JoinToken, Joining, Kind, Name, PersistedState, Role, Scope, Signed,
    Statement, Trust, Version,
};
use roadweave_identity::{Identity, PublicKey};
use roadweave_linux::{Clock, DeviceError};
use roadweave_proto::Instant;

use super::controller_route::ControllerRoute;
use super::membership::software;
use super::store::{StateStore, StoreError};
use super::worker::{FleetWorker, KEEP_ALIVE, names};

const SOUGHT_MAX: Duration = Duration::from_secs(30);
const ROUNDS_MAX: u32 = 3;
/// A person may have to approve.
const ANSWER_MAX: Duration = Duration::from_secs(60);
const DOCUMENTS_MAX: Duration = Duration::from_secs(3);

/// Options of a join.
#[derive(Debug)]
pub struct JoinOptions {
    /// The operator's token.
    pub token: JoinToken,
    /// The requested name.
    pub name: Name,
    /// The requested role.
    pub role: Role,
    /// The addresses of a proxy or an anchor, `host:port` each.
    pub addresses: Vec<String>,
    /// Where its key and the fleet's documents are kept.
    pub state_directory: PathBuf,
}

/// The result of a join.
#[derive(Clone, Debug)]
pub struct Joined {
    /// Whether this machine belonged to the fleet before.
    pub before: bool,
    /// The controller's new addresses, if they changed.
    pub moved_to: Option<Vec<String>>,
    /// The tenant of this member.
    pub tenant: Name,
    /// The member's name, possibly chosen by the controller.
    pub name: Name,
    /// The member's role.
    pub role: Role,
    /// Its key.
    pub key: PublicKey,
    /// The file of the key.
    pub key_path: PathBuf,
    /// The documents received.
    pub documents: Vec<(Kind, Version)>,
}

/// Why a machine has not joined a fleet.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The state directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A system call failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// This machine belongs to another fleet.
    #[error(
        "{} already belongs to a fleet, as the {role} {name} of {tenant}; use another state \
         directory, or remove the files fleet.* there to leave that fleet",
        directory.display()
    )]
    Elsewhere {
        /// The state directory.
        directory: PathBuf,
        /// The role there.
        role: &'static str,
        /// The name there.
        name: Name,
        /// The tenant there.
        tenant: Name,
    },
    /// The token has no usable address.
    #[error("the token has no usable address of a controller: {0}")]
    NoAddress(String),
    /// The delegate in the token cannot sign for this key.
    #[error("the token's delegate cannot admit this key: {0}")]
    Delegate(String),
    /// No controller was reached.
    #[error("no controller was reached: {0}")]
    Unreachable(String),
    /// The controller refuses the request.
    #[error("the controller refuses: {reason}{}", if *retry { "; try again later" } else { "" })]
    Refused {
        /// The controller's reason.
        reason: String,
        /// Whether to try again later.
        retry: bool,
    },
    /// The controller answers, but does not admit this key.
    #[error("the controller's answer is invalid: {0}")]
    Invalid(String),
    /// This machine has joined before, and could not move to the token's controller.
    #[error("this machine has joined before, and nothing was changed: {0}")]
    Unchanged(Box<JoinError>),
    /// The trust list does not name the token's controller.
    #[error("its key is {0}, which no root of this fleet lists as a controller")]
    Stranger(PublicKey),
    /// The controller does not answer in time.
    #[error("the controller was reached and has not answered; run the same command again")]
    NoAnswer,
}

/// Joins a fleet; blocks. After a failure the key is kept: the same command can be repeated.
pub fn join(options: JoinOptions) -> Result<Joined, JoinError> {
    let mut store = StateStore::open(&options.state_directory)?;
    if let Some(persisted) = store.read::<PersistedState>()
        && let Some(joined) = already(&persisted, &options, &store)?
    {
        let JoinToken { addresses, controller, .. } = &options.token;
        let is_known = persisted.trust().controllers().any(|key| key == *controller);
        return match is_known && persisted.addresses() == addresses {
            true => Ok(joined),
            false => find_again(persisted, joined, options, store)
                .map_err(|error| JoinError::Unchanged(Box::new(error))),
        };
    }
    let addresses = &options.token.addresses;
    if names(addresses).is_empty() {
        return Err(JoinError::NoAddress(addresses.join(", ")));
    }
    let identity = Arc::new(store.key()?);
    let how = Joining {
        chain: delegated(&options, identity.public_key())?,
        token: options.token.clone(),
        name: options.name.clone(),
    };
    let clock = Clock::start();
    let (key, role) = (identity.public_key(), options.role);
    let mut agent = Agent::joining(clock.now(), key, role, &software(), how);
    agent.listens_at(options.addresses);
    let ways = vec![ControllerRoute::System];
    let mut worker = FleetWorker::start(clock, agent, store, identity, ways, KEEP_ALIVE)?;
    let statement = ask(&mut worker)?;
    take_documents(&mut worker);
    if !worker.write(clock.now()) {
        let source = std::io::Error::other("the admission of this key could not be written");
        return Err(StoreError::File { path: options.state_directory, source }.into());
    }
    let persisted = worker.agent.persisted();
    Ok(Joined {
        before: false,
        moved_to: None,
        tenant: persisted.tenant().clone(),
        name: statement.name,
        role,
        key,
        key_path: worker.state.store.key_path(),
        documents: persisted.taken().into_iter().collect(),
    })
}

fn already(
    persisted: &PersistedState,
    options: &JoinOptions,
    store: &StateStore,
) -> Result<Option<Joined>, JoinError> {
    let Some(chain) = persisted.chain() else { return Ok(None) };
    // A new token admits a revoked key as a new member.
    let Ok(who) = chain.verify(persisted.trust()) else { return Ok(None) };
    let Statement { key, name, role, .. } = who.statement;
    let JoinOptions { token, role: wanted, state_directory, .. } = options;
    let is_same = persisted.trust().roots().any(|root| root == token.root)
        && *persisted.tenant() == token.tenant
        && role == *wanted;
    if !is_same || store.key()?.public_key() != key {
        return Err(JoinError::Elsewhere {
            directory: state_directory.clone(),
            role: role.name(),
            name,
            tenant: persisted.tenant().clone(),
        });
    }
    Ok(Some(Joined {
        before: true,
        moved_to: None,
        tenant: persisted.tenant().clone(),
        name,
        role,
        key,
        key_path: store.key_path(),
        documents: persisted.taken().into_iter().collect(),
    }))
}

/// Connects to the controller that the token names. A token is no proof: the persisted state
/// changes only once the controller shows a list in which a root in force names its key.
fn find_again(
    persisted: PersistedState,
    joined: Joined,
    options: JoinOptions,
    store: StateStore,
) -> Result<Joined, JoinError> {
    let JoinToken { addresses, controller, .. } = options.token;
    if names(&addresses).is_empty() {
        return Err(JoinError::NoAddress(addresses.join(", ")));
    }
    let (clock, identity) = (Clock::start(), Arc::new(store.key()?));
    let agent = Agent::restore(clock.now(), joined.key, joined.role, &software(), persisted);
    let ways = vec![ControllerRoute::System];
    let mut worker = FleetWorker::start(clock, agent, store, identity, ways, KEEP_ALIVE)?;
    worker.seek_at(names(&addresses), controller);
    hear(&mut worker)?;
    if !worker.has_proved_peer() {
        return Err(JoinError::Stranger(controller));
    }
    worker.agent.set_controllers_at(addresses.clone());
    if !worker.write(clock.now()) {
        let source = std::io::Error::other("the address of the controller could not be written");
        return Err(StoreError::File { path: options.state_directory, source }.into());
    }
    Ok(Joined { moved_to: Some(addresses), ..joined })
}

fn hear(worker: &mut FleetWorker) -> Result<(), JoinError> {
    let until = worker.clock.now() + SOUGHT_MAX;
    loop {
        let now = worker.clock.now();
        worker.turn(now);
        while let Some(event) = worker.poll_event() {
            if let AgentEvent::Refused { reason, retry } = event {
                return Err(refused(&reason, retry));
            }
        }
        if worker.is_in_step {
            return Ok(());
        }
        if now >= until || worker.rounds_failed >= ROUNDS_MAX {
            let why = worker.failure.take().unwrap_or_else(|| "no answer".to_owned());
            return Err(JoinError::Unreachable(why));
        }
        worker.wait(now, Some(until));
    }
}

fn refused(reason: &str, retry: bool) -> JoinError {
    let reason = reason.chars().filter(|c| !c.is_control()).collect();
    JoinError::Refused { reason, retry }
}

fn delegated(options: &JoinOptions, key: PublicKey) -> Result<Option<Chain>, JoinError> {
    let JoinOptions { token, name, role, .. } = options;
    let Some(delegate) = &token.delegate else { return Ok(None) };
    let failed = |error: &dyn std::fmt::Display| JoinError::Delegate(error.to_string());
    let trust = Trust::pinned(token.root, token.controller);
    let admitted = delegate.chain.verify(&trust).map_err(|error| failed(&error))?;
    let scope = match (role, admitted.statement.scope) {
        (Role::Proxy | Role::Anchor, Scope::All) => Scope::All,
        _ => Scope::Tenant(token.tenant.clone()),
    };
    let grant = admitted.statement.grant.filter(|_| *role == Role::Box);
    let tags = grant.map(|grant| grant.tags).unwrap_or_default();
    let statement = Statement { key, name: name.clone(), role: *role, scope, tags, grant: None };
    let signer = Identity::from_base64(&delegate.private_key).map_err(|error| failed(&error))?;
    let signed = Signed::sign(&statement, &signer).map_err(|error| failed(&error))?;
    let chain = delegate.chain.clone().then(signed);
    chain.verify(&trust).map_err(|error| failed(&error))?;
    Ok(Some(chain))
}

fn ask(worker: &mut FleetWorker) -> Result<Statement, JoinError> {
    let sought_until = worker.clock.now() + SOUGHT_MAX;
    let mut answer_until = None;
    loop {
        let now = worker.clock.now();
        worker.turn(now);
        worker.write_due(now, 0);
        while let Some(event) = worker.poll_event() {
            match event {
                AgentEvent::Joined { statement, .. } => return Ok(statement),
                AgentEvent::Refused { reason, retry } => return Err(refused(&reason, retry)),
                _ => {}
            }
        }
        if let Some(warning) = worker.warning.take() {
            return Err(JoinError::Invalid(warning));
        }
        if worker.contact.is_some() {
            answer_until.get_or_insert(now + ANSWER_MAX);
        }
        let until = answer_until.unwrap_or(sought_until);
        if now >= until || worker.rounds_failed >= ROUNDS_MAX {
            return Err(match (answer_until, worker.failure.take()) {
                (Some(_), None) => JoinError::NoAnswer,
                (_, Some(why)) => JoinError::Unreachable(why),
                (None, None) => JoinError::Unreachable("no answer".to_owned()),
            });
        }
        worker.wait(now, Some(until));
    }
}

fn take_documents(worker: &mut FleetWorker) {
    let now = worker.clock.now();
    let now = serve(worker, now, DOCUMENTS_MAX, |worker| worker.is_in_step);
    serve(worker, now, Duration::from_millis(500), |_| false);
}

fn serve(
    worker: &mut FleetWorker,
    mut now: Instant,
    most: Duration,
    is_over: impl Fn(&FleetWorker) -> bool,
) -> Instant {
    let until = now + most;
    while now < until && !is_over(worker) {
        worker.wait(now, Some(until));
        now = worker.clock.now();
        worker.turn(now);
        worker.write_due(now, 0);
        while worker.poll_event().is_some() {}
    }
    now
}

#[cfg(test)]
mod tests;
