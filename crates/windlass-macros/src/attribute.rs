use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::meta::ParseNestedMeta;
use syn::punctuated::Punctuated;
use syn::{DeriveInput, Error, Expr, LitInt, LitStr, Path, Result, Token, Type, parenthesized, parse_quote};

/// What `#[job(…)]` says.
pub(crate) struct Attribute {
    pub(crate) name: String,
    pub(crate) aliases: Vec<LitStr>,
    pub(crate) entry: bool,
    pub(crate) output: Type,
    pub(crate) next: Vec<Type>,
    pub(crate) blockers: Type,
    pub(crate) root: Path,
    base: Option<Expr>,
    max_attempts: Option<LitInt>,
    priority: Option<Expr>,
}

impl Attribute {
    pub(crate) fn read(input: &DeriveInput) -> Result<Self> {
        let mut read = Self {
            name: kebab_case(&input.ident.to_string()),
            aliases: Vec::new(),
            entry: false,
            output: parse_quote!(()),
            next: Vec::new(),
            blockers: parse_quote!(()),
            root: parse_quote!(::windlass),
            base: None,
            max_attempts: None,
            priority: None,
        };
        for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("job")) {
            attribute.parse_nested_meta(|meta| read.item(&meta))?;
        }
        Ok(read)
    }

    fn item(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        let Some(word) = meta.path.get_ident().map(ToString::to_string) else {
            return Err(unknown(meta));
        };
        match word.as_str() {
            "name" => {
                let name: LitStr = meta.value()?.parse()?;
                check_name(&name)?;
                self.name = name.value();
            }
            "alias" => {
                self.aliases = list(meta)?;
                self.aliases.iter().try_for_each(check_name)?;
            }
            "entry" => self.entry = true,
            "output" => self.output = meta.value()?.parse()?,
            "then" => self.next = list(meta)?,
            "blocked_by" => self.blockers = blockers(&list(meta)?),
            "max_attempts" => self.max_attempts = Some(meta.value()?.parse()?),
            "priority" => self.priority = Some(meta.value()?.parse()?),
            "options" => self.base = Some(meta.value()?.parse()?),
            "crate" => self.root = meta.value()?.parse()?,
            _ => return Err(unknown(meta)),
        }
        Ok(())
    }

    /// The `options` function, unless all is as by default.
    pub(crate) fn options(&self) -> Option<Tokens> {
        let root = &self.root;
        let base =
            self.base.as_ref().map_or_else(|| quote!(#root::JobOptions::default()), |base| quote!(#base));
        let max_attempts = self.max_attempts.as_ref().map(|attempts| quote!(max_attempts: Some(#attempts),));
        let priority = self.priority.as_ref().map(|priority| quote!(priority: #priority,));
        let changed = self.base.is_some() || max_attempts.is_some() || priority.is_some();
        changed.then(|| {
            quote! {
                fn options() -> #root::JobOptions {
                    #[allow(clippy::needless_update, reason = "every option may be given")]
                    #root::JobOptions { #max_attempts #priority ..#base }
                }
            }
        })
    }
}

fn unknown(meta: &ParseNestedMeta<'_>) -> Error {
    meta.error(
        "unknown: use `name`, `alias`, `entry`, `output`, `then`, `blocked_by`, `max_attempts`, `priority`, `options` or \
         `crate`",
    )
}

/// A list in parentheses.
fn list<T: syn::parse::Parse>(meta: &ParseNestedMeta<'_>) -> Result<Vec<T>> {
    let content;
    parenthesized!(content in meta.input);
    Ok(Punctuated::<T, Token![,]>::parse_terminated(&content)?.into_iter().collect())
}

/// One `Vec` stands for itself; anything else is a tuple.
fn blockers(types: &[Type]) -> Type {
    let is_list = |only: &Type| matches!(only, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "Vec"));
    match types {
        [only] if is_list(only) => only.clone(),
        _ => parse_quote!((#(#types,)*)),
    }
}

/// What the contract asks of a name, at compile time.
fn check_name(name: &LitStr) -> Result<()> {
    let text = name.value();
    if text.is_empty() || text.len() > 200 || text.contains(char::is_control) {
        return Err(Error::new(name.span(), "a name is 1 to 200 bytes without control characters"));
    }
    Ok(())
}

/// `SendWelcome` as `send-welcome`.
fn kebab_case(name: &str) -> String {
    let mut kebab = String::new();
    for (index, char) in name.char_indices() {
        if char.is_uppercase() && index > 0 {
            kebab.push('-');
        }
        kebab.extend(char.to_lowercase());
    }
    kebab
}
