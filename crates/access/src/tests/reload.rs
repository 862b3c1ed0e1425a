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
        ("tls_server_config: {".to_owned(), "is not valid YAML"),
        (String::new(), "tls_server_config was removed, which takes effect only after a restart"),
        (USER.to_owned(), "tls_server_config was removed"),
        (format!("{TLS}{USER}"), "client_auth_type: RequireAndVerifyClientCert was removed"),
        (format!("{TLS}{VERIFIED}"), "basic_auth_users was removed"),
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
async fn a_weaker_protection_of_clients_needs_a_restart_and_a_stronger_one_does_not() {
    let ca = "  client_ca_file: authority.pem\n";
    let auth = |name: &str, others: &str| format!("{TLS}  client_auth_type: {name}\n{others}");
    let sans = format!("{ca}  client_allowed_sans: [prometheus]\n");
    let any = auth("RequireAnyClientCert", "");
    let given = auth("VerifyClientCertIfGiven", ca);
    let verified = auth("RequireAndVerifyClientCert", ca);
    let named = auth("RequireAndVerifyClientCert", &sans);
    let given_named = auth("VerifyClientCertIfGiven", &sans);
    for (strong, weak, lost) in [
        (&named, &verified, "client_allowed_sans"),
        (&given_named, &given, "client_allowed_sans"),
        (&verified, &given, "client_auth_type: RequireAndVerifyClientCert"),
        (&named, &given_named, "client_auth_type: RequireAndVerifyClientCert"),
        (&verified, &any, "client_auth_type: RequireAndVerifyClientCert"),
        (&any, &TLS.to_owned(), "client_auth_type: RequireAnyClientCert"),
        (&any, &auth("RequestClientCert", ""), "client_auth_type: RequireAnyClientCert"),
        (&given, &auth("RequestClientCert", ""), "client_auth_type: VerifyClientCertIfGiven"),
    ] {
        let files = Files::new(strong);
        let access = Arc::new(files.open().unwrap());
        let first = access.current();
        files.write(weak);
        assert!(Arc::ptr_eq(&first, &refreshed(&access).await), "{strong} {weak}");
        let problems = access.problems();
        let why = format!("{lost} was removed, which takes effect only after a restart");
        assert!(problems.len() == 1 && problems[0].contains(&why), "{weak}: {problems:?}");
        // A restart has the weaker one, and from there the way back is open.
        let access = Arc::new(files.open().unwrap());
        let first = access.current();
        files.write(strong);
        assert!(!Arc::ptr_eq(&first, &refreshed(&access).await), "{strong}: {:?}", access.problems());
    }
}

#[tokio::test]
async fn a_file_that_is_cut_anywhere_opens_nothing() {
    let whole = format!("{USER}{TLS}{VERIFIED}  client_allowed_sans:\n  - prometheus\n");
    let files = Files::new(&whole);
    let access = Arc::new(files.open().unwrap());
    for length in 0..whole.len() {
        files.write(&whole[..length]);
        let grants = refreshed(&access).await;
        let tls = grants.tls.as_ref().expect("TLS stays");
        let verifier = tls.verifier.as_ref().expect("certificates are asked for");
        let verifies = tls.client_auth.requires() && tls.client_auth.verifies();
        assert!(verifies && verifier.limits_names() && !grants.users.is_empty(), "{}", &whole[..length]);
    }
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
