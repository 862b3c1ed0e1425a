//! Parses the kernel's line about an out-of-memory kill. Pure.

use model::fact::KernelLine;

/// Start of a line about an out-of-memory kill.
pub(crate) const BEGINNING: &[u8] = b"oom-kill:";
/// Maximum length of a line that is certainly whole. The kernel cuts records at 992 bytes, possibly within the name of
/// a group.
const MAX_LENGTH: usize = 900;

/// Parses `oom-kill:constraint=...,oom_memcg=/a,task_memcg=/a/b,task=app,pid=522,uid=0` (Linux 5.0 and later,
/// `dump_oom_summary`). Group and process names may contain any text. The numbers come last, so they are read from the
/// end. The group is used only if the marks around it occur once.
pub(crate) fn kill(text: &[u8]) -> Option<KernelLine> {
    if text.len() >= MAX_LENGTH {
        return None;
    }
    let text = String::from_utf8_lossy(text);
    let (rest, user) = text.trim_end().rsplit_once(",uid=")?;
    let (rest, pid) = rest.rsplit_once(",pid=")?;
    user.parse::<u32>().ok()?;
    let (_, rest) = rest.split_once(",task_memcg=")?;
    let (group, _) = rest.split_once(",task=")?;
    let once = |mark: &str| text.matches(mark).count() == 1;
    let certain = once(",task_memcg=") && once(",task=");
    Some(KernelLine::OomKill { group: certain.then(|| group.to_owned()), pid: pid.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_killed_for_want_of_memory_is_understood_whatever_its_name() {
        let line = |name: &str| {
            format!(
                "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x.scope,mems_allowed=0-1,\
                 oom_memcg=/kubepods.slice,task_memcg=/kubepods.slice/x.scope,task={name},pid=522,uid=1000"
            )
        };
        let killed = |certain: bool| {
            let group = certain.then(|| "/kubepods.slice/x.scope".to_owned());
            KernelLine::OomKill { group, pid: 522 }
        };
        for (name, certain) in [("python3", true), ("a,pid=1,uid=0", true), ("x,task=y", false), ("", true)] {
            let meaning = kill(line(name).as_bytes());
            assert_eq!(meaning, Some(killed(certain)));
        }
        let whole = line("python3");
        for cut in ["oom-kill:", &whole[..whole.len() - 9], "oom-kill:task_memcg=/a,task=b,pid=1"] {
            assert_eq!(kill(cut.as_bytes()), None, "{cut}");
        }
    }

    #[test]
    fn a_crafted_group_names_no_other_group() {
        let line = |oom: &str, task: &str| {
            format!("oom-kill:oom_memcg={oom},task_memcg={task},task=app,pid=522,uid=0")
        };
        let crafted = "/evil,task_memcg=/pods/victim,task=x,pid=1,uid=0";
        for text in [
            line("/a", crafted),
            line(crafted, "/a"),
            line("/a", "/evil,task_memcg=/pods/victim"),
            line("/a", "/pods/victim,task=/evil"),
        ] {
            let meaning = kill(text.as_bytes());
            assert_eq!(meaning, Some(KernelLine::OomKill { group: None, pid: 522 }), "{text}");
        }
        let long = format!("/evil,task_memcg=/pods/victim,task=x,pid=1,uid={}", "0".repeat(MAX_LENGTH));
        assert_eq!(kill(format!("oom-kill:oom_memcg={long}").as_bytes()), None, "its own end was cut off");
    }
}
