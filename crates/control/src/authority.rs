//! The controller's signatures: by its own key, and by the root key if it holds that.

use std::collections::BTreeSet;

use roadweave_fleet::{
    Admitted, Chain, Digest, Head, JoinToken, Name, PublishedTrust, Revocation, Role, Scope,
    Secret, Signed, Statement, Trust, TrustList,
};
use roadweave_identity::{Identity, PublicKey};

use crate::model::{Device, Proxy, ProxyRole};

pub struct Authority {
    controller: Identity,
    root: Root,
    addresses: Vec<String>,
    lists: Vec<Signed<TrustList>>,
}

pub enum Root {
    Held(Identity),
    Elsewhere(PublicKey),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotSigned(String);

type Result<T, E = NotSigned> = std::result::Result<T, E>;

impl NotSigned {
    pub fn new(why: impl std::fmt::Display) -> Self {
        Self(why.to_string())
    }
}

impl Authority {
    pub fn new(controller: Identity, root: Root, addresses: Vec<String>) -> Self {
        Self { controller, root, addresses, lists: Vec::new() }
    }

    #[must_use]
    pub fn with_lists(self, lists: Vec<Signed<TrustList>>) -> Self {
        Self { lists, ..self }
    }

    pub fn controller(&self) -> &Identity {
        &self.controller
    }

    pub fn root_key(&self) -> PublicKey {
        match &self.root {
            Root::Held(identity) => identity.public_key(),
            Root::Elsewhere(key) => *key,
        }
    }

    /// The controller's key or one of the last trust list's: it neither joins nor is revoked.
    pub fn is_own(&self, key: &str) -> bool {
        let trust = self.trusted();
        let TrustList { roots, spares, controllers, .. } = trust.list();
        let own = [self.controller.public_key(), self.root_key()];
        let all = own.iter().chain(roots).chain(spares).chain(controllers);
        all.map(ToString::to_string).any(|one| one == key)
    }

    pub fn admits(&self) -> bool {
        matches!(self.root, Root::Held(_))
    }

    /// The key that a chain leads to, ignoring revocations. An error names the step that fails.
    pub fn follow(&self, chain: &Chain) -> Result<Admitted> {
        chain.verify(&self.trusted()).map_err(NotSigned::new)
    }

    fn trusted(&self) -> Trust {
        let last = self.lists.last().and_then(|last| last.verify_by(last.claimed_keys()).ok());
        match last {
            Some((list, _)) => Trust::of(list),
            None => Trust::pinned(self.root_key(), self.controller.public_key()),
        }
    }

    /// The trust lists to publish: all signed ones, and one more if the root key is here and the
    /// last list is of an earlier epoch. Fails if the last does not fit and none can be signed.
    pub fn trust(&self, epoch: i64) -> Result<Vec<PublishedTrust>> {
        let (epoch, controller) = (epoch.unsigned_abs(), self.controller.public_key());
        let (mut all, mut last) = (Vec::new(), None::<TrustList>);
        for list in &self.lists {
            let (read, _) = list.verify_by(list.claimed_keys()).map_err(NotSigned::new)?;
            if last.as_ref().is_some_and(|last| last.number >= read.number) {
                return Err(NotSigned::new("the numbers of the trust lists do not increase"));
            }
            all.push(PublishedTrust { number: read.number, list: list.clone() });
            last = Some(read);
        }
        let fits = |list: &TrustList| {
            let names = list.roots.contains(&self.root_key());
            names && list.controllers.contains(&controller) && list.epoch >= epoch
        };
        match (&self.root, last) {
            (_, Some(last)) if fits(&last) => {}
            (Root::Held(root), last) => {
                let list = match last {
                    // The number follows from the epoch, so it is the same after every start.
                    Some(last) => TrustList {
                        number: last.number.saturating_add(epoch.saturating_sub(last.epoch)),
                        epoch,
                        ..last
                    },
                    None => TrustList {
                        number: epoch,
                        epoch,
                        roots: vec![root.public_key()],
                        controllers: vec![controller],
                        ..TrustList::default()
                    },
                };
                if !fits(&list) || all.last().is_some_and(|last| last.number >= list.number) {
                    return Err(NotSigned::new(
                        "the last trust list does not name this controller and its root key: sign \
                         another with roadweave-controller trust",
                    ));
                }
                let number = list.number;
                let list = Signed::sign(&list, root).map_err(NotSigned::new)?;
                all.push(PublishedTrust { number, list });
            }
            (Root::Elsewhere(_), last) => {
                return Err(NotSigned::new(format!(
                    "the last trust list is of epoch {} and this controller's is {epoch}, or it \
                     does not name its key: have the root sign another with roadweave-controller \
                     trust",
                    last.map_or(0, |last| last.epoch)
                )));
            }
        }
        Ok(all)
    }

