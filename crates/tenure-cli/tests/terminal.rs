//! `tenure run` on a terminal: the job has it, Ctrl-C and Ctrl-Z go where they should, and it comes back.
mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use common::{Bench, code, wait_for};

/// A terminal of its own, with a program on it that leads its session.
struct Screen {
    keyboard: File,
    shown: Arc<Mutex<String>>,
    program: Child,
}

impl Screen {
    fn start(bench: &Bench, words: &[&str]) -> Self {
        let pty = nix::pty::openpty(None, None).expect("a terminal");
        let slave = || pty.slave.try_clone().expect("a copy");
        let program = Command::new("setsid")
            .arg("--ctty")
            .args(words)
            .env("TENURE_DIR", bench.dir.path())
            .env("TENURE", env!("CARGO_BIN_EXE_tenure"))
            .env("SHELL", "/bin/sh")
            .env("PS1", "ready> ")
            .env("TERM", "dumb")
            .env_remove("TENURE_URL")
            .stdin(slave())
            .stdout(slave())
            .stderr(slave())
            .spawn()
            .expect("setsid (util-linux) starts");
        let keyboard = File::from(pty.master);
        let mut screen = keyboard.try_clone().expect("a copy");
        let shown = Arc::<Mutex<String>>::default();
        let writer = shown.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = screen.read(&mut bytes) {
                writer.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
        Self { keyboard, shown, program }
    }

    /// A `tenure` that leads the session.
    fn tenure(bench: &Bench, words: &[&str]) -> Self {
        Self::start(bench, &[&[env!("CARGO_BIN_EXE_tenure")], words].concat())
    }

    /// A shell with job control.
    fn shell(bench: &Bench) -> Self {
        let shell = Self::start(bench, &["bash", "--norc", "--noprofile", "-i"]);
        shell.wait_for("ready> ");
        shell
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal takes it");
    }

    fn shows(&self, text: &str) -> bool {
        self.shown.lock().unwrap().contains(text)
    }

    /// Waits for a text, and forgets everything up to its end.
    fn wait_for(&self, text: &str) {
        let what = format!("{text:?} appears");
        let appeared = std::panic::catch_unwind(|| wait_for(&what, || self.shows(text))).is_ok();
        assert!(appeared, "in vain: {what}; there is {:?}", self.shown.lock().unwrap());
        let mut shown = self.shown.lock().unwrap();
        let end = shown.find(text).expect("it was there") + text.len();
        shown.drain(..end);
    }

    fn finish(mut self) -> i32 {
        wait_for("the program ends", || self.program.try_wait().expect("our child").is_some());
        code(self.program.wait().expect("our child"))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// Shell words that wait for a Ctrl-C, say so, and die of it. Not a plain `sleep`: dash drops a Ctrl-C that comes while
/// it starts a command, in itself for as long as the command runs and in the new process for ever. With a trap it acts
/// on it when the command has ended, so the commands are short.
const UNTIL_CTRL_C: &str = "while :; do sleep 0.05; done";
const ON_CTRL_C: &str = "trap 'echo heard >&2; trap - INT; kill -INT $$' INT";

/// A file with these lines for a shell: what is typed shows on the screen as well, and stays short without them.
fn script(bench: &Bench, lines: &str) -> String {
    let path = bench.path("script");
    std::fs::write(&path, lines).expect("a file");
    common::word(&path).to_owned()
}

#[test]
fn the_job_has_the_terminal() {
    let bench = Bench::embedded();
    let mut screen = Screen::tenure(
        &bench,
        &["run", "x", "-c", "echo at your service; read line; echo \"<$line>\"; exit 4"],
    );
    screen.wait_for("at your service");
    screen.press("hello\n");
    screen.wait_for("<hello>");
    assert_eq!(screen.finish(), 4);
}

#[test]
fn ctrl_c_goes_to_the_job() {
    let bench = Bench::embedded();
    let line = "trap 'echo heard; exit 7' INT; echo begun; while :; do sleep 0.05; done";
    let mut screen = Screen::tenure(&bench, &["run", "x", "--", "sh", "-c", line]);
    screen.wait_for("begun");
    screen.press(CTRL_C);
    screen.wait_for("heard");
    assert_eq!(screen.finish(), 7);
}

#[test]
fn ctrl_c_ends_the_wait() {
    let bench = Bench::embedded();
    let sign = bench.path("sign");
    let line = format!("touch {}; sleep 30", common::word(&sign));
    let _holder = bench.start_job(&["run", "x", "-c", &line], &sign);
    let mut screen = Screen::tenure(&bench, &["run", "x", "--", "true"]);
    screen.wait_for("waiting for 'x' (place 1 of 1), held by ");
    screen.press(CTRL_C);
    assert_eq!(screen.finish(), 130);
}

#[test]
fn ctrl_c_ends_a_worker_with_its_job_which_has_no_terminal() {
    let bench = Bench::embedded();
    let sign = bench.path("sign");
    let line = format!("touch {}; sleep 0.3", common::word(&sign));
    let holder = bench.start_job(&["run", "x", "-c", &line], &sign);
    let job = script(
        &bench,
        "trap 'echo heard; exit 7' INT; read line || echo no input; while :; do sleep 0.05; done",
    );
    assert_eq!(bench.code(&["run", "-q", "--on-busy", "defer", "x", "--", "sh", &job]).0, 0);
    assert_eq!(holder.finish().0, 0);
    let mut screen = Screen::tenure(&bench, &["work"]);
    screen.wait_for("no input");
    screen.press(CTRL_C);
    screen.wait_for("heard");
    screen.wait_for("stopped with its worker (exit 7)");
    assert_eq!(screen.finish(), 0);
}

#[test]
fn a_deferred_job_that_asks_for_the_terminal_gets_none_and_stops_nobody() {
    let bench = Bench::embedded();
    let sign = bench.path("sign");
    let holder =
        bench.start_job(&["run", "x", "-c", &format!("touch {}; sleep 0.3", common::word(&sign))], &sign);
    let job = script(&bench, "read line </dev/tty || echo no terminal");
    assert_eq!(bench.code(&["run", "-q", "--on-busy", "defer", "x", "--", "sh", &job]).0, 0);
    assert_eq!(holder.finish().0, 0);
    let mut screen = Screen::shell(&bench);
    screen.press("$TENURE work --once; echo code=$?\n");
    screen.wait_for("no terminal");
    screen.wait_for("code=0");
    screen.press("exit 0\n");
    assert_eq!(screen.finish(), 0);
}

#[test]
fn ctrl_z_stops_it_under_a_shell_and_fg_wakes_it() {
    let bench = Bench::embedded();
    let mut screen = Screen::shell(&bench);
    let job =
        script(&bench, &format!("{ON_CTRL_C}; echo begun; read line; echo \"<$line>\"; {UNTIL_CTRL_C}"));
    screen.press(&format!("$TENURE run x -- sh {job}\n"));
    screen.wait_for("begun");
    screen.press(CTRL_Z);
    screen.wait_for("Stopped");
    screen.wait_for("ready> ");
    screen.press("echo the shell is \"back\"; fg\n");
    screen.wait_for("the shell is back");
    screen.press("again\n");
    screen.wait_for("<again>");
    screen.press(CTRL_C);
    screen.wait_for("heard");
    screen.wait_for("ready> ");
    screen.press("echo code=$?\n");
    screen.wait_for("code=130");
    assert_eq!(bench.inspect("x")["state"], "free");
    screen.press("exit 3\n");
    assert_eq!(screen.finish(), 3);
}

#[test]
fn in_the_background_it_waits_for_its_turn_at_the_terminal() {
    let bench = Bench::embedded();
    let mut screen = Screen::shell(&bench);
    screen.press("$TENURE run x -- sh -c 'read line; echo \"<$line>\"' &\n");
    screen.wait_for("ready> ");
    // The shell shows it before its next prompt.
    wait_for("the shell sees it stopped", || {
        screen.press("\n");
        std::thread::sleep(std::time::Duration::from_millis(50));
        screen.shows("Stopped")
    });
    screen.press("fg\n");
    screen.wait_for("fg\r\n");
    screen.press("later\n");
    screen.wait_for("<later>");
    screen.wait_for("ready> ");
    screen.press("exit 0\n");
    assert_eq!(screen.finish(), 0);
}

#[test]
fn without_a_shell_ctrl_z_has_no_effect() {
    let bench = Bench::embedded();
    let line = "echo begun; read line; echo \"<$line>\"";
    let mut screen = Screen::tenure(&bench, &["run", "x", "-c", line]);
    screen.wait_for("begun");
    screen.press(CTRL_Z);
    std::thread::sleep(std::time::Duration::from_millis(200));
    screen.press("still here\n");
    screen.wait_for("<still here>");
    assert_eq!(screen.finish(), 0);
}

#[test]
fn in_front_of_a_pager_the_job_gets_the_terminal_when_it_asks() {
    let bench = Bench::embedded();
    let mut screen = Screen::shell(&bench);
    screen.press("$TENURE run x -- sh -c 'echo be''gun >&2; read line; echo \"<$line>\"' | cat\n");
    screen.wait_for("begun");
    screen.press("mine\n");
    screen.wait_for("<mine>");
    screen.wait_for("ready> ");
    // Ctrl-C on the shell's own group reaches the job as well.
    let job = script(&bench, &format!("{ON_CTRL_C}; echo begun >&2; {UNTIL_CTRL_C}"));
    screen.press(&format!("$TENURE run x -- sh {job} | cat\n"));
    screen.wait_for("begun");
    screen.press(CTRL_C);
    screen.wait_for("heard");
    screen.wait_for("ready> ");
    screen.press("echo code=${PIPESTATUS[0]}\n");
    screen.wait_for("code=130");
    assert_eq!(bench.inspect("x")["state"], "free");
}
