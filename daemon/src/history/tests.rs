//! Journals of a story that is known, and what its page says.

use super::*;
use crate::observe::Body;
use crate::observe::record::{EndFacts, EventFacts, ExchangeFacts, Level, PeerFacts, Peers, RunFacts, Sample, VERSION};
use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{DataSource, GossipKind};

const ADA: &str = "12D3KooWPjceQrSwdWXPyLLeABRXmuqt69Rg3sBYbU1Nft9HyQ6X";
const BOB: &str = "12D3KooWGjMT4tJ3kyQTjyVtkKhoEXSjC4fGGL2FZuRdqgiBHAUP";
const CARL: &str = "12D3KooWL7wVDmoaVBrJTsyhrnSuRXrNKQC2zPhsNBZYqXcUHh4H";

/// 2023-11-14, in milliseconds since 1970.
const BEGIN: i64 = 1_700_000_000_000;

/// What a hostile peer calls itself.
const HOSTILE: &str = "</text><script>alert(1)</script>";

/// Records of a node, one a second.
struct Teller {
    node: &'static str,
    seq: u64,
    /// Of the process, in milliseconds since 1970.
    began: i64,
    up: f64,
    told: Vec<Record>,
}

impl Teller {
    fn new(node: &'static str) -> Teller {
        Teller { node, seq: 0, began: BEGIN, up: 0.0, told: Vec::new() }
    }

    fn tell(&mut self, body: Body) {
        self.seq += 1;
        self.up += 1.0;
        let t = self.began + (self.up * 1000.0) as i64;
        self.told.push(Record { v: VERSION, seq: self.seq, t, up: self.up, node: self.node.to_owned(), body });
    }

    fn begin(&mut self, name: &str, first_step: u64) {
        let run = RunFacts {
            run: "abcd".to_owned(),
            run_name: "tiny".to_owned(),
            name: Some(name.to_owned()),
            version: "0.1.0".to_owned(),
            session: self.began,
            first_step,
            price_per_hour: if name == "bob" { 36.0 } else { 0.0 },
            parameters: 1000,
            device: "cpu".to_owned(),
            prediction: "byte".to_owned(),
            ratio_band: GossipKind::Pairs.ratio_band(),
            run_file: RunManifest::default().canonical_text(),
            ..RunFacts::default()
        };
        self.tell(Body::Run(run));
    }

    /// Trains from one step to another, ten a second, and sends a thousand bytes a step.
    fn train(&mut self, steps: std::ops::Range<u64>, ratio: Option<f64>) {
        let first = steps.start;
        for step in steps.step_by(10) {
            let loss = 6.0 - 0.5 * (step as f64 + 1.0).ln();
            let sample = Sample {
                phase: "training".to_owned(),
                steps: step,
                loss: Some(loss),
                validation_loss: (step % 50 == 0 && step > 0).then_some(loss),
                tokens_per_second: 10.0,
                accuracy: (step >= 100).then_some(0.875),
                roc_auc: (step >= 100).then_some(0.9375),
                ratio,
                peers: u64::from(ratio.is_some()),
                sent: (step - first) * 1000,
                ..Sample::default()
            };
            self.tell(Body::Sample(Box::new(sample)));
        }
    }

    fn meet(&mut self, peer: &str, result: &str, sent: u64) {
        let facts = PeerFacts {
            peer: peer.to_owned(),
            name: (peer == CARL).then(|| HOSTILE.to_owned()),
            connected: true,
            says_tokens_per_second: 1.0,
            sent: Some(sent),
            received: Some(sent / 2),
            ..PeerFacts::default()
        };
        self.tell(Body::Peers(Peers { peers: vec![facts], more: 0 }));
        let exchange = ExchangeFacts { partner: peer.to_owned(), result: result.to_owned(), ..Default::default() };
        self.tell(Body::Exchange(exchange));
    }
}

