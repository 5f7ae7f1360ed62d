//! How ambiguous requests are handled: `http` in the policy and in a route.

/// The settings of `http`. A [`Route`](crate::Route) carries its own with the defaults of the policy filled in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HttpOptions {
    /// How `%2F`, `%5C` and encoded control characters in a path are handled.
    pub encoded_slash: EncodedSlash,
    /// Whether limits match paths without regard to case.
    pub path_case: PathCase,
    /// Whether headers with an underscore in their name are forwarded.
    pub underscore_headers: UnderscoreHeaders,
}

impl HttpOptions {
    /// Each setting as its key and its value, as a policy writes them.
    pub fn settings(&self) -> [(&'static str, &'static str); 3] {
        [
            ("encoded_slash", self.encoded_slash.name()),
            ("path_case", self.path_case.name()),
            ("underscore_headers", self.underscore_headers.name()),
        ]
    }
}

tidegate_core::named_enum! {
    /// How `%2F`, `%5C` and encoded control characters in a path are handled.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum EncodedSlash {
        /// The request is rejected with 400.
        #[default]
        Reject = "reject",
        /// The path is forwarded as sent; the limits of both readings apply.
        Keep = "keep",
        /// `%2F` and `%5C` become `/` before routing, matching and forwarding; control characters are rejected.
        Decode = "decode",
    }
}

tidegate_core::named_enum! {
    /// Whether limits match paths without regard to case.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum PathCase {
        /// `/LOGIN` also counts against the limits of `/login`.
        #[default]
        Insensitive = "insensitive",
        /// Case matters.
        Sensitive = "sensitive",
    }
}

tidegate_core::named_enum! {
    /// Whether request headers with an underscore in their name are forwarded.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum UnderscoreHeaders {
        /// They are removed: many servers read `X_User_Id` as `X-User-Id`.
        #[default]
        Drop = "drop",
        /// They are forwarded.
        Keep = "keep",
    }
}
