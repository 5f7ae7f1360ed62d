//! The variables of a request in expressions.

use std::borrow::Cow;

use cel::ExecutionError;
use cel::common::traits::{Container, Indexer};
use cel::common::types::{CelString, Type};
use cel::common::value::{CowVal, Val};
use cel::context::VariableResolver;
use http::HeaderMap;

use crate::facts::Facts;
use crate::identity::Identity;

tidegate_core::named_enum! {
    /// The variables of expressions, except the headers.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum RequestVariable {
        Method = "request.method",
        Host = "request.host",
        Path = "request.path",
        Kind = "client.kind",
        Ip = "client.ip",
        Tier = "client.tier",
        Tenant = "client.tenant",
        User = "client.user",
    }
}

/// The only variable that is not a string.
pub(super) const HEADERS: &str = "request.headers";

impl RequestVariable {
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|variable| variable.name() == name)
    }

    fn value<'a>(
        self,
        facts: Facts<'a>,
        identity: &'a Identity<'_>,
        tier: Option<&'a str>,
    ) -> Option<CelString<'a>> {
        Some(match self {
            Self::Method => facts.method.into(),
            Self::Host => facts.host?.into(),
            Self::Path => facts.path.into(),
            Self::Kind => identity.kind().name().into(),
            Self::Ip => identity.address().to_string().into(),
            Self::Tier => tier.unwrap_or_default().into(),
            Self::Tenant => text(identity.tenant().unwrap_or_default()),
            Self::User => text(identity.user().unwrap_or_default()),
        })
    }
}

fn text(bytes: &[u8]) -> CelString<'_> {
    match String::from_utf8_lossy(bytes) {
        Cow::Borrowed(text) => text.into(),
        Cow::Owned(text) => text.into(),
    }
}

/// The values of the variables that an expression uses, for one request.
#[derive(Debug)]
pub(super) struct RequestBindings<'a> {
    /// `None` for those that are unknown or not used.
    values: [Option<CelString<'a>>; RequestVariable::ALL.len()],
    headers: HeaderLookup<'a>,
}

impl<'a> RequestBindings<'a> {
    pub(super) fn new(
        variables: &[RequestVariable],
        facts: Facts<'a>,
        identity: &'a Identity<'_>,
        tier: Option<&'a str>,
    ) -> Self {
        let mut values = <[Option<CelString<'a>>; RequestVariable::ALL.len()]>::default();
        for &variable in variables {
            values[variable as usize] = variable.value(facts, identity, tier);
        }
        Self { values, headers: HeaderLookup(Some(facts.headers)) }
    }

    /// A request with empty values.
    pub(super) fn empty() -> Self {
        Self { values: RequestVariable::ALL.map(|_| Some(CelString::default())), headers: HeaderLookup(None) }
    }
}

impl VariableResolver for RequestBindings<'_> {
    fn resolve<'b>(&'b self, name: &str) -> Option<CowVal<'b, 'b>> {
        if name == HEADERS {
            return Some(CowVal::Borrowed(&self.headers));
        }
        let value = self.values[RequestVariable::from_name(name)? as usize].as_ref()?;
        Some(CowVal::Borrowed(value as &dyn Val))
    }
}

static HEADERS_TYPE: Type = Type::new_unspecified_type("headers");

/// The headers, looked up by name on demand.
#[derive(Debug, Clone, Copy)]
struct HeaderLookup<'a>(Option<&'a HeaderMap>);

impl<'a> HeaderLookup<'a> {
    fn find(self, name: &dyn Val) -> Result<CelString<'a>, ExecutionError> {
        let name = header_name(name)?;
        let mut lines = self.0.into_iter().flat_map(|headers| headers.get_all(name).iter());
        let first = text(lines.next().map_or(&[], http::HeaderValue::as_bytes));
        let Some(second) = lines.next() else { return Ok(first) };
        let mut joined = first.inner().to_owned();
        for line in std::iter::once(second).chain(lines) {
            joined.push_str(", ");
            joined.push_str(text(line.as_bytes()).inner());
        }
        Ok(joined.into())
    }
}

fn header_name(name: &dyn Val) -> Result<&str, ExecutionError> {
    name.downcast_ref::<CelString<'_>>().map(CelString::inner).ok_or_else(|| ExecutionError::UnexpectedType {
        got: name.get_type().name().to_owned(),
        want: "string".to_owned(),
    })
}

impl Val for HeaderLookup<'_> {
    fn get_type(&self) -> &Type {
        <Self as Val>::cel_type()
    }

    fn cel_type() -> &'static Type {
        &HEADERS_TYPE
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
    where
        Self: 'v,
    {
        Box::new(*self)
    }
}

impl Container for HeaderLookup<'_> {
    fn contains(&self, name: &dyn Val) -> Result<bool, ExecutionError> {
        let name = header_name(name)?;
        Ok(self.0.is_some_and(|headers| headers.contains_key(name)))
    }
}

impl Indexer for HeaderLookup<'_> {
    fn get<'b, 'v>(&'b self, name: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        Ok(CowVal::owned(self.find(name)?))
    }

    fn steal<'v>(self: Box<Self>, name: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        Ok(Box::new(self.find(name)?))
    }
}
