//! Uses of delegates: each key that one signs for counts at it and at the delegates above it.

use std::collections::BTreeSet;

use super::{Change, Result, StoreError};
use crate::model::{Delegate, DelegateState, TokenSettings};

/// The chain of delegates of a joining key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegated {
    /// The requested tenant.
    pub tenant: String,
    /// The delegates' keys; the last one has signed for the joining key.
    pub keys: Vec<String>,
    /// The tags that the chain gives.
    pub tags: BTreeSet<String>,
    /// The whole chain, as JSON, with verified signatures.
    pub chain: String,
}

impl Change<'_> {
    /// Takes a use of each delegate that has signed for a key that came by this token; `None` if
    /// the token has none. [`StoreError::Refused`] if one of them is used up, revoked, or not
    /// allowed to.
    pub(super) async fn take_delegated<'d>(
        &mut self,
        tenant: &str,
        token: &TokenSettings,
        delegated: Option<&'d Delegated>,
    ) -> Result<Option<&'d Delegated>> {
        let refused = |why: String| Err(StoreError::Refused(why));
        let (wanted, delegated) = match (&token.delegate, delegated) {
            (None, None) => return Ok(None),
            (Some(wanted), Some(delegated)) => (wanted, delegated),
            (None, Some(_)) => return refused("the token was made without a delegate".to_owned()),
            (Some(wanted), None) => {
                return refused(format!(
                    "the token lacks its delegate {wanted}: hand over the text that \
                     `roadweave fleet token create --delegate` prints"
                ));
            }
        };
        let tags: BTreeSet<String> = token.tags.iter().cloned().collect();
        if delegated.tenant != tenant || delegated.tags != tags {
            return refused("the chain is for another tenant, or gives other tags".to_owned());
        }
        for (at, key) in delegated.keys.iter().enumerate() {
            let found = self.find::<Delegate>("public_key", key).await;
            let before = match found {
                Ok(before) if before.tenant == tenant => before,
                Ok(_) | Err(StoreError::NotFound { .. }) => {
                    return refused(format!("no delegate of this tenant has the key {key}"));
                }
                Err(error) => return Err(error),
            };
            let Delegate { id, state, uses, used, .. } = &before.record;
            // The record of a restored database may be older than the revocation.
            if *state != DelegateState::Active || self.is_revoked(key).await? {
                return refused(format!("the delegate {id} was revoked"));
            }
            if uses.is_some_and(|most| *used >= most) {
                return refused(format!("the delegate {id} has signed for as many as it may"));
            }
            if at + 1 == delegated.keys.len() && id != wanted {
                return refused(format!("the token is for the delegate {wanted}, not {id}"));
            }
            let used = used.saturating_add(1);
            self.update(&before, Delegate { used, ..before.record.clone() }).await?;
        }
        match delegated.keys.is_empty() {
            // A chain without delegates is signed by a root, not by the token's delegate.
            true => refused("no delegate has signed for it".to_owned()),
            false => Ok(Some(delegated)),
        }
    }
}
