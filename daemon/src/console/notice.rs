//! What the core notices, as a line for people; where something should be done about it, with what.

use std::time::Duration;

use murmur_protocol::handshake::Refusal;
use murmur_protocol::scheme::{Comparison, Scheme};
use murmur_protocol::text::foreign;
use murmur_protocol::{Notice, PeerId, Unchecked};

use super::conditions::Ended;
use super::figures::{count, counted, duration};
use super::names::Names;
use super::words::Words;
use crate::observe::failures::{failure_word, failure_words};

pub(super) fn describe(notice: &Notice, names: &Names) -> Words {
    let plain = |text: String| Words { text, hint: None };
    let warning = |text: String, hint: &'static str| Words { text, hint: Some(hint) };
    let name = |peer: &PeerId| names.of(*peer);
    let list = |peers: &[PeerId]| peers.iter().map(name).collect::<Vec<_>>().join(", ");
    match notice {
        Notice::PeerJoined(peer) => plain(format!("{} connected", name(peer))),
        Notice::PeerLeft { peer, announced: true } => plain(format!("{} has left", name(peer))),
        Notice::PeerLeft { peer, announced: false } => plain(format!("{} is gone", name(peer))),
        Notice::Alone { reason } => {
            let reason = reason.as_deref().map_or_else(|| "no other member is known".to_owned(), foreign);
            let hint = "training goes on alone; a member's address after --bootstrap, or a fresh ticket, helps";
            warning(format!("alone: no peer is connected ({reason})"), hint)
        }
        Notice::WaitingForState => {
            let hint =
                "some member that trains must be reachable; to begin the run anew instead, use an empty data directory";
            warning("waiting for a peer that can give the model".to_owned(), hint)
        }
        Notice::StateReceived { donors, progress } => {
            plain(format!("took over the model of {} at swarm step {}", list(donors), step(*progress)))
        }
        Notice::StateSent { peer, chunks, of } if chunks == of => plain(format!("gave the model to {}", name(peer))),
        Notice::StateSent { peer, chunks, of } => {
            plain(format!("gave {chunks} of the model's {of} chunks to {}", name(peer)))
        }
        Notice::ExchangeCompleted { partner, distance, .. } => {
            plain(format!("averaged with {} (distance {distance:.4})", name(partner)))
        }
        Notice::ExchangeFailed { partner, failure } => {
            plain(format!("exchange with {} came to nothing: {}", name(partner), failure_words(failure_word(*failure))))
        }
        Notice::PeerRefused { peer, refusal: Refusal::OtherRun { differences, .. } } if is_founder(differences) => {
            plain(format!("{} is left alone: it takes part in another founder's run of the same name", name(peer)))
        }
        // A node of another run of this network greets like a member without a ticket.
        Notice::PeerRefused { peer, refusal: Refusal::Stranger } => plain(format!(
            "{} is left alone: it is of another run, or has no ticket of this closed one (`murmur ticket` prints one)",
            name(peer)
        )),
        // So does a node of a closed run that has found this one by the address or the table of its own.
        Notice::PeerRefused { peer, refusal: Refusal::Closed } => plain(format!(
            "{} is left alone: its run is closed; if it is this one, join with a ticket (`murmur ticket` there prints one)",
            name(peer)
        )),
        Notice::PeerRefused { peer, refusal: refusal @ Refusal::OtherRun { differences, .. } } => {
            let what = match run_names(differences) {
                Some(names) => format!("takes part in another run ({names})"),
                None => refusal.to_string(),
            };
            plain(foreign(&format!("{} is left alone: it {what}", name(peer))))
        }
        Notice::PeerRefused { peer, refusal: Refusal::Silent } => plain(format!("{} {}", name(peer), Refusal::Silent)),
        Notice::PeerRefused { peer, refusal } => {
            warning(foreign(&format!("peer {} {refusal}", name(peer))), refusal.remedy())
        }
        Notice::TurnedAway { peer, others } => {
            let next = match others {
                0 => "it is asked again later".to_owned(),
                others => format!(
                    "{} that it has named come first, and it is asked again later",
                    counted(*others as u64, "member")
                ),
            };
            plain(format!(
                "{} has no place for this node, because it has enough members, of all or of this node's address: {next}",
                name(peer)
            ))
        }
        Notice::PeerMisbehaved { peer, misbehaviour } => {
            let hint = "it was dropped and counted, nothing of it reached the model; is that machine in order?";
            warning(foreign(&format!("peer {} {misbehaviour}", name(peer))), hint)
        }
        Notice::IdentityDoubled { peer } => {
            let hint = "a data directory was copied, or a machine cloned: the younger node is told to end, and becomes \
                        one of its own without the copied identity.key";
            warning(format!("two nodes run with the identity of peer {}", peer.short()), hint)
        }
        Notice::StateUnchecked { donors, why, is_copied_again } => {
            let of = list(donors);
            let text = match why {
                Unchecked::NobodyElse => {
                    return plain(format!("the model of {of} is trusted where no other member is there to check it"));
                }
                Unchecked::Unanswered => format!("nobody has checked the model of {of} in time"),
                Unchecked::Disputed => format!("the model of {of} is far from those of others"),
            };
            match is_copied_again {
                true => plain(format!("{text}: asking another member")),
                false => warning(
                    format!("{text}, and so it was before: it is trained on nevertheless"),
                    "watch the loss; if it is odd, stop this node and join by another member's ticket",
                ),
            }
        }
        Notice::PeerBanned { peer, duration } => {
            let hint = "it may come back by itself after that; is that machine in order?";
            let seconds = duration.as_secs();
            warning(format!("peer {} is banned for {seconds} s: it misbehaved again and again", name(peer)), hint)
        }
        Notice::Reunited { partner, away, distance, partner_share } => plain(format!(
            "reunited with {} after {} s: distance {distance:.4}, its work counts {:.0} %",
            name(partner),
            away.as_secs(),
            100.0 * partner_share
        )),
        Notice::BudgetTooSmall { interval_steps, ratio } => {
            let hint = "a faster link or a free core keeps them closer; so do larger batches, which leave more time for each step";
            let text = format!(
                "the models drift apart (ratio {ratio:.1}), and an exchange every {} is all that link and processor allow",
                counted(interval_steps.round() as u64, "step")
            );
            warning(text, hint)
        }
        Notice::MembersChanged { members, joined, left } => {
            let changes = [("new", joined), ("gone", left)].into_iter().filter(|(_, who)| !who.is_empty());
            let changes: Vec<String> = changes.map(|(what, who)| format!("{what}: {}", list(who))).collect();
            let together = match members {
                1 => "1 member averages with nobody".to_owned(),
                members => format!("{} average together", counted((*members).into(), "member")),
            };
            plain(format!("{together} ({})", changes.join("; ")))
        }
        Notice::LeftOut => plain(
            "the others average without this node, whose part was late; once it is computed, their model is copied"
                .to_owned(),
        ),
        Notice::SchemeChanged { scheme, by: _, reason } => {
            let Comparison { members, together, alone, worth } = reason;
            let (change, takes) = match scheme {
                Scheme::AllReduce => ("all average at once", "should take"),
                Scheme::Pairs => ("averages in pairs, so that nobody waits,", "took"),
            };
            plain(format!(
                "{change} from now on: a step of all {members} {takes} {together:.2} s, one alone takes {alone:.2} s, and \
                 up to {worth:.1} times that pays"
            ))
        }
        Notice::Finishing(ending) => plain(format!(
            "the founder finishes the run: the learning rate falls from swarm step {} on, the end is swarm step {}",
            step(ending.from),
            step(ending.until)
        )),
        Notice::Settling => plain("training is over; last exchanges".to_owned()),
        // At the end of the run, or at this node's own last step.
        Notice::RunCompleted { is_resting: false } => {
            plain("training is complete here; this node answers the others".to_owned())
        }
        Notice::RunCompleted { is_resting: true } => plain(
            "training is complete here; the network rests, so there are no last exchanges, and the model is this node's own until \
             they are made up for after the rest"
                .to_owned(),
        ),
    }
}

