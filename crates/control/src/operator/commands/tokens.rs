//! Tokens, by which boxes, proxies and anchors join, and delegates, which sign for them.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Subcommand;
use roadweave_fleet::{Delegate, JoinToken, Role};
use roadweave_terminal::exit::BadInput;
use roadweave_terminal::{out, secret};
use serde_json::{Value, json};

use super::{CommandContext, Revoke, revoke};
use crate::operator::show;

/// What to do with tokens.
#[derive(Subcommand)]
pub enum TokenCommand {
    /// Create a token; it is shown once, as text and as a QR code
    Create(Create),
    /// All tokens, without their secrets
    List,
    /// Remove a token
    Remove { name: String },
}

/// How a token is to be.
#[derive(clap::Args)]
pub struct Create {
    /// How many machines may join with it
    #[arg(long, default_value_t = 1)]
    uses: u32,
    /// Hours until it expires, at most 87600 (ten years)
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=87_600))]
    hours: u32,
    /// What may join with it: box, proxy or anchor; default: box, or what the delegate may sign for
    #[arg(long, value_parser = ["box", "proxy", "anchor"])]
    role: Option<String>,
    /// The pool of proxies that the token is for
    #[arg(long)]
    pool: Option<String>,
    /// A tag for the boxes; may be repeated. Default: the tags of the delegate
    #[arg(long)]
    tag: Vec<String>,
    /// Each box needs approval
    #[arg(long)]
    approval: bool,
    /// The file of a delegate, needed when the root key is kept elsewhere. Its private key goes
    /// into the token and nowhere else. Pass such a token to `roadweave join -` on standard input:
    /// as an argument, all users of that machine could see it
    #[arg(long, value_name = "FILE")]
    delegate: Option<PathBuf>,
    /// Do not print a QR code
    #[arg(long)]
    no_qr: bool,
}

pub fn token(command: TokenCommand, context: &CommandContext) -> Result<()> {
    match command {
        TokenCommand::Create(options) => create(options, context),
        TokenCommand::List => context.list("tokens", COLUMNS),
        TokenCommand::Remove { name } => context.remove(&format!("tokens/{name}")),
    }
}

fn create(options: Create, context: &CommandContext) -> Result<()> {
    let delegate = options.delegate.as_deref().map(read).transpose()?;
    if let Some(delegate) = &delegate {
        check(delegate)?;
    }
    let said = delegate.as_ref().and_then(|delegate| delegate.chain.claimed());
    let grant = said.as_ref().and_then(|said| said.grant.as_ref());
    let only = grant.filter(|grant| grant.roles.len() == 1);
    let only = only.and_then(|grant| grant.roles.first()).map(|role| role.name());
    let role = options.role.as_deref().or(only).unwrap_or("box").to_owned();
    let mut tags = options.tag;
    if let Some(grant) = grant.filter(|_| tags.is_empty() && role == "box") {
        tags = grant.tags.iter().map(ToString::to_string).collect();
    }
    let settings = json!({
        "uses": options.uses,
        "role": role,
        "pool": options.pool,
        "lifetime_s": u64::from(options.hours) * 3600,
        "tags": tags,
        "approval": options.approval,
        "delegate": said.map(|said| said.name),
    });
    let mut answer = context.client.post("tokens", &json!({ "settings": settings }))?;
    let is_secret = delegate.is_some();
    if let Some(delegate) = delegate {
        let text = carrying(&show::at(&answer, "join"), delegate).inspect_err(|_| {
            // The token cannot be shown, and would reserve uses of its delegate.
            _ = context.client.remove(&format!("tokens/{}", show::at(&answer, "token.id")));
        })?;
        answer["join"] = Value::String(text);
    }
    let join = show::at(&answer, "join");
    let code = show::qr(&join).filter(|_| !options.no_qr && !context.json);
    if let Some(code) = code {
        out::line(code)?;
    }
    let option = match role.as_str() {
        "box" => String::new(),
        role => format!(" --role {role}"),
    };
    let sentence = match is_secret {
        false => format!("roadweave join {join}{option}"),
        true => format!(
            "{join}\n\nIt has the private key of its delegate. Do not pass it as an argument, \
             which any user of that machine can see:\nroadweave join -{option}    # reads it, to \
             Ctrl-D"
        ),
    };
    context.answer(&answer, sentence)
}