/// Ada trains, is killed at step 200, goes on at step 150 a minute later, and completes; Bob trains all the time. Both see Carl.
fn story() -> (Vec<Record>, Vec<Record>) {
    let mut ada = Teller::new(ADA);
    ada.begin("ada's attic", 0);
    ada.train(0..210, Some(0.6));
    ada.meet(BOB, "done", 4_000_000);
    ada.meet(CARL, "deadline_passed", 2_000);
    ada.began = BEGIN + 90_000;
    ada.up = 0.0;
    ada.begin("ada's attic", 150);
    ada.train(150..310, Some(0.7));
    ada.meet(BOB, "done", 1_000_000);
    let text = "cannot write /home/ada/x: the peer 12D3KooWPjce at 192.0.2.7:4711 said <b>no</b>".to_owned();
    ada.tell(Body::Event(EventFacts { level: Level::Warning, text, hint: Some("make room".to_owned()) }));
    ada.tell(Body::End(EndFacts { steps: 300, complete: true, ..EndFacts::default() }));
    let mut bob = Teller::new(BOB);
    bob.begin("bob", 0);
    bob.train(0..310, Some(0.5));
    bob.meet(ADA, "done", 3_000_000);
    bob.tell(Body::End(EndFacts { steps: 300, complete: true, ..EndFacts::default() }));
    (ada.told, bob.told)
}

fn history(records: impl IntoIterator<Item = Record>) -> History {
    let mut history = History::default();
    records.into_iter().for_each(|record| history.apply(&record));
    history
}

fn page_of(history: &History, is_redacted: bool) -> String {
    let journals = vec![("/home/ada/murmur".to_owned(), 100)];
    let command = if is_redacted { "murmur report --redact" } else { "murmur report /home/ada/murmur" }.to_owned();
    let measured = Measured { command, now: BEGIN as f64 / 1000.0 + 1e6, journals, unreadable: 1, against: None };
    page(history, &Names::new(history, is_redacted), &measured)
}

#[test]
fn what_happened_is_counted_over_processes() {
    let (ada, bob) = story();
    let whole = history(ada.into_iter().chain(bob));
    let (ada, bob) = (&whole.nodes[ADA], &whole.nodes[BOB]);
    assert_eq!((ada.steps_done, bob.steps_done), (350, 300), "fifty steps were lost and done again");
    // The built-in run has 8 sequences of 128 bytes in a batch.
    assert_eq!((ada.place.tokens, ada.are_tokens_counted), (350.0 * 8.0 * 128.0, true));
    assert_eq!(ada.place.sent, 200_000 + 150_000);
    assert_eq!(ada.partners[BOB].bytes, Some((5_000_000, 2_500_000)), "of both processes");
    assert_eq!((ada.exchanges(), ada.lost), ((2, 1), 0));
    let ends: Vec<Ended<'_>> = ada.endings().map(|(_, ended)| ended).collect();
    assert_eq!(ends, [Ended::BrokeOff, Ended::InOrder(true)]);
    assert_eq!(whole.seen().into_keys().collect::<Vec<_>>(), [CARL]);
    let pieces: std::collections::BTreeSet<u32> = ada.points.iter().map(|point| point.place.piece).collect();
    assert_eq!(pieces.len(), 2, "the curve has a gap while nothing ran");
}

#[test]
fn tokens_are_those_that_were_counted_on_all_devices() {
    let (mut ada, _) = story();
    for record in &mut ada {
        if let Body::Sample(sample) = &mut record.body {
            // Two devices, each with the batch of the run file; another process counts from 0.
            let first = if record.t > BEGIN + 80_000 { 150 } else { 0 };
            sample.tokens_trained = Some(2 * 8 * 128 * (sample.steps - first));
        }
    }
    let whole = history(ada);
    assert_eq!(whole.nodes[ADA].place.tokens, 2.0 * 350.0 * 8.0 * 128.0);
}

