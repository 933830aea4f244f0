//! A payload that a partner needs: sent once, and again only where it broke off. And what an exchange has of them.

use crate::Payload;
use crate::effect::TransferId;
use crate::message::TransferHeader;
use crate::numerics::Reference;
use crate::outbox::Outbox;
use crate::peer::PeerId;

#[derive(Debug)]
pub(super) struct Outbound {
    to: PeerId,
    header: TransferHeader,
    payload: Payload,
    delivery: Delivery,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    OnItsWay(TransferId),
    /// The partner has confirmed it.
    Arrived,
    BrokenOff,
}

impl Outbound {
    /// Sends it.
    pub(super) fn new(to: PeerId, header: TransferHeader, payload: Payload, out: &mut Outbox) -> Outbound {
        let delivery = Delivery::OnItsWay(out.transfer(to, header.clone(), payload.clone()));
        Outbound { to, header, payload, delivery }
    }

    pub(super) fn payload(&self) -> &Payload {
        &self.payload
    }

    pub(super) fn is_on_its_way(&self) -> bool {
        matches!(self.delivery, Delivery::OnItsWay(_))
    }

    pub(super) fn has_arrived(&self) -> bool {
        self.delivery == Delivery::Arrived
    }

    /// The partner is there and still waits for something.
    pub(super) fn send_again(&mut self, out: &mut Outbox) {
        if self.delivery == Delivery::BrokenOff {
            self.delivery = Delivery::OnItsWay(out.transfer(self.to, self.header.clone(), self.payload.clone()));
        }
    }

    /// Frees the memory of what is needed no more.
    pub(super) fn forget_arrived(&mut self) {
        if self.has_arrived() {
            self.payload = Payload::default();
        }
    }

    /// A transfer has ended, perhaps this one.
    pub(super) fn on_transfer_ended(&mut self, ended: TransferId, finished: bool) {
        if self.delivery == Delivery::OnItsWay(ended) {
            self.delivery = if finished { Delivery::Arrived } else { Delivery::BrokenOff };
        }
    }
}

/// What both sides of an exchange have sent.
#[derive(Debug)]
pub(super) struct Correspondence {
    /// On a link: what the codes refer to.
    pub(super) reference: Option<Reference>,
    pub(super) scales: Outbound,
    pub(super) codes: Outbound,
    pub(super) reply: Option<Payload>,
    pub(super) digest: Option<u64>,
}

impl Correspondence {
    pub(super) fn is_on_its_way(&self) -> bool {
        self.scales.is_on_its_way() || self.codes.is_on_its_way()
    }

    /// What the partner needs of us.
    pub(super) fn sent_mut(&mut self) -> [&mut Outbound; 2] {
        [&mut self.scales, &mut self.codes]
    }
}
