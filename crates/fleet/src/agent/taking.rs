//! How an agent handles each message of its controller.

use std::time::Duration;

use roadweave_proto::Instant;

use super::{Agent, AgentEvent};
use crate::chain::Chain;
use crate::document::{Approvals, Body, Configuration, Document, DocumentError, Kind, Version};
use crate::envelope::{Envelope, Signed};
use crate::frame::{Down, Outcome, Up};
use crate::name::Name;
use crate::revocation::{Head, Revocation, RevocationError};
use crate::statement::{Role, Scope};
use crate::table::{TableChange, TableError};

const ENTRIES_MAX: usize = 65_536;
const ENTRIES_AT_ONCE: usize = 100;
const WATCH_MAX: Duration = Duration::from_secs(60);

impl Agent {
    /// Handles a message of the controller. What cannot be verified only causes a warning.
    pub fn handle_frame(&mut self, now: Instant, frame: Down) {
        match frame {
            Down::Trust { list } => match self.persisted.trust.replace(&list) {
                Ok(true) => self.on_trust_changed(),
                Ok(false) => {}
                Err(error) => self.warn(error),
            },
            Down::Revoke { entries, head } => {
                self.on_revocations(entries, head);
                self.persisted.forget_former();
            }
            Down::Desired { kind, document } => {
                self.on_document(now, kind, document);
                self.persisted.forget_former();
            }
            Down::Members(change) => {
                self.on_members(change);
                self.persisted.forget_former();
            }
            Down::Watch { lease_ms } => {
                let lease = Duration::from_millis(lease_ms.into()).min(WATCH_MAX);
                self.push_event(AgentEvent::Watch(now + lease));
            }
            Down::Welcome { chain, tenant } => self.on_welcome(chain, tenant),
            Down::Refused { reason, retry } => {
                self.push_event(AgentEvent::Refused { reason, retry })
            }
            Down::Drain => self.on_drain(true),
            Down::Undrain => self.on_drain(false),
            Down::Alive => {
                if let Some(on_trial) = &mut self.persisted.trial {
                    on_trial.trial.on_answer(now);
                }
                self.handle_timeout(now);
            }
        }
    }

    fn on_drain(&mut self, drained: bool) {
        if self.role == Role::Box {
            return self.warn("a box cannot be drained");
        }
        if std::mem::replace(&mut self.drained, drained) != drained {
            self.push_event(AgentEvent::Drain(drained));
        }
    }

    fn warn(&mut self, what: impl ToString) {
        self.push_event(AgentEvent::Warning(what.to_string()));
    }

    fn on_trust_changed(&mut self) {
        self.persisted.doubt_documents();
        self.persisted.forget_former();
        self.push_event(AgentEvent::Persist);
        self.send_have();
        self.report_verified();
    }

    fn on_welcome(&mut self, chain: Chain, tenant: Name) {
        let Some(joining) = &self.joining else { return };
        let refused = match chain.verify(self.persisted.trust()) {
            Err(error) => error.to_string(),
            Ok(who) if who.statement.key != self.key => "it is for another key".to_owned(),
            Ok(who) if who.statement.role != self.role => "it is for another role".to_owned(),
            Ok(who) if tenant != joining.token.tenant || !is_of(&who.statement.scope, &tenant) => {
                "it is for another tenant than the token".to_owned()
            }
            Ok(who) => {
                self.joining = None;
                (self.persisted.chain, self.persisted.tenant) = (Some(chain), tenant.clone());
                self.push_event(AgentEvent::Joined { tenant, statement: who.statement });
                self.push_event(AgentEvent::Persist);
                self.send_have();
                return;
            }
        };
        self.warn(format!("the controller's welcome is invalid: {refused}"));
    }

    fn on_revocations(&mut self, entries: Vec<Revocation>, head: Option<Signed<Head>>) {
        self.entries.extend(entries);
        if self.entries.len() > ENTRIES_MAX {
            self.entries.clear();
            self.warn(RevocationError::TooMany);
            return;
        }
        let Some(head) = head else { return };
        let entries = std::mem::take(&mut self.entries);
        if let Err(error) = self.check_epoch(&head) {
            return self.warn(error);
        }
        let controllers: Vec<_> = self.persisted.trust().controllers().collect();
        match self.persisted.trust.revocations.extend(&entries, &head, controllers) {
            Ok(revoked) => {
                self.handing_back = None;
                self.persisted.head = Some(head);
                self.push_event(AgentEvent::Persist);
                let was_doubtful = std::mem::take(&mut self.is_doubtful);
                // Also without new keys: the controller waits for this report.
                self.report_revoked(revoked);
                self.persisted.doubt_documents();
                self.report_servers();
                if self.role != Role::Box || was_doubtful {
                    self.push_event(AgentEvent::Table);
                }
            }
            Err(error) => {
                self.warn(error);
                let hands_back =
                    !matches!(error, RevocationError::Envelope(_) | RevocationError::TooMany);
                if hands_back {
                    self.handing_back = Some(0);
                }
            }
        }
    }

