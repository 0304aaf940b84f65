//! The instance's side of the local socket.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use roadweave_linux::threads::spawn;
use roadweave_linux::{Callers, DeviceError, Instance, Waker, own_directory};
use serde_json::{Value, json};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::LINE_MAX;
use super::error::RpcError;
use super::requests::Subscribe;
use super::subscribers::{SEND_BUFFER, Subscribers};
use crate::status::Status;

/// Accepts requests for the event loop. Dropping it closes and removes the socket.
#[derive(Debug)]
pub struct LocalServer {
    requests: Receiver<LocalRequest>,
    sender: RequestSender,
    subscribers: Subscribers,
    callers: Arc<Callers>,
    path: PathBuf,
    acceptor: Option<JoinHandle<()>>,
}

/// A request. Callers wait for 2 s, or 20 s for `reload`.
#[derive(Debug)]
pub struct LocalRequest {
    /// The method.
    pub method: String,
    /// The parameters; null if absent.
    pub params: Value,
    answer: SyncSender<Result<LocalAnswer, RpcError>>,
}

#[derive(Debug)]
pub(crate) enum LocalAnswer {
    Value(Value),
    /// The caller's thread serializes it, which takes long with thousands of clients.
    Status(Box<Status>),
}

#[derive(Clone, Debug)]
pub(crate) struct RequestSender {
    queue: SyncSender<LocalRequest>,
    waker: Waker,
}

impl RequestSender {
    pub(crate) fn new(queue: SyncSender<LocalRequest>, waker: Waker) -> Self {
        Self { queue, waker }
    }

    pub(crate) fn ask(&self, method: &str, params: Value) -> Result<Value, RpcError> {
        let (answer, answers) = sync_channel(1);
        let request = LocalRequest { method: method.to_owned(), params, answer };
        match self.queue.try_send(request) {
            Ok(()) => self.waker.wake(),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                return Err(RpcError::busy());
            }
        }
        let timeout = if method == "reload" { RELOAD_MAX } else { ANSWER_MAX };
        match answers.recv_timeout(timeout).unwrap_or_else(|_| Err(RpcError::busy()))? {
            LocalAnswer::Value(value) => Ok(value),
            LocalAnswer::Status(status) => serde_json::to_value(status).map_err(RpcError::internal),
        }
    }
}

impl LocalServer {
    /// Opens the local socket of an instance; each request wakes `waker`. Fails with
    /// [`DeviceError::AlreadyRunning`] if a process answers there; a stale socket is replaced.
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
                let _ = serve(&stream, &sender, &subscribers, &stopped);
            };
            spawn("local", move || callers.take(listener.incoming(), serve))?
        };
        Ok(Self { requests, sender, subscribers, callers, path, acceptor: Some(acceptor) })
    }

    pub(crate) fn sender(&self) -> RequestSender {
        self.sender.clone()
    }

    pub(crate) fn subscribers(&self) -> &Subscribers {
        &self.subscribers
    }

    /// The next request. After each wake, call it until it returns `None`.
    pub fn poll_request(&mut self) -> Option<LocalRequest> {
        self.requests.try_recv().ok()
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        self.callers.stop();
        self.subscribers.end();
        if UnixStream::connect(&self.path).is_ok()
            && let Some(acceptor) = self.acceptor.take()
        {
            let _ = acceptor.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

impl LocalRequest {
    /// Sends the answer; the caller may have disconnected.
    pub fn answer(self, answer: Result<Value, RpcError>) {
        let _ = self.answer.try_send(answer.map(LocalAnswer::Value));
    }

    pub(crate) fn answer_status(self, status: Status) {
        let _ = self.answer.try_send(Ok(LocalAnswer::Status(Box::new(status))));
    }
}

/// Sets the mode before it listens, so that no other user can connect.
fn listen(path: &Path) -> std::io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    socket.listen(CONNECTIONS_MAX as i32)?;
    Ok(socket.into())
}

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
        // The place is reserved before the answer, so that no other caller takes it meanwhile.
        let mut place = None;
        let answer = if too_long {
            Some(failure(Value::Null, &RpcError::parse("the request line is too long")))
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
            let send = |word: &str| {
                let topic = json!(subscribe.topic);
                let begin = format!("{{\"jsonrpc\":\"2.0\",\"method\":{topic},\"params\":");
                (&*stream).write_all(format!("{begin}{word}}}\n").as_bytes())
            };
            let _ = SockRef::from(stream).set_send_buffer_size(SEND_BUFFER);
            return subscription.send_all(interval, send);
        }
        if too_long {
            return Ok(());
        }
    }
}

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
        true => Err(RpcError::busy_with("the maximum number of subscribers is reached")),
        false => sender.ask(method, params),
    };
    let id = id?;
    Some(match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(error) => failure(id, &error),
    })
}

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
/// Reading thousands of clients takes a second.
const RELOAD_MAX: Duration = Duration::from_secs(20);
const IDLE_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    pub(crate) fn question(
        method: &str,
    ) -> (LocalRequest, Receiver<Result<LocalAnswer, RpcError>>) {
        let (answer, answers) = sync_channel(1);
        let request = LocalRequest { method: method.to_owned(), params: Value::Null, answer };
        (request, answers)
    }
}
