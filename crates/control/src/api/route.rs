//! A route of the interface: where it is, who may use it, what goes in and what comes out.

use std::sync::Arc;
use std::time::Duration;

use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, MethodRouter, on};
use utoipa::ToSchema;

use super::App;
use super::schema::{Output, SchemaOf};
use crate::model::Role;

/// What stands before every path.
pub const PREFIX: &str = "/api/v1";

/// What a request must bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// The request need not say who asks.
    Nothing,
    /// The request need not say who asks, and is counted as a try of a password.
    Password,
    /// Any key or login.
    Anybody,
    /// At least this role in the tenant of the path.
    Role(Role),
    /// At least this role in the tenant that runs the controller.
    Host(Role),
}

/// A method at an address.
pub struct Route {
    /// The method.
    pub method: Method,
    /// The path after [`PREFIX`].
    pub path: &'static str,
    /// The operation's name, for programs and metrics.
    pub name: &'static str,
    /// What the operation does, in a line for people.
    pub summary: &'static str,
    /// What a caller has to be.
    pub needs: Needs,
    /// The schema of the request's body, if it has one.
    pub input: Option<SchemaOf>,
    /// What the answer holds.
    pub output: Output,
    /// Whether the operation asks for `If-Match` (RFC 9110 section 13.1.1).
    pub if_match: bool,
    /// How long it may take.
    pub deadline: Duration,
    pub(super) handler: MethodRouter<Arc<App>>,
}

impl Route {
    pub(super) fn role(mut self, role: Role) -> Self {
        self.needs = Needs::Role(role);
        self
    }

    pub(super) fn needs(mut self, needs: Needs) -> Self {
        self.needs = needs;
        self
    }

    pub(super) fn takes<T: ToSchema>(mut self) -> Self {
        self.input = Some(SchemaOf::new::<T>());
        self
    }

    pub(super) fn takes_called<T: ToSchema>(mut self, name: &'static str) -> Self {
        self.input = Some(SchemaOf::called::<T>(name));
        self
    }

    pub(super) fn gives<T: ToSchema>(mut self, status: u16) -> Self {
        self.output = Output::One(status, SchemaOf::new::<T>());
        self
    }

    /// A record with its version, and an ETag.
    pub(super) fn record<T: ToSchema>(mut self, status: u16) -> Self {
        self.output = Output::Record(status, SchemaOf::new::<T>());
        self
    }

    pub(super) fn records<T: ToSchema>(mut self) -> Self {
        self.output = Output::Records(SchemaOf::new::<T>());
        self
    }

    pub(super) fn page<T: ToSchema>(mut self) -> Self {
        self.output = Output::Page(SchemaOf::new::<T>());
        self
    }

    pub(super) fn all<T: ToSchema>(mut self) -> Self {
        self.output = Output::All(SchemaOf::new::<T>());
        self
    }

    /// Makes the answer a redirect to another address.
    pub(super) fn moves(mut self) -> Self {
        self.output = Output::Moved;
        self
    }

    pub(super) fn if_match(mut self) -> Self {
        self.if_match = true;
        self
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
        deadline: DEADLINE,
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

/// How long a request may take, unless its route says otherwise.
const DEADLINE: Duration = Duration::from_secs(15);
