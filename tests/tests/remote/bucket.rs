//! Objects of an S3 store.

use std::collections::BTreeMap;

use murmur_tests::fake_store::Store;

use super::*;

/// A bucket of so many small texts, and something beside them.
fn texts(count: usize) -> Store {
    let mut objects: BTreeMap<String, Vec<u8>> =
        (0..count).map(|number| (format!("books/part-{number:05}.txt"), book(40 + number % 50))).collect();
    objects.insert("books/".to_owned(), Vec::new());
    objects.insert("books-of-others/a.txt".to_owned(), book(100));
    objects.insert("books/deep/a b+ü.txt".to_owned(), book(5000));
    Store { buckets: [("texts".to_owned(), objects)].into(), ..Store::default() }
}

fn at(bench: &Bench, command: &mut std::process::Command) {
    command.env("AWS_ENDPOINT_URL", bench.server.url()).env("AWS_REGION", "eu-central-1");
}

#[test]
fn more_keys_than_fit_on_a_page_are_loaded_once_and_only_what_has_changed_again() {
    let bench = Bench::new(texts(1001));
    bench.server.store().access_key = Some("AKIDEXAMPLE".to_owned());
    let start = || {
        let mut command = bench.start(&["--data", "s3://texts/books"]);
        at(&bench, &mut command);
        command.env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE").env("AWS_SECRET_ACCESS_KEY", "a-secret-key");
        command
    };
    let said = succeeds(start().env("MURMUR_LOG", "debug"));
    let asked = bench.server.take_asked();
    let lists = asked.iter().filter(|asked| asked.target.contains("list-type=2")).count();
    assert_eq!((lists, asked.len()), (2, 2 + 1002), "two pages, and each object once");
    assert!(
        asked
            .iter()
            .all(|asked| asked.headers["authorization"].starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"))
    );
    assert!(asked.iter().all(|asked| asked.headers["authorization"].contains("/eu-central-1/s3/aws4_request")));

    let content = book(6000);
    bench
        .server
        .store()
        .buckets
        .get_mut("texts")
        .expect("there")
        .insert("books/deep/a b+ü.txt".to_owned(), content.clone());
    std::fs::remove_dir_all(bench.path("node")).expect("written");
    succeeds(&mut start());
    assert_eq!(bench.server.take_asked().len(), 2 + 1, "two pages, and what has changed");
    let found = files_in(&bench.path("cache")).into_iter().filter(|path| path.ends_with("deep/a b+ü.txt"));
    assert!(found.map(|path| std::fs::read(path).expect("readable")).any(|found| found == content));

    let everything: String = files_in(bench.folder.path())
        .iter()
        .map(|path| String::from_utf8_lossy(&std::fs::read(path).expect("readable")).into_owned())
        .collect();
    assert!(!(everything + &said).contains("a-secret-key"), "a key is kept and told nowhere");
}

#[test]
fn messages_and_the_line_of_another_start_name_the_place_and_not_its_copy() {
    // Which documents are held out is drawn by what they say.
    let lines = (0..40)
        .map(|number| format!("{}\n", serde_json::json!({ "text": format!("{number} {}", "word ".repeat(150)) })));
    let lines: String = lines.collect();
    let objects = [("docs/a.jsonl", format!("{lines}no object\n")), ("docs/README.md", "# Texts".to_owned())];
    let objects = objects.map(|(key, text)| (key.to_owned(), text.into_bytes())).into();
    let bench = Bench::new(Store { buckets: [("texts".to_owned(), objects)].into(), ..Store::default() });
    write_run(
        bench.folder.path(),
        &TINY_RUN.replace("[data]", "[data]\nsource = \"json-lines\"\nvalidation_fraction = 0.2"),
    );
    let start = || {
        let mut start = bench.start(&["--data", "s3://texts/docs"]);
        at(&bench, &mut start);
        start
    };
    let (code, error, _) = refused(&mut start());
    assert!(code == 5 && error.starts_with("s3://texts/docs/a.jsonl:41: not a JSON object"), "{error}");
    let store = &bench.server;
    store.store().buckets.get_mut("texts").expect("there").insert("docs/a.jsonl".to_owned(), lines.into_bytes());
    let said = succeeds(&mut start());
    assert!(said.contains("not trained on: s3://texts/docs/README.md (of another kind)"), "{said}");
    let again = said.lines().find(|line| line.contains("murmur start ")).expect("how to go on");
    assert!(again.ends_with(" --data s3://texts/docs") || again.contains(" --data s3://texts/docs "), "{again}");
}

#[test]
fn a_list_that_goes_on_for_ever_is_given_up() {
    let bench = Bench::new(Store { is_endless: true, ..texts(1) });
    let mut start = bench.start(&["--data", "s3://texts/books"]);
    at(&bench, &mut start);
    let (code, error, _) = refused(&mut start);
    assert_eq!((code, error.contains("its list has no end")), (4, true), "{error}");
}

#[test]
fn without_the_store_what_was_loaded_serves_and_a_missing_key_is_named() {
    let bench = Bench::new(texts(3));
    let mut first = bench.start(&["--data", "s3://texts/books/"]);
    at(&bench, &mut first);
    succeeds(&mut first);
    let mut nothing = bench.start(&["--data", "s3://texts/Books/"]);
    at(&bench, &mut nothing);
    let (code, error, hint) = refused(&mut nothing);
    assert_eq!((code, error.as_str()), (4, "s3://texts/Books/ does not exist"));
    assert!(hint.contains("capitals"), "{hint}");
    bench.server.store().access_key = Some("AKIDEXAMPLE".to_owned());
    let mut closed = bench.start(&["--data", "s3://texts/books/"]);
    at(&bench, &mut closed);
    let (code, error, hint) = refused(&mut closed);
    assert_eq!(code, 4);
    assert!(error.contains("refuses access: AccessDenied") && hint.contains("AWS_ACCESS_KEY_ID"), "{error}: {hint}");
    // Nobody listens there any more: the same address as before.
    let (url, port) = (bench.server.url(), bench.server.address.port().to_string());
    let mut later = bench.start(&["--data", "s3://texts/books/"]);
    later.env("AWS_ENDPOINT_URL", url).env("MURMUR_TEST_PUBLIC_PORT", port);
    let Bench { folder, server } = bench;
    drop(server);
    let said = succeeds(&mut later);
    assert!(said.contains("what was loaded of s3://texts/books/ before is used"), "{said}");
    drop(folder);
}