/// Of a process of six days the journal has kept the record with which it began, and the last minute.
#[test]
fn what_old_files_told_makes_no_node_faster_and_none_idle() {
    let mut ada = Teller::new(ADA);
    ada.begin("ada", 0);
    ada.seq += 1_000_000;
    ada.up = 500_000.0;
    for second in 0..=60 {
        let sample = Sample {
            phase: "training".to_owned(),
            tokens_trained: Some(50_000_000 + 100 * second),
            ..Sample::default()
        };
        ada.tell(Body::Sample(Box::new(sample)));
    }
    let history = history(ada.told);
    let node = &history.nodes[ADA];
    assert_eq!(node.place.tokens, 50_006_000.0, "it has trained on them all the same");
    let page = page_of(&history, false);
    assert!(page.contains(">50,006,000 in training, which is 100 a second while it trains"), "{page}");
    let (_, given) = page.split_once("What each machine gave").expect("a table");
    let row = given.split("</tr>").nth(1).expect("a row");
    assert!(row.contains(">100 %<") && row.contains(">5 d 18 h<"), "{row}");
}

#[test]
fn the_share_between_steps_is_that_of_all_processes() {
    let mut ada = Teller::new(ADA);
    for (process, seconds, boundary_share) in [(0, 31, 0.1), (1, 11, 0.5)] {
        (ada.began, ada.up) = (BEGIN + process * 100_000, 0.0);
        ada.begin("ada", 0);
        for _ in 0..seconds {
            let sample = Sample { phase: "training".to_owned(), boundary_share, ..Sample::default() };
            ada.tell(Body::Sample(Box::new(sample)));
        }
    }
    // Thirty seconds and ten.
    let share = history(ada.told).nodes[ADA].boundary_share().expect("known");
    assert!((share - 0.2).abs() < 1e-9, "{share}");
}

#[test]
fn what_is_lost_is_counted_and_a_gap() {
    let (_, bob) = story();
    let all = bob.len();
    let with_a_hole =
        bob.into_iter().enumerate().filter(|(index, _)| !(10..15).contains(index)).map(|(_, record)| record);
    let whole = history(with_a_hole);
    assert_eq!(whole.nodes[BOB].lost, 5, "of {all}");
    let page = page_of(&whole, false);
    assert!(page.contains("5 records missing") && page.contains("1 line could not be read"), "{page}");
}

#[test]
fn the_page_says_in_its_first_sentence_what_came_of_it() {
    let (ada, bob) = story();
    let whole = history(ada.into_iter().chain(bob));
    let page = page_of(&whole, false);
    let verdict = page.lines().find(|line| line.contains("class=\"verdict\"")).expect("a verdict");
    let expected = "The run \u{201c}tiny\u{201d} is complete: 2 nodes of 3 trained together over 1 min 46 s (all off for 56 s of it), \
                    the loss on held-out \
                    data fell from 4.034 to 3.146 nats per byte, and the models stayed together; but a node broke off once, 25 % \
                    of 4 exchanges failed, and 1 warning was given.";
    assert!(verdict.contains(expected), "{verdict}");
    for part in
        ["healthy: 0.4 to 0.8", "Who sent how much to whom", "5.0 MB", "it took too long", "broke off", "make room"]
    {
        assert!(page.to_lowercase().contains(&part.to_lowercase()), "{part} is missing");
    }
    assert!(page.contains("cannot be estimated"), "nobody was alone first");
    assert!(!page.contains("@media (prefers"), "paper is light, whatever the screen is");
    // Bob has 35 records, a second apart; 36 an hour are a hundredth a second.
    let (_, given) = page.split_once("What each machine gave").expect("a table");
    let row = given.split("</tr>").find(|row| row.contains("bob")).expect("a row of bob");
    let row: Vec<&str> = row.split("</td>").collect();
    assert!(row.iter().any(|cell| cell.ends_with(">0.34")), "{row:?}");
    assert!(page.contains("cost of a million") && page.contains("Accuracy on held-out examples"), "{page}");
    assert!(page.contains("0.8750") && page.contains("0.9375") && !page.contains("RMSE of"), "{page}");
}

