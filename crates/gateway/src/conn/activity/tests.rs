//! The transitions, one by one and in every sequence.

use std::collections::HashSet;

use super::*;

const PHASES: [Phase; 7] = [
    Phase::AwaitingHead,
    Phase::ReadingHead,
    Phase::BodyUnclaimed,
    Phase::BodyInProgress,
    Phase::Unparsable,
    Phase::LingeringClose,
    Phase::Multiplexed,
];

#[test]
fn conn_state_packed_unpacks_to_the_same_state() {
    for phase in PHASES {
        for bits in 0..16_u32 {
            for in_flight in [0, 1, 128, (1 << 24) - 1] {
                let state = ConnState {
                    phase,
                    is_output_blocked: bits & 1 != 0,
                    is_response_due: bits & 2 != 0,
                    recent: RecentEvents { has_traffic: bits & 4 != 0, has_request: bits & 8 != 0 },
                    in_flight,
                };
                assert_eq!(ConnState::unpack(state.pack()), state);
            }
        }
    }
}

fn initial(phase: Phase) -> char {
    match phase {
        Phase::AwaitingHead => 'A',
        Phase::ReadingHead => 'R',
        Phase::BodyUnclaimed => 'U',
        Phase::BodyInProgress => 'P',
        Phase::Unparsable => 'X',
        Phase::LingeringClose => 'L',
        Phase::Multiplexed => 'M',
    }
}

#[test]
fn phase_after_each_event_matches_the_table() {
    type Event = fn(&mut ConnState);
    // The initials of the phases after the event, in the order of `PHASES`, which is ARUPXLM.
    let table: [(&str, Event, &str); 9] = [
        ("bytes", ConnState::bytes_received, "RRRPXLM"),
        ("buffered bytes", ConnState::head_started, "RRRPXLM"),
        ("request", |state| state.request_started(false), "AAAAXLM"),
        ("request with a body", |state| state.request_started(true), "UUUUXLM"),
        ("body claimed", ConnState::body_was_claimed, "ARPPXLM"),
        ("body ended", ConnState::body_ended, "ARUAXLM"),
        ("body dropped", ConnState::body_was_dropped, "ARUUXLM"),
        ("head rejected", ConnState::head_was_rejected, "XXXXXLM"),
        ("rejection taken", ConnState::rejection_was_taken, "ARUPRLM"),
    ];
    for (name, event, after) in table {
        let after_event = |phase| {
            let mut state = ConnState { phase, ..ConnState::default() };
            event(&mut state);
            initial(state.phase)
        };
        assert_eq!(PHASES.map(after_event).into_iter().collect::<String>(), after, "{name}");
    }
}

#[test]
fn bytes_received_during_a_request_start_no_head() {
    for phase in PHASES {
        let mut state = ConnState { phase, in_flight: 1, ..ConnState::default() };
        state.bytes_received();
        assert!(state.recent.has_traffic && state.phase == phase, "{state:?}");
    }
}

/// A model of the connection that tracks each fact separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, without a state machine")]
struct Model {
    is_head_started: bool,
    is_body_pending: bool,
    is_body_read: bool,
    is_blocked: bool,
    in_flight: u32,
    is_response_due: bool,
    is_unparsable: bool,
    is_lingering: bool,
    is_http2: bool,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    BytesReceived,
    HeadBuffered,
    RequestStarted { has_body: bool },
    RequestEnded,
    BodyClaimed,
    BodyEnded,
    BodyDropped,
    SocketWrote,
    SocketBlocked,
    ResponseReturned,
    HttpWrote,
    HeadRejected,
    RejectionTaken,
    LingerStarted,
    Http2Started,
}

