//! The schemas of a route's input and output.

use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// The schema of a type.
#[derive(Clone, Copy)]
pub struct SchemaOf {
    /// The name, if it differs from the type's.
    called: Option<&'static str>,
    of_type: fn() -> String,
    pub(super) schema: fn() -> RefOr<Schema>,
    pub(super) others: fn(&mut Vec<(String, RefOr<Schema>)>),
}

impl SchemaOf {
    /// The schema of `T` under the type's name.
    pub fn new<T: ToSchema>() -> Self {
        Self {
            called: None,
            of_type: || T::name().into_owned(),
            schema: <T as PartialSchema>::schema,
            others: |schemas| T::schemas(schemas),
        }
    }

    /// The schema of `T` under `name`: instances of a generic type would share the type's name.
    pub fn called<T: ToSchema>(name: &'static str) -> Self {
        Self { called: Some(name), ..Self::new::<T>() }
    }

    pub(super) fn name(self) -> String {
        self.called.map_or_else(self.of_type, str::to_owned)
    }

    pub(super) fn reference(self) -> Ref {
        Ref::from_schema_name(self.name())
    }
}

/// The answer of a route.
#[derive(Clone, Copy)]
pub enum Output {
    /// 204.
    Nothing,
    /// 303.
    Moved,
    /// A status and a value.
    One(u16, SchemaOf),
    /// A record with its version, and an ETag.
    Record(u16, SchemaOf),
    /// A page of records with their versions.
    Records(SchemaOf),
    /// A page of values.
    Page(SchemaOf),
    /// All values, as one page.
    All(SchemaOf),
    /// Any object.
    Object,
    /// Server-sent events.
    Events,
}

impl Output {
    pub(super) fn schema(self) -> Option<SchemaOf> {
        match self {
            Self::One(_, of) | Self::Record(_, of) => Some(of),
            Self::Records(of) | Self::Page(of) | Self::All(of) => Some(of),
            Self::Nothing | Self::Moved | Self::Object | Self::Events => None,
        }
    }
}
