//! What an agent keeps on disk, to work without a controller.

use std::collections::{BTreeMap, BTreeSet};

use roadweave_identity::PublicKey;
use roadweave_proto::Instant;
use serde::{Deserialize, Serialize};

use super::trial::{Decision, Question, Trial, Works};
use super::{Agent, AgentEvent, Egress, VerifiedServer};
use crate::chain::{Admitted, Chain, Uses};
use crate::document::{
    Anchors, Approvals, Candidates, Configuration, Document, DocumentError, Kind, Version,
};
use crate::envelope::Signed;
use crate::frame::Report;
use crate::name::Name;
use crate::revocation::Head;
use crate::statement::{Role, Scope};
use crate::table::{Admission, Refused, Table, TableError};
use crate::token::JoinToken;
use crate::trust::Trust;

/// All that an agent keeps, as it was signed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    trust: Trust,
    tenant: Name,
    /// `host:port` each.
    addresses: Vec<String>,
    chain: Option<Chain>,
    head: Option<Signed<Head>>,
    /// The last one that was confirmed.
    configuration: Option<Signed<Document<Configuration>>>,
    trial: Option<OnTrial>,
    candidates: Option<Signed<Document<Candidates>>>,
    anchors: Option<Signed<Document<Anchors>>>,
    table: Table,
    taken: BTreeMap<Kind, Version>,
    reports: BTreeMap<Kind, Report>,
    pinned: Vec<String>,
    /// So that no earlier approval comes back.
    #[serde(default)]
    approved: Approvals,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct OnTrial {
    document: Signed<Document<Configuration>>,
    version: Version,
    trial: Trial,
}

/// What was kept cannot be verified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeptError {
    /// A document does not count.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The table does not count.
    #[error(transparent)]
    Table(#[from] TableError),
}

impl Kept {
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

    pub(super) fn trust_mut(&mut self) -> &mut Trust {
        &mut self.trust
    }

    /// Its tenant.
    pub fn tenant(&self) -> &Name {
        &self.tenant
    }

