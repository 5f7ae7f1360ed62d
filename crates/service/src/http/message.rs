//! The JSON that clients send. Text is borrowed from the body where it has no escapes. Messages contain API keys and other
//! headers, so they have no `Debug` form.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde_json::value::RawValue;
use smallvec::SmallVec;

/// The most headers of a request to be checked.
const MAX_HEADERS: usize = 100;
/// The most checks of a batch.
const MAX_BATCH: usize = 1_000;
/// The largest number up to which a float represents all whole numbers: 2^53 − 1.
const MAX_EXACT: f64 = 9_007_199_254_740_991.0;

/// Text that is borrowed if possible. serde borrows a `Cow` only in a type like this.
#[derive(Clone, Deserialize)]
pub(super) struct MessageText<'b>(#[serde(borrow)] pub(super) Cow<'b, str>);

/// The body of `/v1/check`: one check, or a list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, remote = "CheckMessage")]
pub(super) struct CheckMessage<'b> {
    #[serde(borrow, default)]
    pub(super) rule: Option<MessageText<'b>>,
    #[serde(borrow, default)]
    pub(super) client: Option<ClientMessage<'b>>,
    #[serde(default, deserialize_with = "whole_number")]
    pub(super) cost: Option<u64>,
    #[serde(borrow, default)]
    pub(super) request: Option<RequestMessage<'b>>,
    #[serde(borrow, default)]
    pub(super) checks: Option<BatchMessage<'b>>,
}

/// The checks of a batch, each a [`SingleCheckMessage`] that is parsed when it is decided: one that is invalid has an error of
/// its own, and only one of them is in memory, where it is much larger than its JSON.
pub(super) struct BatchMessage<'b>(pub(super) Vec<&'b RawValue>);

/// One check: of a rule, or of a request. Also the body of `/v1/peek`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, remote = "SingleCheckMessage")]
pub(super) struct SingleCheckMessage<'b> {
    #[serde(borrow, default)]
    pub(super) rule: Option<MessageText<'b>>,
    #[serde(borrow, default)]
    pub(super) client: Option<ClientMessage<'b>>,
    #[serde(default, deserialize_with = "whole_number")]
    pub(super) cost: Option<u64>,
    #[serde(borrow, default)]
    pub(super) request: Option<RequestMessage<'b>>,
}

/// The body of `/v1/refund`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, remote = "RefundMessage")]
pub(super) struct RefundMessage<'b> {
    #[serde(borrow)]
    pub(super) rule: Cow<'b, str>,
    #[serde(borrow, default)]
    pub(super) client: Option<ClientMessage<'b>>,
    #[serde(default, deserialize_with = "whole_number")]
    pub(super) cost: Option<u64>,
    /// Unix seconds.
    #[serde(default)]
    pub(super) charged_at: Option<f64>,
}

/// The body of `/v1/reset`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, remote = "ResetMessage")]
pub(super) struct ResetMessage<'b> {
    #[serde(borrow)]
    pub(super) rule: Cow<'b, str>,
    #[serde(borrow, default)]
    pub(super) client: Option<ClientMessage<'b>>,
}

/// The body of `/v1/reserve`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, remote = "ReserveMessage")]
pub(super) struct ReserveMessage<'b> {
    #[serde(borrow, default)]
    pub(super) rule: Option<MessageText<'b>>,
    #[serde(borrow, default)]
    pub(super) client: Option<ClientMessage<'b>>,
    #[serde(default, deserialize_with = "whole_number")]
    pub(super) cost: Option<u64>,
    /// Rules that are decided together, in place of one.
    #[serde(borrow, default)]
    pub(super) checks: Option<BatchMessage<'b>>,
    /// A request whose rules are decided together.
    #[serde(borrow, default)]
    pub(super) request: Option<RequestMessage<'b>>,
    /// Seconds.
    #[serde(default, deserialize_with = "whole_number")]
    pub(super) ttl: Option<u64>,
}

/// The body of `/v1/commit`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, remote = "CommitMessage")]
pub(super) struct CommitMessage<'b> {
    #[serde(borrow)]
    pub(super) reservation: Cow<'b, str>,
    #[serde(default, deserialize_with = "stated_number")]
    pub(super) cost: Option<WholeNumber>,
    /// The costs of several rules, by name.
    #[serde(default)]
    pub(super) costs: Option<BTreeMap<String, WholeNumber>>,
}

/// A number that is stated; `None` is an error.
#[derive(Deserialize)]
pub(super) struct WholeNumber(#[serde(deserialize_with = "whole_number")] pub(super) Option<u64>);

/// Implements `Deserialize` for messages that must be objects. A derived implementation also accepts a list of the values, whose
/// meaning would depend on the order of the fields here; with `remote` the derive only makes a function.
macro_rules! deserialize_objects {
    ($($message:ident),+) => {$(
        impl<'b, 'de: 'b> Deserialize<'de> for $message<'b> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct ObjectVisitor<'b>(PhantomData<&'b ()>);

                impl<'b, 'de: 'b> Visitor<'de> for ObjectVisitor<'b> {
                    type Value = $message<'b>;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                        // The function that the derive makes, not the method of the trait.
                        $message::deserialize(MapAccessDeserializer::new(map))
                    }
                }

                deserializer.deserialize_map(ObjectVisitor(PhantomData))
            }
        }
    )+};
}

