//! Places that a run names, and so a stranger: only with consent, without keys, and nowhere private.

use murmur_tests::Daemon;

use super::*;

/// A run that names places of its data.
fn named(bench: &Bench, places: &[String]) -> PathBuf {
    let places = places.iter().map(|place| format!("{place:?}")).collect::<Vec<_>>().join(", ");
    let text = TINY_RUN.replace("[data]", &format!("[data]\nsource = \"files\"\nremote = [{places}]"));
    write_run(bench.folder.path(), &text)
}

#[test]
fn a_joiner_loads_what_a_run_names_only_if_its_owner_agrees() {
    let content = book(40_000);
    let store = Store { files: [("/book.txt".to_owned(), content)].into(), has_validators: true, ..Store::default() };
    let bench = Bench::new(store);
    let run_file = named(&bench, &[bench.place("/book.txt")]);
    let (code, error, hint) = refused(&mut bench.start(&[]));
    assert_eq!(code, 3);
    assert!(
        error.contains("reads its data from https://127.0.0.1") && hint.contains("--accept-remote"),
        "{error}: {hint}"
    );
    assert!(bench.server.take_asked().is_empty(), "nobody is asked without consent");

    let mut founder = bench.command(&["start", run_file.to_str().expect("UTF-8"), "--accept-remote"]);
    founder.env("MURMUR_TEST_PUBLIC_PORT", bench.server.address.port().to_string());
    let founder = Daemon::spawn_with(founder, &bench.path("founder"));
    let ticket = founder.ticket();
    let join = |options: &[&str]| {
        let mut command = bench.command(&["join", &ticket]);
        command.args(options).env("XDG_CACHE_HOME", bench.path("other-cache"));
        command
    };
    let mut unwilling = join(&["--status-address", "off", "--listen", "/ip4/127.0.0.1/tcp/0"]);
    let (code, _, hint) = refused(unwilling.arg("--data-dir").arg(bench.path("unwilling")));
    assert_eq!((code, hint.contains("--accept-remote")), (3, true), "{hint}");
    bench.server.take_asked();
    let joiner = Daemon::spawn_with(join(&["--accept-remote"]), &bench.path("joiner"));
    joiner.wait_for("a step", |report| report.steps > 0);
    assert_eq!(bench.server.take_asked().len(), 1, "it has loaded the data itself");
    let manifest = std::fs::read_to_string(bench.path("joiner/run.toml")).expect("claimed");
    assert!(manifest.contains("data.digest = \"") && !manifest.contains("data.digest = \"\""), "{manifest}");
    assert!(joiner.stop().status.success() && founder.stop().status.success());
}

#[test]
fn what_a_run_names_leads_to_no_private_address_and_gets_no_key() {
    let bench = Bench::new(Store::default());
    // This one is no public host, not even for the test.
    let private = FakeStore::start(Store { files: [("/a.txt".to_owned(), book(40_000))].into(), ..Store::default() });
    let private_place = format!("https://{}/a.txt", private.address);
    bench.server.store().redirects.insert("/to-private.txt".to_owned(), private_place.clone());
    bench.server.store().redirects.insert("/to-name.txt".to_owned(), private_place.replace("127.0.0.1", "localhost"));
    for place in [private_place.clone(), bench.place("/to-private.txt"), bench.place("/to-name.txt")] {
        named(&bench, &[place]);
        let (code, error, hint) = refused(&mut bench.start(&["--accept-remote"]));
        assert_eq!(code, 4, "{error}");
        assert!(error.contains("an address of a private network") && hint.contains("--data"), "{error}: {hint}");
    }
    // An owner's public place does not lead there either.
    let (code, error, _) = refused(&mut bench.start(&["--data", &bench.place("/to-private.txt")]));
    assert_eq!((code, error.contains("an address of a private network")), (4, true), "{error}");
    assert_eq!(private.take_asked().len(), 0, "it was never connected to");

    // The hub that the owner has set up, but not with the owner's token.
    *bench.server.store() = hub::dataset();
    named(&bench, &["hf://datasets/somebody/texts/data".to_owned()]);
    let mut start = bench.start(&["--accept-remote"]);
    succeeds(start.env("HF_ENDPOINT", bench.server.url()).env("HF_TOKEN", "hf_secret_token"));
    let asked = bench.server.take_asked();
    assert!(!asked.is_empty() && asked.iter().all(|asked| !asked.headers.contains_key("authorization")), "{asked:?}");
}