    /// The addresses of controllers, `host:port` each.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    pub(super) fn set_addresses(&mut self, addresses: Vec<String>) {
        self.addresses = addresses;
    }

    /// The chain that admits it.
    pub fn chain(&self) -> Option<&Chain> {
        self.chain.as_ref()
    }

    pub(super) fn set_chain(&mut self, chain: Chain, tenant: Name) {
        (self.chain, self.tenant) = (Some(chain), tenant);
    }

    /// The signed head of its revocations.
    pub fn head(&self) -> Option<&Signed<Head>> {
        self.head.as_ref()
    }

    pub(super) fn set_head(&mut self, head: Signed<Head>) {
        self.head = Some(head);
    }

    pub(super) fn table_mut(&mut self) -> (&mut Table, &Trust) {
        (&mut self.table, &self.trust)
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

    pub(super) fn set_report(&mut self, report: Report) {
        self.reports.insert(report.kind, report);
    }

    pub(super) fn approved(&self) -> &Approvals {
        &self.approved
    }

    pub(super) fn set_approved(&mut self, approved: Approvals) {
        self.approved = approved;
    }

    /// Fields that the file overrides.
    pub fn pinned(&self) -> &[String] {
        &self.pinned
    }

    pub(super) fn set_pinned(&mut self, pinned: Vec<String>) {
        self.pinned = pinned;
    }

    /// The version on trial.
    pub fn on_trial(&self) -> Option<Version> {
        self.trial.as_ref().map(|on_trial| on_trial.version)
    }

    /// Version and text of the configuration that is to be in force now.
    pub fn configuration_in_force(&self) -> (Option<Version>, Option<String>) {
        let new = self.trial.as_ref().filter(|on_trial| !on_trial.trial.compares());
        let signed = new.map(|new| &new.document).or(self.configuration.as_ref());
        // It was verified when it was taken or read, maybe by a controller that has retired since.
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

    pub(super) fn take_candidates(
        &mut self,
        document: Signed<Document<Candidates>>,
        version: Version,
    ) {
        self.taken.insert(Kind::Candidates, version);
        self.candidates = Some(document);
    }

    pub(super) fn take_anchors(&mut self, document: Signed<Document<Anchors>>, version: Version) {
        self.taken.insert(Kind::Anchors, version);
        self.anchors = Some(document);
    }

    /// Notes a document that cannot be used, so that it is not sent again.
    pub(super) fn note_taken(&mut self, kind: Kind, version: Version) {
        self.taken.insert(kind, version);
    }

    pub(super) fn on_works(&mut self, now: Instant, works: Works, is_mute: bool) {
        if let Some(on_trial) = &mut self.trial {
            on_trial.trial.on_works(now, works, is_mute);
        }
    }

    pub(super) fn on_answer(&mut self, now: Instant) {
        if let Some(on_trial) = &mut self.trial {
            on_trial.trial.on_answer(now);
        }
    }

    pub(super) fn poll_question(&mut self) -> Option<Question> {
        self.trial.as_mut()?.trial.poll_question()
    }

    pub(super) fn poll_trial(&mut self, now: Instant) -> Option<(Version, Decision)> {
        let on_trial = self.trial.as_mut()?;
        on_trial.trial.poll(now).map(|decision| (on_trial.version, decision))
    }

    pub(super) fn trial_timeout(&self) -> Option<Instant> {
        self.trial.as_ref()?.trial.poll_timeout()
    }

    pub(super) fn confirm(&mut self) {
        if let Some(on_trial) = self.trial.take() {
            self.configuration = Some(on_trial.document);
        }
    }

    pub(super) fn take_back(&mut self) {
        self.trial = None;
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
        let is_doubted = |by: bool| !by;
        let configuration = trial.or(configuration.as_ref());
        let holds = [
            (Kind::Configuration, configuration.map(|d| d.verify_by(trust.controllers()).is_ok())),
            (
                Kind::Candidates,
                candidates.as_ref().map(|d| d.verify_by(trust.controllers()).is_ok()),
            ),
            (Kind::Anchors, anchors.as_ref().map(|d| d.verify_by(trust.controllers()).is_ok())),
        ];
        for (kind, holds) in holds {
            if holds.is_some_and(is_doubted) {
                taken.remove(&kind);
            }
        }
        table.doubt(trust);
    }

    /// Forgets retired controllers that have signed nothing that is held.
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

    /// Whether a current controller has signed the head of the revocations.
    pub(super) fn has_proved_revocations(&self) -> bool {
        self.has_revocations_of(self.trust.controllers())
    }

    /// Whether a current or retired controller has signed it.
    pub(super) fn has_held_revocations(&self) -> bool {
        self.has_revocations_of(self.trust.signers())
    }

    fn has_revocations_of(&self, keys: impl Iterator<Item = PublicKey>) -> bool {
        let held = self.trust.revocations().head();
        let signed = self.head.as_ref().and_then(|head| head.verify_by(keys).ok());
        match signed {
            Some((head, _)) => head == held,
            None => held.serial == 0,
        }
    }

    /// Drops what cannot be verified, so that it is sent again; returns the reasons.
    fn prove(&mut self, key: PublicKey) -> Vec<(&'static str, KeptError)> {
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

fn forget_if<T>(
    kept: &mut Option<T>,
    open: impl Fn(&T) -> Result<(), DocumentError>,
    what: &'static str,
    failed: &mut Vec<(&'static str, KeptError)>,
) {
    if let Some(Err(error)) = kept.as_ref().map(open) {
        *kept = None;
        failed.push((what, error.into()));
    }
}

impl Agent {
    pub(super) fn prove_kept(&mut self, now: Instant) {
        for (what, error) in self.kept.prove(self.key) {
            self.tell(AgentEvent::Warning(format!("{what} on disk is not used: {error}")));
        }
        if !self.kept.has_held_revocations() {
            let held = self.kept.trust().revocations().head().serial;
            let text = format!(
                "the revocations on disk are those that a controller has signed up to {held} at \
                 most, and the rest is not used: nobody is let in before it tells them again"
            );
            self.tell(AgentEvent::Warning(text));
        }
        let taken = self.kept.trust().revocations().entries(0);
        let keys: Vec<PublicKey> = taken.iter().map(|entry| entry.key).collect();
        if !keys.is_empty() {
            self.tell_revoked(keys);
        }
        let (works, is_mute) = (self.works, self.is_mute);
        if let Some(on_trial) = &mut self.kept.trial {
            on_trial.trial.begin(now, works, is_mute);
            // The start counts, even if the program ends soon.
            self.tell(AgentEvent::Keep);
        }
        // A version that has ended the program repeatedly is not started again.
        self.handle_timeout(now);
        if !self.events.iter().any(|event| matches!(event, AgentEvent::Configure { .. })) {
            self.configure();
        }
        self.tell_servers();
        if self.role != Role::Box {
            self.tell(AgentEvent::Table);
        }
    }

    /// The members who may connect to this proxy or anchor: boxes, and proxies to an anchor. None
    /// while the revocations are uncertain.
    pub fn admission(&self) -> Admission<'_> {
        if self.is_doubtful {
            return Admission::default();
        }
        let mut admission = self.kept.table.admission(&self.kept.trust);
        let role = self.role;
        let connects = |of: Role| of == Role::Box || (of == Role::Proxy && role == Role::Anchor);
        let is_wrong = |who: &Admitted| !connects(who.statement.role);
        let wrong = admission.admitted.extract_if(.., |(who, _)| is_wrong(who));
        let wrong: Vec<_> = wrong.map(|(_, member)| (member.key, Refused::Role)).collect();
        admission.refused.extend(wrong);
        admission
    }

    pub(super) fn tell_servers(&mut self) {
        let mut warnings = Vec::new();
        let kept = &self.kept;
        let signers = || kept.trust.signers();
        let mut prove = |chain: &Chain, role, tenant: &Name, uses: &mut Uses| {
            let refused = match chain.verify(&kept.trust) {
                Ok(who) if who.statement.role != role => "it is something else".to_owned(),
                Ok(who) if !who.statement.scope.covers(&Scope::Tenant(tenant.clone())) => {
                    "it is another tenant's".to_owned()
                }
                Ok(who) if !uses.take(&who) => {
                    "a delegate has signed for more than it may".to_owned()
                }
                Ok(who) => return Some(who.statement),
                Err(error) => error.to_string(),
            };
            let what = if role == Role::Anchor { "an anchor" } else { "a proxy" };
            warnings.push(format!("{what} is not used: {refused}"));
            None
        };
        let candidates = kept.candidates.as_ref().and_then(|c| c.verify_by(signers()).ok());
        let candidates = candidates.map(|(document, _)| {
            let proxies = document.body.proxies.into_iter().take(Candidates::MAX);
            let mut uses = Uses::default();
            let verified = |candidate: crate::document::Candidate| {
                let about = prove(&candidate.chain, Role::Proxy, &kept.tenant, &mut uses)?;
                Some(VerifiedServer {
                    key: about.key,
                    name: about.name,
                    site: Some(candidate.site),
                    addresses: candidate.addresses,
                    to_anchor_us: candidate.to_anchor_us,
                    last_resort: candidate.last_resort,
                })
            };
            proxies.filter_map(verified).collect()
        });
        let anchors = kept.anchors.as_ref().and_then(|a| a.verify_by(signers()).ok());
        let anchors = anchors.map(|(document, _)| {
            let mut uses = Uses::default();
            let verified = |anchor: crate::document::Anchor| {
                let about = prove(&anchor.chain, Role::Anchor, &anchor.tenant, &mut uses)?;
                let (addresses, rate_kbps) = (anchor.addresses, anchor.rate_kbps);
                let (key, name) = (about.key, about.name);
                let server = VerifiedServer {
                    key,
                    name,
                    site: None,
                    addresses,
                    to_anchor_us: 0,
                    last_resort: false,
                };
                Some(Egress { tenant: anchor.tenant, anchor: server, rate_kbps })
            };
            document.body.anchors.into_iter().filter_map(verified).collect()
        });
        warnings.into_iter().for_each(|warning| self.tell(AgentEvent::Warning(warning)));
        if let Some(candidates) = candidates {
            self.tell(AgentEvent::Candidates(candidates));
        }
        if let Some(anchors) = anchors {
            self.tell(AgentEvent::Anchors(anchors));
        }
    }
}
