//! Data and models from elsewhere: loaded once, on from where it stopped, checked, and only from where they may be.

mod bucket;
mod counterparts;
mod hub;
mod of_runs;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use murmur_tests::disk::SmallDisk;
use murmur_tests::fake_store::{Asked, FakeStore, Fault, Store, sha256};
use murmur_tests::{TINY_RUN, end_of, murmur, output_of, wait_until, write_run};

use crate::MURMUR;

/// What the developer's own environment says of stores, the hub and proxies.
const FOREIGN: [&str; 24] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "HF_TOKEN_PATH",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "HTTP_PROXY",
    "SSL_CERT_FILE",
];

/// A machine with a server beside it.
struct Bench {
    folder: tempfile::TempDir,
    server: FakeStore,
}

/// How a command ended.
struct Ended {
    code: Option<i32>,
    said: String,
}

impl Bench {
    fn new(store: Store) -> Bench {
        let folder = tempfile::tempdir().expect("a temporary directory");
        write_run(folder.path(), &TINY_RUN.replace("[data]", "[data]\nsource = \"files\""));
        Bench { folder, server: FakeStore::start(store) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command on this machine, for which the server's port is a public host.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = murmur(MURMUR);
        FOREIGN.iter().for_each(|name| {
            command.env_remove(name);
        });
        command.args(arguments).env("HOME", self.path("home")).env("XDG_CACHE_HOME", self.path("cache"));
        command.env("MURMUR_TEST_PUBLIC_PORT", self.server.address.port().to_string());
        command
    }

    /// `murmur start` for one step, with these options.
    fn start(&self, options: &[&str]) -> Command {
        let mut command = self.command(&["start"]);
        command.arg(self.path("run.toml")).args([
            "--steps",
            "1",
            "--exit",
            "--threads",
            "1",
            "--status-address",
            "off",
        ]);
        command.args(["--listen", "/ip4/127.0.0.1/tcp/0", "--data-dir"]).arg(self.path("node")).args(options);
        command
    }

    /// The address of a file of the server.
    fn place(&self, path: &str) -> String {
        format!("https://{}{path}", self.server.address)
    }

    /// The only file below a folder of the cache that has this name.
    fn cached(&self, name: &str) -> PathBuf {
        let mut found = files_in(&self.path("cache"));
        found.retain(|path| path.file_name().is_some_and(|found| found == name));
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }
}

fn ended(command: &mut Command) -> Ended {
    let output = output_of(command);
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Ended { code: output.status.code(), said }
}

/// A command that comes through.
fn succeeds(command: &mut Command) -> String {
    let Ended { code, said } = ended(command);
    assert_eq!(code, Some(0), "{said}");
    said
}

/// A command that does not: its code, what is wrong, and the remedy, each one line.
fn refused(command: &mut Command) -> (i32, String, String) {
    let Ended { code, said } = ended(command);
    let line = |prefix: &str| {
        let lines: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix(prefix)).collect();
        assert_eq!(lines.len(), 1, "{said}");
        lines[0].to_owned()
    };
    (code.expect("it ended by itself"), line("error: "), line("hint: "))
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}

/// Lines of text, of which no two are alike.
fn book(bytes: usize) -> Vec<u8> {
    (0u64..)
        .flat_map(|line| format!("line {line} of a book, {}\n", line.wrapping_mul(0x9e37_79b9)).into_bytes())
        .take(bytes)
        .collect()
}

/// A header of each request, where it has one.
fn headers<'a>(asked: &'a [Asked], name: &str) -> Vec<Option<&'a str>> {
    asked.iter().map(|asked| asked.headers.get(name).map(String::as_str)).collect()
}

