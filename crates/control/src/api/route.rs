//! A route of the interface: its path, permissions, input and output.

use std::sync::Arc;

use axum::http::Method;
use axum::routing::MethodRouter;
use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::App;
use crate::model::Role;

pub const PREFIX: &str = "/api/v1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// No authentication; counts as a password attempt.
    Password,
    Authenticated,
    Role(Role),
    Host(Role),
}

pub struct Route {
    pub method: Method,
    pub path: &'static str,
    pub name: &'static str,
    pub summary: &'static str,
    pub needs: Needs,
    pub input: Option<SchemaOf>,
    pub output: Output,
    pub if_match: bool,
    pub(super) handler: MethodRouter<Arc<App>>,
}

impl From<Role> for Needs {
    fn from(role: Role) -> Self {
        Self::Role(role)
    }
}

/// Routes below a path. A row: method, path, name, summary, needs, handler, body if any, output.
macro_rules! routes {
    (@input) => { None };
    (@input $type:ty) => { Some(SchemaOf::new::<$type>()) };
    (@input $type:ty as $name:literal) => { Some(SchemaOf::called::<$type>($name)) };
    (@output $kind:ident) => { Output::$kind };
    (@output $kind:ident $status:literal, $type:ty) => {
        Output::$kind($status, SchemaOf::new::<$type>())
    };
    (@output $kind:ident $type:ty) => { Output::$kind(SchemaOf::new::<$type>()) };
    (@is) => { false };
    (@is if_match) => { true };
    ($list:ident below $below:literal: $($method:ident $path:literal $name:ident $summary:literal
        [$needs:expr] $handler:path $(: $input:ty $(as $called:literal)?)?
        => $kind:ident $(($($output:tt)*))? $(, $if_match:ident)?;)*) => {
        fn $list() -> Vec<Route> {
            vec![$(Route {
                method: axum::http::Method::$method,
                path: concat!($below, $path),
                name: stringify!($name),
                summary: $summary,
                needs: $needs.into(),
                input: routes!(@input $($input $(as $called)?)?),
                output: routes!(@output $kind $($($output)*)?),
                if_match: routes!(@is $($if_match)?),
                handler: on(MethodFilter::$method, $handler),
            }),*]
        }
    };
}
pub(super) use routes;

#[derive(Clone, Copy)]
pub struct SchemaOf {
    called: Option<&'static str>,
    of_type: fn() -> String,
    pub(super) schema: fn() -> RefOr<Schema>,
    pub(super) others: fn(&mut Vec<(String, RefOr<Schema>)>),
}

impl SchemaOf {
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

#[derive(Clone, Copy)]
pub enum Output {
    /// 204.
    Nothing,
    /// 303.
    Moved,
    One(u16, SchemaOf),
    /// A record with its version, and an ETag.
    Record(u16, SchemaOf),
    Records(SchemaOf),
    Page(SchemaOf),
    All(SchemaOf),
    Object,
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
