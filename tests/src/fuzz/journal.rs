//! A journal: played, followed, and made a page of.

use std::path::PathBuf;

use murmur::cli::ReportOptions;
use murmur::observe::cursor::{self, Cursor};
use murmur::observe::journal::Reading;
use murmur::observe::{Picture, Record};

use super::folder;

/// What no page of ours has, and no text of others gets into one.
const ELEMENT: &str = "<murmur-fuzz";

pub(super) fn read(bytes: &[u8]) -> bool {
    let folder = folder();
    let path = folder.join("00000001.jsonl");
    std::fs::write(&path, bytes).expect("written");
    let records: Vec<Record> = Reading::new(vec![path.clone()]).collect();
    let mut picture = Picture::default();
    for record in &records {
        picture.apply(record);
        let again = Record::parse(&record.line());
        assert_eq!(again.map(|record| record.line()), Some(record.line()), "what was read is written and read again");
    }
    picture.time();
    let mut place = Cursor::default();
    loop {
        let (_, next) = cursor::after(&folder, &place).expect("readable");
        if next == place {
            break;
        }
        place = next;
    }
    !records.is_empty() && is_sound_page(path)
}

fn is_sound_page(journal: PathBuf) -> bool {
    let options = ReportOptions { what: vec![journal], output: PathBuf::from("-"), redact: false };
    let page = murmur::report_page(&options);
    if let Ok((page, verdict)) = &page {
        assert!(!page.contains(ELEMENT), "text of others became an element of a page");
        assert!(!verdict.is_empty());
    }
    page.is_ok()
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let begin = r#"{"v":1,"seq":SEQ,"t":"2026-01-31T12:00:0SEQ.000Z","up":SEQ.0,"node":"<murmur-fuzz>","#;
    let bodies = [
        r#""kind":"run","run":"ab","run_name":"<murmur-fuzz>","name":"<murmur-fuzz>","device":"<murmur-fuzz>","parameters":10}"#,
        r#""kind":"sample","phase":"training","steps":5,"progress":5.0,"loss":2.5,"peers":1,"tokens_per_second":7.0}"#,
        r#""kind":"peers","peers":[{"peer":"x","name":"<murmur-fuzz>","connected":true,"path":"<murmur-fuzz>"}]}"#,
        r#""kind":"exchange","partner":"x","result":"merged","seconds":0.2,"distance":0.1,"sent":10,"received":10}"#,
        r#""kind":"event","level":"warning","text":"<murmur-fuzz>","hint":"<murmur-fuzz>"}"#,
        r#""kind":"end","steps":5,"failure":"<murmur-fuzz>"}"#,
    ];
    let line = |(index, body): (usize, &&str)| format!("{}{body}\n", begin.replace("SEQ", &(index + 1).to_string()));
    vec![bodies.iter().enumerate().map(line).collect::<String>().into_bytes()]
}
