//! Files that change while they are in use.

use std::sync::Arc;

use super::*;
use crate::Grants;

const USER: &str =
    "basic_auth_users:\n  alice: $2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";
const VERIFIED: &str = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: authority.pem\n";

async fn refreshed(access: &Arc<Access>) -> Arc<Grants> {
    access.refresh().await;
    access.current()
}

fn expires(grants: &Grants) -> f64 {
    grants.tls.as_ref().unwrap().expires().unwrap()
}

#[tokio::test]
async fn new_certificates_are_taken_up_and_half_of_them_is_not() {
    let files = Files::new(TLS);
    let access = Arc::new(files.open().unwrap());
    let first = access.current();
    assert!(Arc::ptr_eq(&first, &refreshed(&access).await), "nothing has changed");
    files.copy("renewed.pem", "server.pem");
    assert!(Arc::ptr_eq(&first, &refreshed(&access).await), "the key is missing still");
    let problems = access.problems();
    assert!(problems.len() == 1 && problems[0].contains("is not the key of the certificate"), "{problems:?}");
    files.copy("renewed.key", "server.key");
    let renewed = refreshed(&access).await;
    assert!(expires(&renewed) > expires(&first) && access.problems().is_empty());
}

#[tokio::test]
async fn bad_files_leave_the_earlier_ones_in_use_until_they_are_good() {
    let files = Files::new(&format!("{TLS}{VERIFIED}{USER}"));
    let access = Arc::new(files.open().unwrap());
    let first = access.current();
    for (lines, why) in [
        (format!("{TLS}{VERIFIED}{USER}wrong: 1\n"), "wrong: unknown key"),
        ("tls_server_config: {".to_owned(), "no YAML"),
        (String::new(), "tls_server_config is gone, which only a restart takes up"),
        (USER.to_owned(), "tls_server_config is gone"),
        (format!("{TLS}{USER}"), "client_auth_type: RequireAndVerifyClientCert is gone"),
        (format!("{TLS}{VERIFIED}"), "basic_auth_users is gone"),
    ] {
        files.write(&lines);
        assert!(Arc::ptr_eq(&first, &refreshed(&access).await), "{lines}");
        assert!(
            access.problems().iter().any(|problem| problem.contains(why)),
            "{lines}: {:?}",
            access.problems()
        );
    }
    fs::remove_file(files.path()).unwrap();
    assert!(Arc::ptr_eq(&first, &refreshed(&access).await) && access.problems().len() == 1);
    files.write(&format!("{TLS}{VERIFIED}{USER}rate_limit: {{ interval: 1s, burst: 1 }}\n"));
    assert!(refreshed(&access).await.rate_limit.is_some() && access.problems().is_empty());
}

#[tokio::test]
async fn an_expired_certificate_replaces_no_valid_one() {
    let files = Files::new(TLS);
    let access = Arc::new(files.open().unwrap());
    let first = access.current();
    files.copy("expired.pem", "server.pem");
    files.copy("expired.key", "server.key");
    assert!(Arc::ptr_eq(&first, &refreshed(&access).await));
    assert!(access.problems()[0].contains("the new certificate has expired"), "{:?}", access.problems());
}
