//! The controller's process.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A controller of its own, in a folder of its own.
pub struct Controller {
    program: PathBuf,
    pub folder: PathBuf,
    pub port: u16,
    pub password: String,
    child: Option<Child>,
}

impl Controller {
    /// Makes one, on a free port.
    pub fn make(program: &Path, folder: &Path, database: Option<&str>) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new(program);
        command.args(["init", "--address", &address, "--listen", &address, "--folder"]).arg(folder);
        if let Some(database) = database {
            command.args(["--database", database]);
        }
        let made = command.output().unwrap();
        let said = String::from_utf8(made.stdout).unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let password = said.split("password: ").nth(1).unwrap();
        let password = password.split_whitespace().next().unwrap().to_owned();
        let (program, folder) = (program.to_owned(), folder.to_owned());
        Self { program, folder, port, password, child: None }
    }

    /// Starts it, and waits until it listens.
    pub fn start(&mut self) {
        let path = self.folder.join("log");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        let mut command = Command::new(&self.program);
        command.arg("run").arg("--folder").arg(&self.folder).stderr(Stdio::from(log));
        self.child = Some(command.spawn().unwrap());
        let end = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < end, "it does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills it: SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn proc(&self, file: &str) -> String {
        let pid = self.child.as_ref().unwrap().id();
        std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap()
    }

    /// The processor time that it has used, at 100 ticks a second.
    pub fn cpu(&self) -> Duration {
        let stat = self.proc("stat");
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
        Duration::from_millis((ticks(11) + ticks(12)) * 10)
    }

    /// The memory that it has, and has had at most, MB.
    pub fn memory_mb(&self) -> (u64, u64) {
        let status = self.proc("status");
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1_000
        };
        (of("VmRSS:"), of("VmHWM:"))
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.kill();
    }
}
