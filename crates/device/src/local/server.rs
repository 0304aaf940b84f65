//! The side of the running instance.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::subscribers::{SEND_BUFFER, Subscribers};
use super::{LINE_MAX, Subscribe};
use crate::callers::Callers;
use crate::process::own_directory;
use crate::status::Status;
use crate::{DeviceError, Instance, Waker};

/// Takes requests for the event loop. Dropping it closes and removes the socket.
#[derive(Debug)]
pub struct LocalServer {
    requests: Receiver<LocalRequest>,
    sender: RequestSender,
    subscribers: Subscribers,
    callers: Arc<Callers>,
    path: PathBuf,
    acceptor: Option<JoinHandle<()>>,
}

/// One request; answer it soon, the caller waits for two seconds, and for twenty where the
/// configuration is to be read again.
#[derive(Debug)]
pub struct LocalRequest {
    /// What is asked for.
    pub method: String,
    /// The parameters; null where there are none.
    pub params: Value,
    answer: SyncSender<Result<Answer, RpcError>>,
}

/// What the event loop answers.
#[derive(Debug)]
pub(crate) enum Answer {
    Value(Value),
    /// Of thousands of clients it takes far longer to write than to gather, so that whoever asks
    /// writes it.
    Status(Box<Status>),
}

/// An error of JSON-RPC 2.0 (section 5.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} (code {code})")]
pub struct RpcError {
    /// Its number.
    pub code: i32,
    /// What went wrong.
    pub message: String,
}

impl RpcError {
    /// The code of an instance that has not answered in time, and may the next time.
    pub const BUSY: i32 = -32000;

    /// The code of a method that there is none of.
    pub const NO_METHOD: i32 = -32601;

    /// The code of what cannot be done.
    pub const REFUSED: i32 = -32001;

    /// There is no such method.
    pub fn method_not_found(method: &str) -> Self {
        Self { code: Self::NO_METHOD, message: format!("there is no method {method:?}") }
    }

    /// The parameters are wrong.
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self { code: -32602, message: message.into() }
    }

    fn parse(message: impl ToString) -> Self {
        Self { code: -32700, message: message.to_string() }
    }

    fn invalid_request() -> Self {
        let message = "a request is an object with jsonrpc \"2.0\" and a method".to_owned();
        Self { code: -32600, message }
    }

    /// It cannot be done, and would not be if it was asked again.
    pub(crate) fn refused(message: String) -> Self {
        Self { code: Self::REFUSED, message }
    }

    /// Something else is wrong.
    pub(crate) fn internal(message: impl ToString) -> Self {
        Self { code: -32603, message: message.to_string() }
    }

    pub(crate) fn busy() -> Self {
        Self::busy_with("the instance is busy, ask again")
    }

    fn busy_with(message: &str) -> Self {
        Self { code: Self::BUSY, message: message.to_owned() }
    }
}

/// Asks the event loop, from another thread.
#[derive(Clone, Debug)]
pub(crate) struct RequestSender {
    queue: SyncSender<LocalRequest>,
    waker: Waker,
}

impl RequestSender {
    /// Asks whoever reads the other end of `queue`, which `waker` wakes.
    pub(crate) fn new(queue: SyncSender<LocalRequest>, waker: Waker) -> Self {
        Self { queue, waker }
    }

    /// Hands a request to the event loop and awaits its answer.
    ///
    /// # Errors
    /// What the event loop answers, or that it is busy: it has not answered for so long as a
    /// [`LocalRequest`] may take.
    pub(crate) fn ask(&self, method: &str, params: Value) -> Result<Value, RpcError> {
        let (answer, answers) = sync_channel(1);
        let request = LocalRequest { method: method.to_owned(), params, answer };
        match self.queue.try_send(request) {
            Ok(()) => self.waker.wake(),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                return Err(RpcError::busy());
            }
        }
        let patience = if method == "reload" { RELOAD_MAX } else { ANSWER_MAX };
        match answers.recv_timeout(patience).unwrap_or_else(|_| Err(RpcError::busy()))? {
            Answer::Value(value) => Ok(value),
            Answer::Status(status) => serde_json::to_value(status).map_err(RpcError::internal),
        }
    }
}

impl LocalServer {
    /// Opens the local socket of an instance; `waker` is woken for each request.
    ///
    /// # Errors
    /// [`DeviceError::AlreadyRunning`] when a living process answers there; a dead one's socket is
    /// replaced.
    pub fn start(instance: &Instance, waker: Waker) -> Result<Self, DeviceError> {
        let path = instance.socket_path();
        let failed = |error| DeviceError::system(format!("open {}", path.display()), error);
        if let Some(directory) = path.parent() {
            own_directory(directory)?;
        }
        if UnixStream::connect(&path).is_ok() {
            let instance = instance.name().to_owned();
            return Err(DeviceError::AlreadyRunning { instance, pid: None });
        }
        let _ = fs::remove_file(&path);
        let listener = listen(&path).map_err(failed)?;
        let (queue, requests) = sync_channel(QUEUE_MAX);
        let subscribers = Subscribers::new(waker.clone());
        let sender = RequestSender::new(queue, waker);
        let callers = Callers::new("the local socket", CONNECTIONS_MAX);
        let acceptor = {
            let (sender, callers) = (sender.clone(), Arc::clone(&callers));
            let (subscribers, stopped) = (subscribers.clone(), Arc::clone(&callers));
            let serve = move |stream| {
                // A caller that breaks off harms itself only.
                let _ = serve(&stream, &sender, &subscribers, &stopped);
            };
            std::thread::Builder::new()
                .name("local".to_owned())
                .spawn(move || callers.take(listener.incoming(), serve))
                .map_err(|error| DeviceError::system("start a thread", error))?
        };
        Ok(Self { requests, sender, subscribers, callers, path, acceptor: Some(acceptor) })
    }

