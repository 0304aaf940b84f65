//! The fields of a file, from its types.

use std::iter::once;

use serde::de::value::{Error, MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

/// A field of a file.
#[derive(Clone, Debug, Default)]
pub struct Field {
    /// Its name with those of its tables, such as `uplinks.policies.weight`.
    pub name: String,
    /// The struct that declares it.
    pub of: &'static str,
    /// Why [`i64::MIN`] or an empty word is refused: for bounds, or the words that may be.
    pub refusal: String,
    inner: &'static [&'static str],
}

/// All fields of a file that have no fields of their own.
pub fn fields<T: DeserializeOwned>() -> Vec<Field> {
    let mut found = Vec::new();
    add::<T>(&mut Vec::new(), &mut found);
    found
}

fn add<T: DeserializeOwned>(path: &mut Vec<&'static str>, found: &mut Vec<Field>) {
    let mut field = Field { name: path.join("."), ..Field::default() };
    // Reading always ends with an error: where `path` ends, if not before.
    let error = T::deserialize(Probe { path, field: &mut field }).err();
    field.refusal = error.map_or_else(String::new, |it| it.to_string());
    for name in field.inner {
        path.push(*name);
        add::<T>(path, found);
        path.pop();
    }
    if field.inner.is_empty() {
        found.push(field);
    }
}

struct Probe<'a> {
    path: &'a [&'static str],
    field: &'a mut Field,
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
            self.field.of = name;
            let value = Probe { path, field: self.field };
            return visitor.visit_map(MapDeserializer::new(once((*first, value))));
        }
        // A TOML datetime is a struct with a name of its own.
        if !name.starts_with('$') {
            self.field.inner = fields;
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum("".into_deserializer())
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i64(i64::MIN)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct tuple tuple_struct map identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, Error> for Probe<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}
