use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;

use super::*;

fn program(listener: UnixListener) -> (Receiver<Value>, Sender<Option<&'static str>>) {
    let ((asked, questions), (answers, said)) = (channel(), channel());
    thread::spawn(move || {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            if asked.send(serde_json::from_str(&line).unwrap()).is_err() {
                return;
            }
            match said.recv() {
                Ok(Some(answer)) => writeln!(stream, "{answer}").unwrap(),
                Ok(None) => open.push(stream),
                Err(_) => return,
            }
        }
    });
    (questions, answers)
}

fn older(timestamp: u32, connection: u64) -> Older {
    Older { ssrc: 7, timestamp, connection }
}

fn next(questions: &Receiver<Value>, most: Duration) -> Option<u64> {
    questions.recv_timeout(most).ok().map(|it| it["params"]["timestamp"].as_u64().unwrap())
}

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);
const NO_METHOD: &str = r#"{"id":1,"error":{"code":-32601,"message":"there is no method"}}"#;
const DONE: &str = r#"{"id":1,"result":{"packets":3}}"#;

fn asked_once() -> (TempDir, Supersede, Receiver<Value>, Sender<Option<&'static str>>) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("rw.sock");
    let (questions, answers) = program(UnixListener::bind(&socket).unwrap());
    let supersede = Supersede::start(socket, "real-time".into()).unwrap();
    supersede.report(older(1, 1));
    assert_eq!(next(&questions, LONG), Some(1));
    (folder, supersede, questions, answers)
}

#[test]
fn a_program_that_does_not_know_how_is_asked_once_a_connection() {
    let (_folder, supersede, questions, answers) = asked_once();
    answers.send(Some(NO_METHOD)).unwrap();
    thread::sleep(SHORT);
    supersede.report(older(2, 1));
    assert_eq!(next(&questions, SHORT), None);
    supersede.report(older(3, 2));
    assert_eq!(next(&questions, LONG), Some(3));
    answers.send(Some(DONE)).unwrap();
    supersede.report(older(4, 2));
    assert_eq!(next(&questions, LONG), Some(4));
}

#[test]
fn a_program_that_never_answers_blocks_nothing_and_gets_the_newest() {
    let (_folder, supersede, questions, answers) = asked_once();
    answers.send(None).unwrap();
    let began = Instant::now();
    (2..100_000).for_each(|timestamp| supersede.report(older(timestamp, 1)));
    assert!(began.elapsed() < LONG);
    assert_eq!(next(&questions, LONG), Some(99_999));
}

#[test]
fn a_socket_that_is_gone_costs_nothing_and_may_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("rw.sock");
    let supersede = Supersede::start(socket.clone(), "real-time".into()).unwrap();
    (0..1_000).for_each(|timestamp| supersede.report(older(timestamp, 1)));
    thread::sleep(SHORT);
    let (questions, _answers) = program(UnixListener::bind(&socket).unwrap());
    assert_eq!(next(&questions, SHORT), None, "what was said to nobody is forgotten");
    supersede.report(older(1_000, 2));
    assert_eq!(next(&questions, LONG), Some(1_000));
}
