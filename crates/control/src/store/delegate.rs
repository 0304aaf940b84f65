//! Delegates as they are used: each key that one signs for is counted, at it and at those above it.

use std::collections::BTreeSet;

use super::{Change, StoreError};
use crate::model::{Delegate, DelegateState, TokenSettings};

/// What delegates say of a key that wants to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegated {
    /// For which tenant it asks.
    pub tenant: String,
    /// The keys of the delegates, the one that has signed for it last.
    pub keys: Vec<String>,
    /// The tags that they give it.
    pub tags: BTreeSet<String>,
    /// The whole chain, as JSON. Its signatures hold.
    pub chain: String,
}

impl Change<'_> {
    /// Takes a use of each delegate that has signed for a key which came by this token; `None`
    /// where the token has none.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when one of them may not, may no more, or has signed for as many as
    /// it may.
    pub(super) async fn take_delegated<'d>(
        &mut self,
        tenant: &str,
        token: &TokenSettings,
        delegated: Option<&'d Delegated>,
    ) -> Result<Option<&'d Delegated>, StoreError> {
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
            // A copy of the database that was restored has its state of then.
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
            // A root has signed for it, which is nobody's token.
            true => refused("no delegate has signed for it".to_owned()),
            false => Ok(Some(delegated)),
        }
    }
}
