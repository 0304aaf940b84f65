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

/// The most statements of a chain.
pub const CHAIN_MAX: usize = 4;

/// Statements, the first signed by a root, each other by the key that the one before is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Chain(Vec<Signed<Statement>>);

/// A key that a chain leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// What is said of it.
    pub statement: Statement,
    /// Who said so: the delegates between a root and it, the nearest last.
    pub issuers: Vec<Issuer>,
}

/// The delegate that has signed a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// Its key.
    pub key: PublicKey,
    /// How many keys it may sign for.
    pub uses: Option<u32>,
}

impl Chain {
    /// A chain of these statements, the root's first.
    pub fn new(statements: Vec<Signed<Statement>>) -> Self {
        Self(statements)
    }

    /// This chain with another statement at its end.
    #[must_use]
    pub fn then(mut self, statement: Signed<Statement>) -> Self {
        self.0.push(statement);
        self
    }

    /// Who claims to have signed the first statement, which proves nothing.
    pub fn claimed_root(&self) -> Option<PublicKey> {
        self.0.first()?.claimed_keys().next()
    }

    /// What the last statement says, which proves nothing.
    pub fn claimed(&self) -> Option<Statement> {
        self.0.last()?.peek()
    }

    /// The key that it leads to, if every step holds and none of the keys is revoked.
    ///
    /// # Errors
    /// Which step does not hold, and why.
    pub fn verify(&self, trust: &Trust) -> Result<Admitted, ChainError> {
        self.prove()?.admit(trust)
    }

    /// Whether all signatures hold, whoever the first signer is: what of a verification costs time
    /// and never changes.
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

/// A chain whose signatures hold.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Proof {
    /// Who has signed the first statement.
    begins: Vec<PublicKey>,
    statements: Vec<Statement>,
}

impl Proof {
    /// The key that the chain leads to, if it begins at a root of today, no step exceeds the one
    /// before, no key stands in it twice, and none is revoked.
    pub(crate) fn admit(&self, trust: &Trust) -> Result<Admitted, ChainError> {
        if !trust.roots().any(|root| self.begins.contains(&root)) {
            let why = EnvelopeError::NotSigned;
            return Err(ChainError::Signature { step: 1, why });
        }
        let mut above: Option<&Statement> = None;
        let mut issuers = Vec::new();
        for (step, statement) in (1..).zip(&self.statements) {
            // Else who revokes one that it stands for revokes the other.
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

/// For how many keys of one table or list delegates have signed.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    of: BTreeMap<PublicKey, u32>,
    counted: BTreeSet<PublicKey>,
}

impl Uses {
    /// Counts a key, once; false if it is one more than a delegate above it may sign for.
    pub(crate) fn take(&mut self, who: &Admitted) -> bool {
        if self.counted.contains(&who.statement.key) {
            return true;
        }
        // All of them, or a delegate could have others sign for as many again.
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

/// Why a chain leads to nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// No statement, or too many.
    #[error("a chain has 1 to {CHAIN_MAX} statements, this has {0}")]
    Length(usize),
    /// A statement is not signed by whom it should.
    #[error("statement {step} of the chain: {why}")]
    Signature {
        /// Which, from 1.
        step: usize,
        /// What is wrong with it.
        why: EnvelopeError,
    },
    /// A key of the chain is revoked.
    #[error("statement {step} of the chain is about {key}, which is revoked")]
    Revoked {
        /// Which, from 1.
        step: usize,
        /// The key.
        key: PublicKey,
    },
    /// A key of the chain has a statement above already.
    #[error("statement {step} of the chain is about {key}, as one before it is")]
    Twice {
        /// Which, from 1.
        step: usize,
        /// The key.
        key: PublicKey,
    },
    /// A delegate has signed what it may not.
    #[error("statement {step} of the chain is beyond what {key} may sign")]
    Exceeds {
        /// Which, from 1.
        step: usize,
        /// The delegate.
        key: PublicKey,
    },
}

#[cfg(test)]
mod tests;