#[test]
fn a_broken_connection_goes_on_where_it_broke_and_a_second_start_loads_nothing() {
    let content = book(300_000);
    let store = Store {
        files: [("/book.txt".to_owned(), content.clone())].into(),
        has_validators: true,
        faults: vec![Fault::Cut(100_000), Fault::Status(503)],
        ..Store::default()
    };
    let bench = Bench::new(store);
    let place = bench.place("/book.txt?signature=secret").replace("https://", "https://name:password@");
    let said = succeeds(bench.start(&["--data", &place]).env("MURMUR_LOG", "trace"));
    let cached = bench.cached("book.txt");
    assert_eq!(std::fs::read(&cached).expect("loaded"), content);
    assert!(
        said.contains(&format!(" --data {}", cached.display())),
        "a line without the key would be of no use: {said}"
    );
    let asked = bench.server.take_asked();
    assert_eq!(headers(&asked, "range"), [None, Some("bytes=100000-"), Some("bytes=100000-")]);
    assert_eq!(headers(&asked, "authorization"), [Some("Basic bmFtZTpwYXNzd29yZA=="); 3]);
    let etag = format!("\"{}\"", &sha256(&content)[..16]);
    assert_eq!(headers(&asked, "if-range"), [None, Some(etag.as_str()), Some(&etag)]);

    let again = succeeds(&mut bench.start(&["--data", &place]));
    let asked = bench.server.take_asked();
    assert_eq!(headers(&asked, "if-none-match"), [Some(etag.as_str())], "one question, and no content");
    bench.server.store().files.insert("/book.txt".to_owned(), book(310_000));
    bench.server.store().faults = vec![Fault::Status(500); 20];
    let offline = succeeds(&mut bench.start(&["--data", &place, "--quiet-hours", "00:00-24:00"]));
    assert!(offline.contains("quiet hours until") && offline.contains("loaded of https://127.0.0.1"), "{offline}");
    assert!(bench.server.take_asked().is_empty(), "a resting node asks nobody");

    let kept = files_in(bench.folder.path()).into_iter().filter(|path| !path.starts_with(bench.path("cache")));
    let told = kept.map(|path| String::from_utf8_lossy(&std::fs::read(path).expect("readable")).into_owned());
    let all = told.chain([said, again, offline]).collect::<String>();
    // `name:password` in Base64, as HTTP has it.
    for key in ["signature=secret", "name:password", "bmFtZTpwYXNzd29yZA=="] {
        assert!(!all.contains(key), "{key} is told nowhere, not in the most talkative log either");
    }
    let traffic = std::fs::read_to_string(bench.path("node/traffic.json")).expect("counted");
    let counted: serde_json::Value = serde_json::from_str(&traffic).expect("JSON");
    assert!(counted["bytes"].as_u64() >= Some(300_000), "what is loaded counts in the node's day: {traffic}");
}

#[test]
fn a_server_that_is_gone_in_the_middle_is_told_within_some_seconds() {
    let store = Store {
        files: [("/book.txt".to_owned(), book(300_000))].into(),
        has_validators: true,
        faults: [vec![Fault::Cut(100_000)], vec![Fault::Status(503); 20]].concat(),
        ..Store::default()
    };
    let bench = Bench::new(store);
    let mut start = bench.start(&["--data", &bench.place("/book.txt")]);
    let mut process = start.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts");
    let lines = BufReader::new(process.stderr.take().expect("it was piped")).lines();
    let told =
        lines.map_while(Result::ok).find(|line| line.contains(": it answers 503 Service Unavailable; tried for "));
    process.kill().and_then(|()| process.wait()).expect("it can be ended");
    let told = told.expect("it is told, and not only that it is given up");
    assert!(told.contains(" 33 %, 100.0 kB of 300.0 kB, nothing has come for "), "{told}");
}

#[test]
fn an_interrupted_start_goes_on_and_a_file_that_has_changed_begins_anew() {
    let content = book(200_000);
    let store = Store {
        files: [("/book.txt".to_owned(), content.clone())].into(),
        has_validators: true,
        faults: vec![Fault::Stall(120_000)],
        ..Store::default()
    };
    let bench = Bench::new(store);
    let place = bench.place("/book.txt");
    let interrupted = |signal: &str| {
        let mut start = bench.start(&["--data", &place]);
        let process = start.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        let arrived =
            || files_in(&bench.path("cache")).iter().any(|path| path.metadata().is_ok_and(|it| it.len() == 120_000));
        wait_until("some bytes", arrived);
        let id = process.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill is there").success());
        assert!(!end_of(process).status.success());
    };
    interrupted("-INT");
    succeeds(&mut bench.start(&["--data", &place]));
    assert_eq!(headers(&bench.server.take_asked(), "range"), [None, Some("bytes=120000-")]);
    assert_eq!(std::fs::read(bench.cached("book.txt")).expect("loaded"), content);

    std::fs::remove_dir_all(bench.path("cache")).expect("written");
    std::fs::remove_dir_all(bench.path("node")).expect("written");
    bench.server.store().faults = vec![Fault::Stall(120_000)];
    interrupted("-KILL");
    let mut other = book(200_000);
    other.reverse();
    bench.server.store().files.insert("/book.txt".to_owned(), other.clone());
    succeeds(&mut bench.start(&["--data", &place]));
    assert_eq!(std::fs::read(bench.cached("book.txt")).expect("loaded"), other, "no mixture of both");
}

