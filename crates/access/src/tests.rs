//! Files, handshakes, passwords and reloads together.

mod files;
mod handshakes;
mod reload;

use std::fs;
use std::path::{Path, PathBuf};

use crate::Access;
use crate::web_config::WebConfig;

/// A file of tests/certificates.
fn certificate(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/certificates").join(name)
}

fn parse(text: &str) -> Result<WebConfig, Vec<String>> {
    WebConfig::parse(text, Path::new("/etc/exporter/web.yml"))
}

/// A folder with a web configuration, and the certificates that it names.
struct Files(tempfile::TempDir);

impl Files {
    /// With `server.pem`, `server.key` and these lines.
    fn new(lines: &str) -> Files {
        let files = Files(tempfile::tempdir().unwrap());
        for name in ["server.pem", "server.key", "authority.pem"] {
            files.copy(name, name);
        }
        files.write(lines);
        files
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("web.yml")
    }

    fn write(&self, lines: &str) {
        fs::write(self.path(), lines).unwrap();
    }

    fn copy(&self, from: &str, to: &str) {
        fs::copy(certificate(from), self.0.path().join(to)).unwrap();
    }

    fn open(&self) -> Result<Access, Vec<String>> {
        Access::open(&self.path(), false)
    }

    /// The one error, without the folder.
    fn error(&self) -> String {
        let problems = self.open().expect_err("refused");
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems[0].replace(&format!("{}/", self.0.path().display()), "")
    }
}

const TLS: &str = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n";
