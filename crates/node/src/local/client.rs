//! The client side of the local socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::error::RpcError;
use super::requests::Subscribe;

/// Why a request to a running instance failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No instance listens on the socket.
    #[error("nothing runs at {path}: start it, or name another instance")]
    NotRunning {
        /// The socket's path.
        path: String,
    },
    /// The socket belongs to another user.
    #[error(
        "no permission to connect to {path}: run as root or as the user that runs the instance"
    )]
    NoPermission {
        /// The socket's path.
        path: String,
    },
    /// The instance answered with an error.
    #[error(transparent)]
    Refused(#[from] RpcError),
    /// The answer is not valid JSON-RPC, or of unexpected type.
    #[error(
        "{path} sent an invalid answer: {detail}; an instance of another version may use other \
         fields, which --json shows unchanged"
    )]
    Malformed {
        /// The socket's path.
        path: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The connection failed.
    #[error("cannot communicate with {path}: {source}")]
    Io {
        /// The socket's path.
        path: String,
        /// The system error.
        source: io::Error,
    },
}

/// Sends a request to a running instance and waits for the result: 5 s, or 25 s for `reload`.
pub fn request(path: &Path, method: &str, params: &Value) -> Result<Value, RequestError> {
    let line = exchange(path, method, params).map_err(|error| failed(path, error))?;
    answer(path, &line)
}

/// Subscribes to updates of a running instance. Passes each one's parameters to the callback until
/// that returns `false` or the instance ends. [`RequestError::Refused`] if there is no such topic.
pub fn subscribe(
    path: &Path,
    params: &Subscribe,
    mut tell: impl FnMut(Value) -> bool,
) -> Result<(), RequestError> {
    let malformed = |detail| malformed(path, detail);
    let stream = send(path, "subscribe", &json!(params)).map_err(|error| failed(path, error))?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    for number in 0_u64.. {
        line.clear();
        match (&mut reader).take(ANSWER_MAX).read_line(&mut line) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => return Err(failed(path, error)),
        }
        if number == 0 {
            answer(path, &line)?;
            continue;
        }
        let mut word: Value =
            serde_json::from_str(&line).map_err(|error| malformed(error.to_string()))?;
        let Some(params) = word.get_mut("params") else {
            return Err(malformed("a notification without params".to_owned()));
        };
        if !tell(params.take()) {
            break;
        }
    }
    Ok(())
}

fn failed(path: &Path, source: io::Error) -> RequestError {
    let path = path.display().to_string();
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            RequestError::NotRunning { path }
        }
        io::ErrorKind::PermissionDenied => RequestError::NoPermission { path },
        _ => RequestError::Io { path, source },
    }
}

pub(super) fn malformed(path: &Path, detail: String) -> RequestError {
    RequestError::Malformed { path: path.display().to_string(), detail }
}

fn answer(path: &Path, line: &str) -> Result<Value, RequestError> {
    let malformed = |detail| malformed(path, detail);
    let mut answer: Value =
        serde_json::from_str(line).map_err(|error| malformed(error.to_string()))?;
    if let Some(error) = answer.get_mut("error") {
        let error: RpcError =
            serde_json::from_value(error.take()).map_err(|error| malformed(error.to_string()))?;
        return Err(error.into());
    }
    match answer.get_mut("result") {
        Some(result) => Ok(result.take()),
        None => Err(malformed("it has neither result nor error".to_owned())),
    }
}

fn exchange(path: &Path, method: &str, params: &Value) -> io::Result<String> {
    let mut answer = String::new();
    let stream = send(path, method, params)?;
    BufReader::new(stream).take(ANSWER_MAX).read_line(&mut answer)?;
    Ok(answer)
}

fn send(path: &Path, method: &str, params: &Value) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(if method == "reload" { RELOAD_TIMEOUT } else { TIMEOUT }))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    stream.write_all(format!("{request}\n").as_bytes())?;
    Ok(stream)
}

const TIMEOUT: Duration = Duration::from_secs(5);
const RELOAD_TIMEOUT: Duration = Duration::from_secs(25);
const ANSWER_MAX: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread::spawn;

    use super::*;

    #[test]
    fn a_server_with_thousands_of_clients_can_be_asked() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rws.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let result = json!({ "clients": "c".repeat(6_000 * 5_000) });
        let answer = format!("{}\n", json!({ "jsonrpc": "2.0", "id": 1, "result": result }));
        let serving = spawn(move || {
            let (mut stream, _) = listener.accept().expect("a caller");
            BufReader::new(&stream).read_line(&mut String::new()).expect("a request");
            stream.write_all(answer.as_bytes())
        });
        assert_eq!(request(&path, "status", &Value::Null).expect("an answer"), result);
        serving.join().expect("no panic").expect("it is read to its end");
    }
}