    /// The approvers of the last trust list, without whom no configuration counts.
    pub fn approvers(&self) -> Vec<PublicKey> {
        let last = self.lists.last().map(|last| last.verify_by(last.claimed_keys()));
        last.and_then(Result::ok).map(|(list, _)| list.approvers).unwrap_or_default()
    }

    /// A token's text. Fails if the tenant's name is invalid, or no current root signed `chain`.
    pub fn join_token(
        &self,
        tenant: &str,
        secret: Secret,
        chain: Option<&Chain>,
    ) -> Result<String> {
        let controller = self.controller.public_key();
        // A joining peer trusts one root at first, so the chain must lead from that.
        let leads = |root: &PublicKey, chain: &Chain| {
            chain.verify(&Trust::pinned(*root, controller)).is_ok()
        };
        let root = match chain {
            None => self.root_key(),
            Some(chain) => self
                .trusted()
                .roots()
                .find(|root| leads(root, chain))
                .ok_or_else(|| NotSigned::new("no current root key has signed the delegate"))?,
        };
        let token = JoinToken {
            addresses: self.addresses.clone(),
            controller,
            root,
            tenant: name(tenant)?,
            secret,
            delegate: None,
        };
        Ok(token.to_string())
    }

    /// `None` where the root key is elsewhere.
    pub fn admit_device(&self, tenant: &str, device: &Device) -> Result<Option<String>> {
        let scope = Scope::Tenant(name(tenant)?);
        let (id, tags) = (&device.id, &device.settings.tags);
        self.admit(id, &device.public_key, Role::Box, scope, tags)
    }

    /// The statement that admits a proxy or an anchor; a `shared` one serves all tenants.
    pub fn admit_proxy(&self, tenant: &str, shared: bool, proxy: &Proxy) -> Result<Option<String>> {
        let scope = if shared { Scope::All } else { Scope::Tenant(name(tenant)?) };
        let role = match proxy.settings.role {
            ProxyRole::Proxy => Role::Proxy,
            ProxyRole::Anchor => Role::Anchor,
        };
        self.admit(&proxy.id, &proxy.settings.public_key, role, scope, &[])
    }

    fn admit(
        &self,
        id: &str,
        public_key: &str,
        role: Role,
        scope: Scope,
        tags: &[String],
    ) -> Result<Option<String>> {
        let Root::Held(root) = &self.root else { return Ok(None) };
        let tags: BTreeSet<Name> = tags.iter().map(|tag| name(tag)).collect::<Result<_, _>>()?;
        let key = public_key.parse().map_err(|error| NotSigned(format!("{error}")))?;
        let statement = Statement { key, name: name(id)?, role, scope, tags, grant: None };
        let signed = Signed::sign(&statement, root).map_err(|why| NotSigned(why.to_string()))?;
        let chain = serde_json::to_string(&Chain::new(vec![signed]));
        chain.map(Some).map_err(|error| NotSigned(error.to_string()))
    }

    pub fn revoke(public_key: &str, serial: i64, previous: &str) -> Result<(String, String)> {
        let entry = Revocation {
            serial: serial.unsigned_abs(),
            key: public_key.parse().map_err(|error| NotSigned(format!("{error}")))?,
            previous: digest(previous)?,
        };
        let text = serde_json::to_string(&entry).map_err(|error| NotSigned(error.to_string()))?;
        Ok((text, entry.hash().into()))
    }

