//! Why exchanges come to nothing: as records name it, and in words for people.

use murmur_protocol::ExchangeFailure;

/// As records name it.
pub(crate) fn failure_word(failure: ExchangeFailure) -> &'static str {
    match failure {
        ExchangeFailure::Rejected => "rejected",
        ExchangeFailure::DeadlinePassed => "deadline_passed",
        ExchangeFailure::PartnerLost => "partner_lost",
        ExchangeFailure::Misbehaved => "misbehaved",
        ExchangeFailure::Overloaded => "overloaded",
        ExchangeFailure::ModelReplaced => "model_replaced",
        ExchangeFailure::NotHeld => "not_held",
        ExchangeFailure::Outdated => "outdated",
    }
}

/// What a failure that records name so means.
pub(crate) fn failure_words(word: &str) -> &str {
    match word {
        "rejected" => "the partner was busy; another was asked (no failure)",
        "deadline_passed" => "it took too long: a slow link, or a partner that was stopped",
        "partner_lost" => "the connection to the partner was lost",
        "misbehaved" => "the partner sent what no honest node sends",
        "overloaded" => "this node had too much to do",
        "model_replaced" => "the model was replaced by another meanwhile",
        "not_held" => "another machine of this node's team took the layers over",
        "outdated" => "it took so long that the models have come much nearer meanwhile",
        other => other,
    }
}
