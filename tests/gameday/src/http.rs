//! As much of HTTP as a game day needs: questions to servers on this machine, and a receiver of notifications.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Fallible;

/// No answer on this machine takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// Asks for a page; anything but a status of 200 is an error.
pub fn get(port: u16, path: &str) -> Fallible<String> {
    ask(port, &format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n"))
}

/// Sends JSON.
pub fn post(port: u16, path: &str, body: &Value) -> Fallible<String> {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}",
        body.len()
    );
    ask(port, &format!("{head}\r\n\r\n{body}"))
}

fn ask(port: u16, request: &str) -> Fallible<String> {
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8(answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no HTTP answer")?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(format!("{}: {body}", head.lines().next().unwrap_or("")).into()),
    }
}

/// Text as it may stand in the query of an address.
pub fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "%{byte:02X}");
        out
    })
}

/// An alert of a notification.
#[derive(Clone, Debug)]
pub struct ReceivedAlert {
    /// Its labels, as JSON gives them.
    pub labels: Value,
    /// Whether it fires; else it is over.
    pub firing: bool,
}

impl ReceivedAlert {
    /// The value of a label; empty without one.
    pub fn label(&self, name: &str) -> &str {
        self.labels[name].as_str().unwrap_or("")
    }
}

/// A notification that came.
#[derive(Clone, Debug)]
pub struct Notification {
    /// When.
    pub at: Instant,
    /// The receiver.
    pub receiver: String,
    /// Its alerts.
    pub alerts: Vec<ReceivedAlert>,
}

/// Takes what Alertmanager sends to any path.
#[derive(Clone)]
pub struct Receiver {
    port: u16,
    inbox: Arc<(Mutex<Vec<Notification>>, Condvar)>,
}

impl Receiver {
    /// Listens on a free port until the program ends.
    pub fn start() -> Fallible<Receiver> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let receiver = Receiver { port: listener.local_addr()?.port(), inbox: Arc::default() };
        let served = receiver.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let served = served.clone();
                std::thread::spawn(move || {
                    if let Err(why) = served.take(stream) {
                        eprintln!("a notification could not be read: {why}");
                    }
                });
            }
        });
        Ok(receiver)
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// All that came so far.
    pub fn all(&self) -> Vec<Notification> {
        self.lock().clone()
    }

    /// Waits for another notification than the so many that were seen, at most so long.
    pub fn wait(&self, seen: usize, at_most: Duration) {
        let guard = self.lock();
        let _ = self.inbox.1.wait_timeout_while(guard, at_most, |all| all.len() <= seen);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Notification>> {
        self.inbox.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one kept connection.
    fn take(&self, stream: TcpStream) -> Result<(), Box<dyn Error>> {
        let mut reader = BufReader::new(stream);
        loop {
            let mut length = 0;
            let mut path = String::new();
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line)? == 0 {
                    return Ok(());
                }
                if path.is_empty() {
                    path = line.split(' ').nth(1).unwrap_or("/").to_owned();
                }
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse()?;
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let at = Instant::now();
            reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
            let body: Value = serde_json::from_slice(&body)?;
            let alerts = body["alerts"].as_array().map(Vec::as_slice).unwrap_or_default();
            let alerts = alerts
                .iter()
                .map(|alert| ReceivedAlert {
                    labels: alert["labels"].clone(),
                    firing: alert["status"] == "firing",
                })
                .collect();
            let receiver = path.trim_start_matches('/').to_owned();
            self.lock().push(Notification { at, receiver, alerts });
            self.inbox.1.notify_all();
        }
    }
}
