use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use super::*;

/// The program's side: accepts one subscriber and answers it.
fn accept(listener: &UnixListener) -> UnixStream {
    let (stream, _) = listener.accept().unwrap();
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).unwrap();
    assert_eq!(line.as_bytes(), message::SUBSCRIBE);
    let answer = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"topic\":\"encoder\"}}\n";
    (&stream).write_all(answer.as_bytes()).unwrap();
    stream
}

fn say(mut stream: &UnixStream, frame_bytes: u64) {
    let line = format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"encoder\",\"params\":\
         {{\"lanes\":{{\"real-time\":{{\"frame_bytes\":{frame_bytes}}}}}}}}}\n"
    );
    stream.write_all(line.as_bytes()).unwrap();
}

fn subscribe(socket: &Path) -> Feedback {
    Feedback::subscribe(socket.to_owned(), "real-time".into()).unwrap()
}

/// Waits until what `feedback` says is `expected`.
fn wait_for(feedback: &Feedback, expected: (State, Option<u64>)) {
    let mut found = None;
    for _ in 0..1000 {
        let now = Instant::now();
        let bytes = feedback.target(now).and_then(|target| target.frame_bytes);
        found = Some((feedback.state(now), bytes));
        if found == Some(expected) {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{found:?}, not {expected:?}");
}

#[test]
fn a_socket_may_come_late_end_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("roadweave.sock");
    let feedback = subscribe(&socket);
    wait_for(&feedback, (State::Absent, None));

    let listener = UnixListener::bind(&socket).unwrap();
    let stream = accept(&listener);
    wait_for(&feedback, (State::NoTarget, None));
    say(&stream, 41_280);
    wait_for(&feedback, (State::Followed, Some(41_280)));
    say(&stream, 0);
    wait_for(&feedback, (State::Followed, Some(0)));

    drop((stream, listener));
    std::fs::remove_file(&socket).unwrap();
    // What was said last holds a while, and no longer.
    wait_for(&feedback, (State::Absent, None));

    let listener = UnixListener::bind(&socket).unwrap();
    let stream = accept(&listener);
    say(&stream, 7);
    wait_for(&feedback, (State::Followed, Some(7)));
}

#[test]
fn garbage_between_targets_is_counted_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("roadweave.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let feedback = subscribe(&socket);
    let stream = accept(&listener);
    say(&stream, 1);
    (&stream).write_all(b"garbage\n\xff\xfe\n{}\n[1]\n").unwrap();
    (&stream).write_all(&vec![b'{'; 1 << 20]).unwrap();
    (&stream).write_all(b"\n").unwrap();
    say(&stream, 2);
    wait_for(&feedback, (State::Followed, Some(2)));
    assert_eq!(feedback.bad_lines(), 4);
}

#[test]
fn a_counter_that_rises_is_a_renewal_and_one_that_begins_anew_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("roadweave.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let feedback = subscribe(&socket);
    let mut frame_bytes = 0;
    let mut check = |mut stream: &UnixStream, renewals: Option<u64>, expected: (u64, u64)| {
        frame_bytes += 1;
        let renewals = renewals.map_or_else(String::new, |it| format!(",\"renewals\":{it}"));
        let lane = format!("{{\"frame_bytes\":{frame_bytes}{renewals}}}");
        let params = format!("{{\"lanes\":{{\"real-time\":{lane}}}}}");
        let line = format!("{{\"method\":\"encoder\",\"params\":{params}}}\n");
        stream.write_all(line.as_bytes()).unwrap();
        wait_for(&feedback, (State::Followed, Some(frame_bytes)));
        let (count, connection) = expected;
        assert_eq!(feedback.renewals(), Renewals { count, connection }, "{line}");
    };
    let stream = accept(&listener);
    check(&stream, None, (0, 1));
    check(&stream, Some(5), (0, 1));
    check(&stream, Some(5), (0, 1));
    check(&stream, Some(6), (1, 1));
    check(&stream, None, (1, 1));
    check(&stream, Some(9), (2, 1));
    check(&stream, Some(0), (2, 1));
    check(&stream, Some(1), (3, 1));
    drop(stream);
    let stream = accept(&listener);
    check(&stream, Some(u64::MAX), (3, 2));
    check(&stream, Some(0), (3, 2));
    check(&stream, Some(1), (4, 2));
}

#[test]
fn a_lane_that_loses_its_target_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("roadweave.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let feedback = subscribe(&socket);
    let stream = accept(&listener);
    say(&stream, 1);
    wait_for(&feedback, (State::Followed, Some(1)));
    let line = "{\"method\":\"encoder\",\"params\":{\"lanes\":{}}}\n";
    (&stream).write_all(line.as_bytes()).unwrap();
    wait_for(&feedback, (State::NoTarget, None));
}