/// Three nodes: Ada's is evaluated every 50 steps, Bob's never, and Carl's breaks off at a fifth of the way.
#[test]
fn the_loss_of_the_verdict_is_the_runs_and_not_that_of_one_node() {
    let told = |node: &'static str, last: u64, end: bool, is_evaluated: bool| {
        let mut teller = Teller::new(node);
        teller.begin("node", 0);
        teller.train(0..last, None);
        if end {
            teller.tell(Body::End(EndFacts { steps: last, complete: true, ..EndFacts::default() }));
        }
        for record in &mut teller.told {
            if let Body::Sample(sample) = &mut record.body {
                sample.progress = sample.steps as f64;
                sample.validation_loss = sample.validation_loss.filter(|_| is_evaluated);
            }
        }
        teller.told
    };
    let of = |records: Vec<Vec<Record>>| {
        let history = history(records.into_iter().flatten());
        verdict::verdict(&history, false)
    };
    let whole = of(vec![told(ADA, 310, true, true), told(BOB, 310, true, false), told(CARL, 60, false, true)]);
    // Carl ended at 4.034, Ada at 3.146; Bob comes first by its id and has no held-out loss.
    assert!(whole.contains("the loss on held-out data fell from 4.034 to 3.146 nats per byte"), "{whole}");
    let short = of(vec![told(ADA, 60, true, true)]);
    assert!(short.contains("the loss on held-out data was 4.034 nats per byte at the end"), "{short}");
    let apart = of(vec![told(ADA, 60, true, true), told(BOB, 110, true, true)]);
    assert!(apart.contains("held-out data fell from 4.034 to "), "{apart}");
    // Who came to its only evaluation earlier is no beginning of another's.
    let mut later = told(BOB, 60, true, true);
    for record in &mut later {
        if let Body::Sample(sample) = &mut record.body
            && sample.validation_loss.is_some()
        {
            (sample.steps, sample.progress, sample.validation_loss) = (52, 52.0, Some(4.05));
        }
    }
    let ends = of(vec![told(ADA, 60, true, true), later]);
    assert!(ends.contains("the loss on held-out data was 4.042 nats per byte at the end"), "{ends}");
    let unknown = of(vec![told(ADA, 310, true, false), told(BOB, 310, true, false), told(CARL, 60, false, true)]);
    assert!(unknown.contains("the training loss fell from 6.000 to 3.146"), "{unknown}");
}

#[test]
fn a_node_whose_own_part_is_over_does_not_make_the_run_complete() {
    let ended = |node: &'static str, own_part: bool| {
        let mut teller = Teller::new(node);
        teller.begin("node", 0);
        teller.train(0..110, None);
        teller.tell(Body::End(EndFacts { steps: 100, complete: true, own_part, failure: None }));
        teller.told
    };
    let of = |records: Vec<Record>| verdict::verdict(&history(records), false);
    let alone = of(ended(ADA, true));
    assert!(alone.contains("\u{201d} is not over, but this node's own part is: 1 node trained alone"), "{alone}");
    let both = of([ended(ADA, true), ended(BOB, true)].concat());
    assert!(both.contains("is not over, but these nodes' own parts are: 2 nodes"), "{both}");
    let over = of([ended(ADA, true), ended(BOB, false)].concat());
    assert!(over.contains("is complete"), "{over}");
}

#[test]
fn whether_a_node_still_runs_is_told_by_its_lock_and_not_by_its_clock() {
    let mut ada = Teller::new(ADA);
    ada.begin("ada", 0);
    ada.train(0..110, None);
    let verdict = |teller: &Teller, process: Process| {
        let mut history = history(teller.told.clone());
        history.nodes.values_mut().for_each(|node| node.process = process);
        verdict::verdict(&history, false)
    };
    let copied = verdict(&ada, Process::Elsewhere);
    assert!(copied.contains("\u{201d} has no end in these journals: "), "{copied}");
    assert!(copied.contains("nothing went wrong"), "nobody knows that it broke off: {copied}");
    let killed = verdict(&ada, Process::Gone);
    assert!(killed.contains("\u{201d} has broken off: ") && killed.contains("a node broke off once"), "{killed}");
    let training = verdict(&ada, Process::Runs);
    assert!(training.contains("\u{201d} is under way: "), "{training}");
    ada.tell(Body::Sample(Box::new(Sample { phase: "completed".to_owned(), steps: 110, ..Sample::default() })));
    let served = verdict(&ada, Process::Runs);
    assert!(served.contains("\u{201d} has ended here and is still served: "), "{served}");
    let drifting = Sample { phase: "completed".to_owned(), steps: 110, ratio: Some(99.0), ..Sample::default() };
    (0..60).for_each(|_| ada.tell(Body::Sample(Box::new(drifting.clone()))));
    let served = verdict(&ada, Process::Runs);
    assert!(served.contains(" over 11 s,") && !served.contains("further apart"), "{served}");
}

