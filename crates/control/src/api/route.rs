//! A route of the interface: its path, permissions, input and output.

use std::sync::Arc;

use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, MethodRouter, on};
use utoipa::ToSchema;

use super::App;
use super::schema::{Output, SchemaOf};
use crate::model::Role;

/// The prefix of every path.
pub const PREFIX: &str = "/api/v1";

/// What a request must authenticate as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// No authentication.
    Nothing,
    /// No authentication; counts as a password attempt.
    Password,
    /// Any key or login.
    Anybody,
    /// At least this role in the tenant of the path.
    Role(Role),
    /// At least this role in the host tenant.
    Host(Role),
}

/// An operation of the interface.
pub struct Route {
    /// The method.
    pub method: Method,
    /// The path after [`PREFIX`].
    pub path: &'static str,
    /// The operation's name, for programs and metrics.
    pub name: &'static str,
    /// One line for people.
    pub summary: &'static str,
    /// The permission that it needs.
    pub needs: Needs,
    /// The schema of the body, if it has one.
    pub input: Option<SchemaOf>,
    /// The answer.
    pub output: Output,
    /// Whether it needs `If-Match` (RFC 9110 section 13.1.1).
    pub if_match: bool,
    pub(super) handler: MethodRouter<Arc<App>>,
}

impl Route {
    pub(super) fn role(self, role: Role) -> Self {
        Self { needs: Needs::Role(role), ..self }
    }

    pub(super) fn needs(self, needs: Needs) -> Self {
        Self { needs, ..self }
    }

    pub(super) fn takes<T: ToSchema>(self) -> Self {
        Self { input: Some(SchemaOf::new::<T>()), ..self }
    }

    pub(super) fn takes_called<T: ToSchema>(self, name: &'static str) -> Self {
        Self { input: Some(SchemaOf::called::<T>(name)), ..self }
    }

    pub(super) fn gives<T: ToSchema>(self, status: u16) -> Self {
        Self { output: Output::One(status, SchemaOf::new::<T>()), ..self }
    }

    pub(super) fn record<T: ToSchema>(self, status: u16) -> Self {
        Self { output: Output::Record(status, SchemaOf::new::<T>()), ..self }
    }

    pub(super) fn records<T: ToSchema>(self) -> Self {
        Self { output: Output::Records(SchemaOf::new::<T>()), ..self }
    }

    pub(super) fn page<T: ToSchema>(self) -> Self {
        Self { output: Output::Page(SchemaOf::new::<T>()), ..self }
    }

    pub(super) fn all<T: ToSchema>(self) -> Self {
        Self { output: Output::All(SchemaOf::new::<T>()), ..self }
    }

    pub(super) fn output(self, output: Output) -> Self {
        Self { output, ..self }
    }

    pub(super) fn if_match(self) -> Self {
        Self { if_match: true, ..self }
    }
}

fn route<H, T>(
    method: Method,
    path: &'static str,
    name: &'static str,
    summary: &'static str,
    handler: H,
) -> Route
where
    H: Handler<T, Arc<App>>,
    T: 'static,
{
    let filter = MethodFilter::try_from(method.clone()).expect("axum knows the method");
    Route {
        method,
        path,
        name,
        summary,
        needs: Needs::Role(Role::Owner),
        input: None,
        output: Output::Nothing,
        if_match: false,
        handler: on(filter, handler),
    }
}

macro_rules! methods {
    ($($name:ident $method:ident),*) => {$(
        pub(super) fn $name<H, T>(path: &'static str, name: &'static str, summary: &'static str, handler: H)
            -> Route
        where
            H: Handler<T, Arc<App>>,
            T: 'static,
        {
            route(Method::$method, path, name, summary, handler)
        }
    )*};
}
methods!(get GET, post POST, put PUT, delete DELETE);