deserialize_objects!(
    CheckMessage,
    SingleCheckMessage,
    RefundMessage,
    ResetMessage,
    ReserveMessage,
    CommitMessage,
    RequestMessage
);

impl<'b, 'de: 'b> Deserialize<'de> for BatchMessage<'b> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BatchVisitor<'b>(PhantomData<&'b ()>);

        impl<'b, 'de: 'b> Visitor<'de> for BatchVisitor<'b> {
            type Value = BatchMessage<'b>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of checks")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut checks = Vec::new();
                while let Some(check) = list.next_element()? {
                    if checks.len() >= MAX_BATCH {
                        let message = format_args!("more than {MAX_BATCH} checks; send several requests");
                        return Err(A::Error::custom(message));
                    }
                    checks.push(check);
                }
                Ok(BatchMessage(checks))
            }
        }

        deserializer.deserialize_seq(BatchVisitor(PhantomData))
    }
}

/// A number that is `null` is not one that is missing.
fn stated_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<WholeNumber>, D::Error> {
    whole_number(deserializer).map(|number| Some(WholeNumber(number)))
}

/// A number that may be missing. The error says what is expected in words, not as a type of a programming language.
fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    struct NumberVisitor;

    impl Visitor<'_> for NumberVisitor {
        type Value = Option<u64>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number of at least 0")
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
            Ok(Some(number))
        }

        /// JSON has one kind of numbers: 2, 2.0 and 2e0 are the same.
        fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "the range is checked"
            )]
            let whole =
                ((0.0..=MAX_EXACT).contains(&number) && number.fract() == 0.0).then_some(number as u64);
            whole.map(Some).ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
    }

    deserializer.deserialize_any(NumberVisitor)
}

/// A request to be checked like one of the gateway.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, remote = "RequestMessage")]
pub(super) struct RequestMessage<'b> {
    #[serde(borrow)]
    pub(super) method: Cow<'b, str>,
    #[serde(borrow, default)]
    pub(super) host: Option<MessageText<'b>>,
    #[serde(borrow)]
    pub(super) path: Cow<'b, str>,
    #[serde(default)]
    pub(super) headers: Option<HeadersMessage>,
    pub(super) peer: IpAddr,
    #[serde(borrow, default)]
    pub(super) body: Option<MessageText<'b>>,
    #[serde(borrow, default)]
    pub(super) body_user: Option<MessageText<'b>>,
}

/// The client of a rule.
pub(super) enum ClientMessage<'b> {
    /// One identity: `user:bob`.
    Text(MessageText<'b>),
    /// Several identities by kind, for rules that count combinations.
    Identities(Vec<(MessageText<'b>, MessageText<'b>)>),
}

impl<'b, 'de: 'b> Deserialize<'de> for ClientMessage<'b> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ClientVisitor;

        impl<'de> Visitor<'de> for ClientVisitor {
            type Value = ClientMessage<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a client like \"user:bob\", or an object of identities by kind")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(ClientMessage::Text(MessageText(Cow::Borrowed(text))))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(ClientMessage::Text(MessageText(Cow::Owned(text.to_owned()))))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut identities = Vec::new();
                while let Some(identity) = map.next_entry()? {
                    identities.push(identity);
                }
                Ok(ClientMessage::Identities(identities))
            }
        }

        deserializer.deserialize_any(ClientVisitor)
    }
}

/// The headers of a request: an object whose values are texts or lists of texts. Repeated names add up, as in HTTP.
pub(super) struct HeadersMessage(pub(super) HeaderMap);

impl<'de> Deserialize<'de> for HeadersMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeadersVisitor;

        impl<'de> Visitor<'de> for HeadersVisitor {
            type Value = HeadersMessage;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of headers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut headers = HeaderMap::new();
                while let Some(name) = map.next_key::<MessageText<'de>>()? {
                    let name = HeaderName::from_bytes(name.0.as_bytes());
                    let name = name.map_err(|_| A::Error::custom("invalid header name"))?;
                    for value in map.next_value::<HeaderValues>()?.0 {
                        headers.append(name.clone(), value);
                    }
                    if headers.len() > MAX_HEADERS {
                        return Err(A::Error::custom(format_args!("more than {MAX_HEADERS} headers")));
                    }
                }
                Ok(HeadersMessage(headers))
            }
        }

        deserializer.deserialize_map(HeadersVisitor)
    }
}

/// The values of one header.
struct HeaderValues(SmallVec<[HeaderValue; 1]>);

impl<'de> Deserialize<'de> for HeaderValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ValuesVisitor;

        impl<'de> Visitor<'de> for ValuesVisitor {
            type Value = HeaderValues;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the value of a header, or a list of values")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(HeaderValues(SmallVec::from_iter([header_value(text)?])))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut values = SmallVec::new();
                while let Some(text) = list.next_element::<MessageText<'de>>()? {
                    if values.len() >= MAX_HEADERS {
                        return Err(A::Error::custom(format_args!("more than {MAX_HEADERS} headers")));
                    }
                    values.push(header_value(&text.0)?);
                }
                Ok(HeaderValues(values))
            }
        }

        deserializer.deserialize_any(ValuesVisitor)
    }
}

/// HTTP ignores white space around a value, so a value has one spelling here too.
fn header_value<E: Error>(text: &str) -> Result<HeaderValue, E> {
    HeaderValue::from_str(text.trim_matches([' ', '\t'])).map_err(|_| E::custom("invalid header value"))
}