#[test]
fn what_does_not_come_or_is_another_file_ends_in_one_line_with_a_remedy() {
    let content = book(60_000);
    let bench = Bench::new(Store { files: [("/book.txt".to_owned(), content.clone())].into(), ..Store::default() });
    let refused_for = |place: &str| refused(&mut bench.start(&["--data", place]));

    let wrong = format!("{}#sha256={}", bench.place("/book.txt"), "ab".repeat(32));
    let (code, error, hint) = refused_for(&wrong);
    assert_eq!(code, 5, "{error}");
    assert!(
        error.contains("does not have the hash that the address names") && error.contains(&sha256(&content)),
        "{error}"
    );
    assert!(hint.contains("#sha256"), "{hint}");
    succeeds(&mut bench.start(&["--data", &format!("{}#sha256={}", bench.place("/book.txt"), sha256(&content))]));

    let (code, error, _) = refused_for(&bench.place("/other.txt"));
    assert_eq!((code, error.ends_with("/other.txt does not exist")), (4, true), "{error}");
    let (code, _, hint) = refused_for("http://127.0.0.1/a.txt");
    assert_eq!((code, hint.contains("https://")), (3, true), "{hint}");
    let (code, error, hint) = refused_for("https://127.0.0.1:1/a.txt");
    assert_eq!((code, error.contains("127.0.0.1 cannot be reached")), (4, true), "{error}");
    assert!(hint.contains("HTTPS_PROXY"), "{hint}");

    bench.server.store().redirects.insert("/round".to_owned(), "/round".to_owned());
    let (_, error, _) = refused_for(&bench.place("/round"));
    assert!(error.contains("without an end"), "{error}");
    bench.server.store().redirects.insert("/down".to_owned(), "http://127.0.0.1/a.txt".to_owned());
    let (_, error, _) = refused_for(&bench.place("/down"));
    assert!(error.contains("leads to http://127.0.0.1/a.txt, which is not encrypted"), "{error}");

    bench.server.store().faults = vec![Fault::Status(502); 10];
    let (code, error, hint) = refused_for(&bench.place("/book.txt?new"));
    assert_eq!(code, 4, "{error}");
    assert!(
        error.contains("broke off 4 times in a row: it answers 502") && hint.contains("goes on where it stopped"),
        "{error}"
    );
    assert_eq!(bench.server.store().faults.len(), 6, "four attempts");
}

#[test]
fn a_file_without_an_end_leaves_room_on_the_disk_and_nothing_of_itself() {
    let Some(disk) = SmallDisk::mount(8 << 20) else { return };
    let files = [("/book.txt".to_owned(), book(300_000))].into();
    let bench = Bench::new(Store { files, faults: vec![Fault::Endless], ..Store::default() });
    let (code, error, _) =
        refused(bench.start(&["--data", &bench.place("/book.txt")]).env("XDG_CACHE_HOME", disk.path()));
    assert_eq!(code, 5, "{error}");
    assert!(error.contains(" can be loaded into "), "{error}");
    let left: u64 = files_in(disk.path()).iter().filter_map(|path| Some(path.metadata().ok()?.len())).sum();
    assert!(left < 100_000, "{left} bytes are left of it");
}

#[test]
fn a_full_disk_ends_the_start_and_room_lets_it_go_on() {
    let Some(disk) = SmallDisk::mount(400 * 1024) else { return };
    let content = book(300_000);
    let store =
        Store { files: [("/book.txt".to_owned(), content.clone())].into(), has_validators: true, ..Store::default() };
    let bench = Bench::new(store);
    let place = bench.place("/book.txt");
    disk.fill();
    let start = || {
        let mut command = bench.start(&["--data", &place]);
        command.env("XDG_CACHE_HOME", disk.path());
        command
    };
    let (code, error, hint) = refused(&mut start());
    assert_eq!(code, 5, "{error}");
    assert!(hint.contains("XDG_CACHE_HOME"), "{error}: {hint}");
    disk.empty();
    succeeds(&mut start());
    assert!(files_in(disk.path()).iter().any(|path| std::fs::read(path).is_ok_and(|found| found == content)));
    // Without room for the next one nothing of it is asked for.
    bench.server.take_asked();
    bench.server.store().files.insert("/next.txt".to_owned(), book(300_000));
    let (code, error, _) =
        refused(bench.start(&["--data", &bench.place("/next.txt")]).env("XDG_CACHE_HOME", disk.path()));
    assert_eq!(code, 5, "{error}");
    assert!(error.contains("/next.txt takes 300.0 kB, and "), "{error}");
}
