//! A team in words for people.

use murmur_protocol::RunManifest;
use murmur_protocol::manifest::{FragmentCut, GossipSpec};
use murmur_protocol::team::{Cut, DropReason, TeamNotice};
use murmur_training::team::left_for_captain;

use crate::console::figures::{count, counted};
use crate::console::human_bytes;

/// "layers 0-3 here, 4-11 on Nft9HyQ6", in the order of the model.
pub(crate) fn described(cut: &Cut) -> String {
    let stages = cut.stages.iter().filter(|stage| !stage.layers.is_empty()).map(|stage| {
        let (first, last) = (stage.layers.first, stage.layers.end - 1);
        let layers = if first == last { first.to_string() } else { format!("{first}-{last}") };
        match stage.helper {
            None => format!("{layers} here"),
            Some(helper) => format!("{layers} on {}", helper.short()),
        }
    });
    format!("layers {}", stages.collect::<Vec<_>>().join(", "))
}

/// What a captain's owner, who has so many helpers now, is told; none of what is of no use to it.
pub(crate) fn of_captain(notice: &TeamNotice, helpers: usize) -> Option<String> {
    Some(match notice {
        TeamNotice::HelperOffered { helper } => format!("helper {} is there", helper.short()),
        TeamNotice::HelperLost { helper, reason } => format!("helper {} {}", helper.short(), lost(*reason)),
        TeamNotice::HelperDismissed { helper, reason } => {
            format!("helper {} is let go for good: {reason} (a restart of this node takes it back)", helper.short())
        }
        TeamNotice::HelperCannot { helper, reason } => {
            format!("helper {} cannot take its part: {reason}", helper.short())
        }
        TeamNotice::HelperApart { helper } => {
            format!("helper {} reaches nobody of the swarm: this node exchanges for it", helper.short())
        }
        TeamNotice::CutTaken { cut, .. } if cut.of_helpers().next().is_none() => {
            let why = match helpers {
                0 => "no helper is there".to_owned(),
                _ => format!("a team would not be faster{}", expected(cut.tokens_per_second)),
            };
            format!("{}: the model fits here, and {why}", described(cut))
        }
        TeamNotice::CutTaken { cut, alone, .. } => {
            let (why, beside) = match alone {
                None => ("the model does not fit here", String::new()),
                Some(alone) => ("faster than here alone", format!(", alone {}", count(alone.round() as u64))),
            };
            let expected = expected(cut.tokens_per_second);
            let beside = if expected.is_empty() { "" } else { &beside };
            format!("{} ({why}{expected}{beside})", described(cut))
        }
        TeamNotice::Waiting { missing_bytes: 0 } => "waits for helpers".to_owned(),
        TeamNotice::Waiting { missing_bytes } => format!("waits for a helper with {}", human_bytes(*missing_bytes)),
        TeamNotice::HelperLeaves { helper } => {
            let name = helper.short();
            format!(
                "helper {name} wants to leave, and its layers fit nowhere else: they are copied, then training waits"
            )
        }
        TeamNotice::StepsLost { layers: (first, end), revisions, of_moments } => {
            let lost = counted(*revisions, "change");
            let of_moments = match of_moments > revisions {
                true => format!(", the optimizer's moments without {}", counted(*of_moments, "change")),
                false => String::new(),
            };
            format!("layers {first}-{} go on from an older copy, without {lost}{of_moments}", end - 1)
        }
        TeamNotice::LoadFailed { reason } => format!("this machine cannot take its part: {reason}"),
        TeamNotice::CaptainLost { .. } | TeamNotice::StageLoaded { .. } | TeamNotice::StageUnloaded => return None,
    })
}

/// Nothing where it is less than one.
fn expected(tokens_per_second: f64) -> String {
    let rate = tokens_per_second.round() as u64;
    if rate > 0 { format!(", {} tokens/s expected", count(rate)) } else { String::new() }
}

/// Who exchanges what of a cut with the swarm, where the run cuts its fragments at layers.
pub(crate) fn of_exchanges(manifest: &RunManifest, cut: &Cut) -> Option<String> {
    let GossipSpec { cut: of_fragments, fragments, .. } = manifest.gossip;
    if of_fragments != FragmentCut::Layers || fragments == 1 || cut.of_helpers().next().is_none() {
        return None;
    }
    Some(match left_for_captain(manifest, cut).is_all() {
        false => "each machine exchanges its own layers with the swarm".to_owned(),
        true => format!(
            "this machine exchanges all layers: with gossip.fragments = {fragments} a stage is no whole fragments"
        ),
    })
}

/// What a helper's owner is told.
pub(crate) fn of_helper(notice: &TeamNotice) -> Option<String> {
    Some(match notice {
        TeamNotice::StageLoaded { layers: (first, end) } => format!("holds layers {first}-{}", end - 1),
        TeamNotice::StageUnloaded => "holds nothing any more, and waits for a captain".to_owned(),
        TeamNotice::HelperDismissed { reason, .. } => {
            format!("the captain has let this helper go, and does not take it again: {reason}")
        }
        TeamNotice::CaptainLost { kept_for } => {
            let kept = counted(kept_for.as_secs() / 60, "minute");
            format!("the captain is gone; its layers are kept for {kept}")
        }
        _ => return None,
    })
}

fn lost(reason: DropReason) -> &'static str {
    match reason {
        DropReason::HelperLost => "is gone",
        DropReason::HelperLate => "takes too long, and is left out",
        DropReason::HelperMisbehaved => "has sent what cannot be, and is left out",
        DropReason::StateUnfit => "has sent a state that cannot be used",
        DropReason::NotFinite => "has computed what is no number",
        DropReason::Failed => "could not compute",
        DropReason::Ended => "is let go",
    }
}

#[cfg(test)]
mod tests {
    use murmur_protocol::PeerId;
    use murmur_protocol::team::{CutStage, LayerRange};

    use super::*;

    #[test]
    fn the_cut_and_the_reason_are_told_in_one_line() {
        let helper = PeerId::from_public_key([7; 32]);
        let stage = |helper, first, end| CutStage {
            helper,
            layers: LayerRange { first, end },
            embeds: first == 0 && end == 0,
            predicts: end == 12,
            in_flight: 1,
        };
        let stages = vec![stage(None, 0, 0), stage(Some(helper), 0, 8), stage(None, 8, 12)];
        let cut = Cut { stages, tokens_per_second: 120.4 };
        let told = |alone| of_captain(&TeamNotice::CutTaken { epoch: 1, cut: cut.clone(), alone }, 1).expect("told");
        let layers = format!("layers 0-7 on {}, 8-11 here", helper.short());
        assert_eq!(told(None), format!("{layers} (the model does not fit here, 120 tokens/s expected)"));
        let faster = "faster than here alone, 120 tokens/s expected, alone 99";
        assert_eq!(told(Some(99.0)), format!("{layers} ({faster})"));
        let cut = Cut { stages: vec![stage(None, 0, 12)], tokens_per_second: 3.0 };
        let alone = TeamNotice::CutTaken { epoch: 1, cut, alone: Some(3.0) };
        let why = |helpers| of_captain(&alone, helpers).expect("told");
        assert_eq!(why(0), "layers 0-11 here: the model fits here, and no helper is there");
        let not_faster = "layers 0-11 here: the model fits here, and a team would not be faster, 3 tokens/s expected";
        assert_eq!(why(2), not_faster);
    }
}
