//! The local socket: requests, hostile callers, stale sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use roadweave_linux::{DeviceError, Instance, Waker, wait_readable};
use roadweave_node::local::{LocalServer, RequestError, RpcError, request};
use serde_json::{Value, json};

struct World {
    instance: Instance,
    directory: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    event_loop: Option<std::thread::JoinHandle<()>>,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let instance = Instance::in_directory("client", directory.path()).unwrap();
        let waker = Waker::new().unwrap();
        let mut server = LocalServer::start(&instance, waker.clone()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let event_loop = std::thread::spawn(move || {
            let mut unanswered = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                wait_readable(&waker, Duration::from_millis(20)).unwrap();
                waker.clear();
                while let Some(request) = server.poll_request() {
                    match request.method.as_str() {
                        "echo" => {
                            let params = request.params.clone();
                            request.answer(Ok(params));
                        }
                        "silence" => unanswered.push(request),
                        other => {
                            let error = RpcError::method_not_found(other);
                            request.answer(Err(error));
                        }
                    }
                }
            }
        });
        Self { instance, directory, stop, event_loop: Some(event_loop) }
    }

    fn ask(&self, method: &str, params: &Value) -> Result<Value, RequestError> {
        request(&self.instance.socket_path(), method, params)
    }

    fn send_raw(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(self.instance.socket_path()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let _ = stream.write_all(bytes);
        let mut line = String::new();
        let _ = BufReader::new(stream).read_line(&mut line);
        line
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.event_loop.take().unwrap().join().unwrap();
    }
}

#[test]
fn a_request_is_answered_by_the_event_loop() {
    let world = World::new();
    let params = json!({ "paths": [1, 2], "text": "a\nb" });
    assert_eq!(world.ask("echo", &params).unwrap(), params);
    let error = world.ask("nonsense", &Value::Null).unwrap_err();
    assert_eq!(error.to_string(), "there is no method \"nonsense\" (code -32601)");
}

#[test]
fn only_the_owner_may_connect() {
    let world = World::new();
    let mode = std::fs::metadata(world.instance.socket_path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn malformed_requests_are_refused_and_the_server_goes_on() {
    let world = World::new();
    for (bytes, code) in [
        (&b"{\n"[..], -32700),
        (b"\xff\xfe\n", -32700),
        (b"[]\n", -32600),
        (b"{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"echo\"}\n", -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1}\n", -32600),
    ] {
        let answer: Value = serde_json::from_str(&world.send_raw(bytes)).unwrap();
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
    let endless = vec![b'x'; 3 * 1024 * 1024];
    world.send_raw(&endless);
    assert_eq!(world.ask("echo", &json!(1)).unwrap(), json!(1));
}

#[test]
fn a_notification_gets_no_answer() {
    let world = World::new();
    let lines = b"{\"jsonrpc\":\"2.0\",\"method\":\"echo\"}\n{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"echo\"}\n";
    let answer: Value = serde_json::from_str(&world.send_raw(lines)).unwrap();
    assert_eq!(answer["id"], 7);
}

#[test]
fn connections_beyond_the_limit_are_closed_and_later_ones_served() {
    let world = World::new();
    let connect = || UnixStream::connect(world.instance.socket_path()).unwrap();
    let mut streams: Vec<_> = (0..16).map(|_| connect()).collect();
    let mut refused = connect();
    assert_eq!(refused.read(&mut [0; 10]).unwrap_or(0), 0);
    streams.clear();
    let served = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        world.ask("echo", &json!(2)).is_ok()
    });
    assert!(served);
}

#[test]
fn an_event_loop_that_is_silent_is_called_busy() {
    let world = World::new();
    let error = world.ask("silence", &Value::Null).unwrap_err().to_string();
    assert!(error.starts_with("the instance is busy"), "{error}");
}

#[test]
fn a_living_instance_is_not_replaced_and_a_dead_ones_socket_is() {
    let world = World::new();
    let error = LocalServer::start(&world.instance, Waker::new().unwrap()).unwrap_err();
    assert!(matches!(error, DeviceError::AlreadyRunning { .. }), "{error}");

    let instance = Instance::in_directory("dead", world.directory.path()).unwrap();
    drop(UnixListener::bind(instance.socket_path()).unwrap());
    let error = request(&instance.socket_path(), "show", &Value::Null).unwrap_err();
    assert!(matches!(error, RequestError::NotRunning { .. }), "{error}");
    let server = LocalServer::start(&instance, Waker::new().unwrap()).unwrap();
    drop(server);
    assert!(!instance.socket_path().exists());
}