fn check(delegate: &Delegate) -> Result<()> {
    let said = delegate.chain.claimed();
    let grant = said.as_ref().and_then(|said| said.grant.as_ref());
    if grant.is_some_and(|grant| grant.roles.contains(&Role::Delegate)) {
        return Err(BadInput::new(
            "--delegate: this is a signer, whose key must not go into a token: create a delegate \
             within it (roadweave-controller delegate --key FILE --token)",
        )
        .into());
    }
    if delegate.fits_a_token() { Ok(()) } else { Err(BadInput::new(TOO_LONG).into()) }
}

fn carrying(join: &str, delegate: Delegate) -> Result<String> {
    let token = join.parse::<JoinToken>().map_err(BadInput::new)?;
    let text = JoinToken { delegate: Some(delegate), ..token }.to_string();
    match text.parse::<JoinToken>() {
        Ok(_) => Ok(text),
        Err(_) => Err(BadInput::new(TOO_LONG).into()),
    }
}

const TOO_LONG: &str = "the token is too long: use a delegate with a shorter chain, or fewer tags";

const COLUMNS: &str = "NAME=id, LEFT=uses_left, EXPIRES=expires_ms, FOR=settings.role, \
                       TAGS=settings.tags, APPROVAL=settings.approval, \
                       DELEGATE=settings.delegate";

/// What to do with delegates.
#[derive(Subcommand)]
pub enum DelegateCommand {
    /// Register a delegate made by `roadweave-controller delegate`; its private key stays in the
    /// file
    Add { file: PathBuf },
    /// List all delegates, and how many keys each has signed
    List,
    /// Revoke a delegate and all keys that it signed; prints which proxies have confirmed
    Revoke(Revoke),
}

pub fn delegate(command: DelegateCommand, context: &CommandContext) -> Result<()> {
    match command {
        DelegateCommand::Add { file } => {
            let chain = serde_json::to_string(&read(&file)?.chain)?;
            let answer = context.client.post("delegates", &json!({ "chain": chain }))?;
            let name = show::at(&answer, "id");
            context.answer(&answer, format_args!("{name} may sign; its private key stays here"))
        }
        DelegateCommand::List => context.list("delegates", DELEGATES),
        DelegateCommand::Revoke(it) => revoke(context, "delegates", &it),
    }
}

pub fn read(file: &Path) -> Result<Delegate> {
    let text = secret::read(file)?;
    Ok(serde_json::from_str(&text).map_err(|_| {
        let hint = "this is not a delegate: roadweave-controller delegate writes such a file";
        BadInput::new(format!("{}: {hint}", file.display()))
    })?)
}

const DELEGATES: &str =
    "NAME=id, STATE=state, SIGNS FOR=roles, TAGS=tags, USED=used, OF=uses, MAKES OTHERS=signer";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use roadweave_fleet::{Chain, Grant, Scope, Secret, Signed, Statement};

    use super::*;
    use crate::store::tests::identity;

    fn delegate(steps: u8) -> Delegate {
        let mut chain = Chain::new(Vec::new());
        for step in 0..steps {
            let roles = [Role::Box, Role::Delegate].into();
            let statement = Statement {
                key: identity(step + 1).public_key(),
                name: "token-0123456789".parse().unwrap(),
                role: Role::Delegate,
                scope: Scope::Tenant("home".parse().unwrap()),
                tags: BTreeSet::new(),
                grant: Some(Grant { roles, tags: BTreeSet::new(), uses: Some(7) }),
            };
            chain = chain.then(Signed::sign(&statement, &identity(step)).unwrap());
        }
        Delegate { private_key: identity(steps).to_base64(), chain }
    }

    #[test]
    fn a_token_carries_a_delegate_or_says_that_it_cannot() {
        let token = JoinToken {
            addresses: vec!["fleet.example.org:4400".into()],
            controller: identity(8).public_key(),
            root: identity(0).public_key(),
            tenant: "home".parse().unwrap(),
            secret: Secret::from_bytes([7; 16]),
            delegate: None,
        };
        for steps in 1..=2 {
            let text = carrying(&token.to_string(), delegate(steps)).unwrap();
            let read: JoinToken = text.parse().unwrap();
            assert!(read.delegate == Some(delegate(steps)), "{steps}");
            assert!(show::qr(&text).is_some(), "{}", text.len());
        }
        let error = carrying(&token.to_string(), delegate(4)).unwrap_err().to_string();
        assert!(error.contains("too long"), "{error}");
        assert!(delegate(2).fits_a_token() && !delegate(4).fits_a_token());
        let error = check(&delegate(1)).unwrap_err().to_string();
        assert!(error.contains("is a signer"), "{error}");
    }
}