/// Whether two runs differ in nothing else but who has founded them.
fn is_founder(differences: &[String]) -> bool {
    matches!(differences, [only] if only.starts_with("run.founder: "))
}

/// How the names of two runs differ, where they do: that says more than all else.
fn run_names(differences: &[String]) -> Option<&str> {
    differences.iter().find_map(|difference| difference.strip_prefix("run.name: "))
}

/// A step of the swarm.
fn step(progress: f64) -> String {
    count(progress.max(0.0).round() as u64)
}

/// What lasts for a while and is noticed again and again meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Condition {
    /// No peer is connected.
    Alone,
    /// Nobody gives the model.
    WaitingForModel,
    /// Link or processor allow too few exchanges.
    DriftsApart,
    /// The last exchanges are under way, or were before.
    Settling,
    /// Training is over here.
    Complete,
    /// The same while the network rests, without last exchanges.
    CompleteAtRest,
    /// A peer takes part in another run.
    Foreign(PeerId),
    /// A peer refuses this node, or is refused.
    Refused(PeerId),
    /// A peer has no place for this node.
    TurnedAway(PeerId),
    /// A peer does what no honest peer does.
    Misbehaves(PeerId),
}

impl Condition {
    /// What a notice says to be the case.
    pub(super) fn of(notice: &Notice) -> Option<Condition> {
        match notice {
            Notice::Alone { .. } => Some(Condition::Alone),
            Notice::WaitingForState => Some(Condition::WaitingForModel),
            Notice::BudgetTooSmall { .. } => Some(Condition::DriftsApart),
            Notice::Settling => Some(Condition::Settling),
            Notice::RunCompleted { is_resting: false } => Some(Condition::Complete),
            Notice::RunCompleted { is_resting: true } => Some(Condition::CompleteAtRest),
            Notice::PeerRefused { peer, refusal: Refusal::OtherRun { .. } } => Some(Condition::Foreign(*peer)),
            Notice::PeerRefused { peer, .. } => Some(Condition::Refused(*peer)),
            Notice::TurnedAway { peer, .. } => Some(Condition::TurnedAway(*peer)),
            Notice::PeerMisbehaved { peer, .. } => Some(Condition::Misbehaves(*peer)),
            _ => None,
        }
    }