    pub fn head(&self, epoch: i64, serial: i64, hash: &str) -> Result<Signed<Head>> {
        let (epoch, serial) = (epoch.unsigned_abs(), serial.unsigned_abs());
        let head = Head { epoch, serial, hash: digest(hash)? };
        Signed::sign(&head, &self.controller).map_err(|why| NotSigned(why.to_string()))
    }
}

fn digest(text: &str) -> Result<Digest> {
    match text {
        "" => Ok(Digest::ZERO),
        text => Digest::try_from(text.to_owned()).map_err(|why| NotSigned(why.to_owned())),
    }
}

fn name(text: &str) -> Result<Name> {
    text.parse().map_err(|error| NotSigned(format!("\"{text}\": {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::identity;

    fn list(number: u64, epoch: u64, root: u8, by: u8) -> Signed<TrustList> {
        let list = TrustList {
            number,
            epoch,
            roots: vec![identity(root).public_key()],
            spares: Vec::new(),
            controllers: vec![identity(7).public_key()],
            approvers: Vec::new(),
        };
        Signed::sign(&list, &identity(by)).unwrap()
    }

    fn numbers(root: Root, lists: Vec<Signed<TrustList>>, epoch: i64) -> Result<Vec<u64>, String> {
        let authority = Authority::new(identity(7), root, Vec::new()).with_lists(lists);
        let all = authority.trust(epoch).map_err(|error| error.to_string())?;
        Ok(all.iter().map(|one| one.number).collect())
    }

    #[test]
    fn while_roots_change_what_the_former_has_signed_holds() {
        let delegate = |by: u8| {
            let statement = Statement {
                key: identity(30).public_key(),
                name: name("tokens").unwrap(),
                role: Role::Delegate,
                scope: Scope::Tenant(name("tram").unwrap()),
                tags: BTreeSet::new(),
                grant: None,
            };
            Chain::new(vec![Signed::sign(&statement, &identity(by)).unwrap()])
        };
        let with = |roots: &[u8]| {
            let (mut last, _) = list(2, 1, 8, 6).verify_by([identity(6).public_key()]).unwrap();
            last.roots = roots.iter().map(|root| identity(*root).public_key()).collect();
            let lists = vec![list(1, 1, 6, 6), Signed::sign(&last, &identity(6)).unwrap()];
            let root = Root::Elsewhere(identity(8).public_key());
            Authority::new(identity(7), root, vec!["x:1".to_owned()]).with_lists(lists)
        };
        let secret = Secret::from_bytes([1; 16]);
        for by in [6, 8] {
            assert!(with(&[8, 6]).follow(&delegate(by)).is_ok(), "{by}");
            let token = with(&[8, 6]).join_token("tram", secret, Some(&delegate(by))).unwrap();
            let root = token.parse::<JoinToken>().unwrap().root;
            assert_eq!(root, identity(by).public_key(), "whoever joins can follow the chain");
        }
        assert!(with(&[8]).follow(&delegate(6)).is_err());
        assert!(with(&[8]).join_token("tram", secret, Some(&delegate(6))).is_err());
    }

    #[test]
    fn all_trust_lists_are_published_and_one_more_where_the_root_is_here() {
        let held = || Root::Held(identity(8));
        assert_eq!(numbers(held(), vec![], 3), Ok(vec![3]));
        let rotated = || vec![list(1, 1, 6, 6), list(2, 1, 8, 6)];
        assert_eq!(numbers(held(), rotated(), 1), Ok(vec![1, 2]));
        assert_eq!(numbers(held(), rotated(), 4), Ok(vec![1, 2, 5]));
        let elsewhere = || Root::Elsewhere(identity(8).public_key());
        assert_eq!(numbers(elsewhere(), rotated(), 1), Ok(vec![1, 2]));
        assert!(numbers(elsewhere(), rotated(), 2).is_err());
        assert!(numbers(elsewhere(), vec![], 1).is_err());
        assert!(numbers(held(), vec![list(1, 1, 6, 6)], 1).is_err());
        assert!(numbers(held(), vec![list(2, 1, 8, 6), list(1, 1, 8, 6)], 1).is_err());
    }
}
