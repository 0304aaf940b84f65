//! Refusals of the controller, and how errors are reported: in words or as JSON, and by the exit
//! code.

use std::fmt;
use std::process::ExitCode;

use roadweave_terminal::exit::{self, BadInput};
use roadweave_terminal::out;
use serde_json::{Value, json};

#[derive(Debug)]
pub struct Refusal {
    pub status: u16,
    problem: Value,
}

impl Refusal {
    pub fn new(status: u16, body: Value) -> Self {
        let problem = match body {
            Value::Object(_) => body,
            // Not a problem: a proxy between may have answered.
            _ => json!({ "status": status, "detail": "no reason is given" }),
        };
        Self { status, problem }
    }

    pub fn because(mut self, why: &str) -> Self {
        self.problem["detail"] = why.into();
        self
    }

    /// 1 if the same command may succeed later; 2 if it, or the caller, has to change.
    fn code(&self) -> u8 {
        match self.status {
            408 | 409 | 412 | 425 | 429 | 500.. => 1,
            _ => 2,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let detail = self.problem["detail"].as_str().unwrap_or("no reason is given");
        // Control characters could steer the terminal.
        let detail: String = detail.chars().filter(|c| !c.is_control()).collect();
        f.write_str(&detail)
    }
}

impl std::error::Error for Refusal {}

/// Prints an error, with `json` as a problem on one line, and chooses the exit code.
pub fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    let refusal = error.downcast_ref::<Refusal>();
    let usual = match json && !exit::is_reader_gone(error) {
        false => exit::report(error),
        true => {
            let problem = refusal.map_or_else(|| own(error), |it| it.problem.clone());
            out::note(problem);
            exit::code(error)
        }
    };
    refusal.map_or(usual, |refusal| ExitCode::from(refusal.code()))
}

fn own(error: &anyhow::Error) -> Value {
    let (kind, title) = match error.is::<BadInput>() {
        true => ("usage", "The command cannot be done as it is"),
        false => ("failed", "The command has failed"),
    };
    let detail = format!("{error:#}");
    json!({
        "type": format!("urn:roadweave:problem:{kind}"),
        "title": title,
        "detail": detail.trim_end(),
    })
}
