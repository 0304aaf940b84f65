//! Errors of requests.

use serde::{Deserialize, Serialize};

/// An error of JSON-RPC 2.0 (section 5.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} (code {code})")]
pub struct RpcError {
    /// The code.
    pub code: i32,
    /// The message.
    pub message: String,
}

impl RpcError {
    /// Code of an instance that did not answer in time; a retry may succeed.
    pub const BUSY: i32 = -32000;

    /// Code of an unknown method.
    pub const NO_METHOD: i32 = -32601;

    /// Code of a request that was refused.
    pub const REFUSED: i32 = -32001;

    /// An unknown method.
    pub fn method_not_found(method: &str) -> Self {
        Self { code: Self::NO_METHOD, message: format!("there is no method {method:?}") }
    }

    /// Invalid parameters.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self { code: -32602, message: message.into() }
    }

    pub(super) fn parse(message: impl ToString) -> Self {
        Self { code: -32700, message: message.to_string() }
    }

    pub(super) fn invalid_request() -> Self {
        let message = "a request is an object with jsonrpc \"2.0\" and a method".to_owned();
        Self { code: -32600, message }
    }

    pub(crate) fn refused(message: String) -> Self {
        Self { code: Self::REFUSED, message }
    }

    pub(crate) fn internal(message: impl ToString) -> Self {
        Self { code: -32603, message: message.to_string() }
    }

    pub(crate) fn busy() -> Self {
        Self::busy_with("the instance is busy, ask again")
    }

    pub(super) fn busy_with(message: &str) -> Self {
        Self { code: Self::BUSY, message: message.to_owned() }
    }
}