#[test]
fn a_long_name_is_cut_behind_the_id() {
    let mut ada = Teller::new(ADA);
    ada.begin("WWWWWWWW-machine-of-Wolfgang", 0);
    let page = page_of(&history(ada.told), false);
    assert!(page.contains(">ft9HyQ6X \u{201c}WWWWWWWW-\u{2026}<"), "{page}");
}

/// Two members that average all at once; Ada's process averages with nobody for twenty seconds, and for two.
#[test]
fn members_that_were_apart_are_said_to_have_been() {
    let mut ada = Teller::new(ADA);
    ada.begin("ada", 0);
    for (members, seconds) in [(0, 9), (2, 5), (1, 20), (2, 5), (0, 2), (2, 5), (1, 30)] {
        for _ in 0..seconds {
            let waited_seconds = Some(0.0);
            let sample = Sample {
                phase: "training".to_owned(),
                members: Some(members),
                peers: 1,
                waited_seconds,
                ..Sample::default()
            };
            ada.tell(Body::Sample(Box::new(sample)));
        }
    }
    let doctor = PeerFacts { peer: CARL.to_owned(), connected: true, ..PeerFacts::default() };
    let trains = PeerFacts { peer: BOB.to_owned(), says_tokens_per_second: 1.0, ..doctor.clone() };
    ada.tell(Body::Peers(Peers { peers: vec![trains, doctor], more: 0 }));
    let said = verdict::verdict(&history(ada.told.clone()), false);
    assert!(said.contains("1 node of 2 trained with others, as one, over"), "{said}");
    assert!(said.contains("members that were connected averaged with nobody for 20 s"), "{said}");
    let together = ada
        .told
        .into_iter()
        .filter(|record| !matches!(&record.body, Body::Sample(sample) if sample.members == Some(1)));
    let said = verdict::verdict(&history(together), false);
    assert!(!said.contains("with nobody"), "{said}");
}

#[test]
fn what_peers_say_is_text_and_the_page_asks_for_nothing() {
    let (ada, bob) = story();
    let page = page_of(&history(ada.into_iter().chain(bob)), false);
    assert!(!page.contains("<script") && !page.contains("<b>no"), "a peer's words became markup");
    assert!(page.contains("&lt;b&gt;no&lt;/b&gt;") && page.contains("&lt;/text&gt;"), "and are shown");
    let addresses = page.replace("http://www.w3.org/2000/svg", "");
    assert!(
        !addresses.contains("http:")
            && !addresses.contains("https:")
            && !addresses.contains("url(")
            && !addresses.contains("src="),
        "it asks somebody"
    );
    assert!(page.contains("default-src 'none'") && !page.contains("NaN"), "{page}");
}

#[test]
fn a_redacted_page_names_nobody_and_nothing() {
    let (ada, bob) = story();
    let page = page_of(&history(ada.into_iter().chain(bob)), true);
    for own in ["ada's", "attic", "bob", "9HyQ6X", "qgiBHAUP", "12D3KooW", "192.0.2.7", "/home", "alert", "tiny"] {
        let lines: Vec<&str> = page.lines().filter(|line| line.contains(own)).collect();
        assert!(lines.is_empty(), "{own} is told: {lines:?}");
    }
    assert!(page.contains("node 1") && page.contains("node 2") && page.contains("node 3"), "{page}");
    assert!(page.contains("cannot write path 1") && page.contains("2 nodes of 3"), "{page}");
}

