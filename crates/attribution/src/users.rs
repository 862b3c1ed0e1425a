//! Login names of users from the host's `/etc/passwd`. Users from other sources (LDAP) are shown by UID,
//! because a query for them could block forever.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use host::Host;

/// Maximum number of bytes read of the file.
const MOST_BYTES: u64 = 4 * 1024 * 1024;

/// Login names by UID, and the state of the file that has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    names: HashMap<u32, String>,
    state: Option<(i64, i64, u64)>,
}

impl Users {
    /// Returns the login name of a user, or the UID.
    pub fn name(&self, user: u32) -> String {
        self.known(user).map_or_else(|| user.to_string(), str::to_owned)
    }

    /// Returns the login name of a user, if the host's file has it.
    pub fn known(&self, user: u32) -> Option<&str> {
        self.names.get(&user).map(String::as_str)
    }
}

/// Reads the file again if it has changed. Returns `None` if it is unchanged or unreadable.
pub fn newer(host: &Host, known: &Users) -> Option<Users> {
    let file = File::open(host.path("/etc/passwd")).ok()?;
    let about = file.metadata().ok()?;
    let state = Some((about.mtime(), about.mtime_nsec(), about.len()));
    let mut bytes = Vec::new();
    if known.state == state || file.take(MOST_BYTES).read_to_end(&mut bytes).is_err() {
        return None;
    }
    Some(Users { names: names(&String::from_utf8_lossy(&bytes)), state })
}

/// Returns the first name of every UID: `name:password:uid:…`.
fn names(passwd: &str) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for line in passwd.lines() {
        let mut fields = line.split(':');
        let (Some(name), _, Some(Ok(user))) = (fields.next(), fields.next(), fields.next().map(str::parse))
        else {
            continue;
        };
        if !name.is_empty() && !name.starts_with(['#', '+', '-']) {
            names.entry(user).or_insert_with(|| name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_the_first_name_or_a_number_and_the_file_is_read_once() {
        let root = tempfile::tempdir().unwrap();
        let host = Host::new(root.path());
        assert_eq!(newer(&host, &Users::default()), None);
        std::fs::create_dir(root.path().join("etc")).unwrap();
        let text = "root:x:0:0::/root:/bin/sh\ntoor:x:0:0\n+::::\nbad:x:y\nalice:x:1000:1000\n";
        std::fs::write(root.path().join("etc/passwd"), text).unwrap();
        let users = newer(&host, &Users::default()).unwrap();
        assert_eq!([users.name(0), users.name(1000), users.name(7)], ["root", "alice", "7"]);
        assert_eq!(newer(&host, &users), None);
    }
}