    /// What a notice says to be the case no more.
    pub(super) fn ended_by(notice: &Notice) -> Vec<Condition> {
        match notice {
            Notice::PeerJoined(peer) => vec![Condition::Alone, Condition::Foreign(*peer), Condition::Refused(*peer)],
            Notice::StateReceived { .. } => vec![Condition::WaitingForModel],
            _ => Vec::new(),
        }
    }

    /// Whether nothing else says when it ends.
    pub(super) fn ends_by_itself(&self) -> bool {
        matches!(
            self,
            Condition::DriftsApart | Condition::Refused(_) | Condition::TurnedAway(_) | Condition::Misbehaves(_)
        )
    }

    /// What to say when it is over; nothing where it was met once and names no state that people wait to end.
    pub(super) fn over(&self, ended: Ended, names: &Names) -> Option<String> {
        let Ended { count, lasted } = ended;
        let met = if count > 1 { format!(", noticed {}", counted(count, "time")) } else { String::new() };
        let took = if lasted > Duration::ZERO { format!(" after {}", duration(lasted)) } else { String::new() };
        match self {
            Condition::Alone => Some(format!("alone no more{took}{met}")),
            Condition::WaitingForModel => Some(format!("the model has come{took}{met}")),
            Condition::Settling | Condition::Complete | Condition::CompleteAtRest => None,
            _ if count == 1 => None,
            Condition::DriftsApart => Some(format!("the models drift apart no more{met} in {}", duration(lasted))),
            Condition::Foreign(peer) => Some(format!("{} takes part in this run now{met}", names.of(*peer))),
            Condition::Refused(peer) => {
                Some(format!("peer {}: refused no more{met} in {}", names.of(*peer), duration(lasted)))
            }
            Condition::TurnedAway(peer) => {
                Some(format!("peer {}: turns this node away no more{met} in {}", names.of(*peer), duration(lasted)))
            }
            Condition::Misbehaves(peer) => {
                Some(format!("peer {}: no misbehaviour any more{met} in {}", names.of(*peer), duration(lasted)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::conditions::Conditions;

    fn peer(number: u8) -> PeerId {
        PeerId::from_public_key([number; 32])
    }

    #[test]
    fn being_alone_is_said_once_and_its_end_with_how_long_it_was() {
        let mut conditions = Conditions::new();
        let alone = Condition::of(&Notice::Alone { reason: None }).expect("lasts");
        let said = (1..=17).filter(|turn| conditions.meet(Duration::from_secs(20 * turn), alone.clone())).count();
        assert_eq!(said, 1);
        let ending = Condition::ended_by(&Notice::PeerJoined(peer(1)));
        let ended: Vec<String> = ending
            .iter()
            .filter_map(|condition| conditions.end(Duration::from_secs(360), condition).map(|ended| (condition, ended)))
            .filter_map(|(condition, ended)| condition.over(ended, &Names::default()))
            .collect();
        assert_eq!(ended, ["alone no more after 5 min 40 s, noticed 17 times"]);
    }

    #[test]
    fn a_connection_on_which_nothing_was_said_is_no_warning() {
        let words = describe(&Notice::PeerRefused { peer: peer(1), refusal: Refusal::Silent }, &Names::default());
        assert!(words.hint.is_none() && words.text.ends_with("has not greeted in time"), "{}", words.text);
    }

    #[test]
    fn a_peer_of_another_run_is_no_warning() {
        let refused = |refusal| describe(&Notice::PeerRefused { peer: peer(1), refusal }, &Names::default());
        let other_run = |differences: &[&str]| {
            let differences = differences.iter().map(|difference| (*difference).to_owned()).collect();
            refused(Refusal::OtherRun { run: murmur_protocol::RunId([1; 32]), differences })
        };
        let founder = "run.founder: \"a\" here, \"b\" there";
        let cases = [
            (other_run(&["model.layers: 2 here, 4 there", founder]), "is left alone: it takes part in another run"),
            (other_run(&[founder]), "is left alone: it takes part in another founder's run of the same name"),
            (refused(Refusal::Stranger), "is left alone: it is of another run, or has no ticket of this closed one"),
            (refused(Refusal::Closed), "is left alone: its run is closed; if it is this one, join with a ticket"),
        ];
        for (words, expected) in cases {
            assert!(words.hint.is_none() && words.text.contains(expected), "{}", words.text);
        }
    }

    #[test]
    fn who_is_turned_away_reads_why_and_what_comes_next() {
        let text = |others| describe(&Notice::TurnedAway { peer: peer(1), others }, &Names::default()).text;
        let why = "has no place for this node, because it has enough members, of all or of this node's address: ";
        for (others, next) in
            [(0, "it is asked again later"), (1, "1 member that"), (7, "7 members that it has named come first")]
        {
            let text = text(others);
            assert!(text.contains(&format!("{why}{next}")), "{text}");
        }
        // It is said once, and that it is over where it came again.
        let condition = Condition::of(&Notice::TurnedAway { peer: peer(1), others: 1 }).expect("lasts");
        let over = |count| condition.over(Ended { count, lasted: Duration::from_secs(60) }, &Names::default());
        let expected = format!("peer {}: turns this node away no more, noticed 2 times in 1 min 0 s", peer(1).short());
        assert_eq!((condition.ends_by_itself(), over(1), over(2)), (true, None, Some(expected)));
    }

    #[test]
    fn one_member_averages_with_nobody() {
        let changed = |members| Notice::MembersChanged { members, joined: vec![peer(1)], left: vec![] };
        let text = |members| describe(&changed(members), &Names::default()).text;
        assert!(text(1).starts_with("1 member averages with nobody (new: "), "{}", text(1));
        assert!(text(2).starts_with("2 members average together (new: "), "{}", text(2));
    }

    #[test]
    fn what_peers_write_stays_in_its_line_and_does_nothing() {
        let refusal = Refusal::Garbage("\u{1b}]0;x\u{7}\nerror: run".to_owned());
        let words = describe(&Notice::PeerRefused { peer: peer(1), refusal }, &Names::default());
        assert!(!words.text.contains(char::is_control), "{:?}", words.text);
        let words = describe(&Notice::Alone { reason: Some("\u{9b}2J\n".to_owned()) }, &Names::default());
        assert!(!words.text.contains(char::is_control), "{:?}", words.text);
    }
}
