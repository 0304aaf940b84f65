use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use tempfile::TempDir;

use super::*;

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

fn connected() -> (TempDir, UnixListener, UnixStream, Feedback) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("roadweave.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let feedback = subscribe(&socket);
    let stream = accept(&listener);
    (folder, listener, stream, feedback)
}

fn wait_for(feedback: &Feedback, expected: (FeedbackState, Option<u64>)) {
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
    wait_for(&feedback, (FeedbackState::Absent, None));

    let listener = UnixListener::bind(&socket).unwrap();
    let stream = accept(&listener);
    wait_for(&feedback, (FeedbackState::NoTarget, None));
    say(&stream, 41_280);
    wait_for(&feedback, (FeedbackState::Followed, Some(41_280)));
    say(&stream, 0);
    wait_for(&feedback, (FeedbackState::Followed, Some(0)));

    drop((stream, listener));
    std::fs::remove_file(&socket).unwrap();
    wait_for(&feedback, (FeedbackState::Absent, None));

    let listener = UnixListener::bind(&socket).unwrap();
    let stream = accept(&listener);
    say(&stream, 7);
    wait_for(&feedback, (FeedbackState::Followed, Some(7)));
}

#[test]
fn garbage_between_targets_is_counted_and_a_target_may_vanish() {
    let (_folder, _listener, mut stream, feedback) = connected();
    say(&stream, 1);
    stream.write_all(b"garbage\n\xff\xfe\n{}\n[1]\n").unwrap();
    stream.write_all(&vec![b'{'; 1 << 20]).unwrap();
    stream.write_all(b"\n").unwrap();
    say(&stream, 2);
    wait_for(&feedback, (FeedbackState::Followed, Some(2)));
    assert_eq!(feedback.bad_lines(), 4);
    stream.write_all(b"{\"method\":\"encoder\",\"params\":{\"lanes\":{}}}\n").unwrap();
    wait_for(&feedback, (FeedbackState::NoTarget, None));
}

#[test]
fn a_rising_counter_is_a_renewal_and_a_restarted_one_is_not() {
    let (_folder, listener, stream, feedback) = connected();
    let mut frame_bytes = 0;
    let mut check = |mut stream: &UnixStream, renewals: Option<u64>, expected: (u64, u64)| {
        frame_bytes += 1;
        let renewals = renewals.map_or_else(String::new, |it| format!(",\"renewals\":{it}"));
        let lane = format!("{{\"frame_bytes\":{frame_bytes}{renewals}}}");
        let params = format!("{{\"lanes\":{{\"real-time\":{lane}}}}}");
        let line = format!("{{\"method\":\"encoder\",\"params\":{params}}}\n");
        stream.write_all(line.as_bytes()).unwrap();
        wait_for(&feedback, (FeedbackState::Followed, Some(frame_bytes)));
        let (count, connection) = expected;
        assert_eq!(feedback.renewals(), Renewals { count, connection }, "{line}");
    };
    for (renewals, count) in [
        (None, 0),
        (Some(5), 0),
        (Some(5), 0),
        (Some(6), 1),
        (None, 1),
        (Some(9), 2),
        (Some(0), 2),
        (Some(1), 3),
    ] {
        check(&stream, renewals, (count, 1));
    }
    drop(stream);
    let stream = accept(&listener);
    for (renewals, count) in [(u64::MAX, 3), (0, 3), (1, 4)] {
        check(&stream, Some(renewals), (count, 2));
    }
}
