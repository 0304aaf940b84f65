//! Technologies of uplinks, and the order in which they are tried.

use std::fmt;

crate::named! {
    /// The technology of an uplink; it suggests how soon a first answer comes (XLINK section 5.3).
    Technology {
        /// A cable.
        Wired = "wired",
        /// Standalone 5G, with its own core network.
        FiveGSa = "5g-sa",
        /// Non-standalone 5G, with the core network of LTE.
        FiveGNsa = "5g-nsa",
        /// WiFi.
        Wifi = "wifi",
        /// LTE.
        Lte = "lte",
        /// A satellite.
        Satellite = "satellite",
    }
}

impl Technology {
    /// The order of XLINK section 5.3, with the ones that it does not name around it.
    pub const ORDER: [Self; 6] = Self::ALL;

    /// The place of an uplink in `order`, from 0. Unknown ones are first, as they are mostly
    /// cables; technologies that `order` lacks are last.
    pub fn rank(technology: Option<Self>, order: &[Self]) -> u8 {
        let Some(technology) = technology else { return 0 };
        let place = order.iter().position(|known| *known == technology);
        u8::try_from(place.unwrap_or(order.len())).unwrap_or(u8::MAX)
    }
}

impl fmt::Display for Technology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_places_in_the_order() {
        let rank = |technology| Technology::rank(technology, &Technology::ORDER);
        assert_eq!(rank(None), rank(Some(Technology::Wired)));
        assert!(Technology::ORDER.map(|technology| rank(Some(technology))).is_sorted());
        let own = [Technology::Satellite, Technology::Lte];
        let rank = |technology| Technology::rank(Some(technology), &own);
        assert_eq!([Technology::Satellite, Technology::Lte].map(rank), [0, 1]);
        assert_eq!([Technology::Wifi, Technology::FiveGSa].map(rank), [2, 2]);
    }
}