    /// Asks as callers do, from a thread of this program.
    pub(crate) fn sender(&self) -> RequestSender {
        self.sender.clone()
    }

    /// Those who want to be told without asking.
    pub(crate) fn subscribers(&self) -> &Subscribers {
        &self.subscribers
    }

    /// The next request, if there is one. Call it until there is none after each wake.
    pub fn poll_request(&mut self) -> Option<LocalRequest> {
        self.requests.try_recv().ok()
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        self.callers.stop();
        self.subscribers.end();
        // Ends the accept; when that cannot be, the thread ends with the process.
        if UnixStream::connect(&self.path).is_ok()
            && let Some(acceptor) = self.acceptor.take()
        {
            let _ = acceptor.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

impl LocalRequest {
    /// Answers it; the caller may have left.
    pub fn answer(self, answer: Result<Value, RpcError>) {
        let _ = self.answer.try_send(answer.map(Answer::Value));
    }

    /// Answers it with how this instance is.
    pub(crate) fn answer_status(self, status: Status) {
        let _ = self.answer.try_send(Ok(Answer::Status(Box::new(status))));
    }
}

/// Nobody can connect between the making of the file and its mode: there is no listener yet.
fn listen(path: &Path) -> std::io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    socket.listen(CONNECTIONS_MAX as i32)?;
    Ok(socket.into())
}

/// Answers one caller, line by line, until it leaves or is silent for a minute.
fn serve(
    stream: &UnixStream,
    sender: &RequestSender,
    subscribers: &Subscribers,
    callers: &Callers,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(IDLE_MAX))?;
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = (&mut reader).take(LINE_MAX as u64).read_until(b'\n', &mut line)?;
        if length == 0 || callers.is_stopped() {
            return Ok(());
        }
        let too_long = length == LINE_MAX && line.last() != Some(&b'\n');
        // The place counts before the answer, so that no other caller takes it meanwhile.
        let mut place = None;
        let answer = if too_long {
            Some(failure(Value::Null, &RpcError::parse("the line is too long")))
        } else {
            handle_line(&line, sender, || {
                place = subscribers.subscribe();
                place.is_some()
            })
        };
        if let Some(answer) = &answer {
            (&*stream).write_all(format!("{answer}\n").as_bytes())?;
        }
        if let Some(subscribe) = answer.as_ref().and_then(|it| subscribed(&line, it))
            && let Some(subscription) = place
        {
            let interval = Duration::from_millis(subscribe.interval_ms);
            let tell = |word: &str| {
                let topic = json!(subscribe.topic);
                let begin = format!("{{\"jsonrpc\":\"2.0\",\"method\":{topic},\"params\":");
                (&*stream).write_all(format!("{begin}{word}}}\n").as_bytes())
            };
            let _ = SockRef::from(stream).set_send_buffer_size(SEND_BUFFER);
            return subscription.tell_all(interval, tell);
        }
        if too_long {
            return Ok(());
        }
    }
}

/// Handles one request; `None` for a notification, which wants no answer. `take_place` takes the
/// place of a subscriber, if there is one.
fn handle_line(
    line: &[u8],
    sender: &RequestSender,
    take_place: impl FnOnce() -> bool,
) -> Option<Value> {
    let request: Value = match serde_json::from_slice(line) {
        Ok(request) => request,
        Err(error) => return Some(failure(Value::Null, &RpcError::parse(error))),
    };
    let id = request.get("id").cloned();
    let method = request.get("method").and_then(Value::as_str);
    let (Some("2.0"), Some(method)) = (request.get("jsonrpc").and_then(Value::as_str), method)
    else {
        return Some(failure(id.unwrap_or(Value::Null), &RpcError::invalid_request()));
    };
    let params = request.get("params").cloned().unwrap_or(Value::Null);
    let result = match method == "subscribe" && !take_place() {
        true => Err(RpcError::busy_with("there are as many subscribers as may be")),
        false => sender.ask(method, params),
    };
    let id = id?;
    Some(match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(error) => failure(id, &error),
    })
}

/// What the caller has subscribed to by this line, if it has.
fn subscribed(line: &[u8], answer: &Value) -> Option<Subscribe> {
    let request: Value = serde_json::from_slice(line).ok()?;
    let is_granted = request.get("method")? == "subscribe" && answer.get("result").is_some();
    is_granted.then(|| serde_json::from_value(request.get("params")?.clone()).ok())?
}

fn failure(id: Value, error: &RpcError) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": error.code, "message": error.message } })
}

const QUEUE_MAX: usize = 16;
const CONNECTIONS_MAX: usize = 16;
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// To read thousands of clients takes a second.
const RELOAD_MAX: Duration = Duration::from_secs(20);
const IDLE_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A request, and where its answer comes.
    pub(crate) fn question(method: &str) -> (LocalRequest, Receiver<Result<Answer, RpcError>>) {
        let (answer, answers) = sync_channel(1);
        let request = LocalRequest { method: method.to_owned(), params: Value::Null, answer };
        (request, answers)
    }
}
