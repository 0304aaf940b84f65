//! What an agent keeps on disk, to work without a controller.

use std::collections::{BTreeMap, BTreeSet};

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;
use serde::{Deserialize, Serialize};

use super::trial::{Trial, Works};
use super::{AgentEvent, Egress, VerifiedServer};
use crate::chain::{Admitted, Chain, Uses};
use crate::document::{
    Anchors, Approvals, Candidates, Configuration, Document, DocumentError, Kind, Version,
};
use crate::envelope::{Payload, Signed};
use crate::frame::Report;
use crate::inner::usable_gateways;
use crate::name::Name;
use crate::revocation::Head;
use crate::statement::{Role, Scope};
use crate::table::{Admission, Refused, Table, TableError};
use crate::token::JoinToken;
use crate::trust::Trust;

/// All that an agent keeps, as it was signed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PersistedState {
    pub(super) trust: Trust,
    pub(super) tenant: Name,
    /// `host:port` each.
    pub(super) addresses: Vec<String>,
    pub(super) chain: Option<Chain>,
    pub(super) head: Option<Signed<Head>>,
    /// The last one that was confirmed.
    pub(super) configuration: Option<Signed<Document<Configuration>>>,
    pub(super) trial: Option<OnTrial>,
    pub(super) candidates: Option<Signed<Document<Candidates>>>,
    pub(super) anchors: Option<Signed<Document<Anchors>>>,
    pub(super) table: Table,
    pub(super) taken: BTreeMap<Kind, Version>,
    pub(super) reports: BTreeMap<Kind, Report>,
    pub(super) pinned: Vec<String>,
    /// So that no earlier approval comes back.
    #[serde(default)]
    pub(super) approved: Approvals,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct OnTrial {
    pub(super) document: Signed<Document<Configuration>>,
    pub(super) version: Version,
    pub(super) trial: Trial,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PersistedStateError {
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error(transparent)]
    Table(#[from] TableError),
}

impl PersistedState {
    /// The state that a token gives.
    pub fn of_token(token: &JoinToken) -> Self {
        Self {
            trust: Trust::pinned(token.root, token.controller),
            tenant: token.tenant.clone(),
            addresses: token.addresses.clone(),
            chain: None,
            head: None,
            configuration: None,
            trial: None,
            candidates: None,
            anchors: None,
            table: Table::default(),
            taken: BTreeMap::new(),
            reports: BTreeMap::new(),
            pinned: Vec::new(),
            approved: Approvals::default(),
        }
    }

    /// The trusted keys.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// Its tenant.
    pub fn tenant(&self) -> &Name {
        &self.tenant
    }

    /// The addresses of controllers, `host:port` each.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The chain that admits it.
    pub fn chain(&self) -> Option<&Chain> {
        self.chain.as_ref()
    }

    /// The newest version of each document, in force or not.
    pub fn taken(&self) -> BTreeMap<Kind, Version> {
        let table = self.table.version().map(|version| (Kind::Table, version));
        self.taken.iter().map(|(kind, version)| (*kind, *version)).chain(table).collect()
    }

    /// The outcome of each document.
    pub fn reports(&self) -> Vec<Report> {
        self.reports.values().cloned().collect()
    }

    /// Fields that the file overrides.
    pub fn pinned(&self) -> &[String] {
        &self.pinned
    }

    /// The version on trial.
    pub fn on_trial(&self) -> Option<Version> {
        self.trial.as_ref().map(|on_trial| on_trial.version)
    }

    /// Version and text of the configuration that is to be in force now.
    pub fn configuration_in_force(&self) -> (Option<Version>, Option<String>) {
        let new = self.trial.as_ref().filter(|on_trial| !on_trial.trial.compares());
        let signed = new.map(|new| &new.document).or(self.configuration.as_ref());
        // It was verified when it was taken or read, maybe by a controller that has retired.
        match signed.and_then(Signed::peek) {
            Some(document) => (Some(document.version), Some(document.body.text)),
            None => (None, None),
        }
    }

    pub(super) fn try_configuration(
        &mut self,
        now: Instant,
        (works, is_mute): (Works, bool),
        document: Signed<Document<Configuration>>,
        version: Version,
    ) {
        let mut trial = Trial::default();
        trial.begin(now, works, is_mute);
        self.taken.insert(Kind::Configuration, version);
        self.trial = Some(OnTrial { document, version, trial });
    }

    pub(super) fn refuse(&mut self, version: Version) -> bool {
        let was_on_trial = self.trial.take_if(|on_trial| on_trial.version == version).is_some();
        let in_force = self.configuration_in_force().0;
        if !was_on_trial && in_force == Some(version) {
            self.configuration = None;
        }
        was_on_trial || in_force == Some(version)
    }

    /// Asks again for documents of retired controllers; they stay in force until then.
    pub(super) fn doubt_documents(&mut self) {
        let Self { trust, configuration, trial, candidates, anchors, table, taken, .. } = self;
        let trial = trial.as_ref().map(|on_trial| &on_trial.document);
        let doubted = [
            (Kind::Configuration, is_doubted(trial.or(configuration.as_ref()), trust)),
            (Kind::Candidates, is_doubted(candidates.as_ref(), trust)),
            (Kind::Anchors, is_doubted(anchors.as_ref(), trust)),
        ];
        taken.retain(|kind, _| !doubted.contains(&(*kind, true)));
        table.doubt(trust);
    }

    pub(super) fn forget_former(&mut self) {
        let Self { trust, head, configuration, trial, candidates, anchors, table, .. } = self;
        let trial = trial.as_ref().map(|on_trial| &on_trial.document);
        let configurations = configuration.iter().chain(trial).flat_map(Signed::claimed_keys);
        let servers = candidates.iter().flat_map(Signed::claimed_keys);
        let servers = servers.chain(anchors.iter().flat_map(Signed::claimed_keys));
        let heads = head.iter().flat_map(Signed::claimed_keys).chain(table.claimed_keys());
        let needed: BTreeSet<PublicKey> = configurations.chain(servers).chain(heads).collect();
        trust.retain_former(|key| needed.contains(key));
    }

    pub(super) fn has_revocations_of(&self, keys: impl Iterator<Item = PublicKey>) -> bool {
        let held = self.trust.revocations().head();
        let signed = self.head.as_ref().and_then(|head| head.verify_by(keys).ok());
        match signed {
            Some((head, _)) => head == held,
            None => held.serial == 0,
        }
    }

    pub(super) fn admission(&self, role: Role) -> Admission<'_> {
        let mut admission = self.table.admission(&self.trust);
        let connects = |of: Role| of == Role::Box || (of == Role::Proxy && role == Role::Anchor);
        let is_wrong = |who: &Admitted| !connects(who.statement.role);
        let wrong = admission.admitted.extract_if(.., |(who, _)| is_wrong(who));
        let wrong: Vec<_> = wrong.map(|(_, member)| (member.key, Refused::Role)).collect();
        admission.refused.extend(wrong);
        admission
    }

    pub(super) fn servers(&self) -> Vec<AgentEvent> {
        let mut events = Vec::new();
        let signers = || self.trust.signers();
        let mut prove = |chain: &Chain, role, tenant: &Name, uses: &mut Uses| {
            let refused = match chain.verify(&self.trust) {
                Ok(who) if who.statement.role != role => "it has another role".to_owned(),
                Ok(who) if !who.statement.scope.covers(&Scope::Tenant(tenant.clone())) => {
                    "it belongs to another tenant".to_owned()
                }
                Ok(who) if !uses.take(&who) => {
                    "its delegate signed for more keys than it may".to_owned()
                }
                Ok(who) => return Some(who.statement),
                Err(error) => error.to_string(),
            };
            let what = if role == Role::Anchor { "an anchor" } else { "a proxy" };
            events.push(AgentEvent::Warning(format!("{what} is not used: {refused}")));
            None
        };
        let candidates = self.candidates.as_ref().and_then(|c| c.verify_by(signers()).ok());
        let candidates = candidates.map(|(document, _)| {
            let proxies = document.body.proxies.into_iter().take(Candidates::MAX);
            let mut uses = Uses::default();
            let verified = |candidate: crate::document::Candidate| {
                let about = prove(&candidate.chain, Role::Proxy, &self.tenant, &mut uses)?;
                Some(VerifiedServer {
                    key: about.key,
                    name: about.name,
                    site: Some(candidate.site),
                    addresses: candidate.addresses,
                    to_anchor_us: candidate.to_anchor_us,
                    last_resort: candidate.last_resort,
                })
            };
            AgentEvent::Candidates(proxies.filter_map(verified).collect())
        });
        let anchors = self.anchors.as_ref().and_then(|a| a.verify_by(signers()).ok());
        let anchors = anchors.map(|(document, _)| {
            let mut uses = Uses::default();
            let verified = |anchor: crate::document::Anchor| {
                let about = prove(&anchor.chain, Role::Anchor, &anchor.tenant, &mut uses)?;
                let server = VerifiedServer {
                    key: about.key,
                    name: about.name,
                    site: None,
                    addresses: anchor.addresses,
                    to_anchor_us: 0,
                    last_resort: false,
                };
                Some(Egress {
                    tenant: anchor.tenant,
                    anchor: server,
                    rate_kbps: anchor.rate_kbps,
                    gateways: usable_gateways(anchor.gateways),
                })
            };
            AgentEvent::Anchors(document.body.anchors.into_iter().filter_map(verified).collect())
        });
        events.into_iter().chain(candidates).chain(anchors).collect()
    }

    /// Drops what cannot be verified, so that it is sent again; returns the reasons.
    pub(super) fn prove(&mut self, key: PublicKey) -> Vec<(&'static str, PersistedStateError)> {
        let mut failed = Vec::new();
        self.doubt_documents();
        let Self { trust, configuration, trial, candidates, anchors, table, .. } = self;
        let open = |signed: &Signed<_>| Document::open_held(signed, trust, key).map(|_| ());
        forget_if(configuration, open, "the configuration", &mut failed);
        let open_trial = |on_trial: &OnTrial| open(&on_trial.document);
        forget_if(trial, open_trial, "the configuration on trial", &mut failed);
        let open = |signed: &Signed<_>| Document::open_held(signed, trust, key).map(|_| ());
        forget_if(candidates, open, "the candidates", &mut failed);
        let open = |signed: &Signed<_>| Document::open_held(signed, trust, key).map(|_| ());
        forget_if(anchors, open, "the anchors", &mut failed);
        if let Err(error) = table.check(trust, key) {
            *table = Table::default();
            failed.push(("the table", error.into()));
        }
        failed
    }
}

fn is_doubted<T: Payload>(signed: Option<&Signed<T>>, trust: &Trust) -> bool {
    signed.is_some_and(|signed| signed.verify_by(trust.controllers()).is_err())
}

fn forget_if<T>(
    persisted: &mut Option<T>,
    open: impl Fn(&T) -> Result<(), DocumentError>,
    what: &'static str,
    failed: &mut Vec<(&'static str, PersistedStateError)>,
) {
    if let Some(Err(error)) = persisted.as_ref().map(open) {
        *persisted = None;
        failed.push((what, error.into()));
    }
}
