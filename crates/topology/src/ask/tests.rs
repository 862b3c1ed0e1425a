use super::*;

/// An asker whose process is this shell script; descriptor 3 takes its answer.
fn ask(asker: &mut Asker, script: &str) -> Result<Links, Unanswered> {
    asker.ask_with(&["-c", script], &Environment::default(), &Stop::default())
}

fn shell(deadline: Duration) -> Asker {
    Asker { program: "/bin/sh".into(), voice: Voice::Silent, deadline, family: Arc::default(), left: None }
}

const PATIENT: Duration = Duration::from_secs(60);

#[test]
fn an_answer_is_taken_and_the_process_waited_for() {
    let mut asker = shell(PATIENT);
    let state = r#"{"address":"0000:06:00.0","link":null,"port":{"generation":5,"lanes":16},"network":null}"#;
    let links = ask(&mut asker, &format!("printf '%s' '{{\"Ok\":[{state}]}}' >&3")).unwrap();
    assert_eq!(links.0[0].port.unwrap().lanes, 16);
    assert!(asker.left.is_none());
    let told = ask(&mut asker, r#"printf '{"Err":"no folder"}' >&3"#).unwrap_err();
    assert_eq!(told.to_string(), "no folder");
}

#[test]
fn garbage_is_told_and_the_next_answer_is_taken() {
    let mut asker = shell(PATIENT);
    for script in ["echo '{' >&3", "exit 3", "head -c 100 /dev/zero >&3", r#"echo '{"Ok":[{}]}' >&3"#] {
        let error = ask(&mut asker, script).unwrap_err();
        assert!(matches!(error, Unanswered::Garbage(_)), "{script}: {error}");
    }
    assert_eq!(ask(&mut asker, r#"printf '{"Ok":[]}' >&3"#).unwrap(), Links::default());
}

#[test]
fn an_endless_answer_is_cut_off() {
    let mut asker = shell(PATIENT);
    let error = ask(&mut asker, "cat /dev/zero >&3").unwrap_err();
    assert!(matches!(error, Unanswered::Long), "{error}");
    assert!(asker.left.is_none(), "it was ended");
}

#[test]
fn a_process_that_hangs_is_ended_at_its_deadline() {
    let mut asker = shell(Duration::from_millis(200));
    let error = ask(&mut asker, "exec sleep 600").unwrap_err();
    assert!(matches!(error, Unanswered::Late(_)), "{error}");
    asker.deadline = PATIENT;
    assert_eq!(ask(&mut asker, r#"printf '{"Ok":[]}' >&3"#).unwrap(), Links::default());
}

#[test]
fn none_is_started_beside_one_that_does_not_end() {
    let mut asker = shell(PATIENT);
    let nothing = File::open("/dev/null").unwrap();
    let args = ["-c", "exec sleep 600"];
    let (running, _answers) =
        child::start(Path::new("/bin/sh"), &args, &Environment::default(), nothing, Voice::Silent).unwrap();
    let pid = running.pid;
    asker.left = Some(running);
    let error = ask(&mut asker, r#"printf '{"Ok":[]}' >&3"#).unwrap_err();
    assert!(matches!(error, Unanswered::Stuck(stuck) if stuck == pid), "{error}");
    asker.left.take().unwrap().end_at_once();
}

#[test]
fn nobody_is_heard_after_the_stop() {
    let stop = Stop::default();
    stop.stop();
    let mut asker = shell(PATIENT);
    let asked = asker.ask_with::<Links>(&["-c", "exec sleep 600"], &Environment::default(), &stop);
    assert!(matches!(asked, Err(Unanswered::Stopped)));
    if let Some(left) = asker.left {
        left.end_at_once();
    }
}

#[test]
fn hwloc_hears_of_another_root_alone() {
    let names =
        |origin: &Origin| environment(origin).with.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let fsroot = std::ffi::OsString::from("HWLOC_FSROOT");
    assert!(!names(&Origin::Live("/".into())).contains(&fsroot));
    assert!(names(&Origin::Live("/host".into())).contains(&fsroot));
    let text = arguments(&Origin::Synthetic("pu:4".into()), What::All).unwrap();
    assert_eq!(text, ["topology-child", "--what=all", "--synthetic=pu:4"]);
}
