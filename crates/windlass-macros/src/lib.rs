//! `#[derive(Job)]` for Windlass. Use it through the `windlass` crate.

mod attribute;

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::quote;
use syn::{DeriveInput, parse_macro_input};

use attribute::Attribute;

/// Makes a job type of a serializable struct or enum.
///
/// ```ignore
/// #[derive(Serialize, Deserialize, Job)]
/// #[job(name = "provision-account", entry, then(SendWelcome), output = CrmId)]
/// struct ProvisionAccount { user_id: i64 }
/// ```
///
/// | in `#[job(…)]` | means |
/// |---|---|
/// | `name = "…"` | the stored name; the type's name in kebab-case unless given |
/// | `alias("…", …)` | former names |
/// | `entry` | it may start a chain |
/// | `output = T` | what a chain that ends with it gives; `()` unless given |
/// | `then(A, B)` | its declared continuations |
/// | `blocked_by(A, B)` | the chains it waits for; `blocked_by(Vec<A>)` for a list, `blocked_by(A, Rest<B>)` for both |
/// | `max_attempts = 5`, `priority = 1` | as in `JobOptions` |
/// | `options = expression` | a `JobOptions` to start from |
/// | `crate = path` | where windlass is, if not at `::windlass` |
#[proc_macro_derive(Job, attributes(job))]
pub fn derive_job(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}

fn expand(input: &DeriveInput) -> syn::Result<Tokens> {
    let attribute = Attribute::read(input)?;
    let Attribute { name, aliases, entry, output, next, blockers, root, .. } = &attribute;
    let job = &input.ident;
    let options = attribute.options();
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    let entry = entry.then(|| quote!(impl #generics #root::Entry for #job #arguments #bounds {}));
    Ok(quote! {
        impl #generics #root::Job for #job #arguments #bounds {
            const NAME: &'static str = #name;
            const ALIASES: &'static [&'static str] = &[#(#aliases),*];
            type Output = #output;
            type Next = (#(#next,)*);
            type Blockers = #blockers;
            #options
        }
        #entry
        #(impl #generics #root::Then<#next> for #job #arguments #bounds {})*
    })
}
