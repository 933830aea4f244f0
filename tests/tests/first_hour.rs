//! A new user's first hour: the commands of the README's section on several machines, in its order, on two machines that
//! know nothing yet (each a home of its own).

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use murmur_tests::{murmur, output_of};

use crate::MURMUR;

/// What a condition may take on two busy cores.
const PATIENCE: Duration = Duration::from_secs(60);

/// A machine of its own as far as `murmur` can tell, but for the ports: those are any free ones, on loopback.
struct Machine {
    home: tempfile::TempDir,
}

/// A daemon in a terminal's place; ended by its process id when it is dropped.
struct Running {
    process: Child,
    first_line: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Machine {
    fn new() -> Machine {
        Machine { home: tempfile::tempdir().expect("a temporary directory") }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = murmur(MURMUR);
        command.args(line.split_whitespace().skip(1).map(|word| word.trim_matches('"')));
        command.env("HOME", self.home.path()).env_remove("XDG_DATA_HOME").current_dir(self.home.path());
        command.env("MURMUR_LISTEN", "/ip4/127.0.0.1/tcp/0").env("MURMUR_STATUS_ADDRESS", "127.0.0.1:0");
        command.stdin(Stdio::null());
        command
    }

    /// Runs a line of the README that ends by itself, and wants it to succeed.
    fn run(&self, line: &str) -> String {
        let Output { status, stdout, stderr } = output_of(&mut self.asking(line));
        let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{line}: {said}");
        said
    }

    /// Commands that ask find the daemon by themselves, so the address of none is set.
    fn asking(&self, line: &str) -> Command {
        let mut command = self.command(line);
        command.env_remove("MURMUR_STATUS_ADDRESS").env_remove("MURMUR_LISTEN");
        command
    }

    /// Starts a line of the README that goes on, and waits for its first line on standard output.
    fn start(&self, line: &str) -> Running {
        let mut process =
            self.command(line).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the program starts");
        let mut stdout = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut first_line = String::new();
        stdout.read_line(&mut first_line).expect("readable");
        // The pipe stays open, so that the daemon may go on to write.
        std::thread::spawn(move || stdout.lines().for_each(drop));
        Running { process, first_line: first_line.trim().to_owned() }
    }

    /// Asks until the answer holds a text.
    fn ask_until(&self, line: &str, text: &str) -> String {
        let begin = Instant::now();
        loop {
            let said = self.run(line);
            if said.contains(text) {
                return said;
            }
            assert!(begin.elapsed() < PATIENCE, "{line} does not say {text:?}: {said}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// The commands of the first block below a heading of the README, without their comments.
fn commands_below(heading: &str) -> Vec<String> {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).expect("there");
    let section = readme.split(heading).nth(1).unwrap_or_else(|| panic!("the README has no {heading:?}"));
    let block = section.split("```").nth(1).expect("a block of commands");
    let without_comment = |line: &str| line.split(" # ").next().unwrap_or_default().trim().to_owned();
    block.lines().map(without_comment).filter(|line| line.starts_with("murmur ")).collect()
}

#[test]
fn texts_need_no_run_file_and_the_status_says_what_runs_where() {
    let machine = Machine::new();
    std::fs::write(machine.home.path().join("book.txt"), "The mouse ran up the clock. ".repeat(800)).expect("written");
    let mut founder = machine.start("murmur start --data book.txt --closed");
    assert!(founder.first_line.starts_with("murmur join murmur1"), "{}", founder.first_line);
    let said = machine.ask_until("murmur status", "phase        training");
    let directory = machine.home.path().join(".local/share/murmur/own-texts");
    let expected = [format!("data         {}", directory.display()), "device       CPU".to_owned()];
    assert!(said.contains("run          own-texts · "), "{said}");
    assert!(expected.iter().all(|line| said.to_lowercase().contains(&line.to_lowercase())), "{expected:?} in {said}");
    machine.run("murmur stop");
    assert!(founder.process.wait().expect("it has ended").success());
}

#[test]
fn the_commands_for_several_machines_work_as_written() {
    let commands = commands_below("## On several machines");
    let expected =
        ["start", "join", "status", "finish", "sample", "eval", "export", "list", "ticket", "stop"].map(str::to_owned);
    let words: Vec<String> =
        commands.iter().map(|line| line.split_whitespace().nth(1).unwrap_or_default().to_owned()).collect();
    assert_eq!(words, expected, "this test follows the README");
    let [start, join, status, finish, sample, eval, export, list, ticket, stop] =
        <[String; 10]>::try_from(commands).expect("ten");

    let (first, second) = (Machine::new(), Machine::new());
    let mut founder = first.start(&start);
    assert!(founder.first_line.starts_with("murmur join murmur1"), "{}", founder.first_line);
    assert_eq!(join.split_whitespace().count(), 3, "a ticket is all that it needs: {join}");
    let mut joiner = second.start(&founder.first_line);
    assert!(joiner.first_line.starts_with("murmur join murmur1"), "{}", joiner.first_line);
    second.ask_until(&status, "1 peer");
    first.run(&ticket);

    // Twenty minutes in the README, a second here.
    let minutes = finish.split_whitespace().last().expect("a time").to_owned();
    assert!(first.run(&finish.replace(&minutes, "1s")).contains("the swarm's learning rate falls"));
    for machine in [&first, &second] {
        machine.ask_until(&status, "phase        completed");
    }
    // Both are members still, with a model on disk that the commands find by themselves.
    assert!(second.run(&format!("{sample} --tokens 20")).contains("Once"));
    assert!(second.run(&eval).contains("nats/byte"));
    second.run(&export);
    assert!(second.home.path().join("model/model.safetensors").exists(), "{export}");
    assert!(second.run(&list).contains("stories"));
    for (machine, running) in [(&first, &mut founder), (&second, &mut joiner)] {
        machine.run(&stop);
        assert!(running.process.wait().expect("it has ended").success());
    }
}
