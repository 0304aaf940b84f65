//! A PostgreSQL for tests: in a temporary folder, on a Unix socket.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

pub struct Postgres {
    folder: tempfile::TempDir,
    commands: Mutex<Sender<(ServerCommand, Sender<()>)>>,
    databases: AtomicU32,
}

enum ServerCommand {
    Stop,
    Start,
}

impl Postgres {
    pub fn shared() -> Option<Arc<Self>> {
        static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap();
        if let Some(server) = shared.upgrade() {
            return Some(server);
        }
        let server = Arc::new(Self::start()?);
        *shared = Arc::downgrade(&server);
        Some(server)
    }

    pub fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            let required = std::env::var_os("ROADWEAVE_REQUIRE_TOOLS").is_some();
            assert!(!required, "initdb and postgres are missing: deploy/packages.sh installs them");
            eprintln!("skipped: PostgreSQL is not installed (deploy/packages.sh installs it)");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        if is_root() {
            run(Command::new("chown").arg("nobody").arg(folder.path()));
        }
        let data = folder.path().join("data");
        run(as_nobody(&programs.join("initdb")).arg("--pgdata").arg(&data).args([
            "--username=postgres",
            "--auth=trust",
            "--no-sync",
            "--encoding=UTF8",
            "--no-locale",
        ]));
        let (commands, inbox) = channel();
        let path = folder.path().to_owned();
        // The server is killed when the thread that started it ends, so it has its own.
        std::thread::spawn(move || serve(&programs, &path, &inbox));
        let commands = Mutex::new(commands);
        let server = Self { folder, commands, databases: AtomicU32::new(0) };
        server.up();
        Some(server)
    }

    pub fn database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.psql("postgres", &format!("CREATE DATABASE {name}"));
        let folder = self.folder.path().display();
        format!("postgres://postgres@localhost/{name}?host={folder}")
    }

    pub fn psql(&self, database: &str, sql: &str) {
        let programs = programs().unwrap();
        run(Command::new(programs.join("psql")).arg("--host").arg(self.folder.path()).args([
            "--username=postgres",
            "--no-psqlrc",
            "--quiet",
            "--command",
            sql,
            database,
        ]));
    }

    pub fn down(&self) {
        self.command(ServerCommand::Stop);
    }

    pub fn up(&self) {
        self.command(ServerCommand::Start);
    }

    fn command(&self, command: ServerCommand) {
        let (done, wait) = channel();
        self.commands.lock().unwrap().send((command, done)).unwrap();
        wait.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}

/// A connection that can be cut without a word, as by a power failure; later ones work.
pub struct Wire {
    folder: tempfile::TempDir,
    cut: watch::Sender<()>,
}

impl Wire {
    pub fn to(server: &Postgres) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let target = server.folder.path().join(SOCKET);
        let (cut, cuts) = watch::channel(());
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (mut cuts, target) = (cuts.clone(), target.clone());
                cuts.mark_unchanged();
                tokio::spawn(async move {
                    let mut far = UnixStream::connect(target).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = cuts.changed() => std::future::pending().await,
                    }
                });
            }
        });
        Self { folder, cut }
    }

    pub fn address(&self, server: &Postgres, database: &str) -> String {
        let [from, to] = [&server.folder, &self.folder].map(|it| it.path().display().to_string());
        assert!(database.contains(&from), "{database}");
        database.replace(&from, &to)
    }

    pub fn cut(&self) {
        self.cut.send_replace(());
    }
}

const SOCKET: &str = ".s.PGSQL.5432";

fn serve(programs: &Path, folder: &Path, inbox: &Receiver<(ServerCommand, Sender<()>)>) {
    let mut server: Option<Child> = None;
    while let Ok((command, done)) = inbox.recv() {
        if let Some(mut child) = server.take() {
            stop(&mut child);
        }
        if let ServerCommand::Start = command {
            let child = as_nobody(&programs.join("postgres"))
                .arg("-D")
                .arg(folder.join("data"))
                .arg("-k")
                .arg(folder)
                .args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=200"])
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            server = Some(child);
            wait_for(programs, folder);
        }
        let _ = done.send(());
    }
    if let Some(mut child) = server {
        stop(&mut child);
    }
}

fn stop(child: &mut Child) {
    let pid = child.id().to_string();
    run(Command::new("kill").args(["-QUIT", &pid]));
    child.wait().unwrap();
}

fn wait_for(programs: &Path, folder: &Path) {
    let end = Instant::now() + Duration::from_secs(30);
    while Instant::now() < end {
        let ready = Command::new(programs.join("pg_isready")).arg("--host").arg(folder).output();
        if ready.unwrap().status.success() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("PostgreSQL does not start");
}

/// PostgreSQL refuses to run as root.
fn as_nobody(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if is_root() {
        command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]);
    }
    command.args(["--pdeathsig=QUIT", "--"]).arg(program);
    command
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    id.stdout == b"0\n"
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = versions.map(|version| version.path().join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let all = ["initdb", "postgres", "psql", "pg_isready"];
    debian.chain(path).find(|folder| all.iter().all(|name| folder.join(name).exists()))
}