impl Event {
    const ALL: [Self; 16] = [
        Self::BytesReceived,
        Self::HeadBuffered,
        Self::RequestStarted { has_body: false },
        Self::RequestStarted { has_body: true },
        Self::RequestEnded,
        Self::BodyClaimed,
        Self::BodyEnded,
        Self::BodyDropped,
        Self::SocketWrote,
        Self::SocketBlocked,
        Self::ResponseReturned,
        Self::HttpWrote,
        Self::HeadRejected,
        Self::RejectionTaken,
        Self::LingerStarted,
        Self::Http2Started,
    ];

    /// Whether hyper and the gateway can produce the event in this state.
    fn is_possible(self, model: &Model) -> bool {
        let is_closing = model.is_unparsable || model.is_lingering;
        match self {
            Self::RequestStarted { .. } => model.in_flight < 2 && !is_closing,
            Self::RequestEnded => model.in_flight > 0,
            // Bytes are put back only after a connection was taken from hyper.
            Self::HeadBuffered => model.in_flight == 0 && !model.is_body_read && !is_closing,
            // The service claims each body once.
            Self::BodyClaimed => {
                model.in_flight > 0 && model.is_body_pending && !model.is_body_read && !is_closing
            }
            Self::BodyEnded | Self::BodyDropped => model.is_body_read,
            Self::HeadRejected => {
                !model.is_response_due && model.in_flight == 0 && !model.is_http2 && !is_closing
            }
            Self::RejectionTaken => model.is_unparsable,
            Self::LingerStarted => {
                !is_closing && !model.is_http2 && (model.is_body_pending || model.is_head_started)
            }
            Self::Http2Started => {
                model.in_flight == 0 && !model.is_body_pending && !is_closing && !model.is_response_due
            }
            _ => true,
        }
    }

    fn apply_to_state(self, state: &mut ConnState) {
        match self {
            Self::BytesReceived => state.bytes_received(),
            Self::HeadBuffered => state.head_started(),
            Self::RequestStarted { has_body } => state.request_started(has_body),
            Self::RequestEnded => state.request_ended(),
            Self::BodyClaimed => state.body_was_claimed(),
            Self::BodyEnded => state.body_ended(),
            Self::BodyDropped => state.body_was_dropped(),
            Self::SocketWrote => state.socket_wrote(&Poll::Ready(Ok(1))),
            Self::SocketBlocked => state.socket_wrote(&Poll::Pending),
            Self::ResponseReturned => state.is_response_due = true,
            Self::HttpWrote => state.is_response_due = false,
            Self::HeadRejected => state.head_was_rejected(),
            Self::RejectionTaken => state.rejection_was_taken(),
            Self::LingerStarted => state.phase = Phase::LingeringClose,
            Self::Http2Started => state.phase = Phase::Multiplexed,
        }
    }

    fn apply_to_model(self, model: &mut Model) {
        match self {
            Self::BytesReceived => model.is_head_started |= model.in_flight == 0 && !model.is_body_read,
            Self::HeadBuffered => model.is_head_started = true,
            Self::RequestStarted { has_body } => {
                model.in_flight += 1;
                (model.is_head_started, model.is_body_pending, model.is_body_read) = (false, has_body, false);
            }
            Self::RequestEnded => model.in_flight -= 1,
            Self::BodyClaimed => model.is_body_read = true,
            Self::BodyEnded => (model.is_body_pending, model.is_body_read) = (false, false),
            Self::BodyDropped => model.is_body_read = false,
            Self::SocketWrote => model.is_blocked = false,
            Self::SocketBlocked => model.is_blocked = true,
            Self::ResponseReturned => model.is_response_due = true,
            Self::HttpWrote => model.is_response_due = false,
            Self::HeadRejected => model.is_unparsable = true,
            Self::RejectionTaken => (model.is_unparsable, model.is_head_started) = (false, true),
            Self::LingerStarted => model.is_lingering = true,
            Self::Http2Started => model.is_http2 = true,
        }
    }
}

