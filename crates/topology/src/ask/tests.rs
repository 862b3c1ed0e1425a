use std::io::Write;

use super::*;
use crate::discover::DeviceState;
use model::topology::LinkCapability;

/// An asker whose process is this shell script; descriptor 3 takes its answer.
fn ask(asker: &mut Asker, script: &str) -> Result<Links, AskError> {
    asker.ask(&["-c", script], &Question::Links("/".into()), &Stop::default())
}

/// A script that gives these bytes as its answer, and the file they are in.
fn giving(bytes: &[u8]) -> (String, tempfile::NamedTempFile) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    (format!("cat {} >&3", file.path().display()), file)
}

fn answer(asker: &mut Asker, answer: &Result<Links, String>) -> Result<Links, AskError> {
    let (script, _file) = giving(&frame::encode(answer).unwrap());
    ask(asker, &script)
}

fn shell(deadline: Duration) -> Asker {
    Asker { program: "/bin/sh".into(), stderr: Stderr::Null, deadline, children: Arc::default(), left: None }
}

const PATIENT: Duration = Duration::from_secs(60);

#[test]
fn an_answer_is_taken_and_the_process_waited_for() {
    let mut asker = shell(PATIENT);
    let port = Some(LinkCapability { generation: 5, lanes: 16 });
    let state = DeviceState { address: "0000:06:00.0".into(), link: None, port, network: None };
    let links = answer(&mut asker, &Ok(Links(vec![state]))).unwrap();
    assert_eq!(links.0[0].port.unwrap().lanes, 16);
    assert!(asker.left.is_none());
    let error = answer(&mut asker, &Err("no folder".into())).unwrap_err();
    assert_eq!(error.to_string(), "no folder");
}

#[test]
fn an_invalid_answer_is_an_error_and_the_next_answer_is_taken() {
    let mut asker = shell(PATIENT);
    let (cut, _file) = giving(&frame::encode(&Ok::<_, String>(Links::default())).unwrap()[..9]);
    let (other, _other) = giving(&frame::encode(&7u8).unwrap());
    for script in ["echo '{' >&3", "exit 3", "head -c 100 /dev/zero >&3", &cut, &other] {
        let error = ask(&mut asker, script).unwrap_err();
        assert!(matches!(error, AskError::Invalid(_)), "{script}: {error}");
    }
    assert_eq!(answer(&mut asker, &Ok(Links::default())).unwrap(), Links::default());
}

#[test]
fn an_endless_answer_is_cut_off() {
    let mut asker = shell(PATIENT);
    let mut head = frame::encode(&0u8).unwrap();
    head[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let (script, _file) = giving(&head);
    for (script, text) in [
        (format!("{script}; cat /dev/zero >&3"), "the maximum is"),
        ("cat /dev/zero >&3".into(), "invalid frame"),
    ] {
        let error = ask(&mut asker, &script).unwrap_err();
        assert!(matches!(&error, AskError::Invalid(found) if found.contains(text)), "{error}");
    }
    assert!(asker.left.is_none(), "it was ended");
}

#[test]
fn a_process_that_hangs_is_ended_at_its_deadline() {
    let mut asker = shell(Duration::from_millis(200));
    let error = ask(&mut asker, "exec sleep 600").unwrap_err();
    assert!(matches!(error, AskError::Late(_)), "{error}");
    asker.deadline = PATIENT;
    assert_eq!(answer(&mut asker, &Ok(Links::default())).unwrap(), Links::default());
}

#[test]
fn none_is_started_beside_one_that_does_not_end() {
    let mut asker = shell(PATIENT);
    let launch = Launch {
        program: Path::new("/bin/sh"),
        args: &["-c", "exec sleep 600"],
        environment: &Environment::default(),
        stderr: Stderr::Null,
        children: None,
        thread: "test",
    };
    let child = Supervised::start::<()>(launch, |_| false).unwrap();
    let pid = child.pid();
    asker.left = Some(child);
    let error = answer(&mut asker, &Ok(Links::default())).unwrap_err();
    assert!(matches!(error, AskError::Stuck(stuck) if stuck == pid), "{error}");
    asker.left.take().unwrap().kill_and_wait();
}

#[test]
fn no_answer_is_waited_for_after_the_stop() {
    let stop = Stop::default();
    stop.stop();
    let mut asker = shell(PATIENT);
    let asked = asker.ask::<Links>(&["-c", "exec sleep 600"], &Question::Links("/".into()), &stop);
    assert!(matches!(asked, Err(AskError::Stopped)));
    if let Some(left) = asker.left {
        left.kill_and_wait();
    }
}

#[test]
fn hwloc_gets_another_root_alone() {
    let names = |root: &str| {
        environment(Some(Path::new(root))).with.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    let fsroot = std::ffi::OsString::from("HWLOC_FSROOT");
    assert!(!names("/").contains(&fsroot));
    assert!(names("/host").contains(&fsroot));
    assert!(Question::Machine(Origin::Synthetic("pu:4".into()), false).root().is_none());
}
