//! From a root key by statements to the key of a box, proxy or anchor.
//!
//! ```text
//! root ──signs──► delegate ──signs──► delegate ──signs──► box
//!                 each within the scope, roles, tags and uses of the one before;
//!                 one of them revoked: the rest of the chain is worth nothing
//! ```

use std::collections::{BTreeMap, BTreeSet};

use roadweave_identity::PublicKey;
use serde::{Deserialize, Serialize};

use crate::envelope::{EnvelopeError, Signed};
use crate::statement::Statement;
use crate::trust::Trust;

pub const CHAIN_MAX: usize = 4;

/// Statements: a root signs the first, the key of each signs the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Chain(Vec<Signed<Statement>>);

/// The end of a verified chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// The statement about it.
    pub statement: Statement,
    /// The delegates between a root and it, the nearest last.
    pub issuers: Vec<Issuer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    pub key: PublicKey,
    pub uses: Option<u32>,
}

impl Chain {
    /// A chain of these statements, the root's first.
    pub fn new(statements: Vec<Signed<Statement>>) -> Self {
        Self(statements)
    }

    /// Appends a statement.
    #[must_use]
    pub fn then(mut self, statement: Signed<Statement>) -> Self {
        self.0.push(statement);
        self
    }

    /// The claimed signer of the first statement, not verified.
    pub fn claimed_root(&self) -> Option<PublicKey> {
        self.0.first()?.claimed_keys().next()
    }

    /// The last statement, not verified.
    pub fn claimed(&self) -> Option<Statement> {
        self.0.last()?.peek()
    }

    /// Verifies every step; no key may be revoked.
    pub fn verify(&self, trust: &Trust) -> Result<Admitted, ChainError> {
        self.prove()?.admit(trust)
    }

    /// Verifies the signatures for any first signer: costly, and the result never changes.
    pub(crate) fn prove(&self) -> Result<Proof, ChainError> {
        if !(1..=CHAIN_MAX).contains(&self.0.len()) {
            return Err(ChainError::Length(self.0.len()));
        }
        let mut proof = Proof { begins: Vec::new(), statements: Vec::new() };
        for (step, signed) in (1..).zip(&self.0) {
            let invalid = |why| ChainError::Signature { step, why };
            let statement = match proof.statements.last() {
                None => {
                    let holds = |key: &PublicKey| signed.verify(*key).is_ok();
                    proof.begins = signed.claimed_keys().filter(holds).collect();
                    signed.verify_by(proof.begins.iter().copied()).map_err(invalid)?.0
                }
                Some(above) => signed.verify(above.key).map_err(invalid)?,
            };
            proof.statements.push(statement);
        }
        Ok(proof)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Proof {
    begins: Vec<PublicKey>,
    statements: Vec<Statement>,
}

impl Proof {
    /// The end of the chain, if it begins at a current root, no step exceeds the one before, no key
    /// occurs twice, and none is revoked.
    pub(crate) fn admit(&self, trust: &Trust) -> Result<Admitted, ChainError> {
        if !trust.roots().any(|root| self.begins.contains(&root)) {
            let why = EnvelopeError::NotSigned;
            return Err(ChainError::Signature { step: 1, why });
        }
        let mut above: Option<&Statement> = None;
        let mut issuers = Vec::new();
        for (step, statement) in (1..).zip(&self.statements) {
            // Otherwise a revocation of one statement's key would revoke another.
            if self.statements[..step - 1].iter().any(|before| before.key == statement.key) {
                return Err(ChainError::Twice { step, key: statement.key });
            }
            if trust.is_revoked(&statement.key) {
                return Err(ChainError::Revoked { step, key: statement.key });
            }
            if let Some(above) = above {
                if !above.may_sign(statement) {
                    return Err(ChainError::Exceeds { step, key: above.key });
                }
                let uses = above.grant.as_ref().and_then(|grant| grant.uses);
                issuers.push(Issuer { key: above.key, uses });
            }
            above = Some(statement);
        }
        let statement = above.ok_or(ChainError::Length(0))?.clone();
        Ok(Admitted { statement, issuers })
    }
}

#[derive(Debug, Default)]
pub(crate) struct Uses {
    of: BTreeMap<PublicKey, u32>,
    counted: BTreeSet<PublicKey>,
}

impl Uses {
    /// False if the key is beyond the uses of a delegate above it.
    pub(crate) fn take(&mut self, who: &Admitted) -> bool {
        if self.counted.contains(&who.statement.key) {
            return true;
        }
        // All delegates count, or one could have others sign for as many again.
        let is_used_up = who.issuers.iter().any(|issuer| {
            let used = self.of.get(&issuer.key).copied().unwrap_or_default();
            issuer.uses.is_some_and(|most| used >= most)
        });
        if is_used_up {
            return false;
        }
        who.issuers.iter().for_each(|issuer| *self.of.entry(issuer.key).or_default() += 1);
        self.counted.insert(who.statement.key)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    #[error("a chain has 1 to {CHAIN_MAX} statements, this has {0}")]
    Length(usize),
    #[error("statement {step} of the chain: {why}")]
    Signature { step: usize, why: EnvelopeError },
    #[error("statement {step} of the chain is about {key}, which is revoked")]
    Revoked { step: usize, key: PublicKey },
    #[error("statement {step} of the chain repeats the key {key}")]
    Twice { step: usize, key: PublicKey },
    #[error("statement {step} of the chain is beyond what {key} may sign")]
    Exceeds { step: usize, key: PublicKey },
}

#[cfg(test)]
mod tests;
