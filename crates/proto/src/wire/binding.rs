//! A binding: a client's signed statement that it is at this proxy now, for its tenant's anchor.
//!
//! ```text
//! signed    "roadweave binding 1" 00 | length:1 | tenant | anchor:32 | proxy:32 | number:8
//! ```
//!
//! The number orders a client's bindings, without a clock or a query. Each signed part prevents a
//! misuse: for another tenant, at another anchor, by another proxy, or after a newer one.

use bytes::{BufMut, BytesMut};

use crate::wire::control::error::ControlError;
use crate::wire::control::fields::{
    FIELD_ANCHOR, Fields, TENANT_MAX, put_field, put_tenant, tenant,
};

pub(crate) const FIELD_NUMBER: u16 = 11;
const FIELD_PROXY: u16 = 16;
const FIELD_SIGNATURE: u16 = 17;

/// Separates the signature from other uses of the key.
const PURPOSE: &[u8] = b"roadweave binding 1\0";

/// A client's binding. Only its form is checked here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The client's tenant, 1 to [`TENANT_MAX`] bytes.
    pub tenant: String,
    /// The key of the tenant's anchor.
    pub anchor: [u8; 32],
    /// The key of the client's proxy.
    pub proxy: [u8; 32],
    /// Counts the client's attachments, at all proxies.
    pub number: u64,
    /// The client's Ed25519 signature of [`Binding::signed`].
    pub signature: [u8; 64],
}

impl Binding {
    /// The bytes that the client signs.
    pub fn signed(&self) -> Vec<u8> {
        let tenant = &self.tenant.as_bytes()[..self.tenant.floor_char_boundary(TENANT_MAX)];
        let mut out = BytesMut::new();
        out.put_slice(PURPOSE);
        out.put_u8(tenant.len() as u8);
        out.put_slice(tenant);
        out.put_slice(&self.anchor);
        out.put_slice(&self.proxy);
        out.put_u64(self.number);
        out.into()
    }

    pub(crate) fn put(&self, out: &mut BytesMut) {
        put_tenant(out, &self.tenant);
        put_field(out, FIELD_ANCHOR, &self.anchor);
        put_field(out, FIELD_PROXY, &self.proxy);
        put_field(out, FIELD_NUMBER, &self.number.to_be_bytes());
        put_field(out, FIELD_SIGNATURE, &self.signature);
    }

    pub(crate) fn parse(fields: &Fields) -> Result<Self, ControlError> {
        Ok(Self {
            tenant: tenant(fields)?,
            anchor: fields.array(FIELD_ANCHOR)?,
            proxy: fields.array(FIELD_PROXY)?,
            number: u64::from_be_bytes(fields.array(FIELD_NUMBER)?),
            signature: fields.array(FIELD_SIGNATURE)?,
        })
    }

    pub(crate) fn parse_optional(fields: &Fields) -> Result<Option<Self>, ControlError> {
        match fields.all(FIELD_SIGNATURE).next() {
            Some(_) => Self::parse(fields).map(Some),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Control;
    use crate::wire::control::fields::FIELD_TENANT;

    fn binding() -> Binding {
        Binding {
            tenant: "acme".into(),
            anchor: [1; 32],
            proxy: [2; 32],
            number: 7,
            signature: [3; 64],
        }
    }

    #[test]
    fn what_is_signed_differs_wherever_two_bindings_differ() {
        let change: [fn(&mut Binding); 5] = [
            |_| {},
            |it| it.tenant = "acm".into(),
            |it| it.anchor[31] ^= 1,
            |it| it.proxy[0] ^= 1,
            |it| it.number += 1,
        ];
        let signed = change.map(|change| {
            let mut binding = binding();
            change(&mut binding);
            binding.signed()
        });
        for (at, one) in signed.iter().enumerate() {
            assert!(one.starts_with(PURPOSE));
            assert!(signed[..at].iter().all(|other| other != one), "{at}");
        }
        let mut shifted = binding();
        (shifted.tenant, shifted.anchor[0]) = ("acm".into(), b'e');
        assert_ne!(shifted.signed(), binding().signed());
    }

    #[test]
    fn a_binding_survives_and_a_strange_tenant_does_not() {
        let parse = |binding: Binding| Control::parse(Control::Binding(binding).to_bytes());
        assert_eq!(parse(binding()), Ok(Control::Binding(binding())));
        for tenant in ["", "a\u{1b}[2J", "new\nline"] {
            let strange = Binding { tenant: tenant.into(), ..binding() };
            assert_eq!(parse(strange), Err(ControlError::BadField(FIELD_TENANT)), "{tenant:?}");
        }
    }
}
