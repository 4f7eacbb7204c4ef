//! `#[derive(Job)]` for Windlass. Use it through the `windlass` crate.

#![forbid(unsafe_code)]

mod attribute;
mod name;

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, parse_macro_input};

use attribute::Attribute;

/// Implements `Job` for a serializable struct or enum without generic parameters.
///
/// ```ignore
/// #[derive(Serialize, Deserialize, Job)]
/// #[job(name = "provision-account", entry, then(SendWelcome), output = CrmId)]
/// struct ProvisionAccount { user_id: i64 }
/// ```
///
/// | in `#[job(…)]` | meaning |
/// |---|---|
/// | `name = "…"` | stored name; default: the type's name in kebab-case (`HTTPFetch` becomes `http-fetch`) |
/// | `alias("…", …)` | former names |
/// | `entry` | the job type may start a chain |
/// | `output = T` | output of a chain that ends in this job; default: `()` |
/// | `then(A, B)` | declared continuations |
/// | `blocked_by(A, B)` | chains to wait for; `blocked_by(Vec<A>)` for a list, `blocked_by(A, Rest<B>)` for both |
/// | `max_attempts = 5`, `priority = 1` | as in `JobOptions`; any expression |
/// | `lease`, `renewal`, `timeout`, `backoff`, `retention` | as in `JobOptions`: `timeout = Duration::from_secs(30)` |
/// | `on_blocker_failure = OnBlockerFailure::Fail` | what happens if a blocker fails; default: the job waits |
/// | `options = expression` | a `JobOptions` value for the options that are not set here |
/// | `crate = path` | path of the windlass crate; default: `::windlass` |
///
/// Each option may appear only once.
#[proc_macro_derive(Job, attributes(job))]
pub fn derive_job(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}

fn expand(input: &DeriveInput) -> syn::Result<Tokens> {
    check_shape(input)?;
    let attribute = Attribute::read(input)?;
    let Attribute { name, aliases, entry, output, next, blockers, root, .. } = &attribute;
    let job = &input.ident;
    let options = attribute.options();
    let bounds = &input.generics.where_clause;
    let entry = entry.then(|| quote!(impl #root::Entry for #job #bounds {}));
    Ok(quote! {
        impl #root::Job for #job #bounds {
            const NAME: &'static str = #name;
            const ALIASES: &'static [&'static str] = &[#(#aliases),*];
            type Output = #output;
            type Next = (#(#next,)*);
            type Blockers = #blockers;
            #options
        }
        #entry
        #(impl #root::Then<#next> for #job #bounds {})*
    })
}

/// Rejects types that cannot be job types, before the compiler reports a less helpful error.
fn check_shape(input: &DeriveInput) -> syn::Result<()> {
    if let Data::Union(data) = &input.data {
        let message = "a union cannot be a job type because it cannot be serialized: use a struct or an enum";
        return Err(Error::new(data.union_token.span(), message));
    }
    if !input.generics.params.is_empty() {
        let message = "a job type cannot be generic because all its instances would share one stored name: derive \
                       `Job` for a separate type per instance";
        return Err(Error::new(input.generics.params.span(), message));
    }
    Ok(())
}
