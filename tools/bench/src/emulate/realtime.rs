//! The emulator in real time: links between TUN devices in two network namespaces.
//!
//! ```text
//!  near namespace                                                far namespace
//!  [TUN att    ] ─ read_batch ─> Bridge ─ due by now ─ write_batch ─> [TUN att-far    ]
//!  [TUN verizon] <─ ...                                         <─ [TUN verizon-far]
//!                      Poller: a device is readable, or the next arrival is due
//! ```
//!
//! The devices are removed with the process. IP packets up to the devices' MTU pass unchanged.

use std::time::Duration;

use anyhow::Context as _;
use ipnet::IpNet;
use roadweave_emulate::{Bridge, Direction, LinkDirection, LinkStats};
use roadweave_linux::netns::NetNs;
use roadweave_linux::{
    Clock, DeviceError, Interest, Poller, Signal, Signals, Token, Tun, TunOptions,
};
use roadweave_proto::{DropCounters, DropReason, Instant};
use serde::Serialize;

use super::file::{EmulatedLink, Emulation, NamespaceSettings, TunEnd};

pub struct Emulator {
    clock: Clock,
    poller: Poller,
    names: Vec<String>,
    devices: Vec<[Device; 2]>,
    bridge: Bridge<Vec<u8>>,
}

struct Device {
    tun: Tun,
    due: Vec<Vec<u8>>,
    paused_until: Option<Instant>,
    dropped: DropCounters,
}

#[derive(Serialize)]
pub struct EmulatedLinkReport {
    pub name: String,
    pub up: LinkStats,
    pub down: LinkStats,
}

impl Emulator {
    /// Opens the devices of `emulation` in their namespaces; the traces start now.
    pub fn open(emulation: &Emulation) -> anyhow::Result<Self> {
        let Emulation { links, namespaces } = emulation;
        let near = namespaces.near.as_deref().map(NetNs::open).transpose()?;
        let far = namespaces.far.as_deref().map(NetNs::open).transpose()?;
        let poller = Poller::new()?;
        let mut devices = Vec::with_capacity(links.len());
        for (index, link) in links.iter().enumerate() {
            let pair = [
                Device::open(near.as_ref(), &link.near, namespaces.mtu)?,
                Device::open(far.as_ref(), &link.far, namespaces.mtu)?,
            ];
            for (end, device) in pair.iter().enumerate() {
                poller.add(&device.tun, token(index, end), Interest::Read)?;
            }
            devices.push(pair);
        }
        prepare_namespaces(near.as_ref(), far.as_ref(), links, namespaces)?;
        let ways =
            links.iter().map(|EmulatedLink { link, .. }| (link.up.clone(), link.down.clone()));
        Ok(Self {
            clock: Clock::start(),
            poller,
            names: links.iter().map(|emulated| emulated.link.name.clone()).collect(),
            devices,
            bridge: Bridge::new(ways),
        })
    }

    /// Carries packets until SIGINT or SIGTERM; SIGHUP restarts the traces. `signals` catches them.
    pub fn run(&mut self, signals: &mut Signals) -> anyhow::Result<()> {
        self.poller.add(&*signals, SIGNALS, Interest::Read)?;
        let result = self.carry(signals);
        self.poller.remove(&*signals)?;
        result
    }

    pub fn report(&self) -> Vec<EmulatedLinkReport> {
        let way = |link: usize, direction| {
            let mut stats = self.bridge.stats(LinkDirection { link, direction }).clone();
            stats.dropped.merge(&self.devices[link][exit(direction)].dropped);
            stats
        };
        let report = |(link, name): (usize, &String)| EmulatedLinkReport {
            name: name.clone(),
            up: way(link, Direction::Up),
            down: way(link, Direction::Down),
        };
        self.names.iter().enumerate().map(report).collect()
    }

    fn carry(&mut self, signals: &mut Signals) -> anyhow::Result<()> {
        let mut readable: Vec<Token> = Vec::new();
        loop {
            let now = self.clock.now();
            self.deliver(now);
            self.resume_devices(now)?;
            let wait = self.next_wake().and_then(|at| Clock::until(self.clock.now(), at));
            readable.clear();
            readable.extend(
                self.poller
                    .wait(wait)
                    .context("cannot wait for the devices")?
                    .iter()
                    .map(|event| event.token),
            );
            for &token in &readable {
                if token == SIGNALS {
                    while let Some(signal) = signals.take() {
                        match signal {
                            Signal::Interrupt | Signal::Terminate => return Ok(()),
                            Signal::Hangup => self.bridge.restart(self.clock.now()),
                            Signal::Restart | Signal::Child => {}
                        }
                    }
                } else {
                    self.read(token)?;
                }
            }
        }
    }

