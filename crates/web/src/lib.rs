//! The roadweave-web binary (`roadweave web`): a page with what a running client does, for the
//! phone of a crew or a technician.
//!
//! ```text
//! phone ─ HTTP, with the token ─► guard ─► api ─► what the watcher has read
//!                                          └────► local socket: pause, strategy
//! watcher: a thread ─ status, up to 5 times a second ─► local socket of the client
//! ```
//!
//! It is a separate program: the one that may change routes and filters contains no HTTP server. It
//! may only do what the local socket accepts.

#![allow(clippy::disallowed_methods, reason = "a program at the edge: sockets, threads and time")]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod api;
mod connections;
mod guard;
mod names;
mod page;
mod place;
mod samples;
mod serve;
mod signal;
mod token;
mod watcher;

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, Parser};
use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};
use roadweave_terminal::VERSION;
use roadweave_terminal::command_line::{LogOption, finish, refuse};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::out;

use crate::names::Names;
use crate::token::Token;

/// Shows a running client on a web page, for a crew's phone
///
/// The page's address ends with a token: everyone who has the address sees the client's figures and
/// may pause its uplinks and change strategies. There is no TLS: except on loopback, everyone who
/// can read the network's traffic can read the token.
#[derive(Debug, Parser)]
#[command(name = "roadweave-web", bin_name = "roadweave web", max_term_width = 100)]
#[command(version = VERSION)]
struct Arguments {
    #[command(flatten)]
    log: LogOption,
    /// The address to listen on: loopback, or this machine's address in the LAN. The address of an
    /// uplink is refused. Ports from 1024 up can be taken by any user of this machine, who would
    /// then receive the token
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:808")]
    listen: SocketAddr,
    /// The file with the token, created if it is missing. Only its owner may read it
    #[arg(long, value_name = "FILE", default_value = "/var/lib/roadweave-web/rw0/token")]
    token_file: PathBuf,
    /// The socket of the running client
    #[arg(long, default_value = "/run/roadweave/rw0.sock")]
    socket: PathBuf,
    /// Another name under which browsers may open this machine; on loopback, the name of a TLS
    /// proxy
    #[arg(long = "host", value_name = "NAME")]
    hosts: Vec<String>,
    /// Refuse all changes
    #[arg(long)]
    read_only: bool,
    /// Also listen where strangers can reach the page: on all addresses, or on an uplink's address
    #[arg(long)]
    anywhere: bool,
    /// Also print the page's address as a QR code
    #[arg(long)]
    qr: bool,
    /// Print the page's address, with the token, and exit
    #[arg(long)]
    address: bool,
}

/// The whole command line.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the command line.
pub fn main() -> ExitCode {
    finish(match Arguments::try_parse() {
        Ok(arguments) => arguments.log.run(|| arguments.run()),
        Err(error) => refuse(&error),
    })
}

impl Arguments {
    fn run(&self) -> Result<()> {
        if self.address {
            return self.print_address(&Token::read(&self.token_file)?);
        }
        place::may_be(self.listen, self.anywhere)?;
        let names = Names::new(self.listen.ip(), &self.hosts)?;
        let token = Token::read_or_make(&self.token_file)?;
        // Output that is no terminal may end in a log that others can read.
        if std::io::stdout().is_terminal() {
            self.print_address(&token)?;
        }
        serve::run(self, names, &token)
    }

    /// With a name on loopback, browsers come through a proxy with TLS.
    fn origin(&self) -> Result<String> {
        let (ip, port) = (self.listen.ip().to_canonical(), self.listen.port());
        Ok(match self.hosts.first() {
            Some(name) if ip.is_loopback() => format!("https://{name}"),
            Some(name) => format!("http://{name}:{port}"),
            None if !ip.is_unspecified() => format!("http://{}", self.listen),
            None if self.qr => {
                let message = "--qr: a phone cannot open this address; give its name with --host";
                return Err(BadInput::new(message.to_owned()).into());
            }
            None => format!("http://localhost:{port}"),
        })
    }

    fn print_address(&self, token: &Token) -> Result<()> {
        let address = token.address(&self.origin()?);
        out::line(&*address)?;
        if self.qr {
            let code = QrCode::with_error_correction_level(address.as_bytes(), EcLevel::L)?;
            out::line(code.render::<Dense1x2>().quiet_zone(true).build())?;
        }
        Ok(())
    }
}
