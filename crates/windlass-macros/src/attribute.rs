use std::collections::HashSet;

use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::meta::ParseNestedMeta;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{DeriveInput, Error, Expr, Lit, LitStr, Path, Result, Token, Type, parenthesized, parse_quote};

use crate::name::{check_aliases, default_name, given_name};

/// Parsed contents of `#[job(…)]`.
pub(crate) struct Attribute {
    pub(crate) name: String,
    pub(crate) aliases: Vec<LitStr>,
    pub(crate) entry: bool,
    pub(crate) output: Type,
    pub(crate) next: Vec<Type>,
    pub(crate) blockers: Type,
    pub(crate) root: Path,
    base: Option<Expr>,
    /// Fields of `JobOptions` with their values.
    fields: Vec<Tokens>,
}

impl Attribute {
    pub(crate) fn read(input: &DeriveInput) -> Result<Self> {
        let mut read = Self {
            name: String::new(),
            aliases: Vec::new(),
            entry: false,
            output: parse_quote!(()),
            next: Vec::new(),
            blockers: parse_quote!(()),
            root: parse_quote!(::windlass),
            base: None,
            fields: Vec::new(),
        };
        let mut words = HashSet::new();
        for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("job")) {
            attribute.parse_nested_meta(|meta| {
                let word = meta.path.get_ident().map(ToString::to_string).ok_or_else(|| unknown(&meta))?;
                read.item(&word, &meta)?;
                if words.insert(word.clone()) { Ok(()) } else { Err(repeated(&word, &meta)) }
            })?;
        }
        if read.name.is_empty() {
            read.name = default_name(&input.ident)?;
        }
        check_aliases(&read.name, &read.aliases)?;
        Ok(read)
    }

    fn item(&mut self, word: &str, meta: &ParseNestedMeta<'_>) -> Result<()> {
        match word {
            "name" => self.name = given_name(&meta.value()?.parse()?)?,
            "alias" => self.aliases = list(meta)?,
            "entry" => self.entry = true,
            "output" => self.output = meta.value()?.parse::<UnquotedType>()?.0,
            "then" => self.next = types(meta)?,
            "blocked_by" => self.blockers = blockers(&types(meta)?),
            "max_attempts" => {
                let attempts = attempts(meta.value()?.parse()?)?;
                self.fields.push(quote!(max_attempts: ::core::option::Option::Some(#attempts),));
            }
            "lease" | "renewal" | "timeout" | "backoff" => {
                let (field, value) = (&meta.path, meta.value()?.parse::<Expr>()?);
                self.fields.push(quote!(#field: ::core::option::Option::Some(#value),));
            }
            "priority" | "retention" | "on_blocker_failure" => {
                let (field, value) = (&meta.path, meta.value()?.parse::<Expr>()?);
                self.fields.push(quote!(#field: #value,));
            }
            "options" => self.base = Some(meta.value()?.parse()?),
            "crate" => self.root = meta.value()?.parse()?,
            _ => return Err(unknown(meta)),
        }
        Ok(())
    }

    /// Returns the `options` function, or `None` if the attribute changes no option.
    pub(crate) fn options(&self) -> Option<Tokens> {
        let root = &self.root;
        let base =
            self.base.as_ref().map_or_else(|| quote!(#root::JobOptions::default()), |base| quote!(#base));
        let fields = &self.fields;
        let changed = self.base.is_some() || !fields.is_empty();
        changed.then(|| {
            quote! {
                fn options() -> #root::JobOptions {
                    #[allow(clippy::needless_update, reason = "all options may be set")]
                    #root::JobOptions { #(#fields)* ..#base }
                }
            }
        })
    }
}

fn unknown(meta: &ParseNestedMeta<'_>) -> Error {
    meta.error(
        "unknown option: use `name`, `alias`, `entry`, `output`, `then`, `blocked_by`, `max_attempts`, `priority`, `lease`, \
         `renewal`, `timeout`, `backoff`, `retention`, `on_blocker_failure`, `options` or `crate`",
    )
}

fn repeated(word: &str, meta: &ParseNestedMeta<'_>) -> Error {
    let remedy = match word {
        "then" | "blocked_by" => format!("list all types in one: `{word}(A, B)`"),
        "alias" => "list all names in one: `alias(\"a\", \"b\")`".to_owned(),
        _ => "remove one".to_owned(),
    };
    meta.error(format!("`{word}` is set twice: {remedy}"))
}

/// Rejects a literal zero: such a job would fail before its first attempt.
fn attempts(expression: Expr) -> Result<Expr> {
    let mut inner = &expression;
    loop {
        inner = match inner {
            Expr::Group(group) => &group.expr,
            Expr::Paren(paren) => &paren.expr,
            _ => break,
        };
    }
    let is_zero = matches!(inner, Expr::Lit(literal)
        if matches!(&literal.lit, Lit::Int(number) if number.base10_digits() == "0"));
    if is_zero {
        let message = "`max_attempts` must be at least 1, got 0: omit it for the default of 25";
        return Err(Error::new(expression.span(), message));
    }
    Ok(expression)
}

/// Parses a parenthesized, comma-separated list.
fn list<T: Parse>(meta: &ParseNestedMeta<'_>) -> Result<Vec<T>> {
    let content;
    parenthesized!(content in meta.input);
    Ok(Punctuated::<T, Token![,]>::parse_terminated(&content)?.into_iter().collect())
}

/// Parses a parenthesized list of types.
fn types(meta: &ParseNestedMeta<'_>) -> Result<Vec<Type>> {
    Ok(list::<UnquotedType>(meta)?.into_iter().map(|unquoted| unquoted.0).collect())
}

/// A type. Other derive macros take types as strings, so a string gets its own error.
struct UnquotedType(Type);

impl Parse for UnquotedType {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if input.peek(LitStr) {
            let quoted = input.parse::<LitStr>()?;
            let message = format!("expected a type: write `{}` without quotes", quoted.value());
            return Err(Error::new(quoted.span(), message));
        }
        input.parse().map(Self)
    }
}

/// Returns the blockers type: a single `Vec` as it is, anything else as a tuple.
fn blockers(types: &[Type]) -> Type {
    let is_list = |only: &Type| matches!(only, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "Vec"));
    match types {
        [only] if is_list(only) => only.clone(),
        _ => parse_quote!((#(#types,)*)),
    }
}