    fn deliver(&mut self, now: Instant) {
        while let Some((way, packet)) = self.bridge.poll(now) {
            self.devices[way.link][exit(way.direction)].due.push(packet);
        }
        for device in self.devices.iter_mut().flatten() {
            device.write_due();
        }
    }

    fn read(&mut self, token: Token) -> anyhow::Result<()> {
        let (link, end) = position(token);
        let direction = [Direction::Up, Direction::Down][end];
        let device = &mut self.devices[link][end];
        let now = self.clock.now();
        let bridge = &mut self.bridge;
        let result = device.tun.read_batch(Tun::READS_MAX, |packet| {
            let _ = bridge.handle_packet(now, LinkDirection { link, direction }, packet.to_vec());
        });
        if result.is_err() {
            // A device that is down or removed would wake a level-triggered poller endlessly.
            self.poller.remove(&device.tun)?;
            device.paused_until = Some(now + PAUSE);
        }
        Ok(())
    }

    fn resume_devices(&mut self, now: Instant) -> anyhow::Result<()> {
        for (link, pair) in self.devices.iter_mut().enumerate() {
            for (end, device) in pair.iter_mut().enumerate() {
                if device.paused_until.is_some_and(|until| until <= now) {
                    device.paused_until = None;
                    self.poller.add(&device.tun, token(link, end), Interest::Read)?;
                }
            }
        }
        Ok(())
    }

    fn next_wake(&self) -> Option<Instant> {
        let paused = self.devices.iter().flatten().filter_map(|device| device.paused_until);
        self.bridge.poll_timeout().into_iter().chain(paused).min()
    }
}

impl Device {
    fn open(namespace: Option<&NetNs>, end: &TunEnd, mtu: u16) -> Result<Self, DeviceError> {
        let options = TunOptions {
            name: end.interface.clone(),
            mtu,
            addresses: end.addresses.clone(),
            offload: true,
        };
        let tun = match namespace {
            Some(namespace) => namespace.enter(|| Tun::open(&options))??,
            None => Tun::open(&options)?,
        };
        Ok(Self { tun, due: Vec::new(), paused_until: None, dropped: DropCounters::default() })
    }

    fn write_due(&mut self) {
        if self.due.is_empty() {
            return;
        }
        let counts = self.tun.write_batch(&self.due);
        for (reason, packets) in
            [(DropReason::DeviceFull, counts.full), (DropReason::SendFailed, counts.refused)]
        {
            if packets > 0 {
                self.dropped.add(reason, packets as u64);
            }
        }
        self.due.clear();
    }
}

/// Sets default routes at the vehicle and forwarding at the other end, in named namespaces only: a
/// run in the caller's own namespace must not redirect its traffic.
fn prepare_namespaces(
    near: Option<&NetNs>,
    far: Option<&NetNs>,
    links: &[EmulatedLink],
    namespaces: &NamespaceSettings,
) -> Result<(), DeviceError> {
    if let Some(far) = far.filter(|_| namespaces.forward) {
        far.set_forwarding()?;
    }
    let Some(near) = near.filter(|_| namespaces.default_routes) else {
        return Ok(());
    };
    for (index, link) in links.iter().enumerate() {
        for gateway in link.far.addresses.iter().map(IpNet::addr) {
            let family = if gateway.is_ipv4() { "-4" } else { "-6" };
            let (device, metric) = (&link.near.interface, FIRST_METRIC + index);
            near.ip(&format!(
                "{family} route replace default via {gateway} dev {device} metric {metric}"
            ))?;
        }
    }
    Ok(())
}

fn exit(direction: Direction) -> usize {
    direction.opposite() as usize
}

fn token(link: usize, end: usize) -> Token {
    Token((link * 2 + end) as u64)
}

fn position(token: Token) -> (usize, usize) {
    let number = usize::try_from(token.0).expect("made from a usize by `token`");
    (number / 2, number % 2)
}

const SIGNALS: Token = Token(u64::MAX);
const PAUSE: Duration = Duration::from_millis(100);
const FIRST_METRIC: usize = 101;