fn assert_agrees(state: ConnState, model: &Model) {
    let context = || format!("{state:?} {model:?}");
    assert!(state.phase != Phase::ReadingHead || state.in_flight == 0, "{}", context());
    assert_eq!(state.in_flight, model.in_flight, "{}", context());
    assert_eq!(state.phase == Phase::Unparsable, model.is_unparsable, "{}", context());
    assert_eq!(state.phase == Phase::LingeringClose, model.is_lingering, "{}", context());
    assert_eq!(state.phase == Phase::Multiplexed, model.is_http2, "{}", context());
    let is_closing = model.is_unparsable || model.is_lingering;
    let is_between_requests = model.in_flight == 0
        && !model.is_head_started
        && !model.is_body_pending
        && !model.is_blocked
        && !is_closing
        && !model.is_http2;
    assert_eq!(state.is_between_requests(), is_between_requests, "{}", context());
    let is_unsolicited = !model.is_response_due && model.in_flight == 0 && !model.is_http2;
    assert_eq!(state.is_write_unsolicited(), is_unsolicited, "{}", context());
    // Neither is queried while a connection is closing.
    if !is_closing {
        let is_reading_head =
            model.is_head_started && model.in_flight == 0 && !model.is_http2 && !model.is_blocked;
        assert_eq!(state.is_reading_head(), is_reading_head, "{}", context());
        let may_still_send = !model.is_http2 && (model.is_body_pending || model.is_head_started);
        assert_eq!(state.may_still_send(), may_still_send, "{}", context());
    }
}

#[test]
fn conn_state_after_every_event_sequence_agrees_with_the_model() {
    let start = (ConnState::default(), Model::default());
    let (mut seen, mut new) = (HashSet::from([start]), vec![start]);
    while let Some((state, model)) = new.pop() {
        for event in Event::ALL.into_iter().filter(|event| event.is_possible(&model)) {
            let (mut state, mut model) = (state, model);
            event.apply_to_state(&mut state);
            event.apply_to_model(&mut model);
            assert_agrees(state, &model);
            if seen.insert((state, model)) {
                new.push((state, model));
            }
        }
    }
    let phases: HashSet<_> = seen.iter().map(|(state, _)| state.phase).collect();
    assert_eq!(phases.len(), PHASES.len(), "every phase is reached");
}

#[test]
fn unread_body_of_earlier_request_ending_late_does_not_affect_the_latest() {
    let activity = Arc::new(Activity::default());
    drop(activity.begin_request(true));
    let first = UnreadBody::for_latest(&activity);
    drop(activity.begin_request(true));
    first.end();
    assert!(!activity.is_between_requests() && activity.may_still_send());
    let second = UnreadBody::for_latest(&activity);
    assert!(!activity.is_between_requests());
    second.end();
    assert!(activity.is_between_requests() && !activity.may_still_send());
}

#[test]
fn unread_body_dropped_early_prevents_parking() {
    let activity = Arc::new(Activity::default());
    drop(activity.begin_request(true));
    drop(UnreadBody::for_latest(&activity));
    assert!(!activity.is_between_requests() && activity.may_still_send());
    drop(activity.begin_request(false));
    assert!(activity.is_between_requests());
}

#[test]
fn body_bytes_after_early_response_start_no_head() {
    let activity = Arc::new(Activity::default());
    drop(activity.begin_request(true));
    let body = UnreadBody::for_latest(&activity);
    activity.bytes_received();
    assert!(!activity.is_reading_head());
    // hyper has discarded the rest, or never reads again: further bytes are not part of the body.
    drop(body);
    activity.bytes_received();
    assert!(activity.is_reading_head());
}

#[test]
fn blocked_output_prevents_parking() {
    let activity = Arc::new(Activity::default());
    drop(activity.begin_request(false));
    activity.socket_wrote(&Poll::Ready(Ok(1)));
    assert!(activity.is_between_requests());
    activity.socket_wrote(&Poll::Pending);
    assert!(!activity.is_between_requests());
    activity.socket_wrote(&Poll::Ready(Ok(1)));
    assert!(activity.is_between_requests());
}
