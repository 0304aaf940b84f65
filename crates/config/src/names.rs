//! The names of a file's fields, from its types.

use std::iter::once;

use serde::de::value::{Error, MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

/// The names of all fields of a file, such as `uplinks.policies.weight`.
pub fn field_names<T: DeserializeOwned>() -> Vec<String> {
    let mut names = Vec::new();
    add::<T>(&mut Vec::new(), &mut names);
    names
}

fn add<T: DeserializeOwned>(path: &mut Vec<&'static str>, names: &mut Vec<String>) {
    let mut fields: &[&str] = &[];
    // Reading always ends with an error: where `path` ends, if not before.
    let _ = T::deserialize(Probe { path, fields: &mut fields });
    if fields.is_empty() {
        names.push(path.join("."));
    }
    for field in fields {
        path.push(*field);
        add::<T>(path, names);
        path.pop();
    }
}

struct Probe<'a> {
    path: &'a [&'static str],
    fields: &'a mut &'static [&'static str],
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("the end of the path"))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(SeqDeserializer::new(once(self)))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if let Some((first, path)) = self.path.split_first() {
            let value = Probe { path, fields: self.fields };
            return visitor.visit_map(MapDeserializer::new(once((*first, value))));
        }
        // A TOML datetime is a struct with a name of its own.
        if !name.starts_with('$') {
            *self.fields = fields;
        }
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct tuple tuple_struct map enum identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, Error> for Probe<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}
