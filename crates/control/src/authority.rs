//! The controller as one who signs: by its own key, and by the root key where that is its to keep.

use std::collections::BTreeSet;

use roadweave_fleet::{
    Chain, Digest, Head, JoinToken, Name, Revocation, Role, Scope, Secret, Signed, Statement,
    TrustList,
};
use roadweave_identity::{Identity, PublicKey};

use crate::model::{Device, Proxy, ProxyRole};

/// Who the controller is.
#[derive(Debug)]
pub struct Authority {
    controller: Identity,
    root: Root,
    addresses: Vec<String>,
}

/// Where the root key is.
#[derive(Debug)]
pub enum Root {
    /// Here.
    Held(Identity),
    /// Elsewhere; its public half is known, and it has signed whom the fleet may trust.
    Elsewhere(PublicKey, Signed<TrustList>),
}

/// Why nothing was signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotSigned(String);

impl NotSigned {
    /// With this reason.
    pub fn new(why: impl std::fmt::Display) -> Self {
        Self(why.to_string())
    }
}

impl Authority {
    /// A controller that can be reached at `addresses`, `host:port` each.
    pub fn new(controller: Identity, root: Root, addresses: Vec<String>) -> Self {
        Self { controller, root, addresses }
    }

    /// The controller's own key.
    pub fn controller(&self) -> &Identity {
        &self.controller
    }

    /// The root key's public half.
    pub fn root_key(&self) -> PublicKey {
        match &self.root {
            Root::Held(identity) => identity.public_key(),
            Root::Elsewhere(key, _) => *key,
        }
    }

    /// Whether this controller can admit keys by itself.
    pub fn admits(&self) -> bool {
        matches!(self.root, Root::Held(_))
    }

    /// Whom the fleet may trust, signed by the root, and the number of that list.
    ///
    /// # Errors
    /// When the list that the root has signed elsewhere does not fit this controller.
    pub fn trust(&self, epoch: i64) -> Result<(Signed<TrustList>, u64), NotSigned> {
        let epoch = epoch.unsigned_abs();
        let controller = self.controller.public_key();
        match &self.root {
            Root::Held(root) => {
                let list = TrustList {
                    // It changes with the epoch alone.
                    number: epoch,
                    epoch,
                    roots: vec![root.public_key()],
                    spares: Vec::new(),
                    controllers: vec![controller],
                    approvers: Vec::new(),
                };
                Ok((Signed::sign(&list, root).map_err(NotSigned::new)?, epoch))
            }
            Root::Elsewhere(root, signed) => {
                let list = signed.verify(*root).map_err(NotSigned::new)?;
                if !list.controllers.contains(&controller) || list.epoch < epoch {
                    return Err(NotSigned::new(format!(
                        "the list of trust is of epoch {} and this controller's is {epoch}, or does \
                         not name its key: have the root sign another",
                        list.epoch
                    )));
                }
                Ok((signed.clone(), list.number))
            }
        }
    }

    /// The text of a token, which is shown once.
    ///
    /// # Errors
    /// When the tenant's name is none.
    pub fn join_token(&self, tenant: &str, secret: Secret) -> Result<String, NotSigned> {
        let token = JoinToken {
            addresses: self.addresses.clone(),
            controller: self.controller.public_key(),
            root: self.root_key(),
            tenant: name(tenant)?,
            secret,
            delegate: None,
        };
        Ok(token.to_string())
    }

    /// What admits a box, as JSON; `None` where the root key is elsewhere.
    ///
    /// # Errors
    /// When it has no key or name that could be signed.
    pub fn admit_device(&self, tenant: &str, device: &Device) -> Result<Option<String>, NotSigned> {
        let scope = Scope::Tenant(name(tenant)?);
        let (id, tags) = (&device.id, &device.settings.tags);
        self.admit(id, &device.public_key, Role::Box, scope, tags)
    }

    /// What admits a proxy or an anchor; `shared` ones serve all tenants.
    ///
    /// # Errors
    /// As [`Authority::admit_device`].
    pub fn admit_proxy(
        &self,
        tenant: &str,
        shared: bool,
        proxy: &Proxy,
    ) -> Result<Option<String>, NotSigned> {
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
    ) -> Result<Option<String>, NotSigned> {
        let Root::Held(root) = &self.root else { return Ok(None) };
        let tags: BTreeSet<Name> = tags.iter().map(|tag| name(tag)).collect::<Result<_, _>>()?;
        let key = public_key.parse().map_err(|error| NotSigned(format!("{error}")))?;
        let statement = Statement { key, name: name(id)?, role, scope, tags, grant: None };
        let signed = Signed::sign(&statement, root).map_err(|why| NotSigned(why.to_string()))?;
        let chain = serde_json::to_string(&Chain::new(vec![signed]));
        chain.map(Some).map_err(|error| NotSigned(error.to_string()))
    }

    /// The next entry of the chain of revocations, as JSON, and its hash.
    ///
    /// # Errors
    /// When it is no key.
    pub fn revoke(
        public_key: &str,
        reason: &str,
        serial: i64,
        previous: &str,
    ) -> Result<(String, String), NotSigned> {
        let entry = Revocation {
            serial: serial.unsigned_abs(),
            key: public_key.parse().map_err(|error| NotSigned(format!("{error}")))?,
            reason: reason.to_owned(),
            previous: digest(previous)?,
        };
        let text = serde_json::to_string(&entry).map_err(|error| NotSigned(error.to_string()))?;
        Ok((text, entry.hash().into()))
    }

    /// The end of the chain of revocations, signed.
    ///
    /// # Errors
    /// When the hash is none.
    pub fn head(&self, epoch: i64, serial: i64, hash: &str) -> Result<Signed<Head>, NotSigned> {
        let (epoch, serial) = (epoch.unsigned_abs(), serial.unsigned_abs());
        let head = Head { epoch, serial, hash: digest(hash)? };
        Signed::sign(&head, &self.controller).map_err(|why| NotSigned(why.to_string()))
    }
}

/// A hash as the database has it: nothing before the first.
fn digest(text: &str) -> Result<Digest, NotSigned> {
    match text {
        "" => Ok(Digest::ZERO),
        text => Digest::try_from(text.to_owned()).map_err(|why| NotSigned(why.to_owned())),
    }
}

fn name(text: &str) -> Result<Name, NotSigned> {
    text.parse().map_err(|error| NotSigned(format!("\"{text}\": {error}")))
}
