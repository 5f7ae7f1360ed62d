//! The heaviest items of a stream in bounded memory: the space-saving algorithm (Metwally, Agrawal and El Abbadi, 2005).

/// At most `N` items of a stream with their weights. Every item with more than one part in `N` of the total weight is kept.
///
/// ```
/// use tidegate_store::SpaceSaving;
///
/// let mut sketch = SpaceSaving::<_, 2>::default();
/// for name in ["a", "b", "a", "c", "a"] {
///     sketch.record(1, |known| *known == name, || name);
/// }
/// let heaviest = sketch.iter().max_by_key(|one| one.at_least()).unwrap();
/// assert_eq!((heaviest.item, heaviest.at_least()), ("a", 3));
/// ```
#[derive(Debug)]
pub struct SpaceSaving<T, const N: usize> {
    kept: Vec<WeightedItem<T>>,
}

/// An item of a stream with its estimated weight.
#[derive(Debug)]
pub struct WeightedItem<T> {
    /// The item.
    pub item: T,
    weight: u64,
    /// The weight taken over from the replaced item: the largest possible overestimate.
    inherited: u64,
}

impl<T> WeightedItem<T> {
    /// A lower bound of the weight.
    pub fn at_least(&self) -> u64 {
        self.weight - self.inherited
    }

    /// Adds the weight of the same item in another stream.
    pub fn add(&mut self, other: &Self) {
        self.weight += other.weight;
        self.inherited += other.inherited;
    }
}

impl<T, const N: usize> Default for SpaceSaving<T, N> {
    fn default() -> Self {
        const { assert!(N > 0, "N must be at least 1") };
        Self { kept: Vec::new() }
    }
}

impl<T, const N: usize> SpaceSaving<T, N> {
    /// Adds `weight` to the item that `is_known` recognises, or to a `new` one. A new item replaces the lightest if there is no
    /// room.
    pub fn record(&mut self, weight: u64, is_known: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> &mut T {
        let known = self.kept.iter().position(|one| is_known(&one.item));
        let at = known.unwrap_or_else(|| self.insert(new()));
        let counted = &mut self.kept[at];
        counted.weight += weight;
        &mut counted.item
    }

    fn insert(&mut self, item: T) -> usize {
        if self.kept.len() < N {
            self.kept.push(WeightedItem { item, weight: 0, inherited: 0 });
            return self.kept.len() - 1;
        }
        let weights = self.kept.iter().map(|one| one.weight).enumerate();
        let (lightest, weight) = weights.min_by_key(|(_, weight)| *weight).unwrap_or_default();
        self.kept[lightest] = WeightedItem { item, weight, inherited: weight };
        lightest
    }

    /// All kept items, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &WeightedItem<T>> {
        self.kept.iter()
    }

    /// Removes and returns all items.
    pub fn take(&mut self) -> Vec<WeightedItem<T>> {
        std::mem::take(&mut self.kept)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn space_saving_new_item_replaces_the_lightest_of_a_full_sketch_and_inherits_its_weight() {
        let mut sketch = SpaceSaving::<u64, 2>::default();
        for (item, weight) in [(1, 5), (2, 3), (1, 1), (3, 2)] {
            sketch.record(weight, |known| *known == item, || item);
        }
        let mut kept: Vec<_> =
            sketch.take().iter().map(|one| (one.item, one.weight, one.at_least())).collect();
        kept.sort_unstable();
        assert_eq!(kept, [(1, 6, 6), (3, 5, 2)]);
        assert_eq!(sketch.iter().count(), 0);
    }

    #[test]
    fn space_saving_item_with_more_than_one_part_in_n_of_the_weight_is_kept() {
        let mut sketch = SpaceSaving::<u64, 4>::default();
        for n in 1..=1_000 {
            let item = if n % 3 == 0 { 0 } else { n };
            sketch.record(1, |known| *known == item, || item);
        }
        assert!(sketch.iter().any(|one| one.item == 0 && one.at_least() > 300));
    }
}