#[test]
fn a_redacted_page_tells_nothing_that_the_data_holds() {
    let mut run = RunManifest::default();
    run.data.source = DataSource::Table;
    run.data.class_names = vec!["well".to_owned(), "Klinik Ost".to_owned()];
    run.table.target = "diagnosis".to_owned();
    run.table.numbers = vec!["haemoglobin".to_owned()];
    run.table.categories = vec![vec!["place".to_owned(), "Klinik Nord".to_owned()]];
    run.table.ranges = vec![("haemoglobin".to_owned(), 0.0, 1234.5)];
    let mut ada = Teller::new(ADA);
    ada.begin("ada", 0);
    ada.train(0..110, None);
    for record in &mut ada.told {
        if let Body::Run(facts) = &mut record.body {
            facts.run_file = run.canonical_text();
        }
    }
    let history = history(ada.told);
    let (open, redacted) = (page_of(&history, false), page_of(&history, true));
    for own in ["Klinik Nord", "Klinik Ost", "diagnosis", "haemoglobin", "1234.5"] {
        assert!(open.contains(own) && !redacted.contains(own), "{own}: {redacted}");
    }
    assert!(redacted.contains("optimizer."), "the rest of the run file is told");
}

#[test]
fn a_comparison_that_cannot_be_read_is_said_to_be_there() {
    let history = history(story().0);
    let measured = Measured { against: Some(Err("expected f64".to_owned())), ..Measured::default() };
    let page = page(&history, &Names::new(&history, false), &measured);
    assert!(page.contains("has measured is here, but cannot be read: expected f64."), "{page}");
    assert!(page.contains("so this is an estimate"), "{page}");
}

#[test]
fn of_nothing_nothing_is_drawn() {
    let mut silent = Teller::new(ADA);
    silent.begin("ada", 0);
    let page = page_of(&history(silent.told), false);
    for part in ["no loss is known", "No speed is known", "completed no exchange", "not known"] {
        assert!(page.contains(part), "{part} is missing");
    }
    assert!(!page.contains("Who sent how much"), "it sent nothing to anybody");
    // The only drawing is of who was there.
    assert_eq!(page.matches("<svg").count(), 1);
}

#[test]
fn a_journal_that_is_given_twice_is_found() {
    let (ada, bob) = story();
    let mut whole = history(ada);
    assert_eq!(whole.add(history(bob.clone())), None);
    assert_eq!(whole.add(history(bob)), Some(BOB.to_owned()));
}

/// A partner divides by its own training, so each can say only what it saw; and nobody trains while it is off.
#[test]
fn a_report_of_one_node_says_whose_view_it_is_and_how_long_it_was_off() {
    let (ada, mut bob) = story();
    let one = history(ada.clone());
    let page = page_of(&one, false);
    let off = "with others over 1 min 46 s (off for 1 min 5 s of it), ";
    for part in
        [off, "the models stayed together, as this node saw it", "a node is off", "judge the same minute", "5.0 MB"]
    {
        assert!(page.contains(part), "{part} is missing: {page}");
    }
    let of_several = ["<th>share</th>", "counted by both", "Together "];
    assert!(!of_several.iter().any(|part| page.contains(part)), "{page}");
    for record in &mut bob {
        if let Body::Sample(sample) = &mut record.body {
            sample.ratio = Some(9.0);
        }
    }
    let verdict = verdict::verdict(&history(bob.clone()), false);
    assert!(
        verdict.contains("over 31 s, ") && verdict.contains("% of the time together, as this node saw it"),
        "{verdict}"
    );
    let both = page_of(&history(ada.into_iter().chain(bob)), false);
    assert!(of_several.iter().all(|part| both.contains(part)) && !both.contains("this node saw"), "{both}");
}

/// A run of ten minutes was said to have gone on for 1,010 days.
#[test]
fn clocks_that_differ_are_named_and_make_no_run_longer() {
    let (ada, mut bob) = story();
    let said = |bob: &[Record]| verdict::verdict(&history(ada.iter().chain(bob).cloned()), false);
    assert!(!said(&bob).contains("clocks"), "{}", said(&bob));
    bob.iter_mut().for_each(|record| record.t += 10 * 24 * 3_600_000);
    let said = said(&bob);
    assert!(said.contains("the clocks of two machines differ by 9 d 23 h or more"), "{said}");
    assert!(!said.contains(" d 0 h") && !said.contains(" d 1 h"), "{said}");
}