    /// Only a root begins an epoch: otherwise a stolen controller could use up all epochs.
    fn check_epoch(&self, head: &Signed<Head>) -> Result<(), DocumentError> {
        let trust = self.persisted.trust();
        let (head, _) = head.verify_by(trust.controllers())?;
        match head.epoch > trust.list().epoch {
            true => Err(DocumentError::Epoch(head.epoch)),
            false => Ok(()),
        }
    }

    /// The next part of the revocations that the controller lacks.
    pub(super) fn next_surplus(&mut self) -> Option<Up> {
        let from = self.handing_back.take()?;
        let head = self.persisted.head.as_ref()?;
        let all = self.persisted.trust().revocations();
        let entries: Vec<Revocation> =
            all.entries(from).iter().take(ENTRIES_AT_ONCE).cloned().collect();
        let until = from + entries.len() as u64;
        let is_last = until >= all.head().serial;
        let head = is_last.then(|| head.clone());
        self.handing_back = (!is_last).then_some(until);
        Some(Up::Surplus { entries, head })
    }

    fn on_members(&mut self, change: TableChange) {
        if self.role == Role::Box {
            return self.warn("a box does not use a table of members");
        }
        match self.persisted.table.change(change, &self.persisted.trust, self.key) {
            Ok(true) => {
                self.push_event(AgentEvent::Table);
                if let Some(version) = self.persisted.table.version() {
                    self.report(Kind::Table, version, Outcome::Confirmed);
                }
            }
            Ok(false) => {}
            Err(error) => {
                self.warn(error);
                // The change has another base: asks for the whole table, once a stream.
                if error == TableError::Changed && !self.asked_for_all {
                    self.asked_for_all = true;
                    self.send_have();
                }
            }
        }
    }

    fn on_document(&mut self, now: Instant, kind: Kind, document: Envelope) {
        let taken = match kind {
            Kind::Configuration => self.on_configuration(now, document.into()),
            Kind::Candidates => self.open(document.into()).map(|(signed, version)| {
                self.persisted.candidates = Some(signed);
                self.take_servers(kind, version);
            }),
            Kind::Anchors => self.open(document.into()).map(|(signed, version)| {
                self.persisted.anchors = Some(signed);
                self.take_servers(kind, version);
            }),
            // It comes as [`Down::Members`].
            Kind::Table => Ok(()),
        };
        match taken {
            Ok(()) | Err(DocumentError::Older { .. }) => {}
            Err(error) => self.warn(error),
        }
    }

    fn take_servers(&mut self, kind: Kind, version: Version) {
        self.persisted.taken.insert(kind, version);
        self.report_servers();
        self.report(kind, version, Outcome::Confirmed);
    }

    fn on_configuration(
        &mut self,
        now: Instant,
        signed: Signed<Document<Configuration>>,
    ) -> Result<(), DocumentError> {
        let held = self.persisted.taken().get(&Kind::Configuration).copied();
        let document = Document::open(&signed, self.persisted.trust(), self.key, held)?;
        let version = document.version;
        let approved = match self.approve(&document.body) {
            Ok(approved) => approved,
            Err(error) => {
                self.persisted.taken.insert(Kind::Configuration, version);
                let why = error.to_string();
                self.report(Kind::Configuration, version, Outcome::Refused { why });
                return Ok(());
            }
        };
        self.persisted.approved = approved;
        self.persisted.try_configuration(now, (self.works, self.is_mute), signed, version);
        self.report(Kind::Configuration, version, Outcome::InForce);
        self.configure();
        Ok(())
    }

    fn approve(&self, configuration: &Configuration) -> Result<Approvals, DocumentError> {
        let trust = self.persisted.trust();
        let chain = self.persisted.chain().and_then(|chain| chain.verify(trust).ok());
        let tags = chain.map(|who| who.statement.tags).unwrap_or_default();
        let mut approved = self.persisted.approved.clone();
        configuration.check(trust, self.persisted.tenant(), (&self.key, &tags), &mut approved)?;
        Ok(approved)
    }

    fn open<B: Body>(
        &self,
        signed: Signed<Document<B>>,
    ) -> Result<(Signed<Document<B>>, Version), DocumentError> {
        let held = self.persisted.taken().get(&B::KIND).copied();
        let document = Document::open(&signed, self.persisted.trust(), self.key, held)?;
        Ok((signed, document.version))
    }
}

fn is_of(scope: &Scope, tenant: &Name) -> bool {
    scope.covers(&Scope::Tenant(tenant.clone()))
}
