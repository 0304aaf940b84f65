//! `roadweave reload`: makes an instance read its configuration again, and prints the result.

use std::path::PathBuf;

use anyhow::Result;
use roadweave_node::local::{ReloadAnswer, RequestError, RpcError, reload};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

/// Makes a running client, server, proxy or anchor reload its configuration.
///
/// Sessions continue. A client applies changes to lanes, uplinks, their policies and exclusions; a
/// server applies changes to peers and to allowed destinations. Prints the fields that change only
/// at the next start. An invalid file changes nothing. SIGHUP does the same, and reports to the log
/// only.
#[derive(Debug, clap::Args)]
pub struct ReloadArgs {
    /// The socket of the running instance
    #[arg(long, default_value = "/run/roadweave/rw0.sock")]
    socket: PathBuf,
}

impl ReloadArgs {
    pub fn run(&self) -> Result<()> {
        let ReloadAnswer { ignored, refused } = match reload(&self.socket) {
            Ok(answer) => answer,
            Err(RequestError::Refused(error)) if error.code == RpcError::REFUSED => {
                return Err(BadInput::new(format!("nothing was changed: {}", error.message)).into());
            }
            Err(other) => return Err(other.into()),
        };
        out::line(format_args!("the configuration was read again"))?;
        if !ignored.is_empty() {
            out::line(format_args!("not before the next start: {}", ignored.join(", ")))?;
        }
        if refused.is_empty() {
            return Ok(());
        }
        let fields: Vec<String> =
            refused.iter().map(|(field, why)| format!("{field} is unchanged: {why}")).collect();
        Err(BadInput::new(fields.join("; ")).into())
    }
}
